"""Generates the tables of figures in the documentation. Each is computed from the results of a benchmark."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from remate.strategy.descriptions import describe
from remate.strategy.paging import PAGING_STRATEGIES
from remate.strategy.registry import STRATEGIES, strategy
from remate_runtime.format import load
from remate_runtime.support.quantities import size

from .gpu_figures import gpu_contest, gpu_errors
from .results import RESULTS, ROOT, Table, cells, lines_of, markdown, object_of, records_of, text_tables
from .rooms import rooms

_EXAMPLES = {
    "gpt2": "GPT-2, 12 layers",
    "resnet": "ResNet-20, batch norm",
    "unet": "U-Net",
    "encoder_decoder": "encoder-decoder Transformer",
}
_PEER_MODELS = {
    "gpt2": "GPT-2, dropout",
    "gpt2_without_dropout": "GPT-2, no dropout",
    "llama": "Llama",
    "encoder_decoder": "T5, dropout",
    "unet": "U-Net",
    "resnet18": "ResNet-18",
}
_OTHER_MEANS = {
    "compile": "torch.compile",
    "compile-50": "its memory budget 0.5",
    "compile-10": "its memory budget 0.1",
    "compile-checkpoint": "compile over checkpoint",
    "checkpoint": "checkpoint per block",
    "selective": "selective checkpointing",
}
# Each means of the short comparison: its rows of results, who decides, what it limits, where the plan is.
_COMPARISON = (
    ("eager PyTorch", "eager", "–", "nothing", "–"),
    ("`torch.utils.checkpoint` per block", "checkpoint", "you, per module", "nothing", "your code"),
    ("selective checkpointing", "selective", "you, per operator", "nothing", "your code"),
    ("`torch.compile`", "compile", "min-cut", "nothing", "none"),
    ("`torch.compile`, memory budget 0.5", "compile-50", "knapsack", "saved bytes", "none"),
    ("remate, budget 60%", "remate-60", "integer programs", "the peak", "a file"),
    ("remate, engine `compiled`, 115 MiB", "remate-for-compile-50", "integer programs", "the peak", "a file"),
    ("remate, engine `compiled`, 77.1 MiB", "remate-for-checkpoint", "integer programs", "the peak", "a file"),
)
_SUITE = (
    ("gpt2", "50%", "GPT-2, 12 layers"),
    ("gpt2-xl", "20%", "GPT-2 XL, 48 layers"),
    ("t5", "30%", "T5, 12+12 layers"),
    ("resnet101", "50%", "ResNet-101"),
)


def examples() -> list[dict[str, str]]:
    """The measurements of `remate run` for each checked-in example."""
    text = "\n".join(lines_of("examples.txt"))
    rows = []
    for name, label in _EXAMPLES.items():
        section = text[re.search(rf"^{name}$", text, re.MULTILINE).end() :].partition("\n\n")[0]  # type: ignore[union-attr]
        eager, schedule, _ = cells(section.split("measured peak", 1)[1].splitlines()[0])
        ratio = cells(section.split("step time, median", 1)[1].splitlines()[0])[-1]
        low, high = re.search(r"from ([\d.]+) to ([\d.]+)", section).groups()  # type: ignore[union-attr]
        solve = load(str(ROOT / "examples" / f"{name}.json")).solve
        assert solve.baseline_time is not None
        assert solve.baseline_peak is not None
        assert solve.lower_bound is not None
        rows.append(
            {
                "model": label,
                "eager": eager,
                "schedule": schedule,
                "budget": f"{solve.budget / solve.baseline_peak:.0%}",
                "ratio": f"{float(ratio):.2f}",
                "range": f"{float(low):.2f}–{float(high):.2f}",
                "predicted": f"{solve.time / solve.baseline_time - 1:+.2%}",
                "bound": f"{solve.lower_bound / solve.baseline_time - 1:+.2%}",
                "gradients": "bitwise equal" if "(bitwise equal)" in section else "DIFFERENT",
            }
        )
    return rows


def gains() -> Table:
    """The short table of gains, for the front page."""
    head = ["model", "peak, eager", "peak, schedule", "step time / eager", "gradients"]
    return [head, *([row[k] for k in ("model", "eager", "schedule", "ratio", "gradients")] for row in examples())]


def gains_in_full() -> Table:
    """The table of gains with predictions and proofs."""
    head = ["model", "eager", "schedule", "budget", "step time / eager", "predicted time", "proven bound", "gradients"]
    return [
        head,
        *(
            [
                *(row[key] for key in ("model", "eager", "schedule", "budget")),
                f"{row['ratio']} ({row['range']})",
                *(row[key] for key in ("predicted", "bound", "gradients")),
            ]
            for row in examples()
        ),
    ]


def comparison() -> Table:
    """One model under each means: the table beside other means, for the front page."""
    rows = object_of("peers-gpt2.json")["rows"]
    table = [["means", "decided by", "bounds", "plan", "peak", "time / eager"]]
    for label, key, decided, bounds, plan in _COMPARISON:
        row = rows[key]
        table.append([label, decided, bounds, plan, size(row["peak"]), f"{row['time']:.2f}"])
    return table


def peers() -> Table:
    """Peak and time of every means, each followed by the fastest schedule that was measured within the same peak."""
    table = [["peak MiB / time over eager's", *_OTHER_MEANS.values()]]
    for name, label in _PEER_MODELS.items():
        rows = {key: row for key, row in object_of(f"peers-{name}.json")["rows"].items() if not row.get("failed")}
        ours = [row for key, row in rows.items() if key.startswith("remate")]
        theirs, best = [label], ["remate"]
        for key in _OTHER_MEANS:
            other = rows[key]
            within = [(_comparable(row, other), row) for row in ours if row["peak"] <= other["peak"]]
            time, fastest = min(within, key=lambda pair: pair[0])
            theirs.append(_point(other))
            best.append(f"**{_point(fastest)}**" if time <= other["time"] else _point(fastest))
        table += [theirs, best]
    return table


def _comparable(row: dict[str, Any], other: dict[str, Any]) -> float:
    """The time of a row, with a margin of 5% if it was measured in another rotation than `other`."""
    return row["time"] if row["tree"] == other["tree"] else row["time"] / 0.95


def _point(row: dict[str, Any]) -> str:
    return f"{row['peak'] / 2**20:.3g} / {row['time']:.2f}"


def suite() -> Table:
    """Large models under a cost model: extra time, proof, seconds to solve, bytes of the file."""
    lines = lines_of("suite.txt")
    table = [["model", "budget", "extra time", "proven bound", "solve", "file"]]
    for name, budget, label in _SUITE:
        start = next(at for at, line in enumerate(lines) if line.startswith(f"{name}: "))
        operations = re.search(r"[\d,]+ operations", lines[start]).group()  # type: ignore[union-attr]
        row = next(cells(line) for line in lines[start:] if line.startswith(f"{budget} "))
        table.append([f"{label}, {operations}", budget, row[3], row[4], row[8].rstrip("!"), row[9]])
    return table


def gpu_steps() -> Table:
    """Steps of large models on an H100: peak and extra time, by plan."""
    lines = lines_of("gpu_steps.txt")
    labels = ("full checkpointing", "remate, at full", "selective checkpointing", "remate, at selective", "remate, 50%")
    table = [["step", "without recomputation", *labels]]
    for at, line in enumerate(lines):
        if about := re.match(r"[\w-]+: (.*); [\d,]+ operations; .*; without recomputation (.*) on an H100", line):
            end = next((n for n in range(at, len(lines)) if not lines[n].strip()), len(lines))
            rows = {row[0]: row for row in map(cells, lines[at + 3 : end])}
            table.append([about[1], about[2], *(f"{rows[label][1]}, {rows[label][3]}" for label in labels)])
    return table


def gpu_memory() -> Table:
    """Reserved memory of published steps, measured and predicted."""
    lines = lines_of("gpu_steps.txt")
    table = [["step", "measured", "predicted", "error", "of which parameters and Adam's state", "source"]]
    for line in lines:
        if about := re.match(r"[\w-]+: (.*); [\d,]+ operations; ", line):
            step = about[1]
        pattern = r"Reserved with selective .*: measured (.*); predicted (.*) \((.*)\), of which (.* GiB) .*; (.*)"
        if reserved := re.match(pattern, line):
            table.append([step, *reserved.groups()])
    return table


def poet() -> Table:
    """POET's instances by strategy `poet`."""
    rows = [cells(line) for line in lines_of("poet.txt") if re.match(r"instance |[a-z0-9_]+\.(a72|m4) ", line)]
    return [[*row[:8], row[8], row[10]] for row in rows]


