"""VICReg and SIGReg against their formulas, in one process; test_distances.py has their dtypes and extreme states."""

from __future__ import annotations

import math

import pytest
import torch

from stepjepa.losses.regularizers import (
    covariance_loss,
    random_directions,
    sigreg_regularizer,
    variance_loss,
    vicreg_regularizer,
)

# Centred columns (-1, 0, 1) and (-2, 2, 0): unbiased variances 1 and 4, covariance (2 + 0 + 0) / 2 = 1.
ROWS = torch.tensor([[1.0, 3.0], [2.0, 7.0], [3.0, 5.0]])
DIRECTIONS = random_directions(4, 6, seed=1)


def slow_variance(rows):
    """Eq. 1 and 2, number by number, in float64."""
    rows, total = rows.double(), 0.0
    for d in range(rows.shape[1]):
        mean = sum(rows[:, d]) / len(rows)
        variance = sum((z - mean) ** 2 for z in rows[:, d]) / (len(rows) - 1)
        deviation = (variance + 1e-4) ** 0.5
        total = total + (1 - deviation if deviation < 1 else 0 * deviation)
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


def slow_sigreg(rows):
    """The statistic along `DIRECTIONS`, knot by knot and row by row, in float64."""
    rows, total, step = rows.double(), 0.0, 3.0 / 16
    for direction in DIRECTIONS.double().T:
        sample = [row @ direction for row in rows]
        for q in range(17):
            t = q * step
            weight = step * math.exp(-t * t / 2) * (0.5 if q in (0, 16) else 1.0)
            cosine, sine = (sum(f(t * y) for y in sample) / len(sample) for f in (torch.cos, torch.sin))
            total = total + len(sample) * weight * ((cosine - math.exp(-t * t / 2)) ** 2 + sine**2)
    return total / DIRECTIONS.shape[1]


def both_sides(rows):
    """The regularizer of two samples."""
    return sigreg_regularizer(rows, 0.6 * rows, DIRECTIONS)


def test_vicreg_by_hand():
    assert variance_loss(ROWS).item() == 0
    assert variance_loss(0.5 * ROWS).item() == pytest.approx((1 - math.sqrt(0.25 + 1e-4)) / 2)
    assert covariance_loss(ROWS).item() == pytest.approx(2 * 1.0**2 / 2)
    weighed = vicreg_regularizer(ROWS, 0.1 * ROWS, covariance_weight=5.0).item()
    hinge = (2 - math.sqrt(0.01 + 1e-4) - math.sqrt(0.04 + 1e-4)) / 2
    assert weighed == pytest.approx(0 + hinge + 5 * (1 + 0.01**2), rel=1e-5)


@pytest.mark.parametrize(
    ("fast", "slow", "rows"),
    [(variance_loss, slow_variance, rows) for rows in (2, 5, 12)]
    + [(covariance_loss, slow_covariance, rows) for rows in (2, 5, 12)]
    + [(both_sides, lambda leaf: (slow_sigreg(leaf) + slow_sigreg(0.6 * leaf)) / 2, rows) for rows in (1, 7)],
)
def test_value_and_gradient_against_the_formula(fast, slow, rows):
    torch.manual_seed(rows)
    states = 1.5 * torch.randn(rows, 4) + torch.rand(4)
    results = []
    for loss in (fast, slow):
        leaf = states.clone().requires_grad_()
        value = loss(leaf)
        (3 * value).backward()
        results.append((value.detach(), leaf.grad))
    torch.testing.assert_close(results[0][0], results[1][0].float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1].float(), rtol=1e-3, atol=1e-5)
    assert fast is variance_loss or (results[0][0] > 0.01 and results[0][1].abs().max() > 0.01)


def test_directions_are_unit_columns_of_their_own_seed():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    directions = random_directions(5, 300, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert directions.shape == (5, 300) and directions.dtype == torch.float32
    torch.testing.assert_close(directions.norm(dim=0), torch.ones(300))
    torch.manual_seed(1)
    assert torch.equal(random_directions(5, 300, seed=3), directions)
    assert not torch.equal(random_directions(5, 300, seed=4), directions)
    assert directions.mean(dim=1).abs().max() < 0.1  # about 0.026 each, were they even on the sphere
