"""InfoNCE in one and in both directions, in one process."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from stepjepa.losses.infonce import TEMPERATURE, infonce_loss

# The cosines are [[0.6, 0.8], [1.0, 0.0]]: rows and columns do not add up to the same.
SOURCE = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
TARGET = torch.tensor([[2.0, 0.0], [0.0, 0.5]])

both_ways = pytest.mark.parametrize("symmetric", [False, True], ids=["one_way", "both_ways"])


def slow_infonce(source, target, temperature, symmetric):
    """The definition, pair by pair, in float64."""
    source, target = source.double(), target.double()

    def picks(queries, keys, i):
        logits = torch.stack([F.cosine_similarity(queries[i], key, dim=0) / temperature for key in keys])
        return logits.logsumexp(0) - logits[i]

    there = [picks(source, target, i) for i in range(len(source))]
    back = [picks(target, source, i) for i in range(len(source))]
    return torch.stack([(a + b) / 2 for a, b in zip(there, back, strict=True)] if symmetric else there)


def test_by_hand():
    powers = [[math.exp(cosine / 0.5) for cosine in row] for row in ([0.6, 0.8], [1.0, 0.0])]
    there = [-math.log(powers[i][i] / (powers[i][0] + powers[i][1])) for i in range(2)]
    back = [-math.log(powers[i][i] / (powers[0][i] + powers[1][i])) for i in range(2)]
    assert infonce_loss(SOURCE, TARGET, temperature=0.5).tolist() == pytest.approx(there, rel=1e-5)
    both = infonce_loss(SOURCE, TARGET, temperature=0.5, symmetric=True)
    assert both.tolist() == pytest.approx([(a + b) / 2 for a, b in zip(there, back, strict=True)], rel=1e-5)


@both_ways
def test_value_and_gradient_against_the_definition(symmetric):
    torch.manual_seed(0)
    states = torch.randn(2, 6, 5)
    results = []
    for loss in (infonce_loss, slow_infonce):
        source, target = (side.clone().requires_grad_() for side in states)
        values = loss(source, target, 0.3, symmetric)
        (values * torch.arange(1.0, 7.0)).sum().backward()
        results.append((values.detach(), source.grad, target.grad))
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow.float(), rtol=1e-4, atol=1e-5)
        assert fast.abs().min() > 1e-3


def test_the_default_temperature_is_the_published_one():
    torch.testing.assert_close(infonce_loss(SOURCE, TARGET), infonce_loss(SOURCE, TARGET, TEMPERATURE))
    assert TEMPERATURE == 0.07
    assert not torch.allclose(infonce_loss(SOURCE, TARGET), infonce_loss(SOURCE, TARGET, 0.1))


@both_ways
def test_half_precision_and_autocast_give_the_float32_of_the_rounded_states(symmetric):
    torch.manual_seed(0)
    source, target = torch.randn(5, 64).bfloat16(), torch.randn(5, 64).bfloat16()
    loss = infonce_loss(source, target, symmetric=symmetric)
    assert loss.dtype == torch.float32 and loss.shape == (5,)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(infonce_loss(source.float(), target.float(), symmetric=symmetric), loss)


@both_ways
def test_zero_states_have_finite_values_and_gradients(symmetric):
    source = torch.tensor([[0.0, 0.0], [1.0, 0.0]], requires_grad=True)
    target = torch.tensor([[0.0, 1.0], [0.0, 0.0]], requires_grad=True)
    loss = infonce_loss(source, target, symmetric=symmetric)
    loss.sum().backward()
    assert loss.isfinite().all() and source.grad.isfinite().all() and target.grad.isfinite().all()


@both_ways
@pytest.mark.parametrize("pairs", [0, 1])
def test_no_pair_and_one_pair_give_zero_that_backpropagates(symmetric, pairs):
    source, target = (torch.randn(pairs, 4, requires_grad=True) for _ in range(2))
    loss = infonce_loss(source, target, symmetric=symmetric)
    assert loss.shape == (pairs,) and loss.dtype == torch.float32 and loss.sum() == 0
    loss.sum().backward()
    assert torch.equal(source.grad, torch.zeros(pairs, 4)) and torch.equal(target.grad, torch.zeros(pairs, 4))
