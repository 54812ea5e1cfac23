"""What capturing a model yields: the flat training step, the signature of the model, and where each operation is
from."""

from __future__ import annotations

import msgspec

from remate_runtime.flat_step import Graph
from remate_runtime.format import Digest, Model


class Captured(msgspec.Struct, frozen=True):
    """A captured training step.

    graph: operations in captured order, without costs (ns = workspace = 0). modules: for each operation the path of the
    module that ran it (`transformer.h.0.attn`, "" for the root); a backward operation has its forward operation's.
    classes: class name of every module of the model by path. digest: what forward reached of the model's code.
    """

    graph: Graph
    model: Model
    modules: tuple[str, ...]
    classes: dict[str, str]
    digest: Digest | None = None
