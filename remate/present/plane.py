"""A chart with two axes as a self-contained, deterministic SVG file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .text import escape

INK, GREY, BLUE, RED = "#1f2328", "#8b949e", "#1f6feb", "#cf222e"
_WIDTH, _HEIGHT = 900, 460  # of the drawing
_LEFT, _RIGHT, _TOP, _BOTTOM = 104, 24, 44, 92  # margins around the plane
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


class Plane:
    """A drawing area that clips.

    Args:
        x: Least and greatest horizontal coordinate, in units of the data.
        y: Least and greatest vertical coordinate, in units of the data.
    """

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self._x, self._y = x, y
        self._parts: list[str] = []
        self._legend: list[tuple[str, str]] = []  # (SVG of the mark, label)

    def line(
        self, points: Iterable[tuple[float, float]], color: str, label: str, dash: str = "", dots: float = 0
    ) -> None:
        """Draw a line and its key. `dots` is the radius of a dot at each point; 0 draws none."""
        listed = list(points)
        look = f'fill="none" stroke="{color}" stroke-width="1.5"' + (f' stroke-dasharray="{dash}"' if dash else "")
        self._parts.append(f'<path d="{self._path(listed)}" {look}/>')
        if dots:
            self._parts += [self._dot(point, color, dots) for point in listed]
        self._legend.append((f'<path d="M0 0H22" {look}/>', label))

    def area(self, points: Iterable[tuple[float, float]], color: str, opacity: float, label: str = "") -> None:
        """Fill the area that `points` enclose."""
        look = f'fill="{color}" fill-opacity="{opacity:g}"'
        self._parts.append(f'<path d="{self._path(points)}Z" {look}/>')
        if label:
            self._legend.append((f'<rect y="-6" width="22" height="12" {look}/>', label))

    def dot(self, point: tuple[float, float], color: str, label: str) -> None:
        """Draw a dot and its key."""
        self._parts.append(self._dot(point, color, 4))
        self._legend.append((f'<circle cx="11" cy="0" r="4" fill="{color}"/>', label))

    def divide(self, at: float, before: str, after: str) -> None:
        """Draw a vertical line with labels to its left and right."""
        x = self._across(at)
        self._parts.append(
            f'<path d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="{INK}" stroke-width="0.8" '
            + 'stroke-dasharray="1.5 3"/>'
            + _text(x - 7, _TOP + 14, before, "end")
            + _text(x + 7, _TOP + 14, after, "start")
        )

    def svg(
        self,
        title: str,
        labels: tuple[str, str],
        ticks: tuple[Sequence[float], Sequence[float]],
        shown: tuple[Callable[[float], str], Callable[[float], str]],
    ) -> str:
        """Return the file.

        Args:
            title: The title.
            labels: Labels of the horizontal and of the vertical axis.
            ticks: Ticks of both axes.
            shown: Functions that format the ticks of both axes.
        """
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        axes = [f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="{INK}"/>']
        for at in ticks[0]:
            axes.append(_text(self._across(at), bottom + 18, shown[0](at), "middle"))
        for at in ticks[1]:
            y = self._up(at)
            axes.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#d0d7de" stroke-width="0.6"/>')
            axes.append(_text(_LEFT - 8, y + 4, shown[1](at), "end"))
        middle = (_TOP + bottom) / 2
        lines = [
            '<?xml version="1.0" encoding="utf-8"?>',
            "<!-- drawn by remate -->",
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
            f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="{_FONT}" font-size="12.5" fill="{INK}">',
            f'<clipPath id="plane"><rect x="{_LEFT}" y="{_TOP - 6}" width="{right - _LEFT}" '
            f'height="{bottom - _TOP + 6}"/></clipPath>',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
            f'<text x="{_LEFT}" y="26" font-size="15">{escape(title)}</text>',
            *axes,
            '<g clip-path="url(#plane)">',
            *self._parts,
            "</g>",
            _text((_LEFT + right) / 2, bottom + 40, labels[0], "middle"),
            f'<text x="18" y="{middle:.1f}" text-anchor="middle" '
            f'transform="rotate(-90 18 {middle:.1f})">{escape(labels[1])}</text>',
            *self._keys(),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _keys(self) -> Iterable[str]:
        """Yield the keys below the plane, in up to two rows."""
        at, row = _LEFT, _HEIGHT - 26
        for mark, label in self._legend:
            width = 29 + round(7.2 * len(label))  # an upper estimate of the width of letters
            if at > _LEFT and at + width > _WIDTH:
                at, row = _LEFT, _HEIGHT - 8
            yield f'<g transform="translate({at} {row})">{mark}{_text(29, 4, label, "start")}</g>'
            at += width + 18

    def _path(self, points: Iterable[tuple[float, float]]) -> str:
        """Return the path without repeated points."""
        distinct: list[str] = []
        for x, y in points:
            point = f"{self._across(x):.1f} {self._up(y):.1f}"
            if not distinct or distinct[-1] != point:
                distinct.append(point)
        return "M" + "L".join(distinct)

    def _dot(self, point: tuple[float, float], color: str, radius: float) -> str:
        return (
            f'<circle cx="{self._across(point[0]):.1f}" cy="{self._up(point[1]):.1f}" r="{radius:g}" fill="{color}"/>'
        )

    def _across(self, x: float) -> float:
        low, high = self._x
        return _LEFT + (x - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def _up(self, y: float) -> float:
        low, high = self._y
        return _HEIGHT - _BOTTOM - (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)


def _text(x: float, y: float, shown: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(shown)}</text>'


def round_numbers(limit: float, about: int, binary: bool = False) -> list[int]:
    """Return round integers from 0 to `limit` for ticks.

    Args:
        limit: The greatest number.
        about: Approximate number of ticks.
        binary: Round to powers of 1024, for bytes.
    """
    unit = 1
    while binary and unit * 1024 <= limit:
        unit *= 1024
    rough = max(limit / unit / about, 1e-9)
    power = 1.0
    while power * 10 <= rough:
        power *= 10
    while power > rough:
        power /= 10
    step = max(round(next(m for m in (1, 2, 5, 10) if m * power >= rough) * power * unit), 1)
    return list(range(0, int(limit) + 1, step))
