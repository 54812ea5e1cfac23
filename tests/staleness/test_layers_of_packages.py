"""Functions of packages that are wrapped."""

from __future__ import annotations

import pytest
import torch

from remate_runtime.staleness.library import _is_where_it_belongs


def test_a_package_may_wrap_its_own_layers() -> None:
    """transformers wraps `forward` of its layers when it defines their class, without a decorator in the source."""
    gpt2 = pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
    forward = gpt2.GPT2Block.forward
    assert hasattr(forward, "__wrapped__")
    assert _is_where_it_belongs(forward, gpt2.__name__, "forward")
    assert not _is_where_it_belongs(torch.no_grad()(forward), gpt2.__name__, "forward")


def test_decorators_in_the_source_excuse_no_later_wrapper() -> None:
    gpt2 = pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
    forward = gpt2.GPT2Model.forward
    assert _is_where_it_belongs(forward, gpt2.__name__, "forward")
    assert not _is_where_it_belongs(torch.no_grad()(forward), gpt2.__name__, "forward")
