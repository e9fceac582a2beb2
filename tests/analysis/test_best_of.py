"""Choosing among solutions: hand-made cases."""

from __future__ import annotations

import pytest

from stepjepa.analysis.best_of import (
    Candidate,
    best_of,
    best_of_lines,
    choose,
    choose_majority,
    first_of_each,
    within_auroc,
)
from stepjepa.errors import DataError


def one(right, answer=None, energy=None, likelihood=None):
    signals = {"energy": energy, "relative": energy, "shuffled": None}
    return Candidate(right, answer, {**signals, "likelihood_mean": likelihood, "likelihood_sum": likelihood})


@pytest.mark.parametrize(
    ("energies", "place"),
    [([0.3, 0.1, 0.2], 1), ([0.2, 0.1, 0.1], 1), ([None, 0.9, None], 1), ([None, None], 0), ([0.0, None], 0)],
)
def test_the_lowest_energy(energies, place):
    """Equal ones: the first. None stands behind all."""
    assert choose([one(False, energy=value) for value in energies], "energy") == place


@pytest.mark.parametrize(
    ("values", "place"), [([-3.0, -1.0, -2.0], 1), ([-1.0, -1.0], 0), ([None, -50.0], 1), ([None, None], 0)]
)
def test_the_highest_likelihood(values, place):
    assert choose([one(False, likelihood=value) for value in values], "likelihood_mean") == place


@pytest.mark.parametrize(
    ("answers", "place"),
    [
        (["1", "2", "2"], 1),
        (["1", "2", "2.0", "1"], 0),  # a tie: the one that came first
        (["3", "4", "04"], 1),
        (["$5", "6", "5 dollars"], 0),
        ([None, None, "7"], 2),  # who has no answer does not vote
        ([None, None], 0),
    ],
)
def test_the_majority(answers, place):
    assert choose_majority([one(False, answer) for answer in answers]) == place


def test_first_of_each():
    assert first_of_each(["a", "b", "a", "c", "b", "a"], 2) == ([[0, 2], [1, 4]], 1)
    with pytest.raises(DataError, match="no question has 4 solutions, the most is 3"):
        first_of_each(["a", "b", "a", "a"], 4)


def test_auroc_within_questions():
    questions = [
        [one(True, energy=0.1), one(False, energy=0.2), one(False, energy=0.1)],  # (1 + 1/2) / 2
        [one(False, energy=0.1), one(True, energy=0.2)],  # 0
        [one(True, energy=0.3), one(False, energy=None)],  # 1
        [one(True, energy=9.0), one(True, energy=0.0)],  # all right: says nothing
    ]
    found = within_auroc(questions, "energy")
    assert found["value"] == pytest.approx((0.75 + 0 + 1) / 3) and (found["questions"], found["pairs"]) == (3, 4)
    assert 0 <= found["low"] < found["value"] < found["high"] <= 1
    assert within_auroc(questions[3:], "energy") == {
        "value": None,
        "low": None,
        "high": None,
        "questions": 0,
        "pairs": 0,
    }
    better = [[one(True, likelihood=-1.0), one(False, likelihood=-2.0)]]
    assert within_auroc(better, "likelihood_sum")["value"] == 1.0


def test_every_rule():
    """Two of four questions are mixed."""
    questions = [
        [one(False, "1", 0.1, -3.0), one(True, "2", 0.2, -1.0), one(True, "2", 0.3, -2.0)],
        [one(True, "5", 0.1, -9.0), one(False, "6", 0.2, -1.0), one(False, "6", 0.3, -2.0)],
        [one(True, "7", 0.1, -1.0)] * 3,
        [one(False, "8", 0.1, -1.0)] * 3,
    ]
    found = best_of(questions)
    assert (found["questions"], found["samples"], found["mixed"]) == (4, 3, 2)
    rules = {name: rule["value"] for name, rule in found["rules"].items()}
    assert rules == {
        "random": pytest.approx((2 / 3 + 1 / 3 + 1 + 0) / 4),
        "first": 0.5,
        "majority": 0.5,
        "relative": 0.5,
        "energy": 0.5,
        "shuffled": 0.5,
        "likelihood_mean": 0.5,
        "likelihood_sum": 0.5,
        "oracle": 0.75,
    }
    energy = found["rules"]["energy"]
    # right: no, yes, yes, no; chance 2/3, 1/3, 1, 0
    assert energy["against_random"]["value"] == pytest.approx((-2 / 3 + 2 / 3) / 4)
    assert energy["against_majority"]["value"] == 0.0 and energy["against_majority"]["low"] < 0
    assert found["rules"]["oracle"]["against_random"]["value"] == pytest.approx(0.25)
    assert "against_majority" not in found["rules"]["majority"]
    lines = best_of_lines(found)
    assert lines[0].startswith("best of 3 on 4 questions; 2 have right and wrong solutions")
    assert any(line.startswith("lowest energy") and "50.0" in line for line in lines)


def test_one_question():
    """No interval of one question, and no crash."""
    found = best_of([[one(True, "1", None, -1.0)]])
    assert found["rules"]["random"] == {"value": 1.0, "low": None, "high": None}
    assert best_of_lines(found)
