"""The shuffled control: every source gets a target of another example."""

from __future__ import annotations

import numpy as np
import pytest

from stepjepa.forest.collate import shuffled_order


@pytest.mark.parametrize("counts", [[1, 1], [2, 1, 1], [0, 3, 1, 2], [1, 0, 1], [2, 2, 2]])
def test_each_target_is_used_once_and_never_by_its_own_example(counts):
    owner = np.repeat(np.arange(len(counts)), counts)
    order = shuffled_order(counts)
    assert sorted(order.tolist()) == list(range(sum(counts)))
    assert (owner[order] != owner).all()


def test_where_one_example_has_most_pairs_targets_are_used_again():
    assert shuffled_order([3, 1, 1]).tolist() == [3, 4, 3, 4, 0]


@pytest.mark.parametrize("counts", [[], [3], [0, 2, 0], [0, 0]])
def test_without_another_example_there_is_no_other_target(counts):
    assert shuffled_order(counts) is None
