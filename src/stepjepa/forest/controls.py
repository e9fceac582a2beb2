"""The control every claim is measured against: each source gets the target of another example (``--control shuffled``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def shuffled_order(counts: Sequence[int]) -> np.ndarray | None:
    """For each pair of a batch, the pair whose target it gets: always one of another example.

    The targets are moved on by as many places as the example with most pairs has, so each is used once, whatever the order
    of the batch (which is drawn anew every epoch). Where one example has more than half of all pairs that cannot be, and
    targets of the others are used more than once.

    Args:
        counts: pairs of each example.

    Returns:
        (P,) int64; None where fewer than two examples have a pair, so that there is no other target.
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    if len(np.unique(owner)) < 2:
        return None
    most, total = max(counts), len(owner)
    if 2 * most <= total:
        return (np.arange(total) + most) % total
    others = {example: np.flatnonzero(owner != example) for example in np.unique(owner).tolist()}
    return np.array([others[example][pair % len(others[example])] for pair, example in enumerate(owner.tolist())])
