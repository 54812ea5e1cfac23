"""The result of a capture: the flat training step, the signature of the model, and the origin of each operation."""

from __future__ import annotations

import msgspec

from remate_runtime.flat_step import Graph
from remate_runtime.format import Digest, Model


class Captured(msgspec.Struct, frozen=True):
    """A captured training step.

    Attributes:
        graph: Operations in captured order, without costs (ns = workspace = 0).
        model: The signature of the model.
        modules: For each operation the path of its module (`transformer.h.0.attn`, "" for the root). A backward
            operation has the module of its forward operation.
        classes: Class name of every module, by path.
        digest: The code and attributes of the model that forward reached.
    """

    graph: Graph
    model: Model
    modules: tuple[str, ...]
    classes: dict[str, str]
    digest: Digest | None = None
