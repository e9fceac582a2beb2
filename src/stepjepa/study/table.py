"""The table of a study: one row per arm in one metric, as Markdown, and as records for CSV and JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stepjepa.study.compare import ArmRuns, ComparedArm, Comparison, Kind, compare_arms
from stepjepa.utils.text import scaled

# Kind of comparison, title of its column, title of its corrected p-value's.
KINDS: tuple[tuple[Kind, str, str], ...] = (
    ("examples", "difference at equal examples", "p (t, Holm)"),
    ("compute", "difference at equal compute", "p at equal compute (t, Holm)"),
    ("control", "difference from shuffled control", "p from shuffled control (t, Holm)"),
    ("random", "difference from random control", "p from random control (t, Holm)"),
)
_RESULT = ("n", "mean", "sd", "low", "high", "t_p", "wilcoxon_p", "effect_size")
Number = Callable[[float], str]


@dataclass(frozen=True)
class Table:
    """Arms in one metric.

    Attributes:
        baseline: the arm that all are compared with.
        alpha: level of the verdicts, after Holm's correction.
        confidence: of the intervals.
        arms: the rows.
    """

    metric: str
    higher_is_better: bool
    baseline: str
    alpha: float
    confidence: float
    arms: tuple[ComparedArm, ...]

    def markdown(self) -> str:
        """A heading line, the table, and what its columns mean. Columns that no arm fills are left out."""
        level, rows = f"{100 * self.confidence:g} %", self.arms
        places = _places([arm.summary.estimate for arm in rows], digits=4)
        number = _writer(places)
        columns: dict[str, list[str]] = {
            "arm": [_cell(arm.name) for arm in rows],
            "seeds": [str(arm.summary.n) for arm in rows],
            "mean": [_or_dash(arm.summary.estimate, number) for arm in rows],
            "sd": [_or_dash(arm.summary.sd, number) for arm in rows],
            f"{level} interval": [interval_text(arm.summary.low, arm.summary.high, number) for arm in rows],
        }
        for kind, title, p_title in KINDS:
            made = [arm.comparisons.get(kind) for arm in rows]
            signed = _writer(max(places, _places([c.result.mean for c in made if c], digits=2)), sign="+")
            columns[f"{title} [{level}]"] = [_difference(c, signed) for c in made]
            if kind == "examples":
                columns["p (t)"] = [p_text(c.result.t_p) if c else "" for c in made]
                columns["p (Wilcoxon)"] = [p_text(c.result.wilcoxon_p) if c else "" for c in made]
            columns[p_title] = [p_text(c.holm_p) if c and c.holm_p is not None else "" for c in made]
        columns["FLOPs"] = [scaled(arm.flops) for arm in rows]
        columns["seconds"] = [_or_dash(arm.seconds, "{:.4g}".format) for arm in rows]
        columns["verdict"] = [_cell(str(arm.verdict or arm.role)) for arm in rows]
        columns = {title: cells for title, cells in columns.items() if any(cell not in ("", "-") for cell in cells)}
        lines = [" | ".join(columns), *(" | ".join(cells) for cells in zip(*columns.values(), strict=True))]
        head, *rest = [f"| {line} |" for line in lines]
        direction = "higher" if self.higher_is_better else "lower"
        legend = (
            f"Differences are paired by seed, against `{self.baseline}` where nothing else is said. p (t): paired t test; "
            "p (Wilcoxon): signed-rank test; Holm: corrected over the arms. "
            f"A verdict of better needs p (t, Holm) < {self.alpha:g} against the baseline, against the arm's controls, "
            "and at equal compute."
        )
        title = f"**{_cell(self.metric)}** ({direction} is better)"
        return "\n".join([title, "", head, "|" + "---|" * len(columns), *rest, "", legend]) + "\n"

    def rows(self) -> list[dict[str, Any]]:
        """A flat record of every arm, for CSV: column -> value, None where there is none."""
        return [_flat(arm) for arm in self.arms]

    def record(self) -> dict[str, Any]:
        """The complete table, for JSON: each arm has its comparisons under their kinds, None where there is none."""
        arms = []
        for arm in self.arms:
            record: dict[str, Any] = asdict(arm)
            made: dict[str, Any] = record.pop("comparisons")
            record.update((kind, made.get(kind)) for kind, *_ in KINDS)
            arms.append(record)
        return {**vars(self), "arms": arms}

    def differences(self) -> list[tuple[str, dict[str, tuple[float, float | None, float | None]]]]:
        """(arm, title of the comparison -> (mean difference, low, high)) of all arms but the baseline, for a figure."""
        drawn = []
        for arm in self.arms:
            results = {title: arm.comparisons[kind].result for kind, title, _ in KINDS if kind in arm.comparisons}
            drawn.append(
                (arm.name, {title: (r.mean, r.low, r.high) for title, r in results.items() if r.mean is not None})
            )
        return [(name, made) for name, made in drawn if made]


def study_table(
    arms: Sequence[ArmRuns],
    metric: str,
    *,
    baseline: str,
    higher_is_better: bool,
    alpha: float = 0.05,
    confidence: float = 0.95,
) -> Table:
    """Compare the arms of a study in one metric: see `compare_arms`, whose errors it raises."""
    rows = compare_arms(
        arms, metric, baseline=baseline, higher_is_better=higher_is_better, alpha=alpha, confidence=confidence
    )
    return Table(metric, higher_is_better, baseline, alpha, confidence, tuple(rows))


def _flat(arm: ComparedArm) -> dict[str, Any]:
    summary, verdict = arm.summary, arm.verdict
    record: dict[str, Any] = {"arm": arm.name, "role": arm.role, "seeds": " ".join(map(str, arm.seeds)), "n": summary.n}
    record |= {"mean": summary.estimate, "sd": summary.sd, "low": summary.low, "high": summary.high}
    for kind, *_ in KINDS:
        made = arm.comparisons.get(kind)
        record |= {f"{kind}_{name}": getattr(made.result, name) if made else None for name in _RESULT}
        record |= {f"{kind}_holm_p": made.holm_p if made else None, f"{kind}_against": made.against if made else None}
    record |= {"flops": arm.flops, "seconds": arm.seconds, "verdict": verdict.label if verdict else None}
    return {**record, "reasons": "; ".join(verdict.reasons) if verdict else None}


def p_text(p: float | None) -> str:
    """A p-value with three decimals, "<0.001" below them and "-" for none."""
    return "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def interval_text(low: float | None, high: float | None, number: Number) -> str:
    """``[low, high]``, "-" for none."""
    return "-" if low is None or high is None else f"[{number(low)}, {number(high)}]"


def _difference(comparison: Comparison | None, number: Number) -> str:
    if comparison is None:
        return ""
    result = comparison.result
    return "-" if result.mean is None else f"{number(result.mean)} {interval_text(result.low, result.high, number)}"


def _places(values: Sequence[float | None], digits: int) -> int:
    """Decimals that give the largest of `values` so many digits."""
    largest = max((abs(value) for value in values if value), default=1.0)
    return min(max(digits - 1 - math.floor(math.log10(largest)), 0), 12)


def _writer(places: int, sign: str = "") -> Number:
    return lambda value: f"{value:{sign}.{places}f}"


def _or_dash(value: float | None, number: Number) -> str:
    return "-" if value is None else number(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
