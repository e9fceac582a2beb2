"""The tables and figures of ``docs/evidence.md``, from the records of its studies.

``python docs/make_evidence.py STUDY_DIR ...`` takes the records of finished studies into ``docs/evidence``;
without folders the tables and figures are only written anew, from what lies there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import page_tables

from stepjepa.analysis.plots import legend_below, look, new_figure
from stepjepa.inspect.figure import save_figure
from stepjepa.study.compare import ArmComparison, ComparedArm, Kind
from stepjepa.study.reading import read_study
from stepjepa.study.records import RunRecord
from stepjepa.study.results import Table, p_text, study_tables
from stepjepa.study.tree import open_study
from stepjepa.utils.text import scaled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path(__file__).parent
RECORDS = DOCS / "evidence"
KEPT = ("arm", "control", "compute", "seed", "status", "steps", "flops", "train_seconds")
TITLES: dict[Kind, str] = {
    "examples": "from plain, equal examples",
    "control": "from shuffled",
    "random": "from random",
    "compute": "from plain, equal compute",
}
UNITS = {"answer_nll": "loss of the answer, nats per token", "gsm8k": "accuracy", "exact": "exact match"}
SIGNS = {
    "jepa_loss": "JEPA loss",
    "cosine_similarity": "cosine",
    "effective_rank": "effective rank",
    "target_std": "spread",
}
# Mean difference, low and high end of its interval; the ends may be missing.
Estimate = tuple[float, "float | None", "float | None"]


def keep(folder: Path) -> Path:
    """Take over a study's records: what the tables need of them."""
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [{key: row[key] for key in KEPT} | {"metrics": row["metrics"].get("test")} for row in rows]
    for row in kept:
        signs = _signs(folder / "runs" / _row(row) / f"seed-{row['seed']}" / "model" / "metrics.json")
        row |= {"signs": signs} if signs else {}
    path = RECORDS / f"{folder.name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    return path


def _row(record: Mapping[str, Any]) -> str:
    variant = "same_flop" if record["compute"] == "equal compute" else record["control"].replace("none", "")
    return f"{record['arm']}+{variant}" if variant else record["arm"]


def _signs(path: Path) -> dict[str, float]:
    """What the last log entry of a training says of its pairs."""
    log = json.loads(path.read_text(encoding="utf-8"))["log_history"]
    last = [entry for entry in log if "jepa_loss" in entry][-1:]
    return {name: last[0][name] for name in SIGNS if name in last[0]} if last else {}


