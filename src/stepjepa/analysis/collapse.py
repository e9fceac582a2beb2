"""Signs of collapse in the numbers of `measure_states`, in plain words.

Plain language models already have cone-shaped states: two unrelated views have a cosine of .76 to .96 and the effective
rank is well above 1. Collapsed ones reach .995, rank 1.0, matched pairs as close as shuffled ones, and retrieval at
chance. The thresholds lie between the two (docs/geometry.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from stepjepa.analysis.geometry import PairNumbers
from stepjepa.analysis.numbers import GeometryNumbers, ViewNumbers
from stepjepa.utils.failures import library

# Mean cosine of two rows: above all plain models measured (.96), below all collapsed ones (.995).
CONE_COSINE = 0.98
# Effective rank of unit-length rows.
LOW_RANK = 2.0
# Rows and dimensions below which a rank says nothing.
RANK_ROWS = 8
# d' of matched against shuffled cosines: below half a standard deviation most pairs cannot be told apart.
LOW_D_PRIME = 0.5
# Level of the test that more targets are found than by chance, and the rows that it needs.
CHANCE_LEVEL = 0.05
CHANCE_ROWS = 20
# Share of dead dimensions.
DEAD_DIMENSIONS = 0.1


@dataclass(frozen=True)
class CollapseSign:
    """One sign.

    Attributes:
        name: "low_rank", "cone", "dead_dimensions", "pairs_alike" or "retrieval_at_chance".
        view: "source", "target" or "pairs".
        value: the number that gave it.
        threshold: what it was held against.
        text: both in a sentence.
    """

    name: str
    view: str
    value: float
    threshold: float
    text: str

    def __str__(self) -> str:
        return self.text


def collapse_signs(numbers: GeometryNumbers) -> list[CollapseSign]:
    """Signs of collapse in one model's states, none for healthy ones.

    Dead dimensions and a low rank are signs by themselves. A cone or pairs alike are so together with each other: a model
    without any JEPA training may have one of them.
    """
    signs = [*_pair_signs(numbers.pairs)]
    for name in ("source", "target"):
        signs += _view_signs(name, getattr(numbers, name), min(numbers.n, numbers.width))
    return signs


def _pair_signs(pairs: PairNumbers) -> list[CollapseSign]:
    signs = []
    if pairs.d_prime is not None and pairs.d_prime < LOW_D_PRIME:
        how = "farther apart than" if pairs.d_prime < -LOW_D_PRIME else "as close as"
        text = (
            f"matched pairs are {how} shuffled ones: cosine {pairs.aligned_mean:.4f} against "
            f"{pairs.shuffled_mean:.4f}, d' = {pairs.d_prime:.2f} (below {LOW_D_PRIME})"
        )
        signs.append(CollapseSign("pairs_alike", "pairs", pairs.d_prime, LOW_D_PRIME, text))
    if pairs.n >= CHANCE_ROWS:
        found = round(pairs.retrieval_at_1 * pairs.n)
        binomial = library("scipy.stats", "analysis").binom
        p = float(binomial.sf(found - 1, pairs.n, pairs.chance_at_1))
        if p >= CHANCE_LEVEL:
            text = (
                f"retrieval is at chance: {found} of {pairs.n} targets are nearest to their source, "
                f"{pairs.n * pairs.chance_at_1:.0f} expected by chance (p = {p:.2f}, not below {CHANCE_LEVEL})"
            )
            signs.append(CollapseSign("retrieval_at_chance", "pairs", pairs.retrieval_at_1, pairs.chance_at_1, text))
    return signs


def _view_signs(name: str, view: ViewNumbers, most_rank: int) -> list[CollapseSign]:
    signs = []
    if most_rank >= RANK_ROWS and view.effective_rank < LOW_RANK:
        text = f"{name} states have an effective rank of {view.effective_rank:.2f} of {most_rank} (below {LOW_RANK})"
        signs.append(CollapseSign("low_rank", name, view.effective_rank, LOW_RANK, text))
    if view.pairwise_cosine >= CONE_COSINE:
        text = (
            f"{name} states point in one direction: two rows have a cosine of {view.pairwise_cosine:.4f} on average "
            f"(from {CONE_COSINE}; plain models .76 to .96)"
        )
        signs.append(CollapseSign("cone", name, view.pairwise_cosine, CONE_COSINE, text))
    if view.dead_dimensions >= DEAD_DIMENSIONS:
        share = f"{100 * view.dead_dimensions:.0f} %"
        text = f"{share} of the {name} dimensions hardly vary (from {100 * DEAD_DIMENSIONS:.0f} %)"
        signs.append(CollapseSign("dead_dimensions", name, view.dead_dimensions, DEAD_DIMENSIONS, text))
    return signs
