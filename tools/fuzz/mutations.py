"""Mutates schedule files: their bytes and their JSON."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

ODD = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    -(2**70),
    1e308,
    "",
    "%",
    "%%",
    "%x",
    "..",
    "a/b",
    "t+1",
    "f32[b]",
    {"size": "b*t"},
    {"float": "1/(t-16)"},
    "\u202e",
    [],
    {},
    [[]],
    {"": 0},
]


def mutated_bytes(data: bytes, dice: random.Random) -> bytes:
    text = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(text))
        kind = dice.randrange(5)
        if kind == 0:
            text[at] = dice.randrange(256)
        elif kind == 1:
            del text[at : at + dice.choice((1, 2, 30))]
        elif kind == 2:
            text[at:at] = dice.choice((b'"', b"{", b"}", b"[", b",", b":", b"-", b"9", b"\\", b"%", b"\xff", b"null"))
        elif kind == 3:
            other = dice.randrange(len(text))
            text[at:at] = text[other : other + dice.choice((1, 10, 80))]
        else:
            text[at : at + 1] = bytes([text[at] ^ (1 << dice.randrange(8))])
        if not text:
            return b""
    return bytes(text)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from places(item)


def mutated_tree(data: bytes, dice: random.Random) -> bytes:
    tree = json.loads(data)
    for _ in range(dice.choice((1, 1, 2, 4))):
        holders = list(places(tree))
        holder, key = dice.choice(holders)
        kind = dice.randrange(5)
        if kind == 0:
            holder[key] = copy.deepcopy(dice.choice(ODD))
        elif kind == 1:
            del holder[key]
        elif kind == 2:
            other, name = dice.choice(holders)
            holder[key] = copy.deepcopy(other[name]) if name in other or isinstance(other, list) else None
        elif kind == 3 and isinstance(holder, dict):
            holder[dice.choice(("note", "", "id", "a/b", "plans", "baseline", "instances"))] = copy.deepcopy(
                holder[key]
            )
        elif isinstance(holder, list):
            holder.insert(dice.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
        if not tree:
            break
    return json.dumps(tree).encode()


def mutated_plan(data: bytes, dice: random.Random) -> bytes:
    """Mutate only plans, recomputations, choices of plans, costs and notes. Such files are often legal."""
    tree = json.loads(data)
    for _ in range(dice.choice((1, 1, 2, 4, 8))):
        block = dice.choice([b for b in tree["blocks"].values() if b.get("forward")])
        operations = block["forward"] + block.get("backward", [])
        kind = dice.randrange(4)
        if kind == 0:
            instance = dice.choice(tree["program"])
            instance["plan"] = dice.choice(["baseline", "other", *tree["blocks"][instance["block"]].get("plans", {})])
        elif kind == 1:
            change = dice.choice([{}, {"note": "%x"}, {"workspace": dice.choice((0, 64, -1))}])
            operation = dice.choice(operations)
            operation.update(change)
            if not change:
                costs = dice.choice(list(tree.setdefault("costs", {}).values()) or [{}])
                costs[operation["id"]] = dice.randrange(1 << 40)
        elif dice.random() < 0.2:
            full = f"{dice.choice(tree['program'])['id']}.{dice.choice(operations)['id']}"
            tree.setdefault("statements", []).append(
                {"recompute": [full], "before": dice.choice(tree["program"])["id"]}
            )
        else:
            plan = block.setdefault("plans", {}).setdefault(dice.choice([*block.get("plans", {}), "new"]), [])
            _rearrange(
                plan,
                [op["id"] for op in block["forward"]],
                [op["id"] for op in (block.get("backward") or operations)],
                dice,
            )
    return json.dumps(tree).encode()


def _rearrange(plan: list[dict[str, Any]], forward: list[str], points: list[str], dice: random.Random) -> None:
    kind = dice.randrange(5) if plan else 0
    if kind == 0:
        names = dice.choices(forward, k=dice.choice((1, 1, 3)))
        plan.insert(dice.randrange(len(plan) + 1), {"recompute": names, "before": dice.choice(points)})
    elif kind == 1:
        del plan[dice.randrange(len(plan))]
    elif kind == 2:
        dice.choice(plan)["before"] = dice.choice(points)
    elif kind == 3:
        dice.shuffle(dice.choice(plan)["recompute"])
    else:
        dice.choice(plan)["recompute"].append(dice.choice([*forward, "nothing", points[0]]))