def records_of(name: str) -> list[dict[str, Any]]:
    """The records that are kept of a study."""
    return [json.loads(line) for line in (RECORDS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def signs_table(name: str) -> str:
    """Means over the seeds of what the last log entries say, for the arms and their shuffled controls."""
    found: dict[str, list[dict[str, float]]] = {}
    for record in records_of(name):
        if record.get("signs") and record["control"] != "random" and record["compute"] == "equal examples":
            found.setdefault(_row(record), []).append(record["signs"])
    lines = []
    for row, signs in found.items():
        means = {key: sum(one[key] for one in signs) / len(signs) for key in SIGNS}
        lines.append([f"`{row}`", *(f"{means[key]:.{1 if key == 'effective_rank' else 3}f}" for key in SIGNS)])
    return page_tables.table(["arm", *SIGNS.values()], lines)


@cache
def tables(name: str) -> dict[str, Table]:
    """Metric -> table of a study whose records are kept."""
    path, tree = open_study(name)
    study = read_study(tree, path)
    kept = {"block": "", "cell": {}, "chosen": True, "settings": {}, "model": None, "error": None}
    records = [
        RunRecord(**{**{key: row[key] for key in KEPT}, **kept, "metrics": {"test": row["metrics"]}})
        for row in records_of(name)
    ]
    return {metric: table for (_, metric), table in study_tables(study, records).items()}


def markdown(table: Table) -> str:
    """The table, narrower than a study's own: one row for the baseline and one for every arm."""
    kinds = [kind for kind in TITLES if any(kind in arm.comparisons for arm in table.arms)]
    percent = table.metric in ("exact", "prefix", "gsm8k")
    lines = []
    for arm in table.arms:
        if arm.role in ("baseline", "arm"):
            cells = [_difference(arm.comparisons.get(kind), percent) for kind in kinds]
            lines.append(
                [f"`{arm.name}`", *_level(arm, percent), *cells, scaled(arm.flops), str(arm.verdict or arm.role)]
            )
    differences = [f"difference {TITLES[kind]}" for kind in kinds]
    return page_tables.table(["arm", "mean", "sd", *differences, "FLOPs", "verdict"], lines)


def figure(name: str, table: Table) -> Path:
    """The differences of the arms, with their intervals."""
    shown = {arm.name for arm in table.arms if arm.role == "arm"}
    rows = []
    for arm in table.arms:
        found = {title: arm.comparisons[kind] for kind, title in TITLES.items() if kind in arm.comparisons}
        made = {title: (c.result.mean, c.result.low, c.result.high) for title, c in found.items()}
        if arm.name in shown:
            rows.append((arm.name, {k: v for k, v in made.items() if v[0] is not None}))
    drawn = forest_figure(
        rows,  # type: ignore[arg-type]
        UNITS.get(table.metric, table.metric),
        title="Differences paired by seed",
        higher_is_better=table.higher_is_better,
    )
    path = DOCS / "assets" / f"{name}.png"
    save_figure(drawn, path)
    return path


def forest_figure(
    differences: Sequence[tuple[str, Mapping[str, Estimate]]],
    label: str,
    *,
    title: str,
    higher_is_better: bool,
) -> Figure:
    """Paired differences with their 95 % intervals, a line per arm and comparison, around a line of no difference.

    A hollow mark has no interval: it comes from one seed.

    Args:
        differences: (arm, comparison -> (mean, low, high)), an arm's comparisons in the order in which they are drawn.
        label: of the metric, with its unit.
    """
    kinds = list(dict.fromkeys(kind for _, estimates in differences for kind in estimates))
    lines = sum(len(estimates) for _, estimates in differences)
    figure, (axis,) = new_figure(height=1.7 + 0.26 * lines + 0.2 * len(differences), title=title)
    styles: dict[str, dict[str, Any]] = {}
    for i, kind in enumerate(kinds):
        style = look(i)
        styles[kind] = {"fmt": style["marker"], "color": style["color"], "capsize": 4, "linewidth": 1.8}
        axis.errorbar([], [], xerr=[], label=kind, **styles[kind])
    middles, y = [], 0.0
    for name, estimates in differences:
        middles.append((y + (len(estimates) - 1) / 2, name))
        for kind, (mean, low, high) in estimates.items():
            reach = [[0.0], [0.0]]
            if low is not None and high is not None:
                reach = [[mean - low], [high - mean]]
            face = "white" if low is None else styles[kind]["color"]
            axis.errorbar([mean], [y], xerr=reach, markersize=6, markerfacecolor=face, **styles[kind])
            y += 1
        axis.axhline(y - 0.2, color="#6b6b6b", linewidth=0.5, alpha=0.5)
        y += 0.6
    axis.axvline(0, color="black", linewidth=1)
    axis.set_yticks(*zip(*middles, strict=True), fontsize=10)
    axis.set_ylim(y - 0.8, -0.8)  # the first arm on top
    axis.grid(False, axis="y")
    better = "right" if higher_is_better else "left"
    axis.set_xlabel(f"difference in {label}, 95 % interval (better to the {better})")
    legend_below(figure, axis)
    return figure


def page_table(place: str) -> str:
    """The table of a study, ``NAME METRIC``, or of its signs, ``NAME signs``."""
    name, metric = place.split()
    return signs_table(name) if metric == "signs" else markdown(tables(name)[metric])


def filled(text: str) -> str:
    """The page with its tables written anew: ``<!-- table NAME METRIC -->``, ``<!-- table NAME signs -->``."""
    return page_tables.fill(text, {"table": page_table})


def main(folders: Iterable[str]) -> None:
    for folder in folders:
        print(keep(Path(folder)))
    page = DOCS / "evidence.md"
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    for path in sorted(RECORDS.glob("*.jsonl")):
        if f"assets/{path.stem}.png" in page.read_text(encoding="utf-8"):
            print(figure(path.stem, next(iter(tables(path.stem).values()))))


def _level(arm: ComparedArm, percent: bool) -> list[str]:
    values: list[Any] = [arm.summary.estimate, arm.summary.sd]
    return ["-" if value is None else f"{100 * value:.1f}" if percent else f"{value:.4f}" for value in values]


def _difference(found: ArmComparison | None, percent: bool) -> str:
    if found is None or found.result.mean is None:
        return ""
    result = found.result
    numbers = [result.mean, result.low, result.high]
    shown = ["-" if n is None else f"{100 * n:+.1f}" if percent else f"{n:+.4f}" for n in numbers]
    p = f", p {p_text(found.holm_p)}" if found.holm_p is not None else ""
    return f"{shown[0]} [{shown[1]}, {shown[2]}]{p}"


if __name__ == "__main__":
    main(sys.argv[1:])
