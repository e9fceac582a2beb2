"""Attention by segments against dense attention under the same rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stepjepa.data.types import Example
from stepjepa.forest.collate import ForestCollator
from stepjepa.forest.layout import attention_costs
from stepjepa.forest.visibility import dense_mask
from stepjepa.modeling import masks
from stepjepa.modeling.masks import segment_plan, segmented_attention
from support.models import Views, made_up_examples, paired


def long_examples(predictors):
    """Two examples of 300 and 200 tokens, long enough to attend segment by segment."""
    return [
        paired(np.full(300, 5), [(99, 300)], [Views(99, 100, 130), Views(129, 130, 160)], predictors),
        Example(np.full(200, 6, np.int32), ((9, 200),)),
    ]


@pytest.mark.parametrize("made", [made_up_examples, long_examples], ids=["short", "long"])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("predictors", [(), (96,), (96, 97)])
def test_equals_dense_attention_in_value_and_gradient(made, window, predictors):
    examples = made(len(predictors))
    batch = ForestCollator(predictors, 0, one_row=True)(examples).rows
    apart = [len(forest) > 1 for forest in segment_plan(batch, window)]
    assert any(apart) is (examples[0].trunk.size == 300)
    tokens = batch.input_ids.shape[1]
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


def plan_of(*examples):
    batch = ForestCollator((90, 91), 0, one_row=True)(examples).rows
    return batch, segment_plan(batch)


def test_a_long_forest_attends_segment_by_segment_and_a_short_one_as_one(monkeypatch):
    """A trunk of 400, a branch of two behind token 9, a target of 30; a trunk of two. Only the branch is masked."""
    shapes = []

    def recorded(*arguments):
        mask = dense_mask(*arguments)
        shapes.append(tuple(mask.shape))
        return mask

    monkeypatch.setattr(masks, "dense_mask", recorded)
    long = paired(np.full(400, 5), [(10, 400)], [Views(9, 10, 40)], predictors=2)
    short = Example(np.array([20, 21], np.int32), ((1, 2),))
    batch, plan = plan_of(long, short)
    assert batch.input_ids.shape == (1, 434)
    assert batch.forests.tolist() == [[0, 432], [432, 434]]
    assert shapes == [(1, 1, 2, 432)]
    trunk, branch, target = plan[0]
    assert (trunk.length, trunk.branch, trunk.mask) == (400, False, None)
    assert (branch.length, branch.branch) == (2, True)
    assert branch.mask[:, :10].all() and not branch.mask[:, 10:400].any()
    assert branch.mask[:, 400:].int().tolist() == [[1, 0], [1, 1]]
    assert (target.length, target.branch, target.mask) == (30, False, None)
    assert [(only.length, only.mask) for only in plan[1]] == [(2, None)]
    whole, plan = plan_of(paired([10, 11, 12, 13], [(2, 4)], [Views(1, 2, 4)], predictors=2))
    (only,) = plan[0]
    assert (only.length, only.branch) == (8, False) and torch.equal(only.mask, dense_mask(whole)[0, 0])


def test_costs_by_hand():
    """Trunk 100 x 50 keys, branch 2 x 102, target 10 x 5, three calls; or 112 x 112 and one call."""
    assert attention_costs([100, 2, 10], [-1, 40, -1]) == pytest.approx((5254 / 1024 + 15, 112**2 / 1024 + 5))


def test_long_examples_come_as_one_row_and_the_cheaper_form_is_chosen():
    def batch(length, count=6):
        examples = [Example(np.full(length, 5, np.int32), ((1, length),)) for _ in range(count)]
        return ForestCollator((), 0, segmented=True)(examples).rows

    assert batch(400).input_ids.shape == (1, 2400) and batch(400).forests is not None
    assert batch(10).forests is None
    assert ForestCollator((), 0)([Example(np.full(400, 5, np.int32), ((1, 400),))] * 6).rows.forests is None