def paging() -> Table:
    """Recomputing and paging on an H200 that is not there."""
    rows = [cells(line) for line in lines_of("paging.txt") if re.match(r"model |[a-z0-9-]+ +[\d,]+ +[\d.]+% ", line)]
    return [row[:10] for row in rows]


_GRAPHS = (  # beginning of a graph's name, its name on the page, budgets
    ("fcn_8_vgg", "FCN-8", (90, 80, 70, 65)),
    ("vgg_unet", "VGG-U-Net", (80, 50)),
    ("segnet", "SegNet", (50,)),
    ("ResNet50_256", "ResNet-50 (CM2)", (90, 70)),
    ("random_layered_n100_", "RL1, 100 nodes", (90, 80)),
    ("random_layered_n250_", "RL2, 250 nodes", (90, 80)),
    ("random_layered_n500_", "RL3, 500 nodes", (90, 80)),
    ("random_layered_n1000_", "RL4, 1,000 nodes", (90, 80, 70)),
    ("resnet50.a72", "POET's ResNet-50", (60,)),
    ("bert.a72", "POET's BERT", (60,)),
)
_ALONE = ("checkmate", "moccasin", "hiremate", "rotor", "dtr", "coop", "treewidth", "fastsa")


def instances() -> Table:
    """Extra time of strategies on published graphs, in %."""
    from tools.bench.instance_tables import PUBLISHED

    records = records_of("instances.jsonl")
    table = [["graph", "budget", "best, order kept", "bound", *_ALONE, "published", "solver s"]]
    for start, label, budgets in _GRAPHS:
        for budget in budgets:
            matching = [r for r in records if r["graph"].startswith(start) and r["budget"] == budget]
            times = {r["strategy"]: r["time"] for r in matching if r.get("time") is not None}
            kept = {r["strategy"] for r in matching if r.get("time") is not None and not r.get("reordered")}
            bound = max((r.get("bound", 0.0) for r in matching), default=0.0)
            table.append(
                [
                    label,
                    f"{budget}%",
                    _best({name: times[name] for name in sorted(kept)}),
                    _percent(bound) if kept and bound else "none",
                    *(_cell(matching, name) for name in _ALONE),
                    next(known for begin, known in PUBLISHED.items() if begin.startswith(start)).get(budget, "–"),
                    _seconds(matching, times, kept),
                ]
            )
    return table


