"""`--device-memory 24GiB --optimizer adamw`: the budget that a device leaves, and whether a schedule fits it."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from ..budget import BudgetError, parse_budget
from ..present.text import size, table
from .usage import UsageError

if TYPE_CHECKING:
    from remate_runtime.format import Gradients, Model

    from ..schedule_tools.device_memory import Resident

GRADIENTS_IN_PEAK: dict[Gradients, str] = {
    "retained": "gradients",
    "accumulated": "gradients until they are added to .grad",
    "consumed": "gradients until the optimizer has used them",
}


_NONE = re.compile(r"\s*0+\s*([kKmMgGtT]?i?[bB])?\s*")


def bytes_of(text: str) -> int:
    """A size for argparse."""
    try:
        wanted = parse_budget(text)
    except BudgetError as error:
        raise argparse.ArgumentTypeError(str(error).splitlines()[0]) from None
    if wanted.size is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 512MiB or 24GiB")
    return wanted.size


def bytes_or_none_of(text: str) -> int:
    """A size for argparse that may be 0: no optimizer state, no CUDA context."""
    return 0 if _NONE.fullmatch(text) else bytes_of(text)


def add_optimizer(parser: argparse.ArgumentParser) -> None:
    """Add the options that belong to `--device-memory`."""
    parser.add_argument(
        "--optimizer",
        metavar="KIND",
        help="optimizer whose state is on the device: adamw, sgd, sgd-momentum, … or the path of a class, such as "
        "torch.optim.Adafactor; a class runs one step on the meta device",
    )
    parser.add_argument(
        "--optimizer-bytes",
        metavar="SIZE",
        type=bytes_or_none_of,
        help="size of the optimizer state, instead of --optimizer",
    )
    parser.add_argument(
        "--reserve",
        metavar="SIZE",
        type=bytes_or_none_of,
        help="memory to keep free, for example for an average of the parameters",
    )
    parser.add_argument(
        "--cuda-context", metavar="SIZE", type=bytes_or_none_of, help="size of the CUDA context; default: an estimate"
    )


def check_optimizer(args: argparse.Namespace) -> None:
    """Check the options before any work. Raises UsageError, UnknownNameError."""
    from ..schedule_tools.device_memory import check_known

    if args.device_memory is None:
        given = (args.optimizer, args.optimizer_bytes, args.reserve, args.cuda_context)
        if any(value is not None for value in given):
            raise UsageError(
                "--optimizer, --optimizer-bytes, --reserve and --cuda-context need --device-memory\n"
                "  hint: add --device-memory 24GiB"
            )
        return
    if args.optimizer_bytes is not None:
        if args.optimizer is not None:
            raise UsageError("--optimizer and --optimizer-bytes exclude each other\n  hint: remove one of them")
        return
    if args.optimizer is None:
        raise UsageError(
            "--device-memory needs the optimizer, whose state is on the device\n  hint: add --optimizer adamw, or sgd"
        )
    check_known(args.optimizer)


def held(
    args: argparse.Namespace, model: Model, gradients: Gradients, weights_paged: bool = False
) -> tuple[Resident, ...]:
    """List what the device holds besides the step. weights_paged: the peak of the step includes parameters."""
    from ..schedule_tools.device_memory import residents

    optimizer = args.optimizer if args.optimizer_bytes is None else args.optimizer_bytes
    resident = residents(model, optimizer, args.cuda_context, gradients, args.reserve or 0)
    return tuple(item for item in resident if not (weights_paged and item.what == "parameters"))


def left_for_the_step(args: argparse.Namespace, resident: tuple[Resident, ...]) -> int:
    """Bytes that the device leaves for the step. Raises UsageError if there are none."""
    left = args.device_memory - sum(item.nbytes for item in resident)
    if left <= 0:
        table = sum_text(args.device_memory, resident, "missing", -left)
        hint = "use a larger device, a smaller model, or an optimizer with less state"
        raise UsageError(f"the device is full before the step begins\n{table}\n  hint: {hint}")
    return left


def sum_text(device: int, resident: tuple[Resident, ...], last: str, nbytes: int, remark: str = "") -> str:
    """A table from the memory of the device down to the remainder."""
    rows = [("device memory", size(device), "")]
    rows += [(f"  - {item.what}", size(item.nbytes), item.remark) for item in resident]
    return table([*rows, (f"  = {last}", size(nbytes), remark)], right=(1,))


def verdict(
    args: argparse.Namespace, resident: tuple[Resident, ...], peak: int, gradients: Gradients
) -> tuple[bool, str]:
    """Whether a step with this peak (bytes) fits, and a text that says so."""
    left = args.device_memory - sum(item.nbytes for item in resident) - peak
    fits = left >= 0
    title = f"{'fits' if fits else 'does not fit'} {size(args.device_memory)} device memory"
    rows = (*resident, _peak(peak, gradients))
    return fits, f"{title}\n{sum_text(args.device_memory, rows, 'left' if fits else 'missing', abs(left))}"


def _peak(peak: int, gradients: Gradients) -> Resident:
    from ..schedule_tools.device_memory import Resident

    return Resident("peak of the step", peak, f"{GRADIENTS_IN_PEAK[gradients]}, outputs and workspace included")
