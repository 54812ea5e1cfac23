"""Writes the forwards of `operations`."""

from __future__ import annotations

import random

from .grammar import grammar
from .programs import Program

ROWS = 8
_NAMES = "abcdefghijklmopqrst"


def written(dice: random.Random, sized: bool, with_random: bool) -> Program:
    """A random forward.

    Args:
        dice: What decides.
        sized: Whether it takes the number of rows from its input; otherwise this is ROWS.
        with_random: Whether random numbers may be drawn.
    """
    writer = _Writer(dice, sized, with_random)
    for _ in range(dice.randint(4, 12)):
        writer.write()
    return writer.program()


class _Writer:
    """Writes statements. values: names that hold a tensor of 8 rows and 16 columns."""

    def __init__(self, dice: random.Random, sized: bool, with_random: bool) -> None:
        self.dice, self.values, self.statements = dice, ["a"], ["a = self.lin(x)"]
        self.rows, self.with_random = "n" if sized else str(ROWS), with_random

    def write(self) -> None:
        """Add a statement."""
        if len(self.statements) > 1 and self.dice.random() < 0.2:
            self.statements.append(self._drawn(self._kind("write", 0.05)))
            return
        expression, target = self._expression(), self._target()
        if self.dice.random() < 0.04:
            self.statements.append(f"with torch.no_grad(): {target} = {expression}")
        else:
            self.statements.append(f"{target} = {expression}")
        if target not in self.values:
            self.values.append(target)

    def program(self) -> Program:
        """The statements so far, and a result."""
        first = [] if self.rows == str(ROWS) else [f"{self.rows} = x.shape[0]"]
        return Program("operations", (*first, *self.statements, f"return {self._drawn('result', self.values[-1])}"))

    def _expression(self) -> str:
        if self.dice.random() < 0.15:
            return self._drawn("view")
        expression = self._drawn("binary") if self.dice.random() < 0.3 else self._drawn(self._kind("unary", 0.1))
        if self.dice.random() < 0.2:
            expression = f"torch.tanh({expression})"
        if self.dice.random() < 0.06:
            expression = f"{expression} if self.training else {self.dice.choice(self.values)}"
        return expression

    def _kind(self, kind: str, random_share: float) -> str:
        if not self.with_random or self.dice.random() >= random_share:
            return kind
        return "random" if kind == "unary" else f"random {kind}"

    def _drawn(self, section: str, value: str = "") -> str:
        last = self.values[-1] if self.dice.random() < 0.4 else ""
        v, u, w = (self.dice.choice(self.values) for _ in range(3))
        given = {"v": value or last or v, "u": u, "w": w, "n": self.rows}
        return grammar("operations").draw(section, self.dice, given)

    def _target(self) -> str:
        if len(self.values) == 1 or self.dice.random() < 0.7:
            return _NAMES[len(self.values)]
        return self.dice.choice(self.values)
