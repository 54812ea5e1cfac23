"""The objective of strategy `poet`, its device, and its limits."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from remate_runtime.format import PageMemory

from ...budget import BudgetError
from ...errors import UnknownNameError
from ...profile.power import Power, named_power

POET = "poet"
Objective = Literal["time", "energy"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


class EnergyGoal(NamedTuple):
    """What a schedule is to minimize.

    objective: "energy" or "time". power: The device; None counts time only. limit: Most of the other figure, as a
    multiple of the baseline's; None has no limit. to: The memory that is paged to. room: Most bytes there.
    """

    objective: Objective
    power: Power | None
    limit: float | None
    to: PageMemory
    room: int

    @staticmethod
    def checked(
        objective: str, power: str, limit: float | None, to: PageMemory = "disk", room: int = 1 << 60
    ) -> EnergyGoal:
        """Return a goal from names.

        Raises:
            UnknownNameError: There is no such objective or device, or energy lacks its device.
            BudgetError: The limit is less than the baseline.
        """
        chosen: Objective | None = next((known for known in OBJECTIVES if known == objective), None)
        if chosen is None:
            raise UnknownNameError(f"there is no objective {objective[:80]!r}\n  hint: one of {', '.join(OBJECTIVES)}")
        device = named_power(power) if power else None
        if device is None and (chosen == "energy" or limit is not None):
            raise UnknownNameError(
                "energy needs the figures of a device\n  hint: name it: power='a72' (--power a72), or m4, m0"
            )
        if limit is not None and not 1.0 <= limit < 1e9:
            raise BudgetError(
                f"the limit is a multiple of the baseline's figure, at least 1, not {limit:g}\n  hint: write 1.2"
            )
        return EnergyGoal(chosen, device, limit, to, room)
