"""Arms of a study against their baseline and their controls, at equal examples and at equal compute, and what may be said.

A study has one baseline. Every other arm may name three more: its controls, which differ from it by shuffled or random
targets alone, and itself trained for fewer steps, at the baseline's FLOPs. Runs of the same seed are pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from stepjepa.errors import DataError
from stepjepa.study.stats import Interval, PairedDifference, check_share, holm, mean_interval, paired_difference

MIN_SEEDS = 3  # below, a t test leans on a single number for the spread: nothing is said
EQUAL_COMPUTE = 1.02  # times the baseline's FLOPs: an arm of at most that much was compared at equal compute already
Kind = Literal["examples", "compute", "control", "random"]
Role = Literal["baseline", "arm", "control", "at equal compute"]
KINDS: tuple[Kind, ...] = get_args(Kind)


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
        given = {
            seed: math.nan if value is None else float(value) for seed, value in self.metrics.get(metric, {}).items()
        }
        return {seed: given[seed] for seed in sorted(given) if math.isfinite(given[seed])}


@dataclass(frozen=True)
class Comparison:
    """An arm less another one, seed by seed.

    Attributes:
        against: the other arm's name.
        seeds: those that both have a value for.
        lost: those that one of both ran without coming to a value.
        result: the paired difference.
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
class Verdict:
    """What may be said of an arm, and why not more."""

    label: Literal["better", "worse", "no difference shown", "not established"]
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.label}: {'; '.join(self.reasons)}" if self.reasons else self.label


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
    comparisons: Mapping[Kind, Comparison]
    flops: float | None = None
    seconds: float | None = None
    verdict: Verdict | None = None


def compare_arms(
    arms: Sequence[ArmRuns],
    metric: str,
    *,
    baseline: str,
    higher_is_better: bool,
    alpha: float,
    confidence: float = 0.95,
) -> list[ComparedArm]:
    """Every arm in one metric, in the order given.

    Holm's correction runs over the arms, for each kind of comparison by itself: in each of them some arm is wrongly told
    apart in at most `alpha` of all studies. That an arm must pass several to be called better makes it no likelier to be
    called so by chance (intersection-union test, Berger 1982).

    Raises:
        DataError: two arms share a name, or an arm that is named does not exist.
        ConfigError: `alpha` or `confidence` is not between 0 and 1.
    """
    check_share("alpha", alpha)
    by_name = {arm.name: arm for arm in arms}
    _check(arms, by_name, metric, baseline)
    rows = [_row(arm, by_name, metric, baseline, confidence) for arm in arms]
    for kind in KINDS:
        chosen = [i for i, row in enumerate(rows) if row.role == "arm" and kind in row.comparisons]
        corrected = holm([rows[i].comparisons[kind].result.t_p for i in chosen])
        for i, p in zip(chosen, corrected, strict=True):
            made = rows[i].comparisons
            rows[i] = replace(rows[i], comparisons={**made, kind: replace(made[kind], holm_p=p)})
    limit = EQUAL_COMPUTE * (_mean(by_name[baseline].flops) or 0)
    for i, row in enumerate(rows):
        if row.role == "arm":
            needs_control = by_name[row.name].needs_control
            rows[i] = replace(row, verdict=_verdict(row, limit, needs_control, higher_is_better, alpha))
    return rows


def _row(arm: ArmRuns, by_name: Mapping[str, ArmRuns], metric: str, baseline: str, confidence: float) -> ComparedArm:
    values, others = arm.values(metric), by_name.values()
    role: Role = "arm"
    pairs: dict[Kind, tuple[str | None, str | None]] = {"examples": (arm.name, baseline)}
    if arm.name == baseline:
        role, pairs = "baseline", {}
    elif any(arm.name == other.same_flop for other in others):
        role, pairs = "at equal compute", {}
    elif any(arm.name in (other.control, other.random) for other in others):
        role = "control"
    else:
        pairs |= {
            "compute": (arm.same_flop, baseline),
            "control": (arm.name, arm.control),
            "random": (arm.name, arm.random),
        }
    comparisons: dict[Kind, Comparison] = {}
    for kind, (one, other) in pairs.items():
        if one and other:
            a, b = by_name[one].values(metric), by_name[other].values(metric)
            run = {*by_name[one].metrics.get(metric, ())} & {*by_name[other].metrics.get(metric, ())}
            seeds = tuple(sorted(run & {*a} & {*b}))
            result = paired_difference([a[seed] for seed in seeds], [b[seed] for seed in seeds], confidence)
            comparisons[kind] = Comparison(other, seeds, tuple(sorted(run - {*seeds})), result)
    summary = mean_interval(list(values.values()), confidence)
    return ComparedArm(arm.name, role, tuple(values), summary, comparisons, _mean(arm.flops), _mean(arm.seconds))


def _verdict(
    row: ComparedArm, flops_limit: float, needs_control: bool, higher_is_better: bool, alpha: float
) -> Verdict:
    made = row.comparisons
    shown = {kind: comparison.shows(higher_is_better, alpha) for kind, comparison in made.items()}
    if made["examples"].unusable:
        return Verdict("not established", (made["examples"].unusable,))
    if shown["examples"] < 0:
        return Verdict("worse")
    if shown["examples"] == 0:
        return Verdict("no difference shown", ("worse at equal compute",) if shown.get("compute", 0) < 0 else ())
    missing = ["no shuffled control was run"] if "control" not in made and needs_control else []
    controls: tuple[tuple[Kind, str], ...] = (("control", "shuffled"), ("random", "random"))
    for kind, name in controls:
        if kind in made and made[kind].unusable:
            missing.append(f"its {name} control: {made[kind].unusable}")
        elif kind in made and shown[kind] <= 0:
            missing.append(f"its {name} control is not shown to be behind it")
    if "compute" not in made:
        if row.flops is None or row.flops > flops_limit:
            missing.append("not compared at equal compute")
    elif made["compute"].unusable:
        missing.append(f"at equal compute: {made['compute'].unusable}")
    elif shown["compute"] <= 0:
        missing.append("worse at equal compute" if shown["compute"] < 0 else "no difference shown at equal compute")
    return Verdict("not established", ("better at equal examples", *missing)) if missing else Verdict("better")


def _check(arms: Sequence[ArmRuns], by_name: Mapping[str, ArmRuns], metric: str, baseline: str) -> None:
    names, known = [arm.name for arm in arms], ", ".join(by_name) or "none"
    if len(by_name) < len(arms):
        raise DataError(f"two arms are named {max(names, key=names.count)!r}; give each a name of its own")
    if baseline not in by_name:
        raise DataError(f"the baseline {baseline!r} is no arm of the study; there are: {known}")
    for arm in arms:
        for what, name in (("control", arm.control), ("random", arm.random), ("same_flop", arm.same_flop)):
            if name is not None and (name not in by_name or name == arm.name):
                raise DataError(f"{what} of {arm.name!r} is {name!r}, which is no other arm; there are: {known}")
    if not any(metric in arm.metrics for arm in arms):
        metrics = sorted({name for arm in arms for name in arm.metrics})
        raise DataError(f"no arm has the metric {metric!r}; there are: {', '.join(metrics) or 'none'}")


def _mean(costs: Mapping[int, float]) -> float | None:
    return sum(costs.values()) / len(costs) if costs else None
