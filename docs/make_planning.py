"""The tables and figures of ``docs/planning.md``, from the records in ``docs/evidence/planning``.

``python docs/make_planning.py`` writes them anew. A record is a line of a study's ``--records`` file, and none is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy import stats

from stepjepa.analysis.plots import curve_figure, save_figure
from stepjepa.study.compare import holm
from stepjepa.study.reading import read_study
from stepjepa.study.spec import all_runs
from stepjepa.study.tree import open_study
from stepjepa.utils.text import scaled

DOCS = Path(__file__).parent
RECORDS = DOCS / "evidence" / "planning"
PAGE = DOCS / "planning.md"
BASELINE, REACHED, ALPHA = "regular", 0.95, 0.01
SETTINGS, SEEDS = 4, 3  # of an arm, and of a setting, in the grid
_PLACE = re.compile(r"(<!-- (\w+) ?(\S*) -->\n).*?(<!-- end -->)", re.DOTALL)
Record = Mapping[str, Any]
Runs = dict[str, dict[int, Record]]  # arm or arm+control -> seed -> record


def records_of(name: str) -> list[Record]:
    """The runs of a file, the last line of each; a line without a stage that is done is a run that was cut off."""
    path = RECORDS / f"{name}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return list({row["run"]: row for row in map(json.loads, lines) if row["at"]}.values())


def runs_of(name: str, task: str) -> Runs:
    """The runs of a task by arm, with the control, and seed: of the block that has its name, and of those that end it in
    ``-tokens`` and ``-random``, whose runs of an arm that it has too do not count."""
    found: Runs = {}
    for row in sorted(records_of(name), key=lambda row: row["block"]):
        if row["block"].split("-")[0] == task:
            arm = row["arm"] if row["control"] == "none" else f"{row['arm']}+{row['control']}"
            found.setdefault(arm, {}).setdefault(row["seed"], row)
    return found


# Numbers


def accuracy(record: Record, split: str = "test") -> float:
    """The share of right answers; a run that diverged has none."""
    return float((record["metrics"].get(split) or {}).get("task") or 0.0)


def within(record: Record, flops: float) -> float:
    """The share of right validation answers at the last evaluation within so many FLOPs."""
    return max(
        ((h["total_flos"], h["eval_task"]) for h in record["history"] if h["total_flos"] <= flops), default=(0, 0.0)
    )[1]


def examples_until(record: Record) -> int | None:
    """Examples until an evaluation reached `REACHED`; None where none did."""
    return next((int(h["examples"]) for h in record["history"] if h["eval_task"] >= REACHED), None)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of a mean over the seeds."""
    if len(set(values)) == 1:
        return values[0], values[0]
    found = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    return float(found.low), float(found.high)


def sign_flip(differences: Sequence[float]) -> float:
    """The two-sided p-value of the exact paired sign-flip test, over all 2^n signs."""
    test = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=np.inf)
    return float(test.pvalue)


def differences(one: Mapping[int, Record], other: Mapping[int, Record]) -> list[float]:
    """Accuracies on the test split, seed by seed."""
    return [accuracy(one[seed]) - accuracy(other[seed]) for seed in sorted(one.keys() & other.keys())]


# Tables


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(line)} |" for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def percent(value: float) -> str:
    """A share."""
    return f"{100 * value:.1f}"


def pilot_table(name: str) -> str:
    """What the runs that set the sizes came to, block by block."""
    rows = []
    for row in records_of(name):
        best = max(h["eval_task"] for h in row["history"])
        values = percent(accuracy(row, "select")), percent(best), str(row["steps"])
        rows.append([row["block"] or "path_star", f"`{row['arm']}`", str(row["seed"]), *values])
    return table(["task", "arm", "seed", "right, validation", "best evaluation", "steps"], sorted(rows))


def grid_table(name: str) -> str:
    """Every setting of every arm, seed by seed. Where all of an arm have run, the best, of equal ones the first, is bold: it
    is the one that is chosen."""
    arms: dict[str, dict[tuple[float, ...], list[Record]]] = {}
    for row in sorted(records_of(name), key=lambda row: row["seed"]):
        arms.setdefault(row["arm"], {}).setdefault(
            (row["cell"]["learning_rate"], row["cell"].get("lbd", 0)), []
        ).append(row)
    rows = []
    for arm, cells in sorted(arms.items(), key=lambda item: item[0] != BASELINE):
        means = {cell: float(np.mean([accuracy(row, "select") for row in own])) for cell, own in sorted(cells.items())}
        complete = len(cells) == SETTINGS and all(len(own) == SEEDS for own in cells.values())
        chosen = max(means, key=lambda cell: means[cell]) if complete else None
        for cell, mean in means.items():
            shown = f"**{percent(mean)}**" if cell == chosen else percent(mean)
            each = ", ".join(f"{percent(accuracy(row, 'select'))} ({row['steps']})" for row in cells[cell])
            rows.append([f"`{arm}`", f"{cell[0]:g}", f"{cell[1]:g}" if cell[1] else "", shown, each])
    return table(["arm", "rate", "lambda", "right, %", "by seed (steps)"], rows)


