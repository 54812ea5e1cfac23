"""`--device-memory 24GiB --optimizer adamw`: a budget as people think of it, and whether a schedule fits a device."""

from __future__ import annotations

import argparse
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


def bytes_of(text: str) -> int:
    """A size for argparse."""
    try:
        wanted = parse_budget(text)
    except BudgetError as error:
        raise argparse.ArgumentTypeError(str(error).splitlines()[0]) from None
    if wanted.size is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 512MiB or 24GiB")
    return wanted.size


def add_optimizer(parser: argparse.ArgumentParser) -> None:
    """What goes with `--device-memory`."""
    parser.add_argument(
        "--optimizer",
        metavar="KIND",
        help="whose state the device holds, too: adamw, sgd, sgd-momentum, …, or the path of a class, "
        "torch.optim.Adafactor, which makes one step on the meta device",
    )
    parser.add_argument(
        "--optimizer-bytes", metavar="SIZE", type=bytes_of, help="of its state, in place of --optimizer"
    )
    parser.add_argument(
        "--reserve", metavar="SIZE", type=bytes_of, help="to keep free, for example for an average of the parameters"
    )
    parser.add_argument("--cuda-context", metavar="SIZE", type=bytes_of, help="of the process; default: an estimate")


def check_optimizer(args: argparse.Namespace) -> None:
    """Before any work. Raises UsageError, UnknownNameError."""
    from ..schedule_tools.device_memory import check_known

    if args.device_memory is None:
        given = (args.optimizer, args.optimizer_bytes, args.reserve, args.cuda_context)
        if any(one is not None for one in given):
            raise UsageError(
                "--optimizer, --optimizer-bytes, --reserve and --cuda-context belong to --device-memory\n"
                "  hint: --device-memory 24GiB"
            )
        return
    if args.optimizer_bytes is not None:
        if args.optimizer is not None:
            raise UsageError("--optimizer and --optimizer-bytes ask for two things\n  hint: leave one of them out")
        return
    if args.optimizer is None:
        raise UsageError(
            "the device holds the optimizer's state, too: which optimizer?\n  hint: --optimizer adamw, or sgd"
        )
    check_known(args.optimizer)


def held(
    args: argparse.Namespace, model: Model, gradients: Gradients, weights_paged: bool = False
) -> tuple[Resident, ...]:
    """What is on the device besides the step. weights_paged: the peak of the step counts parameters."""
    from ..schedule_tools.device_memory import residents

    optimizer = args.optimizer if args.optimizer_bytes is None else args.optimizer_bytes
    found = residents(model, optimizer, args.cuda_context, gradients, args.reserve or 0)
    return tuple(one for one in found if not (weights_paged and one.what == "parameters"))


def left_for_the_step(args: argparse.Namespace, found: tuple[Resident, ...]) -> int:
    """Bytes of the device that the step may use. Raises UsageError if there are none."""
    left = args.device_memory - sum(one.nbytes for one in found)
    if left <= 0:
        table = sum_text(args.device_memory, found, "missing", -left)
        hint = "a larger device, a smaller model, or an optimizer with less state"
        raise UsageError(f"the device is full before the step begins\n{table}\n  hint: {hint}")
    return left


def sum_text(device: int, found: tuple[Resident, ...], last: str, nbytes: int, remark: str = "") -> str:
    """The sum as a table, from the device's memory to what is left."""
    rows = [("device memory", size(device), "")]
    rows += [(f"  - {one.what}", size(one.nbytes), one.remark) for one in found]
    return table([*rows, (f"  = {last}", size(nbytes), remark)], right=(1,))


def verdict(args: argparse.Namespace, found: tuple[Resident, ...], peak: int, gradients: Gradients) -> tuple[bool, str]:
    """Whether a step with this peak (bytes) fits, and the words for it."""
    left = args.device_memory - sum(one.nbytes for one in found) - peak
    fits = left >= 0
    what = f"{'fits' if fits else 'does not fit'} {size(args.device_memory)} device memory"
    rows = (*found, _peak(peak, gradients))
    return fits, f"{what}\n{sum_text(args.device_memory, rows, 'left' if fits else 'missing', abs(left))}"


def _peak(peak: int, gradients: Gradients) -> Resident:
    from ..schedule_tools.device_memory import Resident

    return Resident("peak of the step", peak, f"{GRADIENTS_IN_PEAK[gradients]}, outputs and workspace included")
