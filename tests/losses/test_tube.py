"""Vectors made of states, and angles, against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from stepjepa.losses.distances import combine, turning_angle

STATES = [[1.0, 2.0], [3.0, 5.0], [10.0, 20.0], [0.5, 0.25]]
# v0 = h2 - h1, v1 = 2 h0 + h2 - 4 h3, v2 nothing, v3 = h1 / 2
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
    position, pair = torch.tensor([0, 1]), torch.tensor([0, 0])
    vectors = combine(states, position, torch.ones(2), pair, 1)
    assert vectors.dtype == torch.float32
    assert vectors.tolist() == [[257.0]]

    terms = torch.tensor([256.0] + [1.0] * 64)
    zeros = torch.zeros(65, dtype=torch.int64)
    combine(states, zeros, terms, zeros, 1).sum().backward()
    assert states.grad.dtype == torch.bfloat16
    assert states.grad.tolist() == [[320.0], [0.0]]


def test_turning_angle_by_hand():
    source = torch.tensor([[2.0, 0.0], [3.0, 0.0], [1.0, 1.0], [1.0, 2.0], [0.0, 1.0]])
    target = torch.tensor([[5.0, 0.0], [0.0, 0.1], [-2.0, -2.0], [-2.0, 1.0], [1.0, math.sqrt(3)]])
    expected = [0.0, math.pi / 2, math.pi, math.pi / 2, math.pi / 6]
    assert turning_angle(source, target).tolist() == pytest.approx(expected, abs=1e-6)


def test_turning_angle_equals_the_arc_cosine_in_value_and_gradient():
    torch.manual_seed(0)
    source = torch.randn(50, 8, dtype=torch.float64, requires_grad=True)
    target = torch.randn(50, 8, dtype=torch.float64, requires_grad=True)
    plain = torch.acos(torch.cosine_similarity(source, target, dim=-1))
    angle = turning_angle(source, target)
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
        ([1.0, 2.0], [0.0, 0.0], math.pi / 2),
        ([0.0, 0.0], [0.0, 0.0], math.pi / 2),
        ([1e-30, 0.0], [1.0, 2.0], math.pi / 2),
    ],
)
def test_gradients_are_zero_where_the_angle_has_none(source, target, expected):
    vectors = torch.tensor([[source], [target]], requires_grad=True)
    angle = turning_angle(vectors[0], vectors[1])
    assert angle.item() == pytest.approx(expected, abs=1e-6)
    angle.sum().backward()
    assert vectors.grad.isfinite().all()
    assert vectors.grad.abs().max() < 1e-6
