"""The module that is traced: it calls the model on nested inputs and flattens the outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from remate_runtime.bind import modules_by_path
from remate_runtime.format import map_outputs
from remate_runtime.staleness import input_classes

from ..errors import CaptureError
from . import generators, surroundings, torch_api, trees
from .assigned import assigned_at
from .differentiated import differentiated
from .local_tensors import LocalTensors, refuse_distributed
from .output_gradients import copied, gradient_axes
from .places import SourcePlace, user_place
from .plain_attributes import PlainAttributes
from .reads import Reads
from .refused_records import refuse_records
from .returned_buffers import storage_of
from .saved_hooks import saved_hooks_seen
from .signature import argument_names
from .sizes import SizeLog
from .static_parts import lost_output, static_parts
from .stored import Arguments, lost, stored_trees
from .watch import AttributeWatch

if TYPE_CHECKING:
    from .repeats.second_call import RecordedForward


class TracedOutput(msgspec.Struct, frozen=True):
    """A tensor that the model returns.

    Attributes:
        name: Its name in the file.
        grad: The step receives a gradient for it.
        detached: It has a gradient in eager, but not in the step.
        buffer: The buffer with which it shares memory, or "".
        gradient_axes: See `Leaf`.
    """

    name: str
    grad: bool
    detached: bool
    buffer: str
    gradient_axes: tuple[int, ...] = ()


class TracedModule(torch.nn.Module):
    """`forward(*leaves)` calls `model(*args, **kwargs)` with its tensors replaced by `leaves`; returns a flat tuple.

    Every output is cloned, so that none is an alias. Outputs without a gradient are detached, so that they cost nothing
    in backward. Tensors that forward stores in attributes are outputs too, because a loop may read them.

    Attributes, set by a call:
        tree, outputs, opaque: The structure of the result, its tensors, and the objects that a file cannot hold.
        drawn: Generators from which forward draws outside of operations.
        first_draw: Where it first does so.
        checkpoints: Where forward calls torch.utils.checkpoint.
        assigned: The buffers that forward assigned.
        keeps_old: Forward gets copies of these buffers, because backward needs their old values.
        constants: Tensors that the trace contains as constants.
        left: The attributes that forward changed.
        plain: The attributes that it set to numbers, text or shapes.
        lost: Where forward stores tensors that are no outputs.
        recorded: The recorded calls, if any.

    Args:
        borrowed: Attributes that are registered as buffers during the trace.
        has_live: The model has live attributes.
        sizes: Receives the decisions that forward makes by sizes.
        stepwise: See `capture`.
        same: See `Signature`.
        distributed: DTensors of the model.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: tuple[object, ...],
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
        self.watch = AttributeWatch(model, self._mark, None if sizes is None else sizes.tagged)
        self.reads = Reads(model, input_classes((args, kwargs)))
        self.ties = surroundings.Ties(model)
        self._call = (args, kwargs)
        self._differentiate = None if differentiate is None else tuple(differentiate)
        self._autocast, self._remembers_casts = autocast, torch.is_autocast_cache_enabled()
        self._borrowed = borrowed
        self.tree: Any = None
        self.outputs: tuple[TracedOutput, ...] = ()
        self.opaque: dict[str, str] = {}
        self.lost: list[str] = []
        self.drawn: list[str] = []
        self.first_draw = generators.FirstDraw()
        self._seeds = generators.Seeds(self._refuse_seeds)
        self.checkpoints: list[str] = []
        self.assigned: set[str] = set()
        self.keeps_old = False
        self.constants: list[Any] = []
        self.left: surroundings.LeftBehind | None = None
        self.plain = PlainAttributes(model, can_follow=not has_live)
        self.recorded: RecordedForward | None = None

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[Any]:
        """Each parameter once, whatever the arguments say: the tracer would duplicate tied parameters."""
        return super().named_parameters(prefix, recurse, True)

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[Any]:
        return super().named_buffers(prefix, recurse, True)

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        _as_leaves(self)
        args, kwargs = trees.substitute(self._call, [leaves[at] for at in self._same] or list(leaves))
        if self.sizes is not None:
            self.sizes.decisions.clear()  # of an earlier run of forward in the same trace
        given = Arguments(dict(zip(argument_names(self.model, len(args)), args, strict=True)) | kwargs)
        wrapped = contextlib.nullcontext() if self.distributed is None else self.distributed.wrapped(self.carriers)
        with wrapped, self.ties.followed():
            attributes = surroundings.Attributes(self.model, self._borrowed)
            if self.keeps_old:
                attributes.copy_buffers(self.assigned)
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
                self._refuse_new_parameters(attributes)
                self._write_back(attributes)
                return self._flat(result, attributes, given)
            finally:
                torch_api.unmark()
                self.left = surroundings.LeftBehind(self.model, attributes)
                self.plain.note(attributes.plain(self.reads.set_unread()))
                attributes.restore()

    def carry(self) -> None:
        """Add parameters for gradients whose shapes differ from their local tensors, as far as these are known."""
        self.carriers = torch.nn.Module() if self.distributed is None else self.distributed.carriers()

    def carried(self, target: str) -> str | None:
        """The name of the parameter whose gradient belongs to the parameter `target` of this module, or None."""
        number = target.removeprefix("carriers.")
        if self.distributed is None or number == target:
            return None
        return list(self.distributed.other)[int(number)]

    def note_checkpoint(self, frame: FrameType) -> None:
        """Add the module and the line that called `frame` to `checkpoints`."""
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
            "forward seeds torch's generator, or restores its state (manual_seed, set_rng_state, fork_rng): a "
            "schedule draws "
            "from it as it comes",
            self.watch.module,
            self.watch.place.line,
            "make what is to be the same in every call a buffer, or an input; seed outside of forward",
        )

    def _mark(self, module: str, place: SourcePlace) -> None:
        torch_api.mark(module, place)
        self.first_draw.entered(module)

    @contextlib.contextmanager
    def _cast(self) -> Generator[None]:
        """Enter the autocast of the call, with its cache, which the tracer disables."""
        before = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(self._remembers_casts)
        try:
            with contextlib.nullcontext() if self._autocast is None else torch.autocast(*self._autocast):
                yield
        finally:
            torch.set_autocast_cache_enabled(before)

    def _refuse_new_parameters(self, attributes: surroundings.Attributes) -> None:
        """Raise CaptureError if forward assigns a parameter: the optimizer keeps the old one, and trains nothing."""
        for module, name in attributes.reassigned_parameters():
            path = next(p for p, other in modules_by_path(self.model, each_once=True).items() if other is module)
            raise CaptureError(
                f"forward replaces parameter {f'{path}.{name}'.lstrip('.')!r} by another one, which the optimizer does "
                "not have",
                path,
                assigned_at(module, name),
                f"what forward computes anew at each call is a buffer: self.register_buffer({name!r}, ...) in "
                f"__init__, and self.{name} = new in forward",
                static_parts(self.model, path),
            )

    def _write_back(self, attributes: surroundings.Attributes) -> None:
        """Turn `self.state = new` into `self.state.copy_(new)`, which tracing records as an update of the buffer."""
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
            self.assigned.add(name)
            with torch.no_grad():
                old.copy_(new)

    def _flat(self, result: object, attributes: surroundings.Attributes, given: Arguments) -> tuple[torch.Tensor, ...]:
        named_tensors: list[tuple[str, torch.Tensor]] = []
        names = trees.UniqueNames(set())
        self.opaque = {}

        def leaf(tensor: torch.Tensor, path: str) -> dict[str, Any]:
            named_tensors.append((names.new(path or "output"), tensor))
            return {"value": len(named_tensors) - 1}

        self.tree = trees.describe(result, "", leaf, lambda node, path: self.opaque.update({path: type(node).__name__}))
        refuse_records(self.model, result)
        for name, tensor in named_tensors:
            refuse_distributed(name, tensor)
        returned = len(named_tensors)
        self.watch.finished([tensor for _, tensor in named_tensors])
        kept, self.lost = stored_trees(attributes, leaf)
        for path, tensor in self.reads.stored:
            self.lost += lost(path, [tensor])
        self.lost += given.lost([tensor for _, tensor in named_tensors[:returned]])
        if kept:
            self.tree = {"returns": self.tree, "attributes": kept}
        if not named_tensors:
            for name, kind in self.opaque.items():
                raise lost_output(self.model, name, kind)
            raise CaptureError("the model returns no tensor", hint="return the loss, or what it is computed from")
        chosen = differentiated(named_tensors, returned, result, self._differentiate)
        of = {storage_of(buffer): name for name, buffer in self.model.named_buffers()}
        axes = {name: gradient_axes(t, chosen[name]) if name in chosen else () for name, t in named_tensors}
        self.outputs = tuple(
            TracedOutput(
                name, name in chosen, t.requires_grad and name not in chosen, of.get(storage_of(t), ""), axes[name]
            )
            for name, t in named_tensors
        )
        return tuple(copied(t, axes[name]) if name in chosen else t.detach().clone() for name, t in named_tensors)


def _as_leaves(step: torch.nn.Module) -> None:
    """Let the parameters be leaves for autograd, as in eager PyTorch. Autocast remembers casts of leaves only."""
    for parameter in step.parameters():
        if parameter.requires_grad and not parameter.is_leaf:
            parameter.detach_().requires_grad_(True)


def with_values(tree: Any, names: list[str], outputs: tuple[TracedOutput, ...]) -> Any:
    """The output tree with names of values instead of positions."""

    def named(leaf: dict[str, Any]) -> dict[str, Any]:
        if "value" not in leaf:
            return leaf
        at: int = leaf["value"]
        output = outputs[at]
        gradient = {"grad": True} if output.grad else {"detached": True} if output.detached else {}
        axes = {"gradient_axes": [*output.gradient_axes]} if output.gradient_axes else {}
        return {"value": f"%{names[at]}", "name": output.name, **gradient, **axes}

    return map_outputs(named, tree)
