"""Replays of CUDA graphs without a GPU: what a replay would read, where it is not what was recorded, is an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from remate.capture.cuda.dry_graphs import DryRecorder
from remate_runtime.errors import ExecutionError


@pytest.fixture
def recorder() -> Iterator[DryRecorder]:
    recorder = DryRecorder(torch.device("cpu"), lambda tensor: None)
    with FakeTensorMode(), recorder:
        yield recorder


def test_a_value_is_read_after_its_graph_and_not_after_one_that_reuses_its_block(recorder: DryRecorder) -> None:
    recorder.begin()
    first = torch.ones(256)
    address = recorder.address(first.untyped_storage())
    del first
    replay_first = recorder.end()
    recorder.begin()
    second = torch.zeros(256)
    other = recorder.address(second.untyped_storage())
    replay_second = recorder.end()
    replay_first()
    recorder.bytes_at(address, 1024).clone()
    replay_second()
    recorder.bytes_at(other, 1024).clone()
    with pytest.raises(ExecutionError, match="has used for another value"):
        recorder.bytes_at(address, 1024).clone()
    assert (recorder.replays, recorder.reserved()) == (2, 2 << 20)


def test_memory_outside_of_the_pool_must_exist(recorder: DryRecorder) -> None:
    outside = torch.ones(256)
    recorder.begin()
    kept = outside * 2
    replay = recorder.end()
    replay()
    del outside
    with pytest.raises(ExecutionError, match="outside of the pool"):
        replay()
    assert kept.shape == (256,)
