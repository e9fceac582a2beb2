"""The tables and the figure of ``docs/labels_or_jepa.md``, from the records in ``docs/evidence/labels_or_jepa``.

``python docs/make_labels.py`` writes them again. A record is a line of a study's ``--records`` file, and none is left out.
What the protocol tests is computed here: one-sided tests and equivalence, which the study's own comparison does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

from page_tables import Record, arm_of, fill, records_in, table
from scipy import stats

from stepjepa.analysis.plots import legend_below, new_figure
from stepjepa.evaluation.statistics import Interval, holm, paired_difference, summary
from stepjepa.inspect.figure import save_figure

DOCS = Path(__file__).parent
RECORDS = DOCS / "evidence" / "labels_or_jepa"
PAGE = DOCS / "labels_or_jepa.md"
FIGURE = DOCS / "assets" / "labels_by_rate.png"
BLOCKS = ("full", "small")
RATES = (3e-5, 1e-4, 3e-4, 1e-3)
SEEDS = 5
# The arms of the protocol, by their numbers there.
ARMS = {
    "regular_reference": "1, published baseline",
    "published": "2, published method",
    "published+shuffled": "3, arm 2 with shuffled pairs",
    "published_tiny_lambda": "4, lambda 1e-6",
    "regular": "5, correct labels",
    "llm_jepa": "6, JEPA with correct labels",
    "llm_jepa+shuffled": "7, arm 6 with shuffled pairs",
    "regular_all_labels": "8, all tokens labelled",
}
METRICS = ("exact", "contains", "stopped", "content_nll", "end_nll")
# The protocol's contrasts and their metrics.
CONTRASTS = ("2-1", "2-3", "2-4", "5-2", "6-5", "6-7")
COMPARED = ("exact", "contains")


class Claim(NamedTuple):
    """That the paired difference of two arms in a metric lies between two bounds."""

    contrast: str
    metric: str
    low: float
    high: float = inf


HYPOTHESES = {
    "H1": (Claim("2-1", "exact", 0.05), Claim("2-1", "contains", -0.015, 0.015)),
    "H2": (Claim("3-2", "exact", -0.02, 0.02),),
    "H3": (Claim("5-2", "exact", 0.0),),
    "H4": (Claim("6-5", "exact", -0.02, 0.02), Claim("6-5", "answer_nll", -0.02, 0.02)),
    "H5": (Claim("4-1", "exact", 0.0),),
}


def records_of(block: str) -> list[Record]:
    """The runs of a block."""
    return records_in(RECORDS / f"{block}.jsonl")


def choices(block: str) -> dict[str, dict[float, Record]]:
    """The runs that choose a learning rate, by arm and rate."""
    chosen: dict[str, dict[float, Record]] = {}
    for record in records_of(block):
        if "select" in record["at"] and "test" not in record["at"]:
            chosen.setdefault(arm_of(record), {})[record["cell"]["learning_rate"]] = record
    return chosen


def tests(block: str) -> dict[str, list[Record]]:
    """The runs whose test rows were scored, by arm."""
    scored: dict[str, list[Record]] = {}
    for record in records_of(block):
        if "test" in record["at"]:
            scored.setdefault(arm_of(record), []).append(record)
    return scored


def shown(metric: str, value: float) -> str:
    """A value as the tables write it."""
    if metric.endswith("nll"):
        return f"{value:.3f}"
    return f"{100 * value:.1f} %"


def state_table(_: str) -> str:
    """How many runs of each arm and block are recorded."""
    rows = []
    for arm, name in ARMS.items():
        cells = [name]
        for block in BLOCKS:
            rates = len(choices(block).get(arm, {}))
            cells += [
                f"as arm {ARMS[arm.split('+')[0]][0]}" if "+" in arm else f"{rates} of {len(RATES)}",
                f"{len(tests(block).get(arm, []))} of {SEEDS}",
            ]
        rows.append(cells)
    return table(["arm", *(f"{what}, `{block}`" for block in BLOCKS for what in ("rates tried", "seeds scored"))], rows)


def choice_table(block: str) -> str:
    """The runs of the choice; where all rates of an arm have run, the one with the lowest `content_nll` is bold."""
    rows = []
    chosen = choices(block)
    for arm in filter(chosen.get, ARMS):
        by_rate = chosen[arm]
        losses = {rate: record["metrics"]["select"]["content_nll"] for rate, record in by_rate.items()}
        best = min(losses, key=lambda rate: losses[rate]) if len(losses) == len(RATES) else None
        for rate, record in sorted(by_rate.items()):
            named = f"**{rate:.0e}**" if rate == best else f"{rate:.0e}"
            values = record["metrics"]["select"]
            rows.append([ARMS[arm], named.replace("e-0", "e-"), *(shown(one, values[one]) for one in METRICS)])
    if not rows:
        return "No learning-rate runs have been recorded yet.\n"
    return table(["arm", "rate", *METRICS], rows)


def complete(block: str) -> dict[str, dict[int, Record]]:
    """The scored runs by arm and seed, of the arms whose seeds are all scored; the protocol looks at no other."""
    arms = {arm: {record["seed"]: record for record in records} for arm, records in tests(block).items()}
    return {arm: arms[arm] for arm in ARMS if len(arms.get(arm, {})) == SEEDS}


def values_of(runs: dict[int, Record], metric: str) -> list[float]:
    """A metric on the test rows, by seed."""
    return [runs[seed]["metrics"]["test"][metric] for seed in sorted(runs)]


def result_table(block: str) -> str:
    """The means over the seeds of each complete arm, with their intervals."""
    rows = []
    for arm, runs in complete(block).items():
        cells = [ARMS[arm]]
        for metric in METRICS:
            over_seeds = summary(values_of(runs, metric))
            mean, low, high = over_seeds.estimate, over_seeds.low, over_seeds.high
            if metric.endswith("nll"):
                cells.append(f"{mean:.3f} ({low:.3f} to {high:.3f})")
            else:
                cells.append(Interval(mean, low, high).percent())
        rows.append(cells)
    return table(["arm", *METRICS], rows)


def differences(block: str, contrast: str, metric: str) -> list[float]:
    """The differences of two arms by seed; empty unless both are complete."""
    by_number = {ARMS[arm][0]: runs for arm, runs in complete(block).items()}
    first, second = (by_number.get(number) for number in contrast.split("-"))
    if first is None or second is None:
        return []
    pairs = zip(values_of(first, metric), values_of(second, metric), strict=True)
    # Without rounding, equal differences would have a tiny spread.
    return [round(value - baseline, 9) for value, baseline in pairs]


def mean_difference(gains: Sequence[float]) -> Interval:
    """The mean of paired differences with its t interval."""
    found = paired_difference(gains, [0.0] * len(gains))
    return Interval(found.mean, found.low, found.high)


def difference_text(metric: str, gains: Sequence[float]) -> str:
    """A mean difference as the tables write it."""
    ends = mean_difference(gains)
    if metric.endswith("nll"):
        return f"{ends.value:+.3f} ({ends.low:+.3f} to {ends.high:+.3f})"
    return ends.percent("+", "points")


def contrast_table(block: str) -> str:
    """The paired differences of the protocol's contrasts whose arms are complete."""
    rows = []
    for contrast in CONTRASTS:
        gains = {metric: differences(block, contrast, metric) for metric in COMPARED}
        if all(gains.values()):
            rows.append([contrast, *(difference_text(metric, gains[metric]) for metric in COMPARED)])
    return table(["contrast", *COMPARED], rows)


