"""`remate fit --mesh`: a table of layouts, and what is wrong with a command line before anything is planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]
FIT = ("fit", "layouts.py:build", "--device-memory", "1750KiB", "--optimizer", "adamw")
pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


@pytest.mark.slow
def test_layouts_are_compared(remate: Remate, golden: Golden) -> None:
    some = ("dp=4", "dp=2,tp=2", "dp=2,pp=2", "pp=4", "tp=3", "dp=3")
    found = remate(*FIT, "--batch", "32", "--microbatch", "2", "--machine", "2", "--mesh", *some)
    golden("fit-layouts.txt", str(found))


@pytest.mark.slow
@pytest.mark.usefixtures("short_searches")
def test_all_layouts_of_some_gpus(remate: Remate) -> None:
    given = ("--devices", "2", "--batch", "8", "--device", "cuda:h100", "--fsdp", "*")
    found = remate(*FIT[:3], "1GiB", *FIT[4:], *given)
    assert found.status == 0, found.err
    for layout in ("dp=2,tp=1,pp=1", "dp=1,tp=2,pp=1", "dp=1,tp=1,pp=2"):
        assert layout in found.out
    assert "is the fastest layout that fits 1.00 GiB" in found.out
    assert "times: h100 costs" in found.out


def test_no_layout_fits(remate: Remate) -> None:
    found = remate(*FIT[:3], "100KiB", *FIT[4:], "--mesh", "dp=2", "tp=2", "--batch", "8")
    assert found.status == 1
    assert found.out.count("parameters and the state of the optimizer take") == 2
    assert "no layout fits 100 KiB" in found.out


@pytest.mark.slow("mesh dp=2 ")
@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ("--mesh dp=4", 2, "add --batch 512"),
        ("--mesh dp=4 --devices 4 --batch 8", 2, "--mesh and --devices exclude each other"),
        ("--microbatch 2", 2, "--microbatch belongs to layouts of ranks\nhint: add --mesh dp=8,tp=2,pp=1"),
        ("--mesh dp=4 --batch 8 --machine 0", 2, "are numbers from 1"),
        ("--mesh dp=4 --batch 8 -o s.json", 2, "--output does not go with layouts"),
        ("--mesh dp=4 --batch 8 --dims x.0=b", 2, "leave out --dims"),
        ("--mesh dp=4 --batch 8 --device cpu", 2, "not on 'cpu'\nhint: --device cuda:h100"),
        ("--mesh dp=4 --batch 8 --cost measured", 2, "layouts are planned without their ranks\nhint: leave it out"),
        ("--mesh dp=4 --batch 8 --cost h1", 2, "there are no costs of 'h1'"),
        ("--mesh 4x2 --batch 8", 1, "'4x2' is not a layout of ranks\nhint: write dp=8,tp=2,pp=1"),
        ("--mesh dp=4 --batch 8 --network fast", 1, "'fast'"),
        ("--mesh pp=2 --batch 8 --pipeline 1f2b", 2, "there is no pipeline schedule '1f2b'"),
        ("--mesh dp=2 --batch 8 --fsdp layers.*", 1, "no module of the model is called 'layers"),
    ],
)
def test_what_is_refused(given: str, status: int, said: str, remate: Remate) -> None:
    refused = remate(*FIT, *given.split())
    assert (refused.status, said in refused.err) == (status, True), refused


def test_a_function_that_fails_is_named(remate: Remate) -> None:
    failed = remate("fit", "layouts.py:raises", *FIT[2:], "--mesh", "dp=2", "--batch", "8")
    assert failed.status != 0
    assert "in raises(): TypeError: dp=2,tp=1,pp=1 is not what was expected" in failed.err
