"""Arms of a study against their baseline and their controls, at equal examples and at equal compute, and what may be said.

A study has one baseline. Every other arm may name three more: its controls, which differ from it by shuffled or random
targets alone, and itself trained for fewer steps, at the baseline's FLOPs. Runs of the same seed are pairs.

The statistics (docs/statistics.md) are functions of plain numbers over SciPy and statsmodels (extra ``study``). ``None`` is
what cannot be computed, such as the spread of one value; nothing is NaN and nothing warns. Every test is two-sided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from stepjepa.errors import DataError
from stepjepa.evaluation.intervals import CONFIDENCE, NO_COMPUTE, NO_CONTROL, Verdict, mean
from stepjepa.utils.failures import library

MIN_SEEDS = 3  # below, a t test leans on a single number for the spread: nothing is said
EQUAL_COMPUTE = 1.02  # times the baseline's FLOPs: an arm of at most that much was compared at equal compute already
# Digits of the larger value to which differences are taken: 0.60 - 0.55 and 0.55 - 0.50 are one difference.
_DIGITS = 12
Kind = Literal["examples", "compute", "control", "random"]
Role = Literal["baseline", "arm", "control", "at equal compute"]


@dataclass(frozen=True)
class Interval:
    """A mean of `n` values, the interval around it at its `confidence`, and their standard deviation (n - 1)."""

    n: int
    estimate: float | None
    low: float | None = None
    high: float | None = None
    sd: float | None = None
    confidence: float = CONFIDENCE


@dataclass(frozen=True)
class PairedDifference:
    """Values less their baselines, seed by seed.

    Attributes:
        mean, sd, low, high: of the differences, with a t interval at its `confidence`; all but the mean need two pairs.
        t_p: paired t test. 1 where all differences are zero; None below two pairs, and where all differences are the
            same other number: then there is no spread to measure the mean against.
        wilcoxon_p: signed-rank test, exact up to 50 pairs without ties and 13 with; zeros are left out. 1 where all
            differences are zero, None below two pairs. Below six pairs it cannot be under 0.05.
        effect_size: Cohen's d_z, mean / sd; 0 where all differences are zero, None where there is no spread.
    """

    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    t_p: float | None = None
    wilcoxon_p: float | None = None
    effect_size: float | None = None
    confidence: float = CONFIDENCE


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's t interval of the mean, ``mean +- t * sd / sqrt(n)`` with n - 1 degrees of freedom; a point of equal values.

    Args:
        values: (n,) numbers. One has no interval.

    Raises:
        DataError: a value is not finite.
    """
    array, n = np.asarray(values, dtype=np.float64), len(values)
    if not np.isfinite(array).all():
        raise DataError(f"{array.tolist()}: not all of these are finite; leave such runs out, and say that you did")
    if n < 2:
        return Interval(n, float(array[0]) if n else None)
    if np.ptp(array) == 0:  # their mean may be rounded
        return Interval(n, float(array[0]), float(array[0]), float(array[0]), 0.0)
    return Interval(n, *mean(array.tolist()), float(array.std(ddof=1)))


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> PairedDifference:
    """What an arm differs by from its baseline under the same seeds.

    Args:
        values, baseline: (n,) numbers, the same seeds in the same order.

    Raises:
        DataError: a value is not finite.
    """
    from scipy import stats

    pairs = np.array(list(zip(values, baseline, strict=True)), dtype=np.float64).reshape(-1, 2)
    scale, difference = np.abs(pairs).max(initial=0.0), pairs[:, 0] - pairs[:, 1]
    if 0 < scale < math.inf:
        difference = np.round(difference, min(_DIGITS - math.ceil(math.log10(scale)), 300))
    found = mean_interval(difference.tolist())
    middle, sd, t_p, wilcoxon_p, effect_size = found.estimate, found.sd, None, None, None
    if middle is not None and sd is not None:
        nonzero = difference[difference != 0]  # so that SciPy takes the exact distribution of the rest
        wilcoxon_p = float(stats.wilcoxon(nonzero).pvalue) if len(nonzero) else 1.0
        if sd:
            t_p, effect_size = float(stats.ttest_1samp(difference, 0.0).pvalue), middle / sd
        elif middle == 0:
            t_p, effect_size = 1.0, 0.0
    return PairedDifference(found.n, middle, sd, found.low, found.high, t_p, wilcoxon_p, effect_size)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction (Holm 1979): the family-wise error stays at alpha, whatever the tests' dependence.

    Args:
        p_values: one per test. None is a test that was not made; it stays None and does not count.
    """
    known = [p for p in p_values if p is not None]
    if not known:
        return list(p_values)
    adjusted = iter(library("statsmodels.stats.multitest", "study").multipletests(known, method="holm")[1])
    return [None if p is None else float(next(adjusted)) for p in p_values]


@dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm.

    Attributes:
        name: of the arm, unique.
        metrics: metric -> seed -> value. None or NaN is a run that came to no value (it diverged).
        control, random, same_flop: names of the arms that are this one with shuffled targets, with a random vector as its
            target, and with as many FLOPs as the baseline.
        needs_control: False for arms without targets to shuffle, such as other labels.
        flops, seconds: seed -> cost of the run.
    """

    name: str
    metrics: Mapping[str, Mapping[int, float | None]]
    control: str | None = None
    random: str | None = None
    same_flop: str | None = None
    needs_control: bool = True
    flops: Mapping[int, float] = field(default_factory=dict)
    seconds: Mapping[int, float] = field(default_factory=dict)

    def values(self, metric: str) -> dict[int, float]:
        """Seed -> value, of the runs that have one."""
        given = sorted(self.metrics.get(metric, {}).items())
        return {seed: float(value) for seed, value in given if value is not None and math.isfinite(value)}

    def less(self, other: ArmRuns, metric: str) -> Comparison:
        """This arm less another one."""
        a, b = self.values(metric), other.values(metric)
        run = self.metrics.get(metric, {}).keys() & other.metrics.get(metric, {}).keys()
        seeds = tuple(sorted(a.keys() & b.keys()))
        result = paired_difference([a[seed] for seed in seeds], [b[seed] for seed in seeds])
        return Comparison(other.name, seeds, tuple(sorted(run - {*seeds})), result)


