"""Power and storage of small devices, for plans that minimize energy.

Figures are those that POET was evaluated with (S. Patil et al., ICML 2022; `chipsets` of its code, Apache-2.0). The
energy of an operation is FLOP over FLOP per joule, so it is proportional to time. The energy of a copy is the time of
the copy times the power of the storage.
"""

from __future__ import annotations

import msgspec

from remate_runtime.format import Lane
from remate_runtime.link import Timeline

from ..errors import UnknownNameError


class Storage(msgspec.Struct, frozen=True):
    """Times of copies to a storage and back. out, back: Bytes per second. latency: ns of each copy out, and back."""

    out: int
    back: int
    latency: tuple[int, int]

    def out_ns(self, nbytes: int) -> float:
        """Return the ns of a copy out."""
        return self.latency[0] + nbytes * 1e9 / self.out

    def back_ns(self, nbytes: int) -> float:
        """Return the ns of a copy back."""
        return self.latency[1] + nbytes * 1e9 / self.back

    @property
    def lane(self) -> Lane:
        """The storage as a lane, which has the larger latency in both directions."""
        return Lane(out=self.out, back=self.back, latency=max(self.latency))


class Power(msgspec.Struct, frozen=True):
    """The power of a device.

    Attributes:
        name: Its name.
        title: The device in words.
        flops: FLOP per second.
        compute: Watts while it computes.
        copying: Watts of the storage while it copies.
        storage: The storage.
    """

    name: str
    title: str
    flops: float
    compute: float
    copying: float
    storage: Storage

    def joules(self, compute_ns: float, copies_ns: float) -> float:
        """Return the energy of arithmetic and of copies that take these times."""
        return 1e-9 * (compute_ns * self.compute + copies_ns * self.copying)


# POET measured 1,628.3 MFLOP: 13.53 s at 0.6 A and 5 V on a Cortex-A72, 255.6237 s at 3.328 mA and 3.3 V on a
# Cortex-M4F.
# Its time on a Cortex-A72 is that of 2 GFLOP/s.
_MEASURED = 16_283 * 100 * 1000
_SD_OF_MCU = Storage(4_440_000, 4_616_510, (113_000, 109_000))
_SD_OF_PI = Storage(24_500_000, 45_500_000, (18_531, 5_096))
POWER: dict[str, Power] = {
    power.name: power
    for power in (
        Power("a72", "Raspberry Pi 4, Cortex-A72, SD card", 2e9, 2e9 * 13.53 * 0.6 * 5 / _MEASURED, 0.15, _SD_OF_PI),
        Power("m4", "Cortex-M4F, SD card", _MEASURED / 255.6237, 0.003328 * 3.3, 0.33, _SD_OF_MCU),
        Power("m0", "MKR1000, Cortex-M0+, SD card", 2000 / 0.012, 0.020 * 3.3, 0.33, _SD_OF_MCU),
    )
}


def step_energy(timeline: Timeline, power: Power) -> float:
    """Return the joules of a simulated step: its operations and its copies. Waits take no energy."""
    copies = 0.0
    for lane in timeline.lanes:
        out = lane.direction == "out"
        latency = power.storage.latency[0 if out else 1]
        copies += lane.copies * latency + lane.nbytes * 1e9 / (power.storage.out if out else power.storage.back)
    return power.joules(timeline.time - timeline.stall, copies)


def named_power(name: str) -> Power:
    """Return the device of a name. Raise UnknownNameError if there is none."""
    if name not in POWER:
        raise UnknownNameError(f"there are no figures of power for {name[:80]!r}\n  hint: one of {', '.join(POWER)}")
    return POWER[name]
