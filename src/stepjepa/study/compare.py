"""Compares the arms of a study with their baseline and controls, at equal examples and equal compute, with a verdict.

There is one baseline. Every other arm may name up to three further arms: two controls, which differ from it only by shuffled
or random targets, and the same arm trained for fewer steps, at the baseline's FLOPs. Runs with the same seed are paired.
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

# With two seeds, a t test has a single degree of freedom. With fewer than this many seeds, no verdict is given.
MIN_SEEDS = 3
# Up to this multiple of the baseline's FLOPs, a comparison at equal examples is also one at equal compute.
EQUAL_COMPUTE = 1.02
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
        name: unique name of the arm.
        metrics: metric -> seed -> value; None or NaN for a run that diverged.
        control, random, same_flop: names of the arms that equal this one except for shuffled targets, a random vector as
            target, or the baseline's FLOPs.
        needs_control: False for arms without targets to shuffle, such as an arm that only changes the labels.
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
        """Seed -> value, of the runs with a finite value."""
        by_seed = sorted(self.metrics.get(metric, {}).items())
        return {
            seed: float(value)
            for seed, value in by_seed
            if value is not None and math.isfinite(value)
        }

    def minus(self, other: ArmRuns, metric: str) -> ArmComparison:
        """This arm minus another, seed by seed."""
        values = self.values(metric)
        others = other.values(metric)
        seeds = sorted(values.keys() & others.keys())
        result = paired_difference(
            [values[seed] for seed in seeds], [others[seed] for seed in seeds]
        )
        # Dropping the seeds at which one arm diverged would favour that arm, so they are kept and rule out a verdict.
        common = self.metrics.get(metric, {}).keys() & other.metrics.get(metric, {}).keys()
        lost = sorted(common.difference(seeds))
        return ArmComparison(other.name, tuple(seeds), tuple(lost), result)


@dataclass(frozen=True)
class ArmComparison:
    """One arm minus another, seed by seed.

    Attributes:
        seeds: seeds with a value in both arms.
        lost: seeds that both arms ran, without a value in one of them.
        holm_p: `result.t_p`, corrected over the arms of the study with this kind of comparison; None for controls.
    """

    against: str
    seeds: tuple[int, ...]
    lost: tuple[int, ...]
    result: PairedDifference
    holm_p: float | None = None

    @property
    def unusable(self) -> str:
        """Why the comparison supports no verdict; empty if it supports one."""
        n = self.result.n
        if self.lost:
            return f"no value for seed {', '.join(map(str, self.lost))}"
        if n < MIN_SEEDS:
            return f"n={n} seed{'' if n == 1 else 's'} in common with {self.against}"
        if self.result.t_p is None:
            return f"all {n} differences from {self.against} are equal"
        return ""

    def direction(self, higher_is_better: bool, alpha: float) -> int:
        """1 if the arm is better, -1 if it is worse, 0 if neither is established at level `alpha`."""
        if self.unusable or self.holm_p is None or self.holm_p >= alpha:
            return 0
        assert self.result.mean is not None
        return 1 if (self.result.mean > 0) == higher_is_better else -1


@dataclass(frozen=True)
class Solved:
    """The number of an arm's runs that solved the task.

    Attributes:
        runs: all runs, including those without a value.
        solved: runs that solved the task on the test split; `low` and `high` are the ends of the share's interval.
    """

    runs: int
    solved: int
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ComparedArm:
    """The results of one arm on one metric.

    Attributes:
        role: "arm" if a claim is made about it; the other roles are what arms are compared with.
        seeds: seeds with a value; `summary` is over them.
        comparisons: ``examples``, with the baseline at equal examples; ``compute``, the arm at the baseline's compute with
            the baseline; ``control`` and ``random``, with the arm's controls. Only those that the study contains.
        flops, seconds: means over the runs; None if unknown.
        verdict: None unless the role is "arm".
        solved: None if the study does not define it.
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
    """The results of every arm on one metric, in the order of `arms`, which must contain the baseline and every arm that
    another one names.

    Holm's correction runs over the arms, separately for each kind of comparison: within a kind, a study declares any false
    difference with probability at most `alpha`. An arm must pass several kinds to be called better, which does not raise
    that probability (intersection-union test, Berger 1982).
    """
    roles = _roles(arms, baseline)
    by_name = {arm.name: arm for arm in arms}
    comparisons = {
        arm.name: _comparisons(arm, roles[arm.name], by_name, baseline, metric) for arm in arms
    }

    # No claim is made about controls, so they do not count among the tests that are corrected.
    claims = [comparisons[name] for name, role in roles.items() if role == "arm"]
    for kind in get_args(Kind):
        tested = [by_kind for by_kind in claims if kind in by_kind]
        corrected = holm([by_kind[kind].result.t_p for by_kind in tested])
        for by_kind, p in zip(tested, corrected, strict=True):
            by_kind[kind] = replace(by_kind[kind], holm_p=p)

    compute_limit = EQUAL_COMPUTE * (_mean(by_name[baseline].flops) or 0)
    rows = []
    for arm in arms:
        by_kind, flops, verdict = comparisons[arm.name], _mean(arm.flops), None
        if roles[arm.name] == "arm":
            directions = {
                kind: each.direction(higher_is_better, alpha) for kind, each in by_kind.items()
            }
            cheap = flops is not None and flops <= compute_limit
            verdict = _verdict(by_kind, directions, cheap, arm.needs_control)
        values = arm.values(metric)
        numbers = summary(list(values.values()))
        rows.append(
            ComparedArm(
                arm.name,
                roles[arm.name],
                tuple(values),
                numbers,
                by_kind,
                flops,
                _mean(arm.seconds),
                verdict,
            )
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
    """The comparisons of an arm. A control is only compared with the baseline."""
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
    comparisons: Mapping[Kind, ArmComparison],
    directions: Mapping[Kind, int],
    cheap: bool,
    needs_control: bool,
) -> ArmVerdict:
    """The verdict by the rules of docs/statistics.md. For a `cheap` arm, equal examples are equal compute."""
    if comparisons["examples"].unusable:
        return ArmVerdict("not established", (comparisons["examples"].unusable,))
    if directions["examples"] < 0:
        return ArmVerdict("worse")
    if directions["examples"] == 0:
        worse = directions.get("compute", 0) < 0
        return ArmVerdict("no difference shown", ("worse at equal compute",) if worse else ())

    # Better at equal examples. The gain must also hold against the controls (it comes from the pairs, not from the extra
    # loss) and at equal compute (it does not come from the extra FLOPs).
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
