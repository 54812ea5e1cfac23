"""`remate diff`: what changed between two schedules, as decisions, and what it does to peak and time.

As git's diff driver, two lines:

    git config diff.remate.command "remate diff --git"
    echo '*.schedule.json diff=remate' >> .gitattributes
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..present.text import duration, percent, size, table
from . import exit_codes
from .usage import UsageError

if TYPE_CHECKING:
    from ..inspect.decisions import Choice, Decision
    from ..inspect.diff import Changes, Effect, FieldChange

_SHOWN = 12


def configure(commands: Any) -> None:
    parser = commands.add_parser(
        "diff",
        help="show which decisions differ between two schedules",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 if the schedules are equal, 1 if they differ; with --git always 0 unless git's call fails",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="the old schedule and the new one")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default text")
    parser.add_argument("--all", action="store_true", help=f"list everything, not only the first {_SHOWN} of a kind")
    parser.add_argument(
        "--git", action="store_true", help="FILE… are what git passes: path old-file old-hex old-mode new-file …"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.git:
        from .git_driver import drive

        return drive(args.files)
    if len(args.files) != 2:
        raise UsageError("diff compares two files: remate diff OLD.json NEW.json")
    from ..inspect.analysis import open_schedule
    from ..inspect.diff import compare

    changes = compare(open_schedule(args.files[0]), open_schedule(args.files[1]))
    if args.format == "json":
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(changes), indent=2).decode())
    else:
        print(described(changes, None if args.all else _SHOWN))
    return exit_codes.FINE if changes.equal else exit_codes.FINDINGS


def described(changes: Changes, limit: int | None = _SHOWN) -> str:
    """The text that `diff` prints."""
    if changes.equal:
        return "the schedules are equal"
    parts = [_decisions(changes.decisions, limit), _plans(changes), _graph(changes, limit)]
    parts += [_fields("model", changes.model, limit), _fields("solve", changes.solve, limit)]
    if changes.other:
        parts.append("also: " + ", ".join(changes.other))
    return "\n\n".join([part for part in parts if part] + [effect(changes.effect)])


def _decisions(decisions: tuple[Decision, ...], limit: int | None) -> str:
    if not decisions:
        return "decisions: none differs"
    lines = ["decisions"]
    for one in decisions[:limit]:
        named = f": plan {one.plan[0]} -> {one.plan[1]}" if one.plan else ""
        lines.append(f"  {listed(one.instances)} ({one.block}){named}")
        groups = {"now kept": one.kept, "now rerun": one.rerun, "other point": one.moved, "times changed": one.again}
        rows = [
            (f"    {word}", choice.op, size(choice.nbytes), _signed(choice.ns), _where(word, choice))
            for word, choices in groups.items()
            for choice in choices
        ]
        lines += [table(rows[:limit], right=(2, 3))] if rows else []
        lines += _rest(len(rows), limit, "    ")
    return "\n".join([*lines, *_rest(len(decisions), limit, "  ")])


def _where(word: str, choice: Choice) -> str:
    if word == "now kept":
        return ""
    if word == "now rerun":
        return "before " + ", ".join(choice.new)
    return f"before {', '.join(choice.old)} -> {', '.join(choice.new)}"


def _plans(changes: Changes) -> str:
    rows = [(f"  {p.block}", p.plan, p.change, f"{p.entries[0]} -> {p.entries[1]} entries") for p in changes.plans]
    if changes.toplevel:
        rows.append(("  (top level)", "reruns", "changed", f"{changes.toplevel[0]} -> {changes.toplevel[1]} entries"))
    return "plan definitions\n" + table(rows) if rows else ""


def _graph(changes: Changes, limit: int | None) -> str:
    lines = []
    for field in changes.instances[:limit]:
        lines.append(f"  instance {field.field}: {_value(field.old)} -> {_value(field.new)}")
    lines += _rest(len(changes.instances), limit, "  ")
    for block in changes.graph:
        counts = {kind: [o for o in block.operations if o.change == kind] for kind in _KINDS}
        said = ", ".join(f"{len(ops)} {_KINDS[kind]}" for kind, ops in counts.items() if ops)
        lines.append(f"  {block.block}: {said}")
        shown = sorted(block.operations, key=lambda o: list(_KINDS).index(o.change))[:limit]
        rows = [(f"    {o.change}", o.op, f"{o.count}x", " -> ".join(x for x in (o.old, o.new) if x)) for o in shown]
        lines += [table(rows, right=(2,)), *_rest(len(block.operations), limit, "    ")]
    return "\n".join(["graph", *lines]) if lines else ""


_KINDS = {"added": "added", "removed": "removed", "changed": "changed", "cost": "of another cost"}


def _fields(title: str, fields: tuple[FieldChange, ...], limit: int | None) -> str:
    rows = [(f"  {f.field}", f"{_value(f.old)} -> {_value(f.new)}") for f in fields[:limit]]
    return "\n".join([title, table(rows), *_rest(len(fields), limit, "  ")]) if rows else ""


def _value(value: Any) -> str:
    import json

    text = value if isinstance(value, str) else "none" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:59] + "…"


def effect(found: Effect) -> str:
    """The table of peak and time, before and after."""
    rows = [
        ("effect", "before", "after", ""),
        ("  peak", size(found.peak[0]), size(found.peak[1]), _change(*found.peak)),
        ("  time", duration(found.time[0]), duration(found.time[1]), _change(*found.time)),
        ("  reruns", f"{found.reruns[0]:,}", f"{found.reruns[1]:,}", ""),
        ("  budget", size(found.budget[0]), size(found.budget[1]), _verdict(found)),
    ]
    if found.gap != (None, None):
        before, after = ("-" if gap is None else percent(gap) for gap in found.gap)
        rows.append(("  gap", before, after, ""))
    return table(rows, right=(1, 2))


def _verdict(found: Effect) -> str:
    over = found.peak[1] - found.budget[1]
    return f"exceeded by {size(over)}" if over > 0 else "met"


def _change(old: int, new: int) -> str:
    if old == new:
        return "unchanged"
    return f"{(new / old - 1) * 100:+.2f}%" if old else ""


def _signed(ns: int) -> str:
    return f"{'-' if ns < 0 else '+'}{duration(abs(ns))}" if ns else ""


def listed(names: tuple[str, ...]) -> str:
    """The first names, and how many there are."""
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])}, … {names[-1]} ({len(names)} instances)"


def _rest(total: int, limit: int | None, indent: str) -> list[str]:
    return [f"{indent}… and {total - limit} more (--all)"] if limit is not None and total > limit else []
