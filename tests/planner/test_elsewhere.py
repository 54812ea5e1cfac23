"""The step of a GPU, planned on a machine without one."""

import re
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import remate
import remate_runtime
from remate.api.dry_run import dry_run
from remate.api.elsewhere import on_device_of, priced_as_another
from remate.capture.capture_step import capture
from remate.capture.cuda.on_cuda import on_cuda
from remate.capture.recorded import RecordedCall
from remate.cli import main
from remate.errors import CaptureError, ProfileError
from remate.profile.devices import DEVICES, named_gpu
from remate_runtime.engine.experimental.arena.blocks import ArenaBlock
from remate_runtime.errors import BindError, ExecutionError

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="steps of named GPUs are captured where there is none"
)
GIB = 1 << 30


class Encoder(nn.Module):
    """Attention, dropout, layer norm, RMS norm and a loss."""

    def __init__(self, **options):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, **options)
        self.norm, self.head = nn.RMSNorm(64), nn.Linear(64, 50)

    def forward(self, x, y):
        return F.cross_entropy(self.head(self.norm(self.layer(x))).flatten(0, 1), y.flatten())


def example(**options):
    torch.manual_seed(0)
    return Encoder(**options), (torch.randn(4, 16, 64), torch.zeros(4, 16, dtype=torch.long))


def operators(model, args, capability=(9, 0)):
    """Types of the results by operator, as `model` would run on a GPU."""
    with on_cuda(RecordedCall.of(model, args, {}), capability, "a GPU", 80 * GIB) as call:
        graph = capture(call.model, call.args, call.kwargs).graph
    assert graph.device == "cuda"
    types = {}
    for op in graph.operations:
        types.setdefault(op.op, []).append([None if w is None else str(graph.values[w].type) for w in op.writes])
    return types


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "cudnn", "dropouts"), [("2.11.0+cpu", "9.19.0", "cudnn"), ("2.12.1", "9.20.0", "flash")]
)
def test_the_rules_are_those_of_the_torch_that_plans(monkeypatch, version, cudnn, dropouts):
    monkeypatch.setattr(torch, "__version__", version)
    model, (x, y) = example()
    model, args = model.bfloat16(), (x.bfloat16(), y)
    assert f"aten._scaled_dot_product_{dropouts}_attention" in operators(model, args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a torch without rules
        recorded = remate.plan(model, args, budget="100%", device="cuda:h100", progress=None).model
    assert (recorded.torch, recorded.cuda, recorded.cudnn) == (version.split("+")[0], "13.0", cudnn)


@pytest.mark.slow
def test_the_operators_are_those_of_cuda():
    model, args = example()
    types = operators(model, args)
    assert types["aten._scaled_dot_product_efficient_attention"]
    assert len(types["aten.native_dropout"]) == 3
    assert types["aten._fused_rms_norm"] == [["f32[4,16,64]", "f32[4,16,1]"]]
    half, (x, y) = example(dropout=0.0)
    types = operators(half.bfloat16(), (x.bfloat16(), y))
    assert types["aten._scaled_dot_product_cudnn_attention"][0][1] == "f32[4,4,16,1]"
    assert types["aten.native_layer_norm"][0] == ["bf16[4,16,64]", "f32[4,16,1]", "f32[4,16,1]"]


def test_autocast_is_that_of_cuda():
    model, args = example(dropout=0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        types = operators(model, args)
    assert types["aten._log_softmax"] == [["bf16[64,50]"]]
    assert "aten._scaled_dot_product_cudnn_attention" in types
    assert not torch.is_autocast_enabled("cuda")


def test_convolutions_are_laid_out_as_cudnn_does():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    types = operators(model, (torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last),))
    assert types["aten.convolution"] == [["f32[2,8,6,6]{288,1,48,8}"]]


class Convolutions(nn.Sequential):
    def __init__(self, *layers, **options):
        pairs = ((nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, **options), nn.ReLU()) for _ in range(3))
        super().__init__(*(layers or (layer for pair in pairs for layer in pair)))

    def forward(self, x):
        return super().forward(x).float().sum()


