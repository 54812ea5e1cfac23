"""The outputs whose gradients a schedule computes, in words."""

from __future__ import annotations

from remate_runtime.format import Model, output_leaves
from remate_runtime.support.plain_text import plain

_SHOWN = 8  # names in one line


def gradients_of_outputs(model: Model) -> str:
    """Return a line such as `outputs with a gradient: loss; refused for logits (differentiate= changes it)`."""
    leaves = list(output_leaves(model.outputs))
    given, refused = [leaf.name for leaf in leaves if leaf.grad], [leaf.name for leaf in leaves if leaf.detached]
    text = f"outputs with a gradient: {_listed(given) or 'none'}"
    return text + (f"; refused for {_listed(refused)} (differentiate= changes it)" if refused else "")


def _listed(names: list[str]) -> str:
    return plain(", ".join(names[:_SHOWN])) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