def versions() -> Table:
    """Tests that passed with each version of PyTorch, by room."""
    table = [["Python", "PyTorch", "tests passed", "failed"]]
    rows: dict[tuple[str, str], list[Any]] = {}
    for record in records_of("versions.jsonl"):
        rows.setdefault((record["python"], record["torch"]), []).append(record)
    for (python, torch), records in rows.items():
        passed = ", ".join(f"`{record['room']}` {record['passed']:,}" for record in records)
        table.append([python, torch, passed, str(sum(record["failed"] for record in records))])
    return table


def cuda_rules() -> Table:
    """The comparison of the rules for CUDA with the CUDA builds of several versions of PyTorch."""
    table: Table = []
    for path in sorted((RESULTS / "cuda_rules").glob("*.txt")):
        name = f"cuda_rules/{path.name}"
        versions = re.search(r"against torch (\S+), CUDA (\S+), cuDNN (\d+);", lines_of(name)[0])
        assert versions, name
        torch, cuda, cudnn = versions[1].split("+")[0], versions[2], int(versions[3])
        head, *rows = text_tables(name)[0]
        table = table or [["PyTorch", "CUDA", "cuDNN", *head]]
        table += [[torch, cuda, f"{cudnn // 10_000}.{cudnn // 100 % 100}", *row] for row in rows]
    return table