class WithoutCudnn(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        with torch.backends.cudnn.flags(enabled=False):
            output = self.layer(x)
        return output if isinstance(output, torch.Tensor) else output[0]


class FirstOf(WithoutCudnn):
    def forward(self, x):
        return self.layer(x)[0]


IMAGES = torch.randn(4, 8, 6, 6)


@pytest.mark.quick("dtype2")
@pytest.mark.parametrize(
    ("options", "dtype", "autocast", "by_cudnn"),
    [
        ({}, torch.float32, False, True),
        ({}, torch.float32, True, True),
        ({}, torch.float16, False, False),
        ({}, torch.bfloat16, False, False),
        ({"affine": False}, torch.float32, False, False),
    ],
)
def test_batch_norm_is_the_one_that_torch_chooses(options, dtype, autocast, by_cudnn):
    with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
        types = operators(Convolutions(**options).to(dtype), (IMAGES.to(dtype),))
    names = {name for name in types if "batch_norm" in name}
    cudnn = {"aten._batch_norm_with_update_functional", "aten.batch_norm_backward"}
    native = {"aten._native_batch_norm_legit_functional", "aten.native_batch_norm_backward"}
    assert names == (cudnn if by_cudnn else native)


@pytest.mark.quick("gru_cell")
@pytest.mark.parametrize(
    ("layer", "said", "without"),
    [
        (lambda: nn.BatchNorm2d(8, track_running_stats=False), "without running statistics by cuDNN", True),
        (lambda: nn.InstanceNorm2d(8, affine=True), "without running statistics by cuDNN", True),
        (lambda: nn.BatchNorm2d(8).eval(), "in evaluation mode by cuDNN", True),
        (lambda: FirstOf(nn.RNN(6, 6)), "runs rnn_tanh on CUDA", True),
        (lambda: FirstOf(nn.LSTM(6, 6)), "runs lstm on CUDA", False),
        (lambda: FirstOf(nn.GRU(6, 6)), "runs gru on CUDA", False),
        (lambda: nn.GRUCell(6, 6), "gru_cell", False),
    ],
)
def test_kernels_that_no_schedule_can_run_are_refused(layer, said, without):
    source = IMAGES if "Norm" in type(layer()).__name__ else IMAGES[0] if "Cell" not in said else IMAGES[0, 0]
    source = source[0] if said == "gru_cell" else source
    with pytest.raises(CaptureError, match=said) as caught:
        operators(Convolutions(nn.Identity(), layer()), (source.clone().requires_grad_(),))
    assert ("enabled=False" in (caught.value.hint or "")) == without
    off = layer().layer if isinstance(layer(), FirstOf) else layer()
    if without:  # the hint works when followed
        assert operators(Convolutions(WithoutCudnn(off)), (source.clone().requires_grad_(),))


@pytest.mark.slow
def test_a_reserve_of_cudnn_that_is_no_zero_bytes_is_noticed(monkeypatch):
    schedule = remate.plan(Convolutions(), (IMAGES,), budget="80%", device="cuda:h100", progress=None)
    call = RecordedCall.of(Convolutions(), (IMAGES,), {})
    with on_device_of(schedule, call) as there:
        ran = dry_run(there, schedule)
        assert ran.peak == ran.predicted
        monkeypatch.setattr(torch._C, "_get_cudnn_batch_norm_reserve_space_size", lambda source, training: 128)
        FakeTensorMode.cache_clear()
        with pytest.raises(ExecutionError, match=r"u8\[0\]"):
            dry_run(there, schedule)
        FakeTensorMode.cache_clear()


def of_cuda() -> dict[str, object]:
    """Everything in `torch.cuda` but its modules, some of which are imported when they are needed."""
    return {name: value for name, value in vars(torch.cuda).items() if not isinstance(value, ModuleType)}


def test_nothing_of_the_process_is_changed():
    model, args = example()
    before = {name: (id(p), p.device.type) for name, p in model.named_parameters()}
    functions = of_cuda()
    on_cuda = torch._C._dispatch_has_kernel_for_dispatch_key("aten::silu_backward", "CUDA")  # in a CUDA build
    accelerator = torch.accelerator.current_accelerator()
    operators(model, args)
    assert {name: (id(p), p.device.type) for name, p in model.named_parameters()} == before
    assert of_cuda() == functions
    assert torch._C._dispatch_has_kernel_for_dispatch_key("aten::silu_backward", "CUDA") == on_cuda
    assert torch.accelerator.current_accelerator() == accelerator
    assert torch.autograd.is_multithreading_enabled()
    model(*args).backward()


def test_a_failed_capture_leaves_nothing_either():
    class Broken(nn.Linear):
        def forward(self, x):
            raise RuntimeError("no")

    model = Broken(4, 4)
    with pytest.raises(CaptureError, match="no"):
        operators(model, (torch.randn(2, 4),))
    assert model.weight.device.type == "cpu"
    assert not torch.cuda.is_available()


def test_what_no_rule_covers_is_refused_by_name():
    class Ctc(nn.Linear):
        def forward(self, x, y):
            return torch.ctc_loss(super().forward(x).log_softmax(-1), y, (5, 5), (2, 2))

    with pytest.raises(CaptureError, match="ctc_loss"):
        operators(Ctc(4, 4), (torch.randn(5, 2, 4), torch.ones(2, 2, dtype=torch.long)))


@pytest.mark.quick("meta")
@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_a_file_says_what_it_was_planned_for(where):
    with torch.device(where):
        model, args = example()
    schedule = remate.plan(model, args, budget="100%", device="cuda:a100", progress=None)
    assert (schedule.model.device, schedule.model.architecture, schedule.model.captured) == (
        "cuda",
        "sm_80",
        "by rules",
    )
    assert schedule.model.cuda == "13.0"
    assert schedule.model.cudnn in ("9.19.0", "9.20.0", "9.24.0")
    settings = schedule.solve.settings
    assert settings is not None
    assert (schedule.solve.cost, settings.device) == ("a100", "cuda:a100")
    assert {p.device.type for p in model.parameters()} == {where}


def test_a_model_on_the_cpu_is_refused():
    model, args = example()
    schedule = remate.plan(model, args, budget="100%", device="cuda:h100", progress=None)
    with pytest.raises(BindError, match=r"step of a GPU \(sm_90.*\n.*model.to\('cuda'\)"):
        remate_runtime.apply(model, schedule)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "cuda:h9"}, "cuda:b200, cuda:h200, cuda:h100"),
        ({"device": "cpu"}, "is not the name of a GPU"),
        ({"device": "cuda:mi300x"}, "ROCm runs other operators"),
        ({"device": "cuda:h100", "cost": "measured"}, "needs the device"),
    ],
)
def test_what_cannot_be_planned_elsewhere_is_refused(options, said):
    with pytest.raises((ProfileError, CaptureError), match=said):
        remate.plan(*example(), budget="100%", progress=None, **options)


