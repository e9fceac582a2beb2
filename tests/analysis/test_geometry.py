"""Numbers of states by hand and against SciPy and scikit-learn; signs of collapse."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from scipy import linalg

from stepjepa.analysis import geometry
from stepjepa.analysis.geometry import (
    collapse_signs,
    collapsed,
    linear_map,
    measure_states,
    pair_numbers,
    singular_values,
    unit_rows,
)
from stepjepa.modeling.card import effective_rank

N, D = 200, 48


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("block", [1, 2**23])
def test_pairs_by_hand(block, monkeypatch):
    """Cosines: row 1 (1, 0, .6), row 2 (0, 1, .8), row 3 (-1, 0, -.6); their right targets have ranks 1, 1 and 2 of 3."""
    monkeypatch.setattr(geometry, "_BLOCK", block)
    source = np.array([[2.0, 0.0], [0.0, 1.0], [-3.0, 0.0]])
    target = np.array([[1.0, 0.0], [0.0, 5.0], [3.0, 4.0]])
    numbers = pair_numbers(source, target)
    aligned, others = [1.0, 1.0, -0.6], [0.0, 0.6, 0.0, 0.8, -1.0, 0.0]
    pooled = math.sqrt((np.var(aligned, ddof=1) + np.var(others)) / 2)
    expected = {
        "aligned_mean": 1.4 / 3, "aligned_sd": np.std(aligned, ddof=1), "shuffled_mean": 0.4 / 6,
        "shuffled_sd": np.std(others), "gap": 0.4, "d_prime": 0.4 / pooled, "retrieval_at_1": 2 / 3,
        "mrr": (1 + 1 + 1 / 2) / 3, "chance_at_1": 1 / 3, "chance_mrr": (1 + 1 / 2 + 1 / 3) / 3,
    }  # fmt: skip
    assert asdict(numbers) == pytest.approx(expected)


def test_cosines_of_a_narrow_cone_keep_their_digits():
    cone = [1000 + normal(60, 9, seed=seed) for seed in (1, 2)]
    off = (unit_rows(cone[0]) @ unit_rows(cone[1]).T)[~np.eye(60, dtype=bool)]
    numbers = pair_numbers(*cone)
    assert off.std() < 1e-5 and numbers.shuffled_sd == pytest.approx(off.std(), rel=1e-3)
    assert numbers.shuffled_mean == pytest.approx(off.mean(), abs=1e-12)


def test_ties_count_as_drawn_at_random():
    """Collapsed states are at chance exactly; a target that occurs twice is found every other time."""
    one = np.tile(normal(1, 6, seed=3), (40, 1))
    numbers = pair_numbers(one, 2 * one)
    assert numbers.retrieval_at_1 == pytest.approx(numbers.chance_at_1) == pytest.approx(1 / 40)
    assert numbers.mrr == pytest.approx(numbers.chance_mrr)
    assert (numbers.d_prime, numbers.gap) == (0.0, pytest.approx(0.0, abs=1e-12))
    basis = np.eye(4)[[0, 0, 1, 2]]
    numbers = pair_numbers(basis, basis)
    assert numbers.retrieval_at_1 == pytest.approx((0.5 + 0.5 + 1 + 1) / 4)
    assert numbers.mrr == pytest.approx((0.75 + 0.75 + 1 + 1) / 4)


def test_a_gap_without_spread_has_no_d_prime():
    """Matched cosines all 1, others all 0: there is nothing to measure it by. Rows of zeros have cosine zero."""
    numbers = pair_numbers(np.eye(5), np.eye(5))
    assert (numbers.gap, numbers.d_prime) == (1.0, None)
    zero = np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 0.0]])
    numbers = pair_numbers(*zero)
    assert numbers.aligned_mean == 0.5 and math.isfinite(numbers.d_prime)


def test_singular_values_and_their_rank():
    """Against SciPy. Shares 3/4 and 1/4: entropy .5623, exp 1.7548; the rank is the log's."""
    import torch

    from stepjepa.training.metrics import collapse_signs as logged

    rows = (normal(60, 12) + 3).astype(np.float32)
    assert singular_values(rows) == pytest.approx(linalg.svdvals(rows.astype(np.float64)))
    for values, rank in (([2.0] * 4, 4.0), ([5.0, 0.0, 0.0], 1.0), ([3.0, 1.0], 1.7548), ([0.0] * 3, 0.0)):
        assert effective_rank(np.array(values)) == pytest.approx(rank, abs=1e-4)
    in_log = logged([torch.tensor(rows)])["effective_rank"]
    assert effective_rank(singular_values(unit_rows(rows))) == pytest.approx(in_log, rel=1e-4)