@dataclass(frozen=True)
class Comparison:
    """An arm less another one, seed by seed.

    Attributes:
        seeds: those that both have a value for.
        lost: those that one of both ran without coming to a value.
        holm_p: `result.t_p` corrected over the arms of the study that are compared so; None for controls.
    """

    against: str
    seeds: tuple[int, ...]
    lost: tuple[int, ...]
    result: PairedDifference
    holm_p: float | None = None

    @property
    def unusable(self) -> str:
        """Why nothing can be said from it; empty if something can."""
        n = self.result.n
        if self.lost:
            return f"no value for seed {', '.join(map(str, self.lost))}"
        if n < MIN_SEEDS:
            return f"n={n} seed{'' if n == 1 else 's'} in common with {self.against}"
        return f"all {n} differences from {self.against} are equal" if self.result.t_p is None else ""

    def shows(self, higher_is_better: bool, alpha: float) -> int:
        """1 better, -1 worse, 0 neither."""
        if self.unusable or self.result.mean is None or self.holm_p is None or self.holm_p >= alpha:
            return 0
        return 1 if (self.result.mean > 0) == higher_is_better else -1


@dataclass(frozen=True)
class ComparedArm:
    """One arm in one metric.

    Attributes:
        role: "arm" for what a claim is about; the others are what it is measured against.
        seeds: with a value; `summary` is the mean over them.
        comparisons: ``examples``, against the baseline, which saw as many examples; ``compute``, the arm at the baseline's
            compute against it; ``control`` and ``random``, against the arm's controls. Those that were made.
        flops, seconds: means over the runs, None where unknown.
        verdict: None for all but "arm".
    """

    name: str
    role: Role
    seeds: tuple[int, ...]
    summary: Interval
    comparisons: dict[Kind, Comparison]
    flops: float | None = None
    seconds: float | None = None
    verdict: Verdict | None = None


