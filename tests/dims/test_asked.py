"""Spellings of `dims`: the conventions of torch.export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from remate.cli.dims import dims_of
from remate.cli.usage import UsageError
from remate.dims.requested_sizes import Axis, RequestedSize, read
from remate.errors import DimsError


class Two(nn.Module):
    def forward(self, ids: torch.Tensor, rest: Any = None, scale: float = 1.0) -> torch.Tensor:
        return ids


IDS = torch.zeros(4, 16, dtype=torch.int64)
CALL: Any = ((IDS,), {"rest": {"mask": torch.zeros(4, 16), "more": [torch.zeros(3, 4)]}, "scale": 2.0})


def test_axes_of_nested_arguments() -> None:
    dims = {"ids": {0: "b", 1: "t=8..32/8"}, "rest": {"mask": ("b", "t"), "more": [{-1: "b"}]}}
    asking = read(dims, Two(), *CALL)
    assert asking is not None
    assert asking.sizes == (RequestedSize("b", 4), RequestedSize("t", 16, 8, 32, 8))
    assert asking.axes == (Axis(0, 0, "b"), Axis(0, 1, "t"), Axis(1, 0, "b"), Axis(1, 1, "t"), Axis(2, 1, "b"))


def test_dims_of_torch_export() -> None:
    spec = {0: Dim("b", min=2, max=8), 1: 8 * Dim("t", max=4)}
    for dims in ({"ids": spec}, (spec, None), [spec]):
        asking = read(dims, Two(), *CALL)
        assert asking is not None
        assert asking.sizes == (RequestedSize("b", 4, 2, 8), RequestedSize("t", 16, None, 32, 8))
    assert read({"ids": {0: None, 1: Dim.STATIC}}, Two(), *CALL) is None
    assert read(None, Two(), *CALL) is read("none", Two(), *CALL) is None


def test_the_batch_is_the_first_axis_of_what_has_it() -> None:
    asking = read("auto", Two(), *CALL)
    assert asking is not None
    assert asking.axes == (Axis(0, 0, "b"), Axis(1, 0, "b"))
    assert read("auto", Two(), (IDS[:1],), {}) is None


@pytest.mark.parametrize(
    ("dims", "told"),
    [
        ({"idz": {0: "b"}}, "no argument 'idz'"),
        ({"ids": {2: "b"}}, "no axis 2"),
        ({"ids": {0: "b", 1: "b"}}, "'b' is 4 and 16"),
        ({"ids": {0: "b c"}}, "no name of a size"),
        ({"ids": {0: "sqrt"}}, "no name of a size"),
        ({"ids": {0: Dim.AUTO}}, "no name of a size"),
        ({"ids": {1: 8 * Dim("t") + 1}}, "not a multiple"),
        ({"ids": {0: "b=5..9"}}, "is 4 in the example"),
        ({"ids": {1: "t=2..64/5"}}, "is 16 in the example, no multiple of 5"),
        ({"ids": {1: "t=64..2"}}, "nothing in it"),
        ({"ids": {1: "t=0..64"}}, "has size 0"),
        ({"ids": {1: "t=2..64/0"}}, "no steps"),
        ({"ids": {1: "t=2..64"}, "rest": {"mask": {1: "t=2..32"}}}, "to 64 and to 32"),
        ({"scale": {0: "b"}}, "no tensor"),
        ({"rest": {"other": {0: "b"}}}, "no part 'other'"),
        ("automatic", "dims is 'automatic'"),
    ],
)
def test_what_does_not_fit_the_call(dims: Any, told: str) -> None:
    with pytest.raises(DimsError, match=told):
        read(dims, Two(), *CALL)


def test_the_command_line() -> None:
    assert dims_of(["auto"]) == "auto"
    result = dims_of(["ids=b,t", "image=b,-,h", "t=16..1024/8"])
    assert result == {"ids": {0: "b", 1: "t=16..1024/8"}, "image": {0: "b", 2: "h"}}
    for words in (["ids"], ["ids="], ["ids=b", "t=2..8"], ["auto", "ids=b"], ["ids=b", "b=2..8", "b=2..4"]):
        with pytest.raises(UsageError):
            dims_of(words)


def test_a_list_of_images_has_no_batch_axis() -> None:
    images = [torch.zeros(3, 8, 8) for _ in range(5)]
    assert read("auto", nn.Linear(1, 1), (images,), {}) is None
    asking = read("auto", nn.Linear(1, 1), (images, torch.zeros(5, 2)), {})
    assert asking is not None
    assert [(axis.leaf, axis.axis) for axis in asking.axes] == [(5, 0)]


def test_an_axis_that_may_have_been_forgotten() -> None:
    asking = read({"ids": {0: "b", 1: "t"}, "rest": {"mask": {0: "t2"}}}, Two(), (IDS,), CALL[1])
    assert asking is not None
    assert asking.forgotten({"b"}) == "axis 0 of 'rest.mask' is as large as b, axis 1 of 'rest.more.0' is as large as b"
    assert asking.forgotten({"t"}) == "axis 1 of 'rest.mask' is as large as t"
    assert asking.forgotten(()) == ""
