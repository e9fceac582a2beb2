"""Distances between views, vectors of states, and angles, in one process; short dtypes, extreme states, no pair."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from stepjepa.losses.distances import (
    combine,
    cosine_loss,
    infonce_loss,
    l2_loss,
    mse_loss,
    smooth_l1_loss,
    turning_angle,
)
from stepjepa.losses.regularizers import random_directions, sigreg_regularizer, vicreg_regularizer

SOURCE, TARGET = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[4.0, 3.0], [0.0, 2.0]])
# The cosines with SOURCE are [[0.6, 0.8], [1.0, 0.0]]: rows and columns do not add up to the same.
OTHERS = torch.tensor([[2.0, 0.0], [0.0, 0.5]])
REGULARIZERS = {
    "vicreg": partial(vicreg_regularizer, covariance_weight=1.0),
    "sigreg": partial(sigreg_regularizer, directions_DK=random_directions(16, 16, 0)),
}
LOSSES = {
    "cosine": cosine_loss,
    "l2": l2_loss,
    "mse": mse_loss,
    "smooth_l1": smooth_l1_loss,
    "infonce": infonce_loss,
    "both_ways": partial(infonce_loss, symmetric=True),
    **REGULARIZERS,
}
every_loss = pytest.mark.parametrize("name", LOSSES)


def sides(*shape: int) -> torch.Tensor:
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))


def test_by_hand():
    assert cosine_loss(SOURCE, TARGET).tolist() == pytest.approx([1 - 24 / 25, 1.0])
    assert l2_loss(SOURCE, TARGET).tolist() == pytest.approx([math.sqrt(2), math.sqrt(5)])
    assert mse_loss(SOURCE, TARGET).tolist() == pytest.approx([1.0, 2.5])
    assert smooth_l1_loss(SOURCE, TARGET).tolist() == pytest.approx([0.5, (0.5 + 1.5) / 2])
    assert smooth_l1_loss(SOURCE / 4, TARGET / 4).tolist() == pytest.approx([1 / 32, (1 / 32 + 4 / 32) / 2])
    powers = [[math.exp(cosine / 0.5) for cosine in row] for row in ([0.6, 0.8], [1.0, 0.0])]
    there = [-math.log(powers[i][i] / (powers[i][0] + powers[i][1])) for i in range(2)]
    back = [-math.log(powers[i][i] / (powers[0][i] + powers[1][i])) for i in range(2)]
    assert infonce_loss(SOURCE, OTHERS, 0.5).tolist() == pytest.approx(there, rel=1e-5)
    both = infonce_loss(SOURCE, OTHERS, 0.5, symmetric=True).tolist()
    assert both == pytest.approx([(a + b) / 2 for a, b in zip(there, back, strict=True)], rel=1e-5)


def test_half_precision_keeps_small_values():
    """A distance of 0.0014 is 0 in bfloat16."""
    source, target = torch.tensor([[1.0, 0.053]]).bfloat16(), torch.tensor([[1.0, 0.0]]).bfloat16()
    assert cosine_loss(source, target).item() == pytest.approx(0.0014, abs=2e-4)
    assert (1 - F.cosine_similarity(source, target)).item() != pytest.approx(0.0014, abs=2e-4)


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast_give_the_float32_of_the_rounded_states(name, dtype):
    source, target = sides(9, 16).to(dtype)
    source = 0.4 * source
    loss = LOSSES[name](source, target)
    assert loss.dtype == torch.float32 and loss.shape == (() if name in REGULARIZERS else (9,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(LOSSES[name](source.float(), target.float()), loss)
        assert torch.equal(LOSSES[name](source, target), loss)


@every_loss
def test_zero_collapsed_and_large_states_have_finite_values_and_gradients(name):
    zeros, large = torch.zeros(4, 16), torch.full((4, 16), 1e4)
    spread = 1e4 * torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    for one, other in ((zeros, zeros), (zeros, zeros + 0.5), (large, large), (spread, spread)):
        source, target = one.clone().requires_grad_(), other.clone().requires_grad_()
        loss = LOSSES[name](source, target)
        loss.sum().backward()
        assert loss.isfinite().all() and source.grad.isfinite().all() and target.grad.isfinite().all()


@pytest.mark.parametrize(
    ("name", "pairs", "value"),
    [*((name, 0, 1.0) for name in LOSSES), ("infonce", 1, 1.0), ("both_ways", 1, 1.0), ("vicreg", 1, math.inf)],
)
def test_no_pair_and_nothing_to_distinguish_give_zero_that_backpropagates(name, pairs, value):
    source, target = (side.requires_grad_() for side in value * sides(pairs, 16))
    loss = LOSSES[name](source, target)
    assert loss.shape == (() if name in REGULARIZERS else (pairs,)) and loss.dtype == torch.float32 and loss.sum() == 0
    loss.sum().backward()
    assert torch.equal(source.grad, torch.zeros(pairs, 16)) and torch.equal(target.grad, torch.zeros(pairs, 16))


# Vectors made of states: v0 = h2 - h1, v1 = 2 h0 + h2 - 4 h3, v2 nothing, v3 = h1 / 2

STATES = [[1.0, 2.0], [3.0, 5.0], [10.0, 20.0], [0.5, 0.25]]
POSITION = torch.tensor([2, 1, 0, 2, 3, 1], dtype=torch.int32)
COEFFICIENT = torch.tensor([1.0, -1.0, 2.0, 1.0, -4.0, 0.5])
PAIR = torch.tensor([0, 0, 1, 1, 1, 3], dtype=torch.int32)


def test_combine_by_hand_with_gradient():
    states = torch.tensor(STATES, requires_grad=True)
    vectors = combine(states, POSITION, COEFFICIENT, PAIR, 4)
    assert vectors.tolist() == [[7.0, 15.0], [10.0, 23.0], [0.0, 0.0], [1.5, 2.5]]
    (vectors * torch.tensor([[1.0, 10.0], [2.0, 20.0], [7.0, 70.0], [3.0, 30.0]])).sum().backward()
    assert states.grad.tolist() == [[4.0, 40.0], [-1 + 1.5, -10 + 15.0], [1 + 2.0, 10 + 20.0], [-8.0, -80.0]]


def test_combine_adds_bfloat16_states_in_float32():
    """256 + 1 is 256 in bfloat16: once in a vector, once in the gradient of a state that many terms read."""
    states = torch.tensor([[256.0], [1.0]], dtype=torch.bfloat16, requires_grad=True)
    vectors = combine(states, torch.tensor([0, 1]), torch.ones(2), torch.tensor([0, 0]), 1)
    assert vectors.dtype == torch.float32 and vectors.tolist() == [[257.0]]
    zeros = torch.zeros(65, dtype=torch.int64)
    combine(states, zeros, torch.tensor([256.0] + [1.0] * 64), zeros, 1).sum().backward()
    assert states.grad.dtype == torch.bfloat16 and states.grad.tolist() == [[320.0], [0.0]]


def test_turning_angle_by_hand():
    source = torch.tensor([[2.0, 0.0], [3.0, 0.0], [1.0, 1.0], [1.0, 2.0], [0.0, 1.0]])
    target = torch.tensor([[5.0, 0.0], [0.0, 0.1], [-2.0, -2.0], [-2.0, 1.0], [1.0, math.sqrt(3)]])
    expected = [0.0, math.pi / 2, math.pi, math.pi / 2, math.pi / 6]
    assert turning_angle(source, target).tolist() == pytest.approx(expected, abs=1e-6)


def test_turning_angle_equals_the_arc_cosine_in_value_and_gradient():
    source, target = (side.requires_grad_() for side in sides(50, 8).double())
    plain, angle = torch.acos(torch.cosine_similarity(source, target, dim=-1)), turning_angle(source, target)
    torch.testing.assert_close(angle, plain.float())
    expected = torch.autograd.grad(plain.sum(), (source, target))
    for ours, theirs in zip(torch.autograd.grad(angle.sum(), (source, target)), expected, strict=True):
        assert theirs.abs().max() > 0.1
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_small_angle_is_not_rounded_to_zero():
    """The cosine of 1e-4 is 1 in float32."""
    source, target = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1e-4]], requires_grad=True)
    assert torch.acos(torch.cosine_similarity(source, target).clamp(-1, 1)).item() == 0.0
    angle = turning_angle(source, target)
    assert angle.item() == pytest.approx(1e-4, rel=1e-5)
    angle.sum().backward()
    assert target.grad.tolist()[0] == pytest.approx([-1e-4, 1.0], rel=1e-4)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ([1.0, 2.0], [2.0, 4.0], 0.0),
        ([1.0, 2.0], [-1.0, -2.0], math.pi),
        ([0.0, 0.0], [1.0, 2.0], math.pi / 2),
        ([0.0, 0.0], [0.0, 0.0], math.pi / 2),
        ([1e-30, 0.0], [1.0, 2.0], math.pi / 2),
    ],
)
def test_gradients_are_zero_where_the_angle_has_none(source, target, expected):
    vectors = torch.tensor([[source], [target]], requires_grad=True)
    angle = turning_angle(vectors[0], vectors[1])
    assert angle.item() == pytest.approx(expected, abs=1e-6)
    angle.sum().backward()
    assert vectors.grad.isfinite().all() and vectors.grad.abs().max() < 1e-6
