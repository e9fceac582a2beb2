"""The tables and figures of ``docs/planning.md``, from the records in ``docs/evidence/planning``.

``python docs/make_planning.py`` writes them anew. A record is a line of a study's ``--records`` file, and none is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from page_tables import Record, arm_of, fill, records_in, table
from scipy import stats

from stepjepa.analysis.plots import draw_lines, legend_below, new_figure
from stepjepa.evaluation.statistics import holm
from stepjepa.inspect.figure import save_figure
from stepjepa.study import results
from stepjepa.study.reading import read_study
from stepjepa.study.spec import MetricSpec, all_runs
from stepjepa.study.tree import open_study
from stepjepa.utils.text import scaled

DOCS = Path(__file__).parent
RECORDS = DOCS / "evidence" / "planning"
PAGE = DOCS / "planning.md"
BASELINE, TOKENS, REACHED, ALPHA = "regular", "multi_token", 0.95, 0.01
TASK = MetricSpec("task", higher_is_better=True)  # the share of right answers
SETTINGS, SEEDS = 4, 3  # of an arm, and of a setting, in the grid
Runs = dict[str, dict[int, Record]]  # arm or arm+control -> seed -> record


def records_of(name: str) -> list[Record]:
    """The runs of a file of records."""
    return records_in(RECORDS / f"{name}.jsonl")


def runs_of(name: str, task: str) -> Runs:
    """The runs of a task by arm, with the control, and seed: of the block that has its name, and of those that end it in
    ``-tokens`` and ``-random``, whose runs of an arm that it has too do not count."""
    found: Runs = {}
    for row in sorted(records_of(name), key=lambda row: row["block"]):
        if row["block"].split("-")[0] == task:
            found.setdefault(arm_of(row), {}).setdefault(row["seed"], row)
    return found


# Numbers


def accuracy(record: Record, split: str = "test", metric: str = "task") -> float:
    """The share of right answers; a run that diverged has none."""
    return float((record["metrics"].get(split) or {}).get(metric) or 0.0)


def cost(record: Record) -> float:
    """The FLOPs of a run; of one that diverged those until its last evaluation."""
    return float(record["flops"] or max((h["total_flos"] for h in record["history"]), default=0))


def within(record: Record, flops: float) -> float:
    """The share of right validation answers at the last evaluation within so many FLOPs."""
    return max(
        ((h["total_flos"], h["eval_task"]) for h in record["history"] if h["total_flos"] <= flops), default=(0, 0.0)
    )[1]


def examples_until(record: Record) -> float | None:
    """Examples until an evaluation reached `REACHED`; None where none did."""
    for entry in record["history"]:
        if results.reaches(entry.get("eval_task"), TASK, REACHED):
            return float(entry["examples"])
    return None


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


def differences(
    one: Mapping[int, Record], other: Mapping[int, Record], value: Callable[[Record], float] = accuracy
) -> list[float]:
    """Accuracies on the test split, or other values of a run, seed by seed."""
    return [value(one[seed]) - value(other[seed]) for seed in sorted(one.keys() & other.keys())]


# Tables


def points(gains: Sequence[float]) -> str:
    """A mean difference in points, with its interval."""
    low, high = interval(gains)
    return f"{100 * np.mean(gains):+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


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


def cells_of(name: str) -> dict[str, dict[tuple[float, ...], list[Record]]]:
    """The runs of a grid by arm and setting (rate, lambda), by seed."""
    arms: dict[str, dict[tuple[float, ...], list[Record]]] = {}
    for row in sorted(records_of(name), key=lambda row: row["seed"]):
        cell = (row["cell"]["learning_rate"], row["cell"].get("lbd", 0))
        arms.setdefault(row["arm"], {}).setdefault(cell, []).append(row)
    return arms


def choice(cells: Mapping[tuple[float, ...], Sequence[Record]]) -> tuple[float, ...] | None:
    """The setting with the best mean on the validation split, of equal ones the first; None before all runs of an arm are
    there. One that diverged on a seed is out."""
    if len(cells) < SETTINGS or any(len(own) < SEEDS for own in cells.values()):
        return None
    rights = {
        cell: [accuracy(row, "select") for row in own] for cell, own in sorted(cells.items()) if all(map(scored, own))
    }
    return max(rights, key=lambda cell: round(float(np.mean(rights[cell])), 9))


def scored(record: Record) -> bool:
    """Whether a run of the grid came to its end with a number."""
    return (record["metrics"].get("select") or {}).get("task") is not None


def grid_table(name: str) -> str:
    """Every setting of every arm, seed by seed. Where all of an arm have run, the best, of equal ones the first, is bold: it
    is the one that is chosen."""
    rows = []
    for arm, cells in sorted(cells_of(name).items(), key=lambda item: item[0] != BASELINE):
        means = {cell: float(np.mean([accuracy(row, "select") for row in own])) for cell, own in sorted(cells.items())}
        chosen = choice(cells)
        for cell, mean in means.items():
            shown = f"**{percent(mean)}**" if cell == chosen else percent(mean)
            each = ", ".join(f"{percent(accuracy(row, 'select'))} ({row['steps']})" for row in cells[cell])
            rows.append([f"`{arm}`", f"{cell[0]:g}", f"{cell[1]:g}" if cell[1] else "", shown, each])
    return table(["arm", "rate", "lambda", "right, %", "by seed (steps)"], rows)


def arms_table(name: str, task: str) -> str:
    """Every arm of a task of the test: what it came to, and by how much it differs from plain training and from multi-token
    prediction."""
    runs, rows = runs_of(name, task), []
    for arm, own in runs.items():
        values = [accuracy(own[seed]) for seed in sorted(own)]
        low, high = interval(values)
        cells = [f"`{arm}`", f"{percent(float(np.mean(values)))} [{percent(low)}, {percent(high)}]"]
        cells.append(percent(float(np.mean([accuracy(row, metric="first_step") for row in own.values()]))))
        cells.append(f"{sum(results.reaches(value, TASK, REACHED) for value in values)} of {len(values)}")
        cells += ["" if arm == other else points(differences(own, runs[other])) for other in (BASELINE, TOKENS)]
        rows.append(cells)
    head = ["arm", "right, % [95 %]", "first step, %", "seeds at 95 % or more"]
    return table([*head, "difference from plain, points [95 %]", "difference from multi-token, points [95 %]"], rows)


def compute_table(name: str, task: str) -> str:
    """Every arm of a task of the test at the FLOPs of plain training, on validation questions, and what it takes."""
    runs, rows = runs_of(name, task), []
    limits = {seed: cost(row) for seed, row in runs[BASELINE].items()}

    def equal(row: Record) -> float:
        return within(row, limits[row["seed"]])

    for arm, own in runs.items():
        rights, gains = [equal(row) for row in own.values()], differences(own, runs[BASELINE], equal)
        reached = [found for row in own.values() if (found := examples_until(row)) is not None]
        until = f"{scaled(median(reached))} ({len(reached)} of {len(own)})" if reached else "-"
        flops = scaled(float(np.mean([cost(row) for row in own.values()])))
        rows.append(
            [f"`{arm}`", percent(float(np.mean(rights))), "" if arm == BASELINE else points(gains), until, flops]
        )
    head = ["arm", "right, % (at the FLOPs of plain training)", "difference from plain at equal FLOPs, points [95 %]"]
    return table([*head, "examples until 95 %, median of the seeds that reach it", "FLOPs of a run"], rows)


class Test(NamedTuple):
    """A paired difference of two arms, seed by seed, with its test."""

    gains: list[float]
    p: float
    corrected: float  # after Holm's correction

    @property
    def cells(self) -> list[str]:
        """The difference in points with its interval, and both p-values."""
        return [points(self.gains), f"{self.p:.4f}", f"{self.corrected:.4f}"]

    @property
    def direction(self) -> str:
        """``ahead`` or ``behind`` where the difference is significant."""
        if self.corrected >= ALPHA:
            return ""
        return "ahead" if np.mean(self.gains) > 0 else "behind"


def tests_of(gains: Sequence[list[float]]) -> list[Test]:
    """The exact tests of paired differences, with Holm's correction over all of them."""
    p_values = [sign_flip(gain) for gain in gains]
    corrected = [1.0 if value is None else value for value in holm(p_values)]
    return [Test(*values) for values in zip(gains, p_values, corrected, strict=True)]


