"""The table of a study: one row per arm in one metric, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stepjepa.study.compare import ArmRuns, ComparedArm, Comparison, compare_arms

# Kind of comparison, title of its column, title of its corrected p-value's.
KINDS = (
    ("examples", "difference at equal examples", "p (t, Holm)"),
    ("compute", "difference at equal compute", "p at equal compute (t, Holm)"),
    ("control", "difference from shuffled control", "p from shuffled control (t, Holm)"),
    ("random", "difference from random control", "p from random control (t, Holm)"),
)
_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


@dataclass(frozen=True)
class Table:
    """Arms in one metric.

    Attributes:
        metric: its name.
        higher_is_better: its direction.
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
        columns: list[tuple[str, list[str]]] = [
            ("arm", [_cell(arm.name) for arm in rows]),
            ("seeds", [str(arm.summary.n) for arm in rows]),
            ("mean", [_or_dash(arm.summary.estimate, number) for arm in rows]),
            ("sd", [_or_dash(arm.summary.sd, number) for arm in rows]),
            (f"{level} interval", [interval_text(arm.summary.low, arm.summary.high, number) for arm in rows]),
        ]
        for kind, title, p_title in KINDS:
            found = [getattr(arm, kind) for arm in rows]
            if any(found):
                signed = _writer(max(places, _places([c.result.mean for c in found if c], digits=2)), sign="+")
                columns += [(f"{title} [{level}]", [_difference(c, signed) for c in found])]
                if kind == "examples":
                    columns += [("p (t)", [p_text(c.result.t_p) if c else "" for c in found])]
                    columns += [("p (Wilcoxon)", [p_text(c.result.wilcoxon_p) if c else "" for c in found])]
                columns += [(p_title, [p_text(c.holm_p) if c and c.holm_p is not None else "" for c in found])]
        columns += [
            ("FLOPs", [scaled(arm.flops) for arm in rows]),
            ("seconds", [_or_dash(arm.seconds, lambda value: f"{value:.4g}") for arm in rows]),
            ("verdict", [_cell(_verdict_text(arm)) for arm in rows]),
        ]
        columns = [(title, cells) for title, cells in columns if any(cell not in ("", "-") for cell in cells)]
        lines = ["| " + " | ".join(title for title, _ in columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(cells[i] for _, cells in columns) + " |" for i in range(len(rows))]
        direction = "higher" if self.higher_is_better else "lower"
        return "\n".join([f"**{_cell(self.metric)}** ({direction} is better)", "", *lines, "", self._legend()]) + "\n"

    def _legend(self) -> str:
        return (
            f"Differences are paired by seed, against `{self.baseline}` where nothing else is said. p (t): paired t test; "
            "p (Wilcoxon): signed-rank test; Holm: corrected over the arms. "
            f"A verdict of better needs p (t, Holm) < {self.alpha:g} against the baseline, against the arm's controls, "
            "and at equal compute."
        )

    def csv(self) -> str:
        """All numbers in full, one line per arm; empty where there is none."""
        records = [_record(arm) for arm in self.arms]
        text = io.StringIO()
        writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()

    def json(self) -> str:
        """The whole table, with ``null`` where there is no number."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def differences(self) -> list[tuple[str, dict[str, tuple[float, float | None, float | None]]]]:
        """(arm, title of the comparison -> (mean difference, low, high)) of all arms but the baseline, for a figure."""
        found = []
        for arm in self.arms:
            made = {title: getattr(arm, kind) for kind, title, _ in KINDS}
            results = {title: c.result for title, c in made.items() if c and c.result.mean is not None}
            if results:
                found.append((arm.name, {title: (r.mean, r.low, r.high) for title, r in results.items()}))
        return found


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


def p_text(p: float | None) -> str:
    """A p-value with three decimals, "<0.001" below them and "-" for none."""
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def interval_text(low: float | None, high: float | None, number: Callable[[float], str]) -> str:
    """``[low, high]``, "-" for none."""
    return "-" if low is None or high is None else f"[{number(low)}, {number(high)}]"


def scaled(value: float | None) -> str:
    """A large number with a prefix: 1.23e15 is "1.23 P"."""
    if value is None:
        return "-"
    power = 0 if value < 1 else min(int(math.log10(value) / 3), len(_PREFIXES) - 1)
    return f"{value / 1000**power:.3g} {_PREFIXES[power]}".rstrip()


def _verdict_text(arm: ComparedArm) -> str:
    return str(arm.verdict) if arm.verdict is not None else arm.role


def _difference(comparison: Comparison | None, number: Callable[[float], str]) -> str:
    if comparison is None:
        return ""
    result = comparison.result
    if result.mean is None:
        return "-"
    return f"{number(result.mean)} {interval_text(result.low, result.high, number)}"


def _places(values: Sequence[float | None], digits: int) -> int:
    """Decimals that give the largest of `values` so many digits."""
    largest = max((abs(value) for value in values if value), default=1.0)
    return min(max(digits - 1 - math.floor(math.log10(largest)), 0), 12)


def _writer(places: int, sign: str = "") -> Callable[[float], str]:
    return lambda value: f"{value:{sign}.{places}f}"


def _or_dash(value: float | None, number: Callable[[float], str]) -> str:
    return "-" if value is None else number(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _record(arm: ComparedArm) -> dict[str, Any]:
    record: dict[str, Any] = {
        "arm": arm.name,
        "role": arm.role,
        "seeds": " ".join(map(str, arm.seeds)),
        "n": arm.summary.n,
        "mean": arm.summary.estimate,
        "sd": arm.summary.sd,
        "low": arm.summary.low,
        "high": arm.summary.high,
    }
    for kind, *_ in KINDS:
        comparison: Comparison | None = getattr(arm, kind)
        result = comparison.result if comparison is not None else None
        for name in ("n", "mean", "sd", "low", "high", "t_p", "wilcoxon_p", "effect_size"):
            record[f"{kind}_{name}"] = getattr(result, name, None)
        record[f"{kind}_holm_p"] = comparison.holm_p if comparison is not None else None
        record[f"{kind}_against"] = comparison.against if comparison is not None else None
    record |= {"flops": arm.flops, "seconds": arm.seconds}
    record["verdict"] = arm.verdict.label if arm.verdict is not None else None
    record["reasons"] = "; ".join(arm.verdict.reasons) if arm.verdict is not None else None
    return record
