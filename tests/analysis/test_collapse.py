"""The numbers of a model's states as a whole, and the signs of collapse in them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from stepjepa.analysis import collapse
from stepjepa.analysis.collapse import collapse_signs
from stepjepa.analysis.geometry import effective_rank, pair_numbers, singular_values, unit_rows
from stepjepa.analysis.linear import linear_cka, linear_map
from stepjepa.analysis.numbers import measure_states, measure_view
from stepjepa.errors import DataError

pytest.importorskip("scipy")
N, D = 200, 48


def views(cone=0.0, noise=0.5, seed=0, scale=1.0):
    """Pairs of states around one direction: `cone` far out, `scale` apart, the views of a pair `noise` apart."""
    generator = np.random.default_rng(seed)
    meaning = scale * generator.normal(size=(N, D))
    middle = cone * generator.normal(size=D)
    return tuple((middle + meaning + noise * scale * generator.normal(size=(N, D))).astype(np.float32) for _ in "st")


def names(source, target, base=None):
    return sorted((sign.name, sign.view) for sign in collapse_signs(measure_states(source, target, base)))


def test_healthy_states_have_no_sign():
    assert names(*views()) == []


def test_a_plain_model_s_cone_is_no_sign():
    """Cosine of unrelated rows about .9, as plain models have, and pairs that can still be told apart."""
    numbers = measure_states(*views(cone=3.0))
    assert 0.85 < numbers.target.pairwise_cosine < 0.96
    assert collapse_signs(numbers) == []


def test_collapsed_states_have_all_signs():
    point = np.random.default_rng(0).normal(size=D)
    source, target = (
        (point + 1e-5 * np.random.default_rng(seed).normal(size=(N, D))).astype(np.float32) for seed in (1, 2)
    )
    both = [(name, view) for name in ("cone", "dead_dimensions", "low_rank") for view in ("source", "target")]
    assert names(source, target) == sorted([*both, ("pairs_alike", "pairs"), ("retrieval_at_chance", "pairs")])


def test_a_single_direction_is_a_low_rank_and_a_cone():
    lengths = np.random.default_rng(0).uniform(1, 2, (N, 1))
    states = lengths * np.random.default_rng(1).normal(size=D)
    found = names(states, states)
    assert ("low_rank", "source") in found and ("cone", "target") in found


def test_unmatched_views_are_pairs_alike_and_at_chance():
    source, target = views()
    assert names(source, np.roll(target, 1, axis=0)) == [("pairs_alike", "pairs"), ("retrieval_at_chance", "pairs")]


def test_dead_dimensions_with_and_without_a_base():
    source, target = views()
    dead = target.copy()
    dead[:, : D // 4] = 3.0
    assert names(source, dead) == [("dead_dimensions", "target")]
    shrunk = target.copy()
    shrunk[:, : D // 4] *= 0.02  # a variance of 0.0004 of what it was
    assert names(source, shrunk, base=(source, target)) == [("dead_dimensions", "target")]
    assert names(source, dead, base=(source, dead)) == []  # they were dead before


def test_the_text_says_the_number_and_the_threshold():
    source, target = views()
    (alike, chance) = collapse_signs(measure_states(source, np.roll(target, 1, axis=0)))
    pairs = pair_numbers(source, np.roll(target, 1, axis=0))
    assert (alike.value, alike.threshold) == (pairs.d_prime, collapse.LOW_D_PRIME)
    assert f"{pairs.aligned_mean:.4f} against {pairs.shuffled_mean:.4f}" in str(alike)
    assert "of 200 targets are nearest to their source, 1 expected by chance" in chance.text


@pytest.mark.parametrize(
    ("change", "sign"),
    [
        ({"effective_rank": 1.999}, "low_rank"),
        ({"effective_rank": 2.0}, None),
        ({"pairwise_cosine": 0.98}, "cone"),
        ({"pairwise_cosine": 0.9799}, None),
        ({"dead_dimensions": 0.1}, "dead_dimensions"),
        ({"dead_dimensions": 0.099}, None),
    ],
)
def test_thresholds_of_a_view(change, sign):
    numbers = measure_states(*views())
    found = collapse_signs(replace(numbers, target=replace(numbers.target, **change)))
    assert [(s.name, s.view) for s in found] == ([(sign, "target")] if sign else [])


@pytest.mark.parametrize(
    ("change", "signs"),
    [
        ({"d_prime": 0.49}, ["pairs_alike"]),
        ({"d_prime": 0.5}, []),
        ({"d_prime": None}, []),
        ({"retrieval_at_1": 3 / 200}, ["retrieval_at_chance"]),  # 3 or more of 200 by chance: p = .08
        ({"retrieval_at_1": 4 / 200}, []),  # p = .02
        ({"retrieval_at_1": 0.0, "n": 19, "chance_at_1": 1 / 19}, []),
    ],
)
def test_thresholds_of_pairs(change, signs):
    numbers = measure_states(*views())
    found = collapse_signs(replace(numbers, pairs=replace(numbers.pairs, **change)))
    assert [sign.name for sign in found] == signs


def test_signs_come_seldom_from_chance_alone():
    """Weak but real pairs, 30 sets of rows: retrieval of 2 % or more against 0.5 % by chance."""
    found = [names(*views(noise=1.5, seed=seed)) for seed in range(30)]
    assert sum(bool(signs) for signs in found) <= 1


def test_few_rows_say_nothing_about_ranks_and_maps():
    few = np.random.default_rng(0).normal(size=(4, 30))
    numbers = measure_states(few, few + 0.1)
    assert numbers.linear_map is None
    assert collapse_signs(numbers) == []


def test_the_numbers_are_those_of_the_functions():
    source, target = views(cone=1.0)
    base = views(seed=9)
    numbers = measure_states(source, target, base)
    assert (numbers.n, numbers.width) == (N, D)
    assert numbers.pairs == pair_numbers(source, target)
    assert numbers.linear_map == linear_map(source, target)
    assert numbers.target.base_cka == linear_cka(target, base[1])
    assert numbers.source.effective_rank == effective_rank(singular_values(unit_rows(source)))
    assert numbers.source.effective_rank_centred == effective_rank(singular_values(source, center=True))
    assert numbers.source.variance_ratio == pytest.approx(np.median(source.var(0) / base[0].var(0)), rel=1e-4)
    spectrum = singular_values(source.astype(np.float64) - target)
    assert numbers.difference_top_100 == pytest.approx(spectrum.mean())  # 48 of them
    assert measure_view(source).base_cka is None
    json.dumps(asdict(numbers), allow_nan=False)


def test_a_base_of_other_rows():
    source, target = views()
    with pytest.raises(DataError, match="200 rows against 100"):
        measure_states(source, target, (source[:100], target[:100]))
