"""Arms of a study against their baseline and their controls, at equal examples and at equal compute, and what may be said.

A study has one baseline. Every other arm may name three more: its controls, which differ from it by shuffled or random
targets alone, and itself trained for fewer steps, at the baseline's FLOPs. Runs of the same seed are pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stepjepa.errors import DataError
from stepjepa.study.stats import Interval, PairedDifference, check_share, holm, mean_interval, paired_difference

# Below three pairs a t test leans on a single number for the spread: nothing is said.
MIN_SEEDS = 3
# An arm of at most this many times the baseline's FLOPs was compared at equal compute already.
EQUAL_COMPUTE = 1.02

Role = Literal["baseline", "arm", "control", "at equal compute"]
Label = Literal["better", "worse", "no difference shown", "not established"]


@dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm.

    Attributes:
        name: of the arm, unique.
        metrics: metric -> seed -> value. None or NaN stands for a run that came to no value (it diverged).
        control: name of the arm that is this one with shuffled targets.
        random: name of the arm that is this one with a random vector as its target.
        same_flop: name of the arm that is this one, trained with as many FLOPs as the baseline.
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


@dataclass(frozen=True)
class Comparison:
    """An arm less another one, seed by seed.

    Attributes:
        against: the other arm's name.
        seeds: those that both have a value for.
        lost: those that one of both ran without coming to a value.
        result: the paired difference.
        holm_p: `result.t_p` corrected over the arms of the study that are compared so; None for controls and baselines.
    """

    against: str
    seeds: tuple[int, ...]
    lost: tuple[int, ...]
    result: PairedDifference
    holm_p: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What may be said of an arm, in plain words, and why not more."""

    label: Label
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.label}: {'; '.join(self.reasons)}" if self.reasons else self.label


@dataclass(frozen=True)
class ComparedArm:
    """One arm in one metric.

    Attributes:
        role: "arm" for what a claim is about; the others are what it is measured against.
        seeds: with a value.
        summary: mean over them, with sd and t interval.
        examples: against the baseline, which saw as many examples; for arms and controls.
        compute: the arm at the baseline's compute against the baseline.
        control, random: against the arm's controls.
        flops, seconds: means over the runs, None where unknown.
        verdict: None for all but "arm".
    """

    name: str
    role: Role
    seeds: tuple[int, ...]
    summary: Interval
    examples: Comparison | None = None
    compute: Comparison | None = None
    control: Comparison | None = None
    random: Comparison | None = None
    flops: float | None = None
    seconds: float | None = None
    verdict: Verdict | None = None


def compare_arms(
    arms: Sequence[ArmRuns],
    metric: str,
    *,
    baseline: str,
    higher_is_better: bool,
    alpha: float = 0.05,
    confidence: float = 0.95,
) -> list[ComparedArm]:
    """Every arm in one metric, in the order given.

    Holm's correction runs over the arms, for each kind of comparison (baseline, equal compute, either control) by itself:
    in each of them some arm is wrongly set apart in at most `alpha` of all studies. That an arm must pass several to be
    called better makes it no likelier to be called so by chance (intersection-union test, Berger 1982).

    Raises:
        DataError: two arms share a name, or an arm that is named does not exist.
        ConfigError: `alpha` or `confidence` is not between 0 and 1.
    """
    check_share("alpha", alpha)
    check_share("confidence", confidence)
    by_name = {arm.name: arm for arm in arms}
    _check(arms, by_name, metric, baseline)
    roles = _roles(arms, baseline)
    compared = []
    for arm in arms:
        values = _values(arm, metric)
        seeds = tuple(sorted(values))
        row = ComparedArm(
            arm.name,
            roles[arm.name],
            seeds,
            mean_interval([values[seed] for seed in seeds], confidence),
            flops=_mean(arm.flops),
            seconds=_mean(arm.seconds),
        )
        if row.role in ("arm", "control"):
            row = replace(row, examples=_compare(arm, by_name[baseline], metric, confidence))
        if row.role == "arm":
            pairs = {"compute": (arm.same_flop, baseline), "control": (arm.name, arm.control)}
            pairs["random"] = (arm.name, arm.random)
            found = {
                kind: _compare(by_name[one], by_name[other], metric, confidence)
                for kind, (one, other) in pairs.items()
                if one and other
            }
            row = replace(row, **found)  # type: ignore[arg-type]
        compared.append(row)
    compared = _corrected(compared)
    base = next(row for row in compared if row.role == "baseline")
    return [
        replace(row, verdict=_verdict(row, base, by_name[row.name], higher_is_better, alpha))
        if row.role == "arm"
        else row
        for row in compared
    ]


