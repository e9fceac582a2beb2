"""Arms of a study against their baseline and their controls, at equal examples and at equal compute, with a verdict.

A study has one baseline. Every other arm may name three more: its controls, which differ from it by shuffled or random
targets alone, and itself trained for fewer steps, at the baseline's FLOPs. Runs of the same seed are pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal, get_args

from stepjepa.evaluation.statistics import (
    NO_COMPUTE,
    NO_CONTROL,
    ArmVerdict,
    PairedDifference,
    Summary,
    holm,
    paired_difference,
    summary,
)

MIN_SEEDS = 3  # below, a t test leans on a single number for the spread: there is no verdict
EQUAL_COMPUTE = 1.02  # times the baseline's FLOPs: an arm of at most that much was compared at equal compute already
Kind = Literal["examples", "compute", "control", "random"]
_OTHERS: dict[Kind, str] = {
    "control": "against its shuffled control",
    "random": "against its random control",
    "compute": "at equal compute",
}
Role = Literal["baseline", "arm", "control", "at equal compute"]


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
        by_seed = sorted(self.metrics.get(metric, {}).items())
        return {seed: float(value) for seed, value in by_seed if value is not None and math.isfinite(value)}

    def minus(self, other: ArmRuns, metric: str) -> ArmComparison:
        """This arm less another one, seed by seed."""
        own = self.values(metric)
        others = other.values(metric)
        seeds = sorted(own.keys() & others.keys())
        result = paired_difference([own[seed] for seed in seeds], [others[seed] for seed in seeds])
        # Seeds that both have run, of which one came to no value.
        own_runs = self.metrics.get(metric, {})
        other_runs = other.metrics.get(metric, {})
        both = own_runs.keys() & other_runs.keys()
        lost = sorted(both.difference(seeds))
        return ArmComparison(other.name, tuple(seeds), tuple(lost), result)


@dataclass(frozen=True)
class ArmComparison:
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
        """Why no verdict can rest on it; empty if one can."""
        n = self.result.n
        if self.lost:
            return f"no value for seed {', '.join(map(str, self.lost))}"
        if n < MIN_SEEDS:
            return f"n={n} seed{'' if n == 1 else 's'} in common with {self.against}"
        if self.result.t_p is None:
            return f"all {n} differences from {self.against} are equal"
        return ""

    def direction(self, higher_is_better: bool, alpha: float) -> int:
        """1 shown to be better, -1 shown to be worse, 0 neither."""
        if self.unusable or self.result.mean is None:
            return 0
        if self.holm_p is None or self.holm_p >= alpha:
            return 0
        return 1 if (self.result.mean > 0) == higher_is_better else -1


@dataclass(frozen=True)
class Solved:
    """How many runs of an arm have solved the task, and after how many examples.

    Attributes:
        runs: all, those without a value among them.
        solved: of them, on the test split; `low` and `high` are the ends of the share's interval.
        reached: runs of which an evaluation on the way, on the validation split, was as good.
        examples: until the first such evaluation, the median over these runs; None for none.
    """

    runs: int
    solved: int
    low: float | None
    high: float | None
    reached: int
    examples: float | None


@dataclass(frozen=True)
class ComparedArm:
    """One arm in one metric.

    Attributes:
        role: "arm" for what a claim is about; the others are what it is measured against.
        seeds: with a value; `summary` is over them.
        comparisons: ``examples``, against the baseline, which saw as many examples; ``compute``, the arm at the baseline's
            compute against it; ``control`` and ``random``, against the arm's controls. Those that were made.
        flops, seconds: means over the runs, None where unknown.
        verdict: None for all but "arm".
        solved: None where the study does not say what that is.
    """

    name: str
    role: Role
    seeds: tuple[int, ...]
    summary: Summary
    comparisons: dict[Kind, ArmComparison]
    flops: float | None = None
    seconds: float | None = None
    verdict: ArmVerdict | None = None
    solved: Solved | None = None


def compare_arms(
    arms: Sequence[ArmRuns], metric: str, *, baseline: str, higher_is_better: bool, alpha: float
) -> list[ComparedArm]:
    """Every arm in one metric, in the order given; the names that they give, and `baseline`, are names of arms.

    Holm's correction runs over the arms, for each kind of comparison by itself: in each of them some arm is wrongly told
    apart in at most `alpha` of all studies. That an arm must pass several to be called better makes it no likelier to be
    called so by chance (intersection-union test, Berger 1982).
    """
    roles = _roles(arms, baseline)
    by_name = {arm.name: arm for arm in arms}
    comparisons = {arm.name: _comparisons(arm, roles[arm.name], by_name, baseline, metric) for arm in arms}
    claims = [comparisons[name] for name, role in roles.items() if role == "arm"]
    for kind in get_args(Kind):
        tested = [one for one in claims if kind in one]
        corrected = holm([one[kind].result.t_p for one in tested])
        for one, p in zip(tested, corrected, strict=True):
            one[kind] = replace(one[kind], holm_p=p)

    compute_limit = EQUAL_COMPUTE * (_mean(by_name[baseline].flops) or 0)
    rows = []
    for arm in arms:
        own, flops, verdict = comparisons[arm.name], _mean(arm.flops), None
        if roles[arm.name] == "arm":
            directions = {kind: one.direction(higher_is_better, alpha) for kind, one in own.items()}
            cheap = flops is not None and flops <= compute_limit
            verdict = _verdict(own, directions, cheap, arm.needs_control)
        values = arm.values(metric)
        numbers = summary(list(values.values()))
        rows.append(
            ComparedArm(arm.name, roles[arm.name], tuple(values), numbers, own, flops, _mean(arm.seconds), verdict)
        )
    return rows


def _roles(arms: Sequence[ArmRuns], baseline: str) -> dict[str, Role]:
    roles: dict[str, Role] = {arm.name: "arm" for arm in arms}
    for arm in arms:
        for control in (arm.control, arm.random):
            if control is not None:
                roles[control] = "control"
        if arm.same_flop is not None:
            roles[arm.same_flop] = "at equal compute"
    roles[baseline] = "baseline"
    return roles


def _comparisons(
    arm: ArmRuns, role: Role, by_name: Mapping[str, ArmRuns], baseline: str, metric: str
) -> dict[Kind, ArmComparison]:
    """The comparisons of an arm; a control is compared with the baseline alone."""
    plain = by_name[baseline]
    pairs: dict[Kind, tuple[ArmRuns, ArmRuns]] = {}
    if role in ("arm", "control"):
        pairs["examples"] = arm, plain
    if role == "arm":
        if arm.same_flop is not None:
            pairs["compute"] = by_name[arm.same_flop], plain
        if arm.control is not None:
            pairs["control"] = arm, by_name[arm.control]
        if arm.random is not None:
            pairs["random"] = arm, by_name[arm.random]
    return {kind: first.minus(second, metric) for kind, (first, second) in pairs.items()}


def _verdict(
    comparisons: Mapping[Kind, ArmComparison], directions: Mapping[Kind, int], cheap: bool, needs_control: bool
) -> ArmVerdict:
    """The verdict by the rules of docs/statistics.md; a `cheap` arm was compared at equal compute already."""
    if comparisons["examples"].unusable:
        return ArmVerdict("not established", (comparisons["examples"].unusable,))
    if directions["examples"] < 0:
        return ArmVerdict("worse")
    if directions["examples"] == 0:
        worse = directions.get("compute", 0) < 0
        return ArmVerdict("no difference shown", ("worse at equal compute",) if worse else ())

    # Better at equal examples: what else must be shown before the arm may be called better?
    missing = []
    if "control" not in comparisons and needs_control:
        missing.append(NO_CONTROL)
    if "compute" not in comparisons and not cheap:
        missing.append(NO_COMPUTE)
    for kind, against in _OTHERS.items():
        if kind in comparisons and directions[kind] <= 0:
            shown = "worse" if directions[kind] < 0 else "no difference shown"
            missing.append(f"{against}: {comparisons[kind].unusable or shown}")
    if missing:
        return ArmVerdict("not established", ("better at equal examples", *missing))
    return ArmVerdict("better")


def _mean(costs: Mapping[int, float]) -> float | None:
    return fmean(costs.values()) if costs else None
