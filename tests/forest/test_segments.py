"""Attention by segments against dense attention under the same rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stepjepa.data.examples import Example
from stepjepa.data.views import Pair
from stepjepa.forest.collate import ForestCollator, segmented_cost
from stepjepa.forest.dense import dense_mask
from stepjepa.forest.layout import build_forest
from stepjepa.forest.segments import segment_plan, segmented_attention
from support.models import made_up_examples


def one_row(predictors):
    collator = ForestCollator(predictors, 0)
    return collator.pack_one_row([build_forest(example, predictors) for example in made_up_examples()])


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("predictors", [(), (96,), (96, 97)])
def test_equals_dense_attention_in_value_and_gradient(window, predictors):
    batch = one_row(predictors)
    tokens = batch["input_ids"].shape[1]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, 3, tokens, 8, generator=generator).requires_grad_() for _ in range(3)]
    weight = torch.randn(1, 3, tokens, 8, generator=generator)
    results = []
    for form in (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=dense_mask(batch, window), scale=0.3),
        lambda q, k, v: segmented_attention(q, k, v, segment_plan(batch, window), scale=0.3),
    ):
        output = form(*inputs)
        gradients = torch.autograd.grad((output * weight).sum(), inputs)
        results.append((output.detach(), *gradients))
    for dense, segmented in zip(*results, strict=True):
        assert dense.abs().mean() > 0.01
        torch.testing.assert_close(segmented, dense, atol=1e-5, rtol=1e-4)


def test_plan_by_hand():
    """A trunk of four, a branch of two behind its second token, a target of two; then a trunk of two."""
    first = Example(np.array([10, 11, 12, 13], np.int32), ((2, 4),), (Pair(1, 1, 2, 4, 3),))
    second = Example(np.array([20, 21], np.int32), ((1, 2),))
    forests = [build_forest(example, (90, 91)) for example in (first, second)]
    batch = ForestCollator((90, 91), 0).pack_one_row(forests)
    assert batch["input_ids"].tolist() == [[10, 11, 12, 13, 90, 91, 12, 13, 20, 21]]
    assert batch["forests"].tolist() == [[0, 8], [8, 10]]
    plan = segment_plan(batch)
    assert plan.sizes == (0, 8, 0, 2, 0)
    trunk, branch, target = plan.forests[0]
    assert (trunk.length, trunk.keys, trunk.mask) == (4, (0, 4), None)
    assert (branch.length, branch.keys) == (2, (0, 6))
    assert branch.mask.int().tolist() == [[1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 1, 1]]
    assert (target.length, target.keys, target.mask) == (2, (6, 8), None)


def test_cost_by_hand():
    """8 tokens; trunk 4 x 2, branch 2 x (2 + 2), target 2 x 1 keys; three segments."""
    example = Example(np.array([10, 11, 12, 13], np.int32), ((2, 4),), (Pair(1, 1, 2, 4, 3),))
    forest = build_forest(example, (90, 91))
    assert segmented_cost(forest, attention_length=2.0) == pytest.approx(8 + (8 + 8 + 2) / 2 + 3 * 6)


def test_long_examples_come_as_one_row_and_short_ones_packed():
    def batch(length):
        examples = [Example(np.full(length, 5, np.int32), ((1, length),)) for _ in range(6)]
        return ForestCollator((), 0, segmented=True)(examples)

    assert batch(400)["input_ids"].shape == (1, 2400) and "forests" in batch(400)
    assert batch(10)["input_ids"].shape[0] >= 1 and "forests" not in batch(10)
