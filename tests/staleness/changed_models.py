"""Small models that read their settings in every way that Python has, as files of a user: `test_changes.py` changes
them."""

from .changed_values import FOOT, HEAD, VALUES

CODE = (
    HEAD
    + """

K, FACTORS = 1.5, (0.5, [2.0])


def helper(x, k=K):
    return x * k


def keyword(x, *, k=K):
    return x + k


def reached(x):
    return helper(x) * 0.5


def annotated(x):
    return x * annotated.k


annotated.k = 1.5
double = lambda x, k=K * 2: x * k
FUNCTIONS = {"one": [helper], "two": double}
CHAIN = [torch.sin, reached]


class Helper:
    k = 2.0

    def __init__(self):
        self.name = "helper"

    def run(self, x):
        return self.inner(x) * self.k

    def inner(self, x):
        return x + 1

    @property
    def half(self):
        return self.k * 0.5

    def __call__(self, x):
        return x * self.half


class Child(Helper):
    pass


class Callable(Helper):
    def __call__(self, x):
        return super().__call__(x) - 1


class Decorated:
    def __init__(self, function, k):
        self.function, self.k = function, k

    def __call__(self, *args):
        return self.function(*args) * self.k


def scaled(k):
    def decorate(function):
        @functools.wraps(function)
        def run(*args):
            return function(*args) * k

        return run

    return decorate


@scaled(K)
def wrapped(x):
    return x - 1


third = Decorated(helper, 0.5)
OBJECTS = [Helper(), Child()]
BOUND = Helper().run


class Mixed:
    rate = 0.5

    @classmethod
    def rated(cls):
        return cls.rate * cls.table["k"][0]

    table = {"k": [1.5]}


class Block(nn.Module):
    depth, shared = 2, [0.5]

    def __init__(self):
        super().__init__()
        self.lin, self.helper, self.act = nn.Linear(4, 4), Child(), F.silu
        self.lambdas = [lambda x, k=K: x * k, lambda x: x + FACTORS[1][0]]
        self.bound = Helper().run

    def mix(self, x):
        return x * type(self).depth + self.__class__.shared[0]

    @staticmethod
    def fixed(x):
        return x * 0.5

    @classmethod
    def made(cls, x):
        return x * cls.depth

    @property
    def width(self):
        return 4.0

    def forward(self, x):
        import cfg_of_tests as cfg
        from cfg_of_tests import table

        y = self.mix(self.lin(x)) + self.fixed(x) + self.made(x) * self.width
        y = self.helper.run(y) + self.helper(y) * cfg.SCALE + table(y)
        for function in self.lambdas:
            y = function(y)
        y = keyword(helper(reached(y))) + annotated(y) + FUNCTIONS["one"][0](y) + FUNCTIONS["two"](y)
        y = y + OBJECTS[1].run(y) + third(y) + CHAIN[1](y) + wrapped(y) + BOUND(y) + self.bound(y) + Callable()(y)
        return self.act(y * 0.01) * Mixed.rated() * Mixed.rate


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.mean()


class Other(Block):
    def mix(self, x):
        return x * 3


class Same(Block):
    pass
"""
    + FOOT
)

STRUCTURE = (
    HEAD
    + """

def doubled(module, args, output, k=2.0):
    return output * k


def scaled(module, args, output, table=None):
    return output * table["k"][0]


class Hook:
    def __init__(self, k):
        self.k = k

    def __call__(self, module, args, output):
        return output * self.k

    def method(self, module, args):
        return (args[0] + self.k,)


def closing(state):
    return lambda module, args, output: output * state["k"]


class Weighted(nn.Module):
    def forward(self, x):
        return x * 0.5


class Unlike(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.norm, self.last, self.drop = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Dropout(0.1)
        self.steps = nn.ModuleDict({"first": nn.Linear(4, 4), "second": nn.Tanh(), "third": nn.LayerNorm(4)})
        self.gains = nn.ParameterDict({"a": nn.Parameter(torch.ones(4) * 1.5), "b": nn.Parameter(torch.ones(4) * 2)})
        self.stack = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.Dropout(0.0))
        self.named = nn.ModuleDict({"one": nn.Linear(4, 4), "two": Weighted()})
        self.listed = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4) * 2)])
        self.children_of = Weighted()
        self.children_of.first, self.children_of.second = nn.Linear(4, 4), nn.Tanh()
        self.state = {"k": 1.5}
        self.lin.register_forward_hook(functools.partial(doubled, k=1.5))
        self.norm.register_forward_hook(functools.partial(scaled, table={"k": [1.25]}))
        self.last.register_forward_hook(Hook(1.5))
        self.last.register_forward_pre_hook(Hook(0.5).method)
        self.stack[0].register_forward_hook(closing(self.state))

    def forward(self, x):
        y = self.norm(self.lin(x))
        for name, step in self.steps.items():
            y = step(y)
        for gain in self.gains.values():
            y = (y * gain).sin()
        y = self.named["two"](self.named["one"](self.stack(y)))
        for child in self.children_of.children():
            y = child(y)
        for parameter in self.listed:
            y = y * parameter + 1
        return self.drop(self.last(y)).mean()
"""
    + FOOT
)

LIBRARY = (
    HEAD
    + """

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.conv, self.norm, self.drop = nn.Conv1d(3, 3, 3, padding=1), nn.GroupNorm(1, 3), nn.Dropout(0.0)
        self.traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)))
        self.unused = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x):
        y = F.gelu(self.attention(x)) + torch.nn.functional.softplus(x)
        y = self.drop(self.norm(self.conv(y)))
        return torch.tanh(self.traced(y)).pow(2).mean() + math.sqrt(2.0) * y.mean()
"""
    + FOOT
)

MODELS = {"values": VALUES, "code": CODE, "structure": STRUCTURE, "library": LIBRARY}
