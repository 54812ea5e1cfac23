"""The module that is traced: calls the model on its own input trees and flattens what it returns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from ..errors import CaptureError
from . import generators, surroundings, torch_api, trees
from .assigned import assigned_at
from .differentiated import differentiated
from .local_tensors import LocalTensors, refuse_distributed
from .places import user_place
from .reads import Reads
from .refused_records import refuse_records
from .returned_buffers import storage_of
from .saved_hooks import saved_hooks_seen
from .signature import argument_names
from .sizes import SizeLog
from .stored import Arguments, lost, stored_trees
from .watch import AttributeWatch

if TYPE_CHECKING:
    from .repeats.second_call import RecordedForward


class TracedOutput(msgspec.Struct, frozen=True):
    """A tensor that the model returns. grad: the step receives a gradient for it. detached: it has one in eager, and
    the step does without. buffer: the one that it lies in, as forward leaves it, "" if in none."""

    name: str
    grad: bool
    detached: bool
    buffer: str


class TracedModule(torch.nn.Module):
    """`forward(*leaves)` calls `model(*args, **kwargs)` with its tensors replaced by `leaves`; returns a flat tuple.

    Every output is cloned, so that none aliases anything; those that get no gradient are detached, so that they cost
    nothing in backward. After a call `tree` describes the result, `outputs` its tensors, `opaque` what it lost, `drawn`
    the generators that it drew from outside its operations, `checkpoints` where it checkpoints, `left` what it changed,
    `lost` where it left tensors that are no outputs; `recorded` its calls, if they were recorded. lent: attributes that
    stand among the buffers. has_live: attributes of it are live. sizes: what forward decides by sizes goes there.
    stepwise: as of `capture`. same: as of `Signature`. distributed: DTensors of the model.

    Tensors that forward stores in attributes are outputs too: the loop may read them from the modules after the call.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        differentiate: Sequence[str] | None,
        autocast: tuple[str, torch.dtype] | None,
        borrowed: frozenset[tuple[int, str]] = frozenset(),
        has_live: bool = False,
        sizes: SizeLog | None = None,
        stepwise: bool = False,
        same: Sequence[int] = (),
        distributed: LocalTensors | None = None,
    ) -> None:
        super().__init__()
        self.distributed = distributed
        self.carry()
        self._same = tuple(same)
        self.model, self.has_live, self.stepwise = model, has_live, stepwise
        self.sizes = sizes
        self.watch = AttributeWatch(model, torch_api.mark, None if sizes is None else sizes.tagged)
        self.reads = Reads(model)
        self.ties = surroundings.Ties(model)
        self._call = (args, kwargs)
        self._differentiate = None if differentiate is None else tuple(differentiate)
        self._autocast = autocast
        self._borrowed = borrowed
        self.tree: Any = None
        self.outputs: tuple[TracedOutput, ...] = ()
        self.opaque: dict[str, str] = {}
        self.lost: list[str] = []
        self.drawn: list[str] = []
        self._seeds = generators.Seeds(self._refuse_seeds)
        self.checkpoints: list[str] = []
        self.left: surroundings.LeftBehind | None = None
        self.recorded: RecordedForward | None = None

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[Any]:
        """Each once, whatever is requested: the tracer would make two parameters of a tied one."""
        return super().named_parameters(prefix, recurse, True)

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[Any]:
        return super().named_buffers(prefix, recurse, True)

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = trees.substitute(self._call, [leaves[at] for at in self._same] or list(leaves))
        if self.sizes is not None:
            self.sizes.decisions.clear()  # of an earlier run of forward in the same trace
        given = Arguments(dict(zip(argument_names(self.model, len(args)), args, strict=True)) | kwargs)
        wrapped = contextlib.nullcontext() if self.distributed is None else self.distributed.wrapped(self.carriers)
        with wrapped, self.ties.followed():
            attributes = surroundings.Attributes(self.model, self._borrowed)
            try:
                with (
                    self._cast(),
                    generators.undisturbed(self.model, self.drawn),
                    self._seeds.watching(),
                    self.watch.running(),
                    self.reads.watching(),
                    torch_api.no_higher_order(self._refuse),
                    saved_hooks_seen(self._refuse_saved_hooks),
                ):
                    result = self.model(*args, **kwargs)
                self._write_back(attributes)
                return self._flat(result, attributes, given)
            finally:
                torch_api.unmark()
                self.left = surroundings.LeftBehind(self.model, attributes)
                attributes.restore()

    def carry(self) -> None:
        """Take parameters for the gradients whose shapes are not those of their local tensors, as far as is known."""
        self.carriers = torch.nn.Module() if self.distributed is None else self.distributed.carriers()

    def carried(self, target: str) -> str | None:
        """The name of the parameter whose gradient the parameter `target` of this module takes; None if none."""
        number = target.removeprefix("carriers.")
        if self.distributed is None or number == target:
            return None
        return list(self.distributed.other)[int(number)]

    def note_checkpoint(self, frame: FrameType) -> None:
        """The module, and the line that `frame` was called from, go into `checkpoints`."""
        place = " ".join(part for part in (self.watch.module, user_place(frame).line) if part)
        if place not in self.checkpoints:
            self.checkpoints.append(place)

    def _refuse(self, name: str) -> None:
        hint = (
            "write control flow with tensor operations (torch.where, masking), attention with "
            "scaled_dot_product_attention, and let operators of your own return new tensors instead of writing into "
            "their arguments"
        )
        raise CaptureError(
            f"forward uses operator {name}, which has no place in a schedule",
            self.watch.module,
            self.watch.place.line,
            hint,
        )

    def _refuse_saved_hooks(self, name: str) -> None:
        raise CaptureError(
            f"forward sets saved_tensors_hooks ({name!r}): a schedule saves nothing through autograd, and would "
            "ignore them",
            self.watch.module,
            self.watch.place.line,
            "leave them out while planning if they only move or count what is saved; the plan decides what is kept",
        )

    def _refuse_seeds(self) -> None:
        raise CaptureError(
            "forward seeds torch's generator, or sets its state back (manual_seed, set_rng_state, fork_rng): a "
            "schedule draws "
            "from it as it comes",
            self.watch.module,
            self.watch.place.line,
            "make what is to be the same in every call a buffer, or an input; seed outside of forward",
        )

    def _cast(self) -> contextlib.AbstractContextManager[Any]:
        if self._autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self._autocast[0], self._autocast[1], cache_enabled=True)

    def _write_back(self, attributes: surroundings.Attributes) -> None:
        """`self.state = new` becomes `self.state.copy_(new)`, which tracing sees as an update of the buffer."""
        for name, old, new in attributes.reassigned_buffers():
            if not isinstance(new, torch.Tensor) or new.shape != old.shape or new.dtype != old.dtype:
                path, _, last = name.rpartition(".")
                raise CaptureError(
                    f"forward replaces buffer {name!r} by something of another shape or type",
                    path,
                    assigned_at(self.model.get_submodule(path), last),
                    "if only the first call does that, call the model once before planning; else keep its shape and "
                    "type, or write into it",
                )
            with torch.no_grad():
                old.copy_(new)

    def _flat(self, result: Any, attributes: surroundings.Attributes, given: Arguments) -> tuple[torch.Tensor, ...]:
        found: list[tuple[str, torch.Tensor]] = []
        names = trees.UniqueNames(set())
        self.opaque = {}

        def leaf(tensor: torch.Tensor, path: str) -> dict[str, Any]:
            found.append((names.new(path or "output"), tensor))
            return {"value": len(found) - 1}

        self.tree = trees.describe(result, "", leaf, lambda node, path: self.opaque.update({path: type(node).__name__}))
        refuse_records(self.model, result)
        for name, tensor in found:
            refuse_distributed(name, tensor)
        returned = len(found)
        self.watch.finished([tensor for _, tensor in found])
        kept, self.lost = stored_trees(attributes, leaf)
        for path, tensor in self.reads.stored:
            self.lost += lost(path, [tensor])
        self.lost += given.lost([tensor for _, tensor in found[:returned]])
        if kept:
            self.tree = {"returns": self.tree, "attributes": kept}
        if not found:
            raise CaptureError("the model returns no tensor", hint="return the loss, or what it is computed from")
        chosen = differentiated(found, returned, result, self._differentiate)
        of = {storage_of(buffer): name for name, buffer in self.model.named_buffers()}
        self.outputs = tuple(
            TracedOutput(name, name in chosen, t.requires_grad and name not in chosen, of.get(storage_of(t), ""))
            for name, t in found
        )
        return tuple(t.clone() if name in chosen else t.detach().clone() for name, t in found)
