"""VICReg's variance and covariance terms, in one process."""

from __future__ import annotations

import math

import pytest
import torch

from stepjepa.losses.vicreg import covariance_loss, variance_loss, vicreg_regularizer

# Centred columns (-1, 0, 1) and (-2, 2, 0): unbiased variances 1 and 4, covariance (2 + 0 + 0) / 2 = 1.
ROWS = torch.tensor([[1.0, 3.0], [2.0, 7.0], [3.0, 5.0]])


def slow_variance(rows, floor=1.0, eps=1e-4):
    """Eq. 1 and 2, number by number, in float64."""
    rows, total = rows.double(), 0.0
    for d in range(rows.shape[1]):
        mean = sum(rows[:, d]) / len(rows)
        variance = sum((z - mean) ** 2 for z in rows[:, d]) / (len(rows) - 1)
        deviation = (variance + eps) ** 0.5
        total = total + (floor - deviation if deviation < floor else 0 * deviation)
    return total / rows.shape[1]


def slow_covariance(rows):
    """Eq. 3 and 4, number by number, in float64."""
    rows, total, width = rows.double(), 0.0, rows.shape[1]
    means = [sum(rows[:, d]) / len(rows) for d in range(width)]
    for i in range(width):
        for j in range(width):
            if i != j:
                covariance = sum((row[i] - means[i]) * (row[j] - means[j]) for row in rows) / (len(rows) - 1)
                total = total + covariance**2
    return total / width


def test_by_hand():
    assert variance_loss(ROWS, eps=0.0).item() == 0
    assert variance_loss(ROWS, floor=3.0, eps=0.0).item() == pytest.approx((2 + 1) / 2)
    assert variance_loss(ROWS, floor=1.5, eps=0.0).item() == pytest.approx((0.5 + 0) / 2)
    assert covariance_loss(ROWS).item() == pytest.approx(2 * 1.0**2 / 2)
    weighed = vicreg_regularizer(ROWS, 0.1 * ROWS, variance_weight=3.0, covariance_weight=5.0).item()
    hinge = (2 - math.sqrt(0.01 + 1e-4) - math.sqrt(0.04 + 1e-4)) / 2
    assert weighed == pytest.approx(3 * (0 + hinge) + 5 * (1 + 0.01**2), rel=1e-5)


@pytest.mark.parametrize(("fast", "slow"), [(variance_loss, slow_variance), (covariance_loss, slow_covariance)])
@pytest.mark.parametrize("rows", [2, 5, 12])
def test_value_and_gradient_against_the_definition(fast, slow, rows):
    torch.manual_seed(rows)
    states = torch.randn(rows, 6) + 4 * torch.rand(6)
    results = []
    for loss in (fast, slow):
        leaf = states.clone().requires_grad_()
        value = loss(leaf)
        (3 * value).backward()
        results.append((value.detach(), leaf.grad))
    torch.testing.assert_close(results[0][0], results[1][0].float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1].float(), rtol=1e-3, atol=1e-5)
    assert results[0][0] > 0.01 and results[0][1].abs().max() > 0.01


def test_the_regularizer_sums_both_sides_with_its_weights():
    torch.manual_seed(0)
    source, target = 0.5 * torch.randn(6, 4), 0.5 * torch.randn(6, 4)
    variance = slow_variance(source) + slow_variance(target)
    covariance = slow_covariance(source) + slow_covariance(target)
    for mu, nu in ((1.0, 0.0), (0.0, 1.0), (25.0, 4.0), (0.0, 0.0)):
        loss = vicreg_regularizer(source, target, mu, nu)
        assert loss.item() == pytest.approx((mu * variance + nu * covariance).item(), rel=1e-4)


@pytest.mark.parametrize("rows", [0, 1])
def test_fewer_than_two_rows_give_zero_that_backpropagates(rows):
    source, target = (torch.full((rows, 4), math.inf, requires_grad=True) for _ in range(2))
    vicreg = vicreg_regularizer(source, target, 1.0, 1.0)
    for loss in (variance_loss(source), covariance_loss(target), vicreg):
        assert loss.shape == () and loss.dtype == torch.float32 and loss.item() == 0
    vicreg.backward()
    assert torch.equal(source.grad, torch.zeros(rows, 4)) and torch.equal(target.grad, torch.zeros(rows, 4))


def test_half_precision_and_autocast_give_the_float32_of_the_rounded_states():
    torch.manual_seed(0)
    source, target = (0.4 * torch.randn(9, 16)).bfloat16(), torch.randn(9, 16).bfloat16()
    loss = vicreg_regularizer(source, target, 1.0, 1.0)
    assert loss.dtype == variance_loss(source).dtype == covariance_loss(source).dtype == torch.float32
    assert loss.item() == pytest.approx(vicreg_regularizer(source.float(), target.float(), 1.0, 1.0).item(), rel=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(vicreg_regularizer(source.float(), target.float(), 1.0, 1.0), loss)


@pytest.mark.parametrize("value", [0.0, 1e4])
def test_collapsed_and_large_states_have_finite_values_and_gradients(value):
    torch.manual_seed(0)
    noise = torch.randn(4, 8) * value
    for states in (torch.full((4, 8), value), noise):
        source, target = states.clone().requires_grad_(), states.clone().requires_grad_()
        loss = vicreg_regularizer(source, target, 1.0, 1.0)
        loss.backward()
        assert loss.isfinite() and source.grad.isfinite().all() and target.grad.isfinite().all()
