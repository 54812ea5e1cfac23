"""Names and descriptions of the strategies that page."""

from __future__ import annotations

import msgspec

from ..descriptions import Description
from .goal import POET
from .mixed import WEIGHT_OFFLOADING


class PagingStrategy(msgspec.Struct, frozen=True):
    """A strategy that needs a disk budget.

    Attributes:
        name: Name for `--strategy`.
        summary: What it does.
        solver: Solver of its integer program.
        reference: Paper.
        description: What it takes from its source.
    """

    name: str
    summary: str
    solver: str
    reference: str
    description: Description


PAGING_STRATEGIES = (
    PagingStrategy(
        "mixed",
        "recomputes some values and pages others",
        "HiGHS",
        "",
        Description(
            "No paper.",
            "Nothing.",
            "None.",
        ),
    ),
    PagingStrategy(
        "offload-only",
        "pages values and recomputes nothing",
        "",
        "",
        Description("No paper.", "Nothing.", "None."),
    ),
    PagingStrategy(
        WEIGHT_OFFLOADING,
        "pages parameters and their gradients",
        "HiGHS",
        "Weight offloading, 2022",
        Description(
            'O. Beaumont, L. Eyraud-Dubois, A. Shilova, X. Zhao, "Weight offloading strategies for training large DNN '
            'models", HAL hal-03580767, 2022.',
            "An integer program selects the parameters that are away between two uses; transfers share a lane of "
            "limited bandwidth; a greedy selection serves models that are too large for the program.",
            "The step consists of operations and a parameter can have more than two reads, because captured steps have "
            "them. Parameters can be away between steps, and gradients are chosen individually, because the optimizer "
            "runs outside of the step. Only the abstract of the paper was at hand.",
        ),
    ),
    PagingStrategy(
        POET,
        "recomputes and pages for least time or energy",
        "HiGHS",
        "POET, ICML 2022",
        Description(
            'S. Patil, P. Jain, P. Dutta, I. Stoica, J. Gonzalez, "POET: Training neural networks on tiny devices with '
            'integrated rematerialization and paging", ICML 2022.',
            "The integer program over stages with runs, values in memory and in storage, and page-in and page-out; "
            "time or energy as the objective, with a limit on the other; the device tables.",
            "A value leaves once, in the stage after its first run, because later stages lead to the same memory. "
            "Steps of more than about 64 operations at normal effort get the best of the program, a greedy choice "
            "and `auto` without pages, because the program grows with the square of the step.",
        ),
    ),
)