def hypotheses_table(name: str, first: str, second: str, tasks: Sequence[str]) -> str:
    """The hypotheses that were named in advance, with Holm's correction over them."""
    pairs = [(task, first, other) for task in tasks for other in (BASELINE, f"{first}+shuffled")]
    pairs += [(tasks[0], second, other) for other in (BASELINE, f"{second}+shuffled")]
    runs = {task: runs_of(name, task) for task in tasks}
    tests = tests_of([differences(runs[task][arm], runs[task][other]) for task, arm, other in pairs])
    rows = []
    for number, ((task, arm, other), test) in enumerate(zip(pairs, tests, strict=True), 1):
        holds = "yes" if test.direction == "ahead" else "no"
        rows.append([str(number), task, f"`{arm}` - `{other}`", *test.cells, holds])
    return table(["", "task", "difference", "points [95 %]", "p", "p (Holm)", f"ahead at {ALPHA:g}"], rows)


TERMS = {  # the arms of the addendum to the protocol, and the terms of each
    "regular": "none",
    "next_latent": "both",
    "next_latent_kl": "KL alone",
    "next_latent_states": "distance alone",
}
TERM_PAIRS = [
    ("next_latent_kl", "regular"),
    ("next_latent_states", "regular"),
    ("next_latent_kl", "next_latent"),
    ("next_latent_states", "next_latent"),
]


