"""A study's tables, choices, runs and curves, as the page shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from stepjepa.report.chart import Point, history_points, mean_points
from stepjepa.report.files import entries, mapping, number
from stepjepa.report.reading import Run, StudyFolder
from stepjepa.report.runs import duration
from stepjepa.study.table import KINDS, p_text, scaled

MOST_SERIES = 8


def study_tables(study: StudyFolder) -> list[dict[str, Any]]:
    """Every table of ``table.json``: heads, a row of cells for each arm, and the arms' verdicts."""
    return [_table(mapping(one)) for one in entries(study.table.get("tables"))]


def _table(table: dict[str, Any]) -> dict[str, Any]:
    arms = [mapping(arm) for arm in entries(table.get("arms"))]
    kinds = [kind for kind in KINDS if any(arm.get(kind[0]) for arm in arms)]
    level = f"{100 * (number(table.get('confidence')) or 0.95):g} %"
    heads = ["arm", "seeds", f"mean [{level}]", "sd", *(title for _, title, _ in kinds), "FLOPs", "time", "verdict"]
    rows, verdicts = [], []
    for arm in arms:
        summary, verdict = mapping(arm.get("summary")), mapping(arm.get("verdict"))
        label = str(verdict.get("label") or arm.get("role") or "")
        mean = _stacked(_four(summary.get("estimate")), _interval(summary.get("low"), summary.get("high")))
        cells = [str(arm.get("name")), str(summary.get("n", "-")), mean, _four(summary.get("sd"))]
        cells += [_difference(mapping(arm.get(kind))) for kind, *_ in kinds]
        rows.append([*cells, scaled(number(arm.get("flops"))), duration(number(arm.get("seconds"))), label])
        if verdict:
            reasons = [str(reason) for reason in entries(verdict.get("reasons"))]
            verdicts.append({"arm": str(arm.get("name")), "label": label, "reasons": "; ".join(reasons)})
    return {
        "block": str(table.get("block") or ""),
        "metric": str(table.get("metric")),
        "direction": "higher is better" if table.get("higher_is_better") else "lower is better",
        "baseline": str(table.get("baseline")),
        "level": level,
        "alpha": f"{number(table.get('alpha')) or 0.05:g}",
        "heads": heads,
        "rows": rows,
        "verdicts": verdicts,
    }


def _difference(made: dict[str, Any]) -> str:
    """A difference, its interval and its corrected p-value (else the plain one, with a star) below each other."""
    if not made:
        return ""
    result, holm = mapping(made.get("result")), number(made.get("holm_p"))
    plain = number(result.get("t_p"))
    p = f"p {p_text(holm)}" if holm is not None else f"p {p_text(plain)}*" if plain is not None else ""
    return _stacked(_four(result.get("mean"), "+"), _interval(result.get("low"), result.get("high"), "+"), p)


def _stacked(*lines: str) -> str:
    return "\n".join(line for line in lines if line)


def _four(value: Any, sign: str = "") -> str:
    found = number(value)
    return "-" if found is None else f"{found:{sign}.4g}"


def _interval(low: Any, high: Any, sign: str = "") -> str:
    ends = number(low), number(high)
    return "" if None in ends else f"[{_four(low, sign)}, {_four(high, sign)}]"


def choices(study: StudyFolder) -> list[dict[str, Any]]:
    """What the validation split has chosen, when, and from which means."""
    found = []
    for name, one in mapping(study.state.get("choices")).items():
        means = [f"{cell}: {_four(mean)}" for cell, mean in mapping(mapping(one).get("means")).items()]
        about = {"arm": name.removeprefix("/"), "means": ", ".join(means)}
        found.append({**about, "words": str(mapping(one).get("words") or ""), "at": str(mapping(one).get("at") or "")})
    return found


def arm_settings(study: StudyFolder) -> list[tuple[str, dict[str, Any]]]:
    """(row of the table, its training options) of every block."""
    blocks = mapping(mapping(study.state.get("identity")).get("blocks"))
    return [
        (f"{block}/{arm}" if block else arm, mapping(settings))
        for block, about in blocks.items()
        for arm, settings in mapping(mapping(about).get("arms")).items()
    ]


def run_states(study: StudyFolder) -> tuple[Counter[str], list[tuple[str, str]]]:
    """How many runs are in which state, and (name, why) of those that have failed or are missing."""
    if study.results:
        counts = Counter(str(record.get("status")) for record in study.results)
        missing = [
            (_name(record), str(record.get("error") or record.get("status")))
            for record in study.results
            if record.get("status") != "finished"
        ]
        return counts, missing
    return Counter(_state(study.stages.get(run.label, {}), run) for run in study.runs), []


def _name(record: dict[str, Any]) -> str:
    parts = [record.get("block"), record.get("arm"), record.get("control"), record.get("compute")]
    words = [str(part) for part in parts if part and part not in ("none", "equal examples")]
    cell = [f"{name}={value}" for name, value in mapping(record.get("cell")).items()]
    return " ".join([*words, *cell, f"seed {record.get('seed')}"])


def _state(stages: dict[str, Any], run: Run) -> str:
    if "scored-test" in stages:
        return "trained and scored"
    if "trained" in stages:
        return "trained"
    return "begun" if run.history or run.record else "not begun"


def cost(study: StudyFolder) -> dict[str, str]:
    """What all runs have cost together, and how many have a record of it."""
    trained = [stages["trained"] for stages in study.stages.values() if "trained" in stages] or study.results
    seconds = [value for one in trained if (value := number(one.get("train_seconds"))) is not None]
    flops = [value for one in trained if (value := number(one.get("flops"))) is not None]
    return {
        "runs": str(len(seconds)),
        "time": duration(sum(seconds) if seconds else None),
        "flops": scaled(sum(flops) if flops else None),
    }


def arms_of(study: StudyFolder) -> dict[str, list[Run]]:
    """Row of the table (with its tuned values) -> its runs that have logged something, in the study's order."""
    groups: dict[str, list[Run]] = {}
    for run in study.runs:
        if run.history:
            groups.setdefault(run.label.rpartition("/")[0] or run.label, []).append(run)
    order = [name for name, _ in arm_settings(study)]
    known = {name: order.index(base) for name in groups for base in (name, name.rpartition("/")[0]) if base in order}
    return {name: groups[name] for name in sorted(groups, key=lambda name: known.get(name, len(order)))}


def series(study: StudyFolder) -> tuple[list[tuple[str, Callable[[str], list[Point]]]], str]:
    """(name, key -> points) of at most `MOST_SERIES` arms, each the mean over its seeds, and what that is in words."""
    groups = arms_of(study)
    made = [(name, _points(groups[name])) for name in list(groups)[:MOST_SERIES]]
    counts = ", ".join(f"{name} {len(groups[name])}" for name, _ in made)
    note = (
        f"Each line is the mean over the seeds of an arm, at the steps that all of them have logged (runs: {counts})."
    )
    if len(groups) > MOST_SERIES:
        note += f" Left out, so that lines can be told apart: {', '.join(list(groups)[MOST_SERIES:])}."
    return made, note if made else ""


def _points(runs: list[Run]) -> Callable[[str], list[Point]]:
    return lambda key: mean_points([points for run in runs if (points := history_points(run.history, key))])
