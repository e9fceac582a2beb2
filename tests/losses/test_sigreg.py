"""SIGReg against its formula, and what it says of samples whose distribution is known, in one process."""

from __future__ import annotations

import math

import pytest
import torch

from stepjepa.losses.sigreg import epps_pulley, random_directions, sigreg_regularizer


def sigreg_loss(rows, directions):
    """The regularizer of one sample: both sides are the same."""
    return sigreg_regularizer(rows, rows, directions)


def slow_statistic(sample, knots=17, bound=3.0):
    """The statistic of one sample, knot by knot and row by row, in float64."""
    total, step = 0.0, bound / (knots - 1)
    for q in range(knots):
        t = q * step
        weight = step * math.exp(-t * t / 2) * (0.5 if q in (0, knots - 1) else 1.0)
        cosine = sum(torch.cos(t * y) for y in sample) / len(sample)
        sine = sum(torch.sin(t * y) for y in sample) / len(sample)
        total = total + weight * ((cosine - math.exp(-t * t / 2)) ** 2 + sine**2)
    return len(sample) * total


def slow_sigreg(rows, directions, knots=17, bound=3.0):
    rows, directions = rows.double(), directions.double()
    columns = [
        slow_statistic([row @ directions[:, k] for row in rows], knots, bound) for k in range(directions.shape[1])
    ]
    return sum(columns) / len(columns)


def expected_of_normal_sample(knots=17, bound=3.0):
    """``sum_q w_q (1 - exp(-t_q^2))``: the variances of the means, times N."""
    t = torch.linspace(0, bound, knots, dtype=torch.float64)
    return torch.trapezoid(torch.exp(-t.square() / 2) * (1 - torch.exp(-t.square())), t).item()


def test_by_hand():
    """One row at pi/2 along the first axis; knots 0, 1 and 2 with weights 1/2, 1 and 1/2 times the normal's."""
    row, axes = torch.tensor([[math.pi / 2, 0.0]]), torch.eye(2)
    one, two = math.exp(-0.5), math.exp(-2.0)  # exp(-t^2 / 2)
    first = one * (one**2 + 1) + 0.5 * two * (1 + two) ** 2  # cos 0, -1; sin 1, 0
    second = one * (1 - one) ** 2 + 0.5 * two * (1 - two) ** 2  # cos 1, 1; sin 0, 0
    assert epps_pulley(row @ axes, knots=3, bound=2.0).tolist() == pytest.approx([first, second], rel=1e-5)
    both = sigreg_regularizer(torch.zeros(1, 2), torch.zeros(1, 2), axes)
    t = torch.linspace(0, 3, 17)
    at_zero = torch.trapezoid(torch.exp(-t.square() / 2) * (1 - torch.exp(-t.square() / 2)).square(), t)
    assert both.item() == pytest.approx(at_zero.item(), rel=1e-5)


@pytest.mark.parametrize(("rows", "knots", "bound"), [(1, 17, 3.0), (7, 17, 3.0), (4, 5, 2.0)])
def test_value_and_gradient_against_the_formula(rows, knots, bound):
    torch.manual_seed(0)
    states, directions = 2 * torch.randn(rows, 4) + 0.5, random_directions(4, 6, seed=1)
    results = []
    for loss in (lambda leaf, *knots: epps_pulley(leaf @ directions, *knots).mean(), slow_sigreg):
        leaf = states.clone().requires_grad_()
        value = loss(leaf, *((directions,) if loss is slow_sigreg else ()), knots, bound)
        (3 * value).backward()
        results.append((value.detach(), leaf.grad))
    torch.testing.assert_close(results[0][0], results[1][0].float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1].float(), rtol=1e-3, atol=1e-5)
    assert results[0][0] > 0.1 and results[0][1].abs().max() > 0.01


def test_the_regularizer_is_the_mean_of_both_sides():
    torch.manual_seed(0)
    source, target, directions = torch.randn(6, 4), 3 * torch.randn(6, 4), random_directions(4, 8, seed=1)
    sides = sigreg_loss(source, directions), sigreg_loss(target, directions)
    torch.testing.assert_close(sigreg_regularizer(source, target, directions), (sides[0] + sides[1]) / 2)
    assert not torch.allclose(*sides)


def test_a_normal_sample_costs_its_expectation_whatever_its_size():
    torch.manual_seed(0)
    directions = random_directions(64, 256, seed=0)
    assert expected_of_normal_sample() == pytest.approx(0.526, abs=1e-3)
    for rows in (16, 256, 2048):
        losses = [sigreg_loss(torch.randn(rows, 64), directions).item() for _ in range(5)]
        assert sum(losses) / 5 == pytest.approx(expected_of_normal_sample(), rel=0.1)


OTHERS = {
    "collapsed to zero": lambda normal: 0 * normal,
    "collapsed elsewhere": lambda normal: 0 * normal + 1,
    "a line": lambda normal: normal[:, :1].expand_as(normal),
    "too small": lambda normal: 0.5 * normal,
    "too large": lambda normal: 2 * normal,
    "off centre": lambda normal: normal + 0.5,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_samples_cost_much_more(name):
    torch.manual_seed(0)
    normal, directions = torch.randn(1024, 16), random_directions(16, 256, seed=0)
    assert sigreg_loss(OTHERS[name](normal), directions) > 10 * sigreg_loss(normal, directions)


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


def test_no_rows_give_zero_that_backpropagates():
    directions = random_directions(4, 8, seed=0)
    source, target = torch.randn(0, 4, requires_grad=True), torch.randn(0, 4, requires_grad=True)
    loss = sigreg_regularizer(source, target, directions)
    assert loss.shape == () and loss.dtype == torch.float32 and loss.item() == 0
    loss.backward()
    assert source.grad.shape == target.grad.shape == (0, 4)


def test_half_precision_and_autocast_give_the_float32_of_the_rounded_states():
    torch.manual_seed(0)
    rows, directions = torch.randn(9, 16).bfloat16(), random_directions(16, 32, seed=0)
    loss = sigreg_loss(rows, directions)
    assert loss.dtype == torch.float32
    assert torch.equal(sigreg_loss(rows.float(), directions), loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(sigreg_loss(rows.float(), directions), loss)
        assert torch.equal(sigreg_loss(rows, directions), loss)


@pytest.mark.parametrize("value", [0.0, 1e4])
def test_zero_and_large_states_have_finite_values_and_gradients(value):
    torch.manual_seed(0)
    rows = (value * torch.randn(4, 8)).requires_grad_()
    loss = sigreg_loss(rows, random_directions(8, 16, seed=0))
    loss.backward()
    assert loss.isfinite() and rows.grad.isfinite().all()