def arms_table(name: str, task: str) -> str:
    """Every arm of a task of the test."""
    runs = runs_of(name, task)
    plain, rows = runs[BASELINE], []
    for arm, own in runs.items():
        values = [accuracy(own[seed]) for seed in sorted(own)]
        low, high = interval(values)
        cells = [f"`{arm}`", f"{percent(float(np.mean(values)))} [{percent(low)}, {percent(high)}]"]
        cells.append(f"{sum(value >= REACHED for value in values)} of {len(values)}")
        gain = differences(own, plain)
        cells.append(
            ""
            if arm == BASELINE
            else f"{100 * np.mean(gain):+.1f} [{', '.join(f'{100 * x:+.1f}' for x in interval(gain))}]"
        )
        equal = [within(own[seed], plain[seed]["flops"]) for seed in sorted(own.keys() & plain.keys())]
        cells.append(percent(float(np.mean(equal))))
        reached = [found for row in own.values() if (found := examples_until(row)) is not None]
        cells.append(f"{scaled(median(reached))} ({len(reached)} of {len(own)})" if reached else "-")
        cells.append(scaled(float(np.mean([row["flops"] for row in own.values()]))))
        rows.append(cells)
    head = ["arm", "right, % [95 %]", "seeds at 95 % or more", "from plain, points [95 %]", "right at plain's FLOPs, %"]
    return table([*head, "examples until 95 %, median", "FLOPs"], rows)


def hypotheses_table(name: str, first: str, second: str, tasks: Sequence[str]) -> str:
    """The hypotheses that were named in advance, with Holm's correction over them."""
    pairs = [(task, first, other) for task in tasks for other in (BASELINE, f"{first}+shuffled")]
    pairs += [(tasks[0], second, other) for other in (BASELINE, f"{second}+shuffled")]
    found = {task: runs_of(name, task) for task in tasks}
    gains = [differences(found[task][arm], found[task][other]) for task, arm, other in pairs]
    p_values = [sign_flip(gain) for gain in gains]
    rows = []
    for number, (pair, gain, p, corrected) in enumerate(zip(pairs, gains, p_values, holm(p_values), strict=True), 1):
        task, arm, other = pair
        holds = "yes" if corrected is not None and corrected < ALPHA and np.mean(gain) > 0 else "no"
        ends = ", ".join(f"{100 * x:+.1f}" for x in interval(gain))
        difference = f"{100 * np.mean(gain):+.1f} [{ends}]"
        rows.append([str(number), task, f"`{arm}` - `{other}`", difference, f"{p:.4f}", f"{corrected:.4f}", holds])
    return table(["", "task", "difference", "points [95 %]", "p", "p (Holm)", f"ahead at {ALPHA:g}"], rows)


def curves(name: str, task: str, title: str) -> Path:
    """Right validation answers on the way, the mean over the seeds; a run that ended early keeps its last value."""
    histories = {}
    runs = runs_of(name, task)
    steps = sorted({entry["step"] for own in runs.values() for row in own.values() for entry in row["history"]})
    for arm, own in runs.items():
        found = [[entry["eval_task"] for entry in row["history"]] for row in own.values()]
        padded = [values + values[-1:] * (len(steps) - len(values)) for values in found]
        means = np.mean(padded, axis=0).tolist()
        histories[arm] = [{"step": step, "eval_task": mean} for step, mean in zip(steps, means, strict=True)]
    path = DOCS / "assets" / f"planning_{task}.png"
    save_figure(curve_figure(histories, [("eval_task", "share of right validation answers")], title), path)
    return path


def test_tables(recipe: str) -> str:
    """What the test came to, once all of its runs are there."""
    found, tree = open_study(recipe)
    study = read_study(tree, found)
    blocks = {block.name: block for block in study.blocks if "-" not in block.name}
    runs, done = list(all_runs(study)), {row["run"] for row in records_of("test") if "test" in row["at"]}
    missing = sum(run.name not in done for run in runs)
    if missing:
        return f"{len(runs) - missing} of {len(runs)} runs are done. What they came to is looked at when all are.\n"
    first, second = (arm.name for arm in next(iter(blocks.values())).arms if arm.name != BASELINE)
    parts = [f"{task}:\n\n{arms_table('test', task)}\n![](assets/planning_{task}.png)\n" for task in blocks]
    return "\n".join([*parts, hypotheses_table("test", first, second, list(blocks))])


def filled(text: str) -> str:
    """The page with its tables written anew: ``<!-- pilot NAME -->``, ``<!-- grid NAME -->``, ``<!-- test RECIPE -->``."""
    tables = {"pilot": pilot_table, "grid": grid_table, "test": test_tables}
    return _PLACE.sub(lambda match: f"{match[1]}{tables[match[2]](match[3])}{match[4]}", text)


if __name__ == "__main__":
    page = filled(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page, encoding="utf-8")
    for drawn in re.findall(r"assets/planning_(\w+)\.png", page):
        curves("test", drawn, drawn)