def compare_arms(
    arms: Sequence[ArmRuns], metric: str, *, baseline: str, higher_is_better: bool, alpha: float
) -> list[ComparedArm]:
    """Every arm in one metric, in the order given; the names that they give, and `baseline`, are names of arms.

    Holm's correction runs over the arms, for each kind of comparison by itself: in each of them some arm is wrongly told
    apart in at most `alpha` of all studies. That an arm must pass several to be called better makes it no likelier to be
    called so by chance (intersection-union test, Berger 1982).
    """
    by_name: dict[str | None, ArmRuns] = {arm.name: arm for arm in arms}
    roles: dict[str | None, Role] = {name: "control" for arm in arms for name in (arm.control, arm.random)}
    roles |= {arm.same_flop: "at equal compute" for arm in arms}
    roles[baseline] = "baseline"
    made: dict[str, dict[Kind, Comparison]] = {}
    for arm in arms:
        role = roles.get(arm.name, "arm")
        pairs: dict[Kind, tuple[str | None, str | None]] = {}
        if role in ("arm", "control"):
            pairs["examples"] = arm.name, baseline
        if role == "arm":
            pairs["compute"] = arm.same_flop, baseline
            pairs["control"], pairs["random"] = (arm.name, arm.control), (arm.name, arm.random)
        made[arm.name] = {
            k: by_name[one].less(by_name[other], metric) for k, (one, other) in pairs.items() if one and other
        }
    claims = [name for name in made if name not in roles]
    for kind in get_args(Kind):
        tested = [name for name in claims if kind in made[name]]
        for name, p in zip(tested, holm([made[name][kind].result.t_p for name in tested]), strict=True):
            made[name][kind] = replace(made[name][kind], holm_p=p)
    limit = EQUAL_COMPUTE * (_mean(by_name[baseline].flops) or 0)
    rows = []
    for arm in arms:
        values, flops, seconds = arm.values(metric), _mean(arm.flops), _mean(arm.seconds)
        own, verdict = made[arm.name], None
        if arm.name in claims:
            shown = {kind: comparison.shows(higher_is_better, alpha) for kind, comparison in own.items()}
            verdict = _verdict(own, shown, flops is not None and flops <= limit, arm.needs_control)
        role, summary = roles.get(arm.name, "arm"), mean_interval(list(values.values()))
        rows.append(ComparedArm(arm.name, role, tuple(values), summary, own, flops, seconds, verdict))
    return rows


def _verdict(made: Mapping[Kind, Comparison], shown: Mapping[Kind, int], cheap: bool, needs_control: bool) -> Verdict:
    """`shown` has 1, -1 or 0 for each comparison; a `cheap` arm was compared at equal compute already."""
    if made["examples"].unusable:
        return Verdict("not established", (made["examples"].unusable,))
    if shown["examples"] < 0:
        return Verdict("worse")
    if shown["examples"] == 0:
        return Verdict("no difference shown", ("worse at equal compute",) if shown.get("compute", 0) < 0 else ())
    missing = [NO_CONTROL] if "control" not in made and needs_control else []
    controls: tuple[tuple[Kind, str], ...] = (("control", "shuffled"), ("random", "random"))
    for kind, name in controls:
        if kind in made and made[kind].unusable:
            missing.append(f"its {name} control: {made[kind].unusable}")
        elif kind in made and shown[kind] <= 0:
            missing.append(f"its {name} control is not shown to be behind it")
    if "compute" not in made:
        missing += [] if cheap else [NO_COMPUTE]
    elif made["compute"].unusable:
        missing.append(f"at equal compute: {made['compute'].unusable}")
    elif shown["compute"] <= 0:
        missing.append("worse at equal compute" if shown["compute"] < 0 else "no difference shown at equal compute")
    return Verdict("not established", ("better at equal examples", *missing)) if missing else Verdict("better")


def _mean(costs: Mapping[int, float]) -> float | None:
    return sum(costs.values()) / len(costs) if costs else None
