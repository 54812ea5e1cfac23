"""Errors for models that cannot be captured propose a solution that works."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from remate.capture.capture_step import CaptureError, capture

LENGTHS = torch.tensor([5, 5]), torch.tensor([3, 3])


class Transcriber(nn.Module):
    """Returns a CTC loss, or the log-probabilities that it is made of."""

    def __init__(self, lossy: bool) -> None:
        super().__init__()
        self.layer, self.lossy = nn.LSTM(4, 6), lossy

    def forward(self, a: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        logs = self.layer(a)[0].log_softmax(-1)
        return nn.functional.ctc_loss(logs, text, *LENGTHS) if self.lossy else logs


def test_ctc_says_the_way() -> None:
    a, text = torch.randn(5, 2, 4), torch.tensor([[1, 2, 3], [3, 2, 1]])
    with pytest.raises(CaptureError, match="let the module return the log-probabilities"):
        capture(Transcriber(lossy=True), (a, text))
    assert capture(Transcriber(lossy=False), (a, text)).graph.outputs


@pytest.mark.parametrize("packs", [True, False])
def test_packed_sequences_say_the_way(packs: bool) -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 4)

        def forward(self, a: Any) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(a, torch.tensor([5, 3])) if packs else a
            return self.layer(packed)[0].data

    a = torch.randn(5, 2, 4)
    given = a if packs else nn.utils.rnn.pack_padded_sequence(a, torch.tensor([5, 3]))
    with pytest.raises(CaptureError, match="pass the padded batch, and mask"):
        capture(Reader(), (given,))