def p_above(gains: Sequence[float], bound: float) -> float:
    """The one-sided p-value of a mean above a bound; differences without a spread decide themselves."""
    if len(set(gains)) == 1:
        return float(gains[0] < bound)
    return float(stats.ttest_1samp(gains, bound, alternative="greater").pvalue)


def p_value(block: str, claims: Sequence[Claim]) -> float | None:
    """The largest p-value of the claims' bounds; None while an arm is not complete."""
    largest = 0.0
    for claim in claims:
        gains = differences(block, claim.contrast, claim.metric)
        if not gains:
            return None
        below = p_above([-gain for gain in gains], -claim.high) if claim.high < inf else 0.0
        largest = max(largest, p_above(gains, claim.low), below)
    return largest


def is_refuted(block: str, claim: Claim) -> bool:
    """Whether the interval of the difference lies entirely outside of the bounds."""
    ends = mean_difference(differences(block, claim.contrast, claim.metric))
    assert ends.low is not None and ends.high is not None
    return ends.high < claim.low or ends.low > claim.high


def verdict_table(block: str) -> str:
    """What the protocol concludes of its five hypotheses; those whose arms are missing count with p = 1."""
    p_values = {name: p_value(block, claims) for name, claims in HYPOTHESES.items()}
    corrected = holm([1.0 if p is None else p for p in p_values.values()])
    rows = []
    for (name, claims), p in zip(HYPOTHESES.items(), corrected, strict=True):
        if p_values[name] is None or p is None:
            rows.append([name, "", "", "arms missing"])
            continue
        outcome = "holds" if p < 0.05 else "undecided"
        if any(is_refuted(block, claim) for claim in claims):
            outcome = "refuted"
        gains = "; ".join(
            f"{claim.metric} {claim.contrast}: "
            + difference_text(claim.metric, differences(block, claim.contrast, claim.metric))
            for claim in claims
        )
        rows.append([name, gains, f"{p:.2g}", outcome])
    return table(["hypothesis", "difference", "p after Holm", "outcome"], rows)


def draw(block: str) -> None:
    """Exact, contains and stopped on held-out rows, by learning rate."""
    chosen = choices(block)
    figure, axes = new_figure(1, 3, height=3.6, title=f"Held-out rows by learning rate ({block}, one seed)")
    for axis, metric in zip(axes, METRICS[:3], strict=True):
        for arm in filter(chosen.get, ARMS):
            by_rate = chosen[arm]
            rates = sorted(by_rate)
            values = [100 * by_rate[rate]["metrics"]["select"][metric] for rate in rates]
            axis.plot(rates, values, marker="o", label=ARMS[arm])
        axis.set_xscale("log")
        axis.set_title(f"{metric}, %", fontsize=10)
        axis.set_xlabel("learning rate", fontsize=9)
        axis.set_ylim(-4, 104)
    legend_below(figure, axes[0])
    save_figure(figure, FIGURE)


def filled(text: str) -> str:
    """The page with its tables written again: ``<!-- state -->``, and by block the others."""
    tables = {
        "state": state_table,
        "choice": choice_table,
        "result": result_table,
        "contrast": contrast_table,
        "verdict": verdict_table,
    }
    return fill(text, tables)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw("full")
