"""The distances between two views of a pair: cosine, L2, mean squared error, smooth L1."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from stepjepa.losses.distances import cosine_loss, l2_loss, mse_loss, smooth_l1_loss

DISTANCES = [cosine_loss, l2_loss, mse_loss, smooth_l1_loss]
SOURCE = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
TARGET = torch.tensor([[4.0, 3.0], [0.0, 2.0]])


def every_distance(test):
    return pytest.mark.parametrize("distance", DISTANCES, ids=lambda distance: distance.__name__)(test)


def test_by_hand():
    assert cosine_loss(SOURCE, TARGET).tolist() == pytest.approx([1 - 24 / 25, 1.0])
    assert l2_loss(SOURCE, TARGET).tolist() == pytest.approx([math.sqrt(2), math.sqrt(5)])
    assert mse_loss(SOURCE, TARGET).tolist() == pytest.approx([1.0, 2.5])
    assert smooth_l1_loss(SOURCE, TARGET).tolist() == pytest.approx([0.5, (0.5 + 1.5) / 2])
    assert smooth_l1_loss(SOURCE, TARGET, beta=4.0).tolist() == pytest.approx([1 / 8, (1 / 8 + 4 / 8) / 2])
    assert smooth_l1_loss(SOURCE, TARGET, beta=0.0).tolist() == pytest.approx([1.0, 1.5])


@every_distance
def test_each_pair_is_on_its_own(distance):
    torch.manual_seed(0)
    source, target = torch.randn(6, 8), torch.randn(6, 8)
    alone = torch.cat([distance(source[i : i + 1], target[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(distance(source, target), alone)
    assert alone.unique().numel() == 6


def cosine_gradient(u, v):
    cosine = (u * v).sum(-1, keepdim=True) / (u.norm(dim=-1, keepdim=True) * v.norm(dim=-1, keepdim=True))
    return -(v / v.norm(dim=-1, keepdim=True) - cosine * u / u.norm(dim=-1, keepdim=True)) / u.norm(
        dim=-1, keepdim=True
    )


GRADIENTS = {
    cosine_loss: cosine_gradient,
    l2_loss: lambda u, v: (u - v) / (u - v).norm(dim=-1, keepdim=True),
    mse_loss: lambda u, v: 2 * (u - v) / u.shape[-1],
    smooth_l1_loss: lambda u, v: (u - v).clamp(-1, 1) / u.shape[-1],
}


@every_distance
def test_gradients_by_formula_flow_into_both_sides(distance):
    torch.manual_seed(0)
    source, target = torch.randn(5, 6, requires_grad=True), torch.randn(5, 6, requires_grad=True)
    distance(source, target).sum().backward()
    formula = GRADIENTS[distance]
    torch.testing.assert_close(source.grad, formula(source.detach(), target.detach()))
    torch.testing.assert_close(target.grad, formula(target.detach(), source.detach()))
    assert source.grad.abs().min() > 0


def test_half_precision_keeps_small_values():
    """A distance of 0.0014 is 0 in bfloat16."""
    source, target = torch.tensor([[1.0, 0.053]]).bfloat16(), torch.tensor([[1.0, 0.0]]).bfloat16()
    assert cosine_loss(source, target).item() == pytest.approx(0.0014, abs=2e-4)
    assert (1 - F.cosine_similarity(source, target)).item() != pytest.approx(0.0014, abs=2e-4)


@every_distance
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_the_float32_of_the_rounded_states(distance, dtype):
    torch.manual_seed(0)
    source, target = torch.randn(5, 64).to(dtype), torch.randn(5, 64).to(dtype)
    loss = distance(source, target)
    assert loss.dtype == torch.float32 and loss.shape == (5,)
    assert torch.equal(loss, distance(source.float(), target.float()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(distance(source.float(), target.float()), loss)


@every_distance
@pytest.mark.parametrize("zero", ["source", "both"])
def test_zero_states_have_finite_values_and_gradients(distance, zero):
    source = torch.zeros(2, 4, requires_grad=True)
    target = torch.full((2, 4), 0.0 if zero == "both" else 0.5, requires_grad=True)
    loss = distance(source, target)
    loss.sum().backward()
    assert loss.isfinite().all() and source.grad.isfinite().all() and target.grad.isfinite().all()


@pytest.mark.parametrize("distance", [*DISTANCES, partial(smooth_l1_loss, beta=0.0)])
def test_no_pairs_give_zero_that_backpropagates(distance):
    source, target = torch.randn(0, 4, requires_grad=True), torch.randn(0, 4, requires_grad=True)
    loss = distance(source, target)
    assert loss.shape == (0,) and loss.dtype == torch.float32 and loss.sum() == 0
    loss.sum().backward()
    assert source.grad.shape == target.grad.shape == (0, 4)