@pytest.mark.slow
def test_costs_of_a_gpu_for_the_step_of_a_cpu_are_reported():
    model, args = example()
    with pytest.warns(UserWarning, match="is for the CPU.*device='cuda:h200' plans the step of a h200"):
        remate.plan(model, args, budget="100%", cost="h200", progress=None)
    assert not priced_as_another("h200", "cuda")
    assert not priced_as_another("measured", "cpu")
    assert "costs are for a CPU" in priced_as_another("cpu", "cuda")


@pytest.mark.quick("cuda:h100-eager")
@pytest.mark.parametrize("engine", ["eager", "arena"])
@pytest.mark.parametrize("device", ["cuda:h100", None])
def test_a_dry_run_holds_the_predicted_peak(device, engine):
    model, args = example()
    schedule = remate.plan(model, args, budget="100%", device=device, cost=None if device else "cpu", progress=None)
    with on_device_of(schedule, RecordedCall.of(model, args, {})) as call:
        ran = dry_run(call, schedule, engine=engine)
    assert ran.states == 0 if device else ran.states is not None
    assert ran.gradients == len(list(model.parameters()))
    assert all(p.grad is None and p.device.type == "cpu" for p in model.parameters())


@pytest.mark.slow
def test_an_arena_of_another_size_is_noticed(monkeypatch):
    model, args = example()
    schedule = remate.plan(model, args, budget="100%", device="cuda:h100", progress=None)
    usual, sizes = ArenaBlock.__init__, []

    def larger(self: ArenaBlock, nbytes: int, device: torch.device) -> None:
        sizes.append(nbytes)
        usual(self, nbytes + 1024, device)

    monkeypatch.setattr(ArenaBlock, "__init__", larger)
    with on_device_of(schedule, RecordedCall.of(model, args, {})) as call:
        ran = dry_run(call, schedule, engine="arena")
    assert sizes
    assert all(sizes)
    assert ran.peak - ran.predicted == 1024