def test_a_map_agrees_with_scikit_learn():
    model = pytest.importorskip("sklearn.linear_model").LinearRegression(fit_intercept=False)
    source = normal(80, 6) + 2
    target = source @ normal(6, 4, seed=1) + 3 + normal(80, 4, seed=2)
    found = linear_map(source, target)
    order = np.random.default_rng(0).permutation(80)
    train, test = order[16:], order[:16]
    model.fit(source[train], target[train])

    def error(predicted, rows):
        return np.sqrt(((predicted - target[rows]) ** 2).sum(axis=1).mean())

    held, mean_error = error(model.predict(source[test]), test), error(target[train].mean(axis=0), test)
    assert (found.train_rows, found.train_error) == (64, pytest.approx(error(model.predict(source[train]), train)))
    assert found.test_r2 == pytest.approx(1 - (held / mean_error) ** 2)


def test_maps_at_their_ends():
    """More dimensions than rows fit noise and predict nothing; constant targets."""
    noise = linear_map(normal(40, 64), normal(40, 64, seed=1))
    assert noise.train_rows == 32 and noise.train_error < 1e-10 and noise.test_r2 < 0
    assert linear_map(normal(30, 4), np.zeros((30, 2))).test_r2 is None


def views(cone=0.0, noise=0.5, seed=0):
    """Pairs of states around one direction: `cone` far out, the views of a pair `noise` apart."""
    generator = np.random.default_rng(seed)
    meaning, middle = generator.normal(size=(N, D)), cone * generator.normal(size=D)
    return tuple((middle + meaning + noise * generator.normal(size=(N, D))).astype(np.float32) for _ in "st")


def names(source, target):
    return sorted((sign.name, sign.view) for sign in collapse_signs(measure_states(source, target)))


def test_the_numbers_are_those_of_the_functions():
    source, target = views(cone=1.0)
    numbers = measure_states(source, target)
    assert (numbers.n, numbers.width) == (N, D)
    assert numbers.pairs == pair_numbers(source, target)
    assert numbers.source.effective_rank == effective_rank(singular_values(unit_rows(source)))
    off = (unit_rows(source) @ unit_rows(source).T)[~np.eye(N, dtype=bool)]
    assert numbers.source.pairwise_cosine == pytest.approx(off.mean())
    assert numbers.difference_top_100 == pytest.approx(singular_values(source.astype(np.float64) - target).mean())
    json.dumps(asdict(numbers), allow_nan=False)


def test_signs_of_healthy_and_of_collapsed_states():
    """A plain model's cone, in which pairs can still be told apart, is no sign."""
    assert names(*views()) == []
    numbers = measure_states(*views(cone=3.0))
    assert 0.85 < numbers.target.pairwise_cosine < 0.96 and collapse_signs(numbers) == []
    few = normal(4, 30)  # say nothing of ranks
    assert names(few, few + 0.1) == []
    point = normal(D)
    source, target = ((point + 1e-5 * normal(N, D, seed=seed)).astype(np.float32) for seed in (1, 2))
    both = [(name, view) for name in ("cone", "low_rank") for view in ("source", "target")]
    assert names(source, target) == sorted([*both, ("pairs_alike", "pairs")])
    line = np.random.default_rng(0).uniform(1, 2, (N, 1)) * normal(D, seed=1)  # one direction, different lengths
    assert {("low_rank", "source"), ("cone", "target")} <= set(names(line, line))


@pytest.mark.parametrize(
    ("part", "change", "sign"),
    [
        ("target", {"effective_rank": 1.999}, "low_rank"),
        ("target", {"effective_rank": 2.0}, None),
        ("target", {"pairwise_cosine": 0.98}, "cone"),
        ("target", {"pairwise_cosine": 0.9799}, None),
        ("pairs", {"d_prime": 0.49}, "pairs_alike"),
        ("pairs", {"d_prime": 0.5}, None),
        ("pairs", {"d_prime": None}, None),
    ],
)
def test_thresholds_and_what_amounts_to_collapse(part, change, sign):
    numbers = measure_states(*views())
    found = collapse_signs(replace(numbers, **{part: replace(getattr(numbers, part), **change)}))
    assert [(one.name, one.view) for one in found] == ([(sign, part)] if sign else [])
    assert collapsed(found) == (sign == "low_rank")
    for one in found:
        (value,) = change.values()
        assert f"{value:.2f}"[:4] in one.text
        cone = replace(one, name="cone")
        assert not collapsed([cone]) and collapsed([cone, replace(one, name="pairs_alike")])
