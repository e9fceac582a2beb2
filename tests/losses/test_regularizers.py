"""VICReg and SIGReg against their formulas, in one process."""

from __future__ import annotations

import math

import pytest
import torch

from stepjepa.losses.regularizers import (
    covariance_loss,
    epps_pulley,
    random_directions,
    sigreg_regularizer,
    variance_loss,
    vicreg_regularizer,
)

# Centred columns (-1, 0, 1) and (-2, 2, 0): unbiased variances 1 and 4, covariance (2 + 0 + 0) / 2 = 1.
ROWS = torch.tensor([[1.0, 3.0], [2.0, 7.0], [3.0, 5.0]])
DIRECTIONS = random_directions(4, 6, seed=1)
REGULARIZERS = {
    "vicreg": lambda source, target: vicreg_regularizer(source, target, 1.0, 1.0),
    "sigreg": lambda source, target: sigreg_regularizer(source, target, random_directions(source.shape[1], 16, 0)),
}
both = pytest.mark.parametrize("name", REGULARIZERS)


def sigreg(rows, directions):
    """The regularizer of one sample: both sides are the same."""
    return sigreg_regularizer(rows, rows, directions)


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


def slow_sigreg(rows, knots=17, bound=3.0):
    """The statistic along `DIRECTIONS`, knot by knot and row by row, in float64."""
    rows, total, step = rows.double(), 0.0, bound / (knots - 1)
    for direction in DIRECTIONS.double().T:
        sample = [row @ direction for row in rows]
        for q in range(knots):
            t = q * step
            weight = step * math.exp(-t * t / 2) * (0.5 if q in (0, knots - 1) else 1.0)
            cosine, sine = (sum(f(t * y) for y in sample) / len(sample) for f in (torch.cos, torch.sin))
            total = total + len(sample) * weight * ((cosine - math.exp(-t * t / 2)) ** 2 + sine**2)
    return total / DIRECTIONS.shape[1]


def test_vicreg_by_hand():
    assert variance_loss(ROWS, eps=0.0).item() == 0
    assert variance_loss(ROWS, floor=3.0, eps=0.0).item() == pytest.approx((2 + 1) / 2)
    assert variance_loss(ROWS, floor=1.5, eps=0.0).item() == pytest.approx((0.5 + 0) / 2)
    assert covariance_loss(ROWS).item() == pytest.approx(2 * 1.0**2 / 2)
    weighed = vicreg_regularizer(ROWS, 0.1 * ROWS, variance_weight=3.0, covariance_weight=5.0).item()
    hinge = (2 - math.sqrt(0.01 + 1e-4) - math.sqrt(0.04 + 1e-4)) / 2
    assert weighed == pytest.approx(3 * (0 + hinge) + 5 * (1 + 0.01**2), rel=1e-5)


def test_sigreg_by_hand():
    """One row at pi/2 along the first axis; knots 0, 1 and 2 with weights 1/2, 1 and 1/2 times the normal's."""
    row, axes = torch.tensor([[math.pi / 2, 0.0]]), torch.eye(2)
    one, two = math.exp(-0.5), math.exp(-2.0)  # exp(-t^2 / 2)
    first = one * (one**2 + 1) + 0.5 * two * (1 + two) ** 2  # cos 0, -1; sin 1, 0
    second = one * (1 - one) ** 2 + 0.5 * two * (1 - two) ** 2  # cos 1, 1; sin 0, 0
    assert epps_pulley(row @ axes, knots=3, bound=2.0).tolist() == pytest.approx([first, second], rel=1e-5)
    t = torch.linspace(0, 3, 17)
    at_zero = torch.trapezoid(torch.exp(-t.square() / 2) * (1 - torch.exp(-t.square() / 2)).square(), t)
    assert sigreg(torch.zeros(1, 2), axes).item() == pytest.approx(at_zero.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("fast", "slow", "rows"),
    [(variance_loss, slow_variance, rows) for rows in (2, 5, 12)]
    + [(covariance_loss, slow_covariance, rows) for rows in (2, 5, 12)]
    + [(lambda leaf: epps_pulley(leaf @ DIRECTIONS).mean(), slow_sigreg, rows) for rows in (1, 7)]
    + [(lambda leaf: epps_pulley(leaf @ DIRECTIONS, 5, 2.0).mean(), lambda leaf: slow_sigreg(leaf, 5, 2.0), 4)],
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


def test_both_sides_count():
    torch.manual_seed(0)
    source, target = 0.5 * torch.randn(6, 4), 0.3 * torch.randn(6, 4)
    single = sigreg(source, DIRECTIONS), sigreg(target, DIRECTIONS)
    torch.testing.assert_close(sigreg_regularizer(source, target, DIRECTIONS), (single[0] + single[1]) / 2)
    assert not torch.allclose(*single)


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


@pytest.mark.parametrize(("name", "rows"), [("vicreg", 0), ("vicreg", 1), ("sigreg", 0)])
def test_too_few_rows_give_zero_that_backpropagates(name, rows):
    source, target = (torch.full((rows, 4), math.inf, requires_grad=True) for _ in range(2))
    loss = REGULARIZERS[name](source, target)
    assert loss.shape == () and loss.dtype == torch.float32 and loss.item() == 0
    loss.backward()
    assert torch.equal(source.grad, torch.zeros(rows, 4)) and torch.equal(target.grad, torch.zeros(rows, 4))


@both
def test_half_precision_and_autocast_give_the_float32_of_the_rounded_states(name):
    torch.manual_seed(0)
    source, target = (0.4 * torch.randn(9, 16)).bfloat16(), torch.randn(9, 16).bfloat16()
    loss = REGULARIZERS[name](source, target)
    assert loss.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(REGULARIZERS[name](source.float(), target.float()), loss)
        assert torch.equal(REGULARIZERS[name](source, target), loss)


@both
@pytest.mark.parametrize("value", [0.0, 1e4])
def test_collapsed_and_large_states_have_finite_values_and_gradients(name, value):
    torch.manual_seed(0)
    for states in (torch.full((4, 8), value), value * torch.randn(4, 8)):
        source, target = states.clone().requires_grad_(), states.clone().requires_grad_()
        loss = REGULARIZERS[name](source, target)
        loss.backward()
        assert loss.isfinite() and source.grad.isfinite().all() and target.grad.isfinite().all()
