"""Numbers, text and shapes that forward leaves in attributes: a scheduled step sets them, too."""

import copy
import time

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import remate
from remate.errors import DimsError
from remate_runtime import BindError, StaleModelError, apply
from remate_runtime.format import Schedule, fingerprint

from .small import seeded

X = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))


class Noting(nn.Module):
    """Sets attributes by `note(module, x)` in a submodule."""

    def __init__(self, note):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
        self.note = note

    def forward(self, x):
        self.note(self.inner[1], x)
        return self.inner(x).sum()


def kinds(module, x):
    module.rows, module.shape = x.shape[0], x.shape
    module.info = {"a": [1, 2.5, None, "t"], "b": float("inf"), "c": (True,)}


def planned(note, **options):
    """Returns the scheduled model, and the attributes of the module that it sets."""
    model = seeded(Noting(note))
    schedule = remate.plan(model, (X,), budget="100%", **options)
    assert isinstance(schedule, Schedule)
    return apply(model, schedule), vars(model.inner[1])


@pytest.mark.parametrize("engine", ["eager", "arena"])
def test_a_step_sets_them(engine):
    model = seeded(Noting(kinds))
    schedule = remate.plan(model, (X,), budget="100%")
    assert isinstance(schedule, Schedule)
    scheduled, attributes = apply(model, schedule, engine=engine), vars(model.inner[1])
    assert "rows" not in attributes  # planning leaves the model as it was
    for _ in range(2):
        attributes["rows"] = attributes["info"] = 0  # another loop's
        scheduled(X)
        assert (attributes["rows"], attributes["shape"]) == (32, (32, 16))
        assert attributes["info"] == {"a": [1, 2.5, None, "t"], "b": float("inf"), "c": (True,)}


def test_they_follow_the_sizes_of_the_call():
    scheduled, attributes = planned(kinds, dims={"x": {0: "b=16..64"}})
    for rows in (32, 40, 64, 17, 40):
        scheduled(torch.ones(rows, 16))
        assert (attributes["rows"], attributes["shape"]) == (rows, (rows, 16))
        assert type(attributes["shape"]) is torch.Size


class Reshaping(nn.Module):
    """Takes and returns shapes, and asks what they are."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x, shape=(4, 4)):
        y = self.inner(x).unflatten(-1, shape) * (2 if isinstance(shape, torch.Size) else 3)
        return y.sum(), {"in": shape, "out": y.shape, "rest": [tuple(y.shape), y[0, 0, 0].shape]}


def test_shapes_among_inputs_and_outputs_stay_shapes():
    """A tuple has no `numel`."""
    model, shape = seeded(Reshaping()), torch.Size((2, 8))
    scheduled = apply(model, remate.plan(model, (X, shape), budget="100%", dims={"x": {0: "b=16..64"}}))
    for rows in (32, 40):
        loss, shapes = scheduled(torch.ones(rows, 16), shape)
        expected, own = model(torch.ones(rows, 16), shape)
        assert torch.equal(loss, expected)
        assert shapes == own
        assert type(shapes["out"]) is type(shapes["in"]) is type(shapes["rest"][1]) is torch.Size
        assert type(shapes["rest"][0]) is tuple
    with pytest.raises(BindError, match="'shape' was a Size when planning, now it is tuple of 2"):
        scheduled(X, (2, 8))


def test_what_was_equal_before_is_set():
    """Another forward can have changed it since."""
    model = seeded(Noting(kinds))
    model(X)
    schedule = remate.plan(model, (X,), budget="100%")
    assert isinstance(schedule, Schedule)
    scheduled = apply(model, schedule)
    model.inner[1].rows = 7
    scheduled(X)
    assert model.inner[1].rows == 32


def reading(module, x):
    module.calls = getattr(module, "calls", 0) + 1


def test_what_forward_reads_is_not_set():
    with pytest.warns(UserWarning, match="reads and then changes attributes"):
        _, attributes = planned(reading)
    assert "calls" not in attributes


def clock(module, x):
    module.time = time.perf_counter()


def number(module, x):
    module.number = 1j


def keys(module, x):
    module.counts = {1: 2}


def training(module, x):
    module.training = False


def length(module, x):
    module.text = "t" * 5000


@pytest.mark.parametrize("note", [clock, number, keys, training, length])
def test_what_a_file_cannot_hold_is_reported(note):
    with pytest.warns(UserWarning, match=r"forward sets inner\.1\.\w+ to what a file cannot hold"):
        scheduled, attributes = planned(note)
    before = dict(attributes)
    scheduled(X)
    assert attributes == before


def levels(module, x):
    module.levels = [*range(x.shape[0] // 16)]


def ratio(module, x):
    module.ratio = x.shape[0] / 7


def text(module, x):
    module.text = f"{x.shape[0]} rows"


def larger(module, x):
    module.larger = x.shape[0] > 40


@pytest.mark.parametrize("note", [levels, ratio, text, larger])
def test_what_follows_from_sizes_in_no_known_way_is_reported(note):
    with pytest.warns(UserWarning, match=r"forward sets inner\.1\.\w+ to what a file cannot hold"):
        scheduled, attributes = planned(note, dims={"x": {0: "b=16..64"}})
    scheduled(torch.ones(48, 16))
    assert note.__name__ not in attributes


def test_the_self_check_compares_them():
    model = seeded(Noting(kinds))
    schedule = remate.plan(model, (X,), budget="100%")
    assert isinstance(schedule, Schedule)
    outputs = copy.deepcopy(schedule.model.outputs)
    outputs["attributes"]["inner.1.rows"] = {"literal": 31}
    edited = replace(schedule, model=replace(schedule.model, outputs=outputs))
    scheduled = apply(model, replace(edited, model=replace(edited.model, fingerprint=fingerprint(edited))))
    with pytest.raises(StaleModelError, match=r"attribute 'inner\.1\.rows': the model gives 32, the schedule 31"):
        scheduled(X)


class Returning(nn.Linear):
    def __init__(self, extra):
        super().__init__(16, 16)
        self.extra = extra

    def forward(self, x):
        return {"loss": super().forward(x).sum(), "extra": self.extra(x.shape[0])}


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        (lambda rows: [*range(rows // 16)], "containers of different lengths"),
        (lambda rows: rows / 7, "a number that forward returns follows from b in no way"),
        (lambda rows: f"{rows}", "the text '32' at one of them"),
        (lambda rows: None if rows < 20 else rows, "forward returns 32 at one of them and None at the other"),
    ],
    ids=["length", "ratio", "text", "none"],
)
def test_returned_values_take_part_in_the_range(extra, reason):
    with pytest.raises(DimsError, match=reason):
        remate.plan(Returning(extra), (X,), budget="100%", dims={"x": {0: "b=16..64"}})


def test_padding_is_refused_only_for_numbers():
    for note, refused in ((kinds, True), (lambda module, x: setattr(module, "mode", "train"), False)):
        model = seeded(Noting(note))
        schedule = remate.plan(model, (X,), budget="100%", fill={"x": 0})
        assert isinstance(schedule, Schedule)
        scheduled = apply(model, schedule, otherwise="pad")
        if refused:
            with pytest.raises(BindError, match="would have the padded shapes"):
                scheduled(X[:20])
        else:
            scheduled(X[:20])