def terms_tables(recipe: str) -> str:
    """The arms with one term of ``next_latent`` each, once all of their runs are there."""
    missing = missing_runs(recipe, "terms")
    if missing:
        return missing
    runs = runs_of("terms", "path_star")
    rows = []
    for arm, terms in TERMS.items():
        records = runs[arm]
        rights = [accuracy(record) for record in records.values()]
        solved = sum(results.reaches(right, TASK, REACHED) for right in rights)
        share = stats.binomtest(solved, len(rights)).proportion_ci(method="wilson")
        low, high = interval(rights)
        counts = [examples_until(record) for record in records.values()]
        reached = [count for count in counts if count is not None]
        rows.append(
            [
                f"`{arm}`",
                terms,
                f"{solved} of {len(rights)} [{100 * share.low:.0f} %, {100 * share.high:.0f} %]",
                f"{percent(float(np.mean(rights)))} [{percent(low)}, {percent(high)}]",
                f"{scaled(median(reached))} ({len(reached)} of {len(counts)})" if reached else "-",
            ]
        )
    head = ["arm", "terms", "seeds at 95 % or more", "right, % [95 %]", "examples until 95 %, median"]
    arms = table(head, rows)
    tests = tests_of([differences(runs[arm], runs[other]) for arm, other in TERM_PAIRS])
    rows = []
    for number, ((arm, other), test) in enumerate(zip(TERM_PAIRS, tests, strict=True), 1):
        rows.append([str(number), f"`{arm}` - `{other}`", *test.cells, test.direction or "not significant"])
    contrasts = table(["", "difference", "points [95 %]", "p", "p (Holm)", f"at {ALPHA:g}"], rows)
    return (
        f"{arms}\n{contrasts}\nThe conclusion under the protocol: *{conclusion([test.direction for test in tests])}*.\n"
    )


def conclusion(directions: Sequence[str]) -> str:
    """What the addendum concludes from the directions of its four differences."""
    kl, states, kl_to_both, states_to_both = directions
    if kl == "ahead" and states == "ahead":
        return "either alone is enough"
    if kl == "ahead" and not states and states_to_both == "behind":
        return "the token distributions do the work"
    if states == "ahead" and not kl and kl_to_both == "behind":
        return "the states do the work"
    if not kl and not states and kl_to_both == states_to_both == "behind":
        return "only together"
    return "not decided with twelve seeds"


def missing_runs(recipe: str, name: str) -> str:
    """A line that says how many runs of a recipe are in a file of records; empty where all are."""
    text, tree = open_study(recipe)
    runs = list(all_runs(read_study(tree, text)))
    done = {row["run"] for row in records_of(name) if "test" in row["at"]}
    missing = sum(run.name not in done for run in runs)
    if not missing:
        return ""
    return f"{len(runs) - missing} of {len(runs)} runs are done. Their results are looked at when all are.\n"


def curves(name: str, task: str, title: str) -> Path:
    """The share of right validation answers by step, the mean over the seeds; a run that ended keeps its last value."""
    lines = {}
    runs = runs_of(name, task)
    steps = sorted({entry["step"] for own in runs.values() for row in own.values() for entry in row["history"]})
    for arm, own in runs.items():
        found = [[entry["eval_task"] for entry in row["history"]] or [0.0] for row in own.values()]
        padded = [values + values[-1:] * (len(steps) - len(values)) for values in found]
        means = np.mean(padded, axis=0).tolist()
        lines[arm] = list(zip(steps, means, strict=True))
    path = DOCS / "assets" / f"planning_{task}.png"
    figure, (axis,) = new_figure(height=4.0, title=title)
    draw_lines(axis, lines, marks=6)
    axis.set_title("share of right validation answers", fontsize=10)
    axis.set_xlabel("optimizer step", fontsize=9)
    axis.locator_params(axis="x", nbins=4)
    legend_below(figure, axis)
    save_figure(figure, path)
    return path


def test_tables(recipe: str) -> str:
    """The results of the test, once all of its runs are there."""
    missing = missing_runs(recipe, "test")
    if missing:
        return missing
    text, tree = open_study(recipe)
    study = read_study(tree, text)
    blocks = {block.name: block for block in study.blocks if "-" not in block.name}
    first, second = (arm.name for arm in next(iter(blocks.values())).arms if arm.name != BASELINE)
    codes = {json.dumps(row["code"], sort_keys=True) for row in records_of("test")}
    parts = [
        f"All runs used {'the same version' if len(codes) == 1 else f'one of {len(codes)} versions'} of the code.\n"
    ]
    for task in blocks:
        parts += [f"{task}:\n", arms_table("test", task), compute_table("test", task)]
        parts.append(f"![Share of right validation answers during training on {task}](assets/planning_{task}.png)\n")
    own = runs_of("test", next(iter(blocks)))
    parts.append(
        f"`{first}` minus `{first}+random`, three seeds: {points(differences(own[first], own[f'{first}+random']))}.\n"
    )
    return "\n".join([*parts, hypotheses_table("test", first, second, list(blocks))])


def filled(text: str) -> str:
    """The page with its tables written anew: ``<!-- pilot NAME -->``, ``<!-- grid NAME -->``, ``<!-- test RECIPE -->``,
    ``<!-- terms RECIPE -->``."""
    return fill(text, {"pilot": pilot_table, "grid": grid_table, "test": test_tables, "terms": terms_tables})


if __name__ == "__main__":
    page = filled(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page, encoding="utf-8")
    for drawn in re.findall(r"assets/planning_(\w+)\.png", page):
        curves("test", drawn, drawn)
