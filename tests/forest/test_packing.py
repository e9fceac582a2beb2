"""Batches: rows of examples, every one once and never worse than the simple ways, and the shuffled control."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from stepjepa.data.types import Example
from stepjepa.forest.collate import ForestCollator, TwoPassCollator, shuffled_order
from stepjepa.forest.layout import best_fit, plan_rows, row_lengths
from support.models import Views, paired


def test_best_fit_takes_the_fullest_row_that_has_room():
    assert best_fit([5, 4, 3, 2], 7) == [[0, 3], [1, 2]]
    assert best_fit([6, 5, 2, 1], 8) == [[0, 2], [1, 3]]
    assert best_fit([9, 2], 5) == [[0], [1]]  # longer than the capacity


def test_the_search_stops_early_and_misses_no_cheaper_plan(monkeypatch):
    """Every example is in the plan once; one row and a row each are not cheaper, nor is any capacity that was not tried."""
    tried = []

    def counted(lengths, capacity):
        tried.append(capacity)
        return best_fit(lengths, capacity)

    def cost(rows, lengths):
        width = max(row_lengths(rows, lengths))
        return len(rows) * width * (1 + width / 1024)

    monkeypatch.setattr("stepjepa.forest.layout.best_fit", counted)
    assert plan_rows([35] * 128) == [[index] for index in range(128)] and tried == [35]
    rng, stopped = random.Random(1), 0
    for _ in range(100):
        lengths = [rng.randint(1, rng.choice([3, 400])) for _ in range(rng.randint(1, 32))]
        tried.clear()
        found, few = plan_rows(lengths), len(tried)
        assert sorted(index for row in found for index in row) == list(range(len(lengths)))
        tried.clear()
        with monkeypatch.context() as patched:
            patched.setattr("stepjepa.forest.layout.ATTENTION_LENGTH", 1e12)
            plan_rows(lengths)  # tries all but where a packing has no gap
        others = [best_fit(lengths, capacity) for capacity in tried]
        others += [[list(range(len(lengths)))], [[index] for index in range(len(lengths))]]
        assert cost(found, lengths) <= min(cost(rows, lengths) for rows in others) + 1e-9
        stopped += few < len(tried)
    assert stopped > 10


def test_max_row_length(monkeypatch):
    lengths = [37, 41, 29, 33, 20, 24]
    monkeypatch.setattr("stepjepa.forest.layout.ATTENTION_LENGTH", 1e9)
    assert row_lengths(plan_rows(lengths), lengths) == [184]
    assert max(row_lengths(plan_rows(lengths, max_row_length=100), lengths)) <= 100


def test_labels_and_pairs_keep_the_batchs_order():
    """Rows are filled longest first; what is read out is in the order of the examples all the same."""
    short = paired([1, 2, 3, 4], [(2, 4)], [Views(1, 2, 4)])
    long = paired(range(10, 20), [(5, 10)], [Views(4, 5, 10)])
    batch = ForestCollator((), 0)([short, long])
    flat = batch.rows.input_ids.flatten()
    assert flat[batch.targets.positions].tolist() == [4, 19]
    assert flat[batch.sources.positions].tolist() == [2, 14]
    assert batch.label_ids.tolist() == [3, 4, 15, 16, 17, 18, 19]
    assert flat[batch.label_positions].tolist() == [2, 3, 14, 15, 16, 17, 18]


def test_two_pass_rows():
    example = paired([1, 2, 3, 4], [(2, 4)], [Views(1, 2, 4)], predictors=2)
    batch = TwoPassCollator((90, 91), 0)([example])
    assert batch.views.input_ids.tolist() == [[1, 2, 90, 91], [3, 4, 0, 0]]
    assert batch.views.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.views.position_ids.tolist() == [[0, 1, 2, 3], [4, 5, 0, 0]]
    first = batch.rows.input_ids.numel()  # views are addressed behind the chats
    assert batch.sources.positions.tolist() == [first + 3]
    assert batch.targets.positions.tolist() == [first + 5]


def test_a_batch_without_labels_or_pairs():
    batch = ForestCollator((90,), 0)([Example(np.array([0], np.int32), ())])
    assert batch.label_ids.shape == batch.sources.positions.shape == torch.Size([0])


@pytest.mark.parametrize("counts", [[1, 1], [2, 1, 1], [0, 3, 1, 2], [1, 0, 1], [2, 2, 2]])
def test_shuffled_targets_are_used_once_and_never_by_their_own_example(counts):
    owner, order = np.repeat(np.arange(len(counts)), counts), shuffled_order(counts)
    assert sorted(order.tolist()) == list(range(sum(counts)))
    assert (owner[order] != owner).all()


def test_shuffled_targets_by_hand():
    """Where one example has most pairs, or all; aligned ones are at the same place of the next example."""
    assert shuffled_order([3, 1, 1]).tolist() == [3, 4, 3, 4, 0]
    assert all(shuffled_order(counts) is None for counts in ([], [3], [0, 2, 0], [0, 0]))
    assert shuffled_order([2, 0, 1, 3], aligned=True).tolist() == [2, 2, 3, 0, 1, 0]