def _verdict(row: ComparedArm, baseline: ComparedArm, arm: ArmRuns, higher_is_better: bool, alpha: float) -> Verdict:
    assert row.examples is not None
    unusable = _unusable(row.examples)
    if unusable:
        return Verdict("not established", (unusable,))
    direction = _shown(row.examples, higher_is_better, alpha)
    at_compute = _shown(row.compute, higher_is_better, alpha) if row.compute is not None else 0
    if direction < 0:
        return Verdict("worse")
    if direction == 0:
        return Verdict("no difference shown", ("worse at equal compute",) if at_compute < 0 else ())
    missing = []
    if row.control is None and arm.needs_control:
        missing.append("no shuffled control was run")
    for kind, control in (("shuffled", row.control), ("random", row.random)):
        if control is not None and _unusable(control):
            missing.append(f"its {kind} control: {_unusable(control)}")
        elif control is not None and _shown(control, higher_is_better, alpha) <= 0:
            missing.append(f"its {kind} control is not shown to be behind it")
    if row.compute is None:
        if not _cheap(row, baseline):
            missing.append("not compared at equal compute")
    elif _unusable(row.compute):
        missing.append(f"at equal compute: {_unusable(row.compute)}")
    elif at_compute <= 0:
        missing.append("worse at equal compute" if at_compute < 0 else "no difference shown at equal compute")
    if missing:
        return Verdict("not established", ("better at equal examples", *missing))
    return Verdict("better")


def _shown(comparison: Comparison, higher_is_better: bool, alpha: float) -> int:
    """1 better, -1 worse, 0 neither is shown."""
    mean, p = comparison.result.mean, comparison.holm_p
    if _unusable(comparison) or mean is None or p is None or p >= alpha:
        return 0
    return 1 if (mean > 0) == higher_is_better else -1


def _unusable(comparison: Comparison) -> str:
    """Why nothing can be said from a comparison; empty if something can."""
    n = comparison.result.n
    if comparison.lost:
        return f"no value for seed {', '.join(map(str, comparison.lost))}"
    if n < MIN_SEEDS:
        return f"n={n} seed{'' if n == 1 else 's'} in common with {comparison.against}"
    if comparison.result.t_p is None:
        return f"all {n} differences from {comparison.against} are equal"
    return ""


def _cheap(row: ComparedArm, baseline: ComparedArm) -> bool:
    return row.flops is not None and baseline.flops is not None and row.flops <= EQUAL_COMPUTE * baseline.flops


def _corrected(rows: list[ComparedArm]) -> list[ComparedArm]:
    for kind in ("examples", "compute", "control", "random"):
        chosen = [i for i, row in enumerate(rows) if row.role == "arm" and getattr(row, kind) is not None]
        corrected = holm([getattr(rows[i], kind).result.t_p for i in chosen])
        for i, p in zip(chosen, corrected, strict=True):
            rows[i] = replace(rows[i], **{kind: replace(getattr(rows[i], kind), holm_p=p)})
    return rows


def _compare(arm: ArmRuns, other: ArmRuns, metric: str, confidence: float) -> Comparison:
    a, b = _values(arm, metric), _values(other, metric)
    run = set(arm.metrics.get(metric, ())) & set(other.metrics.get(metric, ()))
    seeds = tuple(sorted(run & set(a) & set(b)))
    result = paired_difference([a[seed] for seed in seeds], [b[seed] for seed in seeds], confidence)
    return Comparison(other.name, seeds, tuple(sorted(run - set(seeds))), result)


def _values(arm: ArmRuns, metric: str) -> dict[int, float]:
    values = arm.metrics.get(metric, {})
    return {seed: float(v) for seed, v in values.items() if v is not None and math.isfinite(v)}


def _roles(arms: Sequence[ArmRuns], baseline: str) -> dict[str, Role]:
    controls = {name for arm in arms for name in (arm.control, arm.random)}
    short = {arm.same_flop for arm in arms}
    roles: dict[str, Role] = {}
    for arm in arms:
        if arm.name == baseline:
            roles[arm.name] = "baseline"
        elif arm.name in short:
            roles[arm.name] = "at equal compute"
        else:
            roles[arm.name] = "control" if arm.name in controls else "arm"
    return roles


def _check(arms: Sequence[ArmRuns], by_name: Mapping[str, ArmRuns], metric: str, baseline: str) -> None:
    if len(by_name) < len(arms):
        twice = next(arm.name for i, arm in enumerate(arms) if arm.name in {a.name for a in arms[:i]})
        raise DataError(f"two arms are named {twice!r}; give each a name of its own")
    known = ", ".join(by_name) or "none"
    if baseline not in by_name:
        raise DataError(f"the baseline {baseline!r} is no arm of the study; there are: {known}")
    for arm in arms:
        for what in ("control", "random", "same_flop"):
            name = getattr(arm, what)
            if name is not None and (name not in by_name or name == arm.name):
                raise DataError(f"{what} of {arm.name!r} is {name!r}, which is no other arm; there are: {known}")
    if not any(metric in arm.metrics for arm in arms):
        named = sorted({name for arm in arms for name in arm.metrics})
        raise DataError(f"no arm has the metric {metric!r}; there are: {', '.join(named) or 'none'}")


def _mean(costs: Mapping[int, float]) -> float | None:
    return sum(costs.values()) / len(costs) if costs else None