def _cell(records: Sequence[Mapping[str, Any]], name: str) -> str:
    """The time of a strategy, or the reason why there is none."""
    record = next((r for r in records if r["strategy"] == name), None)
    if record is None:
        return "not run"
    if record.get("time") is None:
        if record.get("lacks") == "not applicable":
            return "n/a"
        return "none" + " t" * bool(record.get("limit"))
    return _percent(record["time"]) + " t" * (record.get("stopped_by") == "time")


def _seconds(records: Sequence[Mapping[str, Any]], times: Mapping[str, float], kept: Collection[str]) -> str:
    """CPU seconds of the strategy with the best time."""
    if not kept:
        return "-"
    best = min(kept, key=lambda name: (round(times[name], 4), not name.startswith("auto"), name))
    return f"{next(r['cpu'] for r in records if r['strategy'] == best):.1f}"


def _best(times: dict[str, float]) -> str:
    """The least time, with the strategy if it is not `auto`."""
    if not times:
        return "none"
    least = min(times.values())
    for name in ("auto:kept", "auto"):
        if name in times and times[name] <= least + 1e-4:
            return _percent(times[name])
    return f"{_percent(least)} (`{min(times, key=lambda name: (times[name], name))}`)"


def _percent(value: float) -> str:
    return f"{value:.3g}" if value >= 1e-9 else "0"


def strategies() -> Table:
    """Each strategy of remate: its source, what follows it, and what differs."""
    rows = [["strategy", "source", "from the paper", "differences, and why"]]
    for name in STRATEGIES:
        about = describe(strategy(name))
        rows.append([f"`{name}`", about.source, about.from_paper, about.differences])
    for paging in PAGING_STRATEGIES:
        about = paging.description
        rows.append([f"`{paging.name}`, with pages", about.source, about.from_paper, about.differences])
    return rows


def _text(name: str, at: int = 0, head: list[str] | None = None) -> Callable[[], Table]:
    """A table of a text file unchanged, or with another head."""

    def table() -> Table:
        old, *rows = text_tables(name)[at]
        return [head or old, *rows]

    return table


FIGURES: dict[str, Callable[[], Table]] = {
    "gains": gains,
    "gains-in-full": gains_in_full,
    "comparison": comparison,
    "peers": peers,
    "suite": suite,
    "gpu-steps": gpu_steps,
    "gpu-memory": gpu_memory,
    "poet": poet,
    "paging": paging,
    "instances": instances,
    "strategies": strategies,
    "integrations": _text("integrations.txt", 0, ["loop", "bitwise", "peak of a step", "budget", "baseline"]),
    "integrations-ranks": _text("integrations.txt", 1),
    "gradients": _text("gradients.txt"),
    "weights": _text(
        "weights.txt",
        0,
        ["budget", "predicted", "measured", "growth of the process", "in files", "bits", "time / eager", "predicted"],
    ),
    "ranks": _text("ranks.txt", 0, ["peak of a step, the larger of two ranks", "measured"]),
    "compile-time": _text("compile_time.txt"),
    "overhead": _text("overhead.txt"),
    "published": _text("published.txt"),
    "layouts": _text("layouts.txt"),
    "split-floors": _text("splits.txt", 0),
    "splits": _text("splits.txt", 1),
    "split-heads": _text("split_heads.txt"),
    "scripts": _text("scripts.txt"),
    "transposes": _text("transposes.txt"),
    "workspaces": _text("workspaces.txt"),
    "cuda-rules": cuda_rules,
    "gpu-contest": gpu_contest,
    "gpu-errors": gpu_errors,
    "versions": versions,
    "rooms-runtime": lambda: rooms("RUNTIME", ROOT / "runtime" / "remate_runtime"),
    "rooms-planner": lambda: rooms("PLANNER", ROOT / "remate"),
}
_MARK = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- /figures -->)", re.DOTALL)


def with_figures(text: str) -> str:
    """A page with its tables of figures computed again."""
    return _MARK.sub(lambda match: f"{match[1]}{markdown(FIGURES[match[2]]())}\n{match[4]}", text)