BUILD = """
import torch
def build():
    torch.manual_seed(0)
    layers = (layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.SiLU(), torch.nn.Dropout(0.1)))
    return torch.nn.Sequential(*layers), (torch.randn(256, 64),)
"""


@pytest.mark.slow
def test_the_command_plans_checks_plans_again_and_runs_dry(tmp_path: Path, capsys):
    (tmp_path / "train.py").write_text(BUILD)
    target, file, again = (str(tmp_path / name) for name in ("train.py:build", "s.json", "again.json"))
    assert main(["plan", target, "--budget", "80%", "--device", "cuda:t4", "-o", file, "--quiet"]) == 0
    assert main(["check", file, "--model", target]) == 0
    assert "fits" in capsys.readouterr().out
    assert main(["replan", file, "--model", target, "-o", again, "--quiet"]) == 0
    assert Path(file).read_bytes() == Path(again).read_bytes()
    assert main(["run", file, "--model", target, "--dry"]) == 0
    assert "ran dry for cuda (sm_75) by engine eager" in capsys.readouterr().out
    assert main(["run", file, "--model", target, "--dry", "--engine", "arena"]) == 0
    assert "by engine arena: 8 gradients\npeak of storages 560 KiB, as predicted" in capsys.readouterr().out
    assert main(["run", file, "--model", target, "--dry", "--cuda-graphs"]) == 0
    assert re.search(r"by engine eager in [1-9]\d* CUDA graphs: 8 gradients", capsys.readouterr().out)
    assert main(["run", file, "--model", target, "--cuda-graphs"]) == 2
    assert main(["run", file, "--model", target, "--dry", "--engine", "auto"]) == 2
    assert "--dry runs the engines eager, arena, compiled, and not auto" in capsys.readouterr().err
    assert main(["show", file]) == 0
    assert "cuda (sm_75, captured by rules)" in capsys.readouterr().out


def test_a_layout_that_the_file_does_not_have_is_noticed(tmp_path: Path, capsys):
    (tmp_path / "train.py").write_text(BUILD)
    target, file = str(tmp_path / "train.py:build"), tmp_path / "s.json"
    assert main(["plan", target, "--budget", "80%", "--device", "cuda:t4", "-o", str(file), "--quiet"]) == 0
    text = file.read_text()
    file.write_text(text.replace('"f32[256,64]", "bool[256,64]"', '"f32[256,64]", "bool[256,64]{1,256}"', 1))
    assert main(["run", str(file), "--model", target, "--dry"]) != 0


def test_every_gpu_has_rates_and_a_capability():
    gpus = {name: device for name, device in DEVICES.items() if device.gpu}
    assert set(gpus) == {"a100", "h100", "h200", "b200", "rtx4090", "l40s", "t4"}
    assert all(device.kind == "cuda" and {"f32", "f16", "bf16"} <= device.matrix.keys() for device in gpus.values())
    assert {name for name, device in DEVICES.items() if device.kind == "cuda"} - gpus.keys() == {"mi300x"}
    assert "a GPU runs other kernels" in priced_as_another("mi300x", "cpu")
    assert not priced_as_another("mi300x", "cuda")
    assert named_gpu("cuda:1") is None
    assert named_gpu("cuda:l40s") is DEVICES["l40s"]
