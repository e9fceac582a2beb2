"""Reading solutions from files: what is the solution, what is the question, and what a metric sees."""

from __future__ import annotations

import pytest

from stepjepa.data.sources import PairColumns, RowSource
from stepjepa.errors import DataError
from stepjepa.evaluation.metrics.registry import make_metric
from stepjepa.evaluation.questions import SystemPrompt
from stepjepa.evaluation.solutions import read_solutions, right_answers

OWN = SystemPrompt(None, True, "")


def chat(question, answer, **more):
    return {
        "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
        **more,
    }


def read(rows, system=OWN, **more):
    return read_solutions(RowSource(rows), system, **more)


def test_chats():
    found = read([chat("1 + 1?", "It is 2.", ground_truth="2"), chat("1 + 1?", "It is 3."), {"x": 1}, chat("2?", "2")])
    first, second, other = found.solutions
    assert (first.text, first.question, first.index, other.index) == ("It is 2.", "1 + 1?", 0, 3)
    assert first.question_key == second.question_key != other.question_key
    assert (found.rows_read, dict(found.skipped), found.generated) == (4, {"no_known_columns": 1}, False)


def test_a_solution_is_not_held_against_itself():
    exact = make_metric("exact")
    (one,) = read([chat("1 + 1?", "2", ground_truth="3")]).solutions
    assert right_answers(exact, [one]) == [(False, "2")]
    (one,) = read([{"question": "1 + 1?", "answer": "2", "ground_truth": "2"}]).solutions
    assert right_answers(exact, [one]) == [(True, "2")]
    for row in (chat("1 + 1?", "2"), {"question": "1 + 1?", "answer": "2"}, {"prompt": "1 + 1?", "completion": "2"}):
        with pytest.raises(DataError, match="row 0: no reference answer"):
            right_answers(exact, read([row]).solutions)
    named = read([{"q": "1 + 1?", "a": "2", "ground_truth": "3"}], columns=PairColumns("q", "a")).solutions
    assert named[0].text == "2" and right_answers(exact, named) == [(False, "2")]


def test_predictions():
    rows = [
        {"index": 0, "question": "1 + 1?", "ground_truth": "2", "generated_response": "It is 2."},
        {"index": 0, "question": "1 + 1?", "ground_truth": "2", "generated_response": ""},
        {"index": 1, "question": "1 + 1?", "ground_truth": "2", "generated_response": "It is 4."},
        {"index": 2, "generated_response": "no question"},
    ]
    found = read(rows, SystemPrompt("Add.", False, ""))
    a, b, c = found.solutions
    assert a.question_key == b.question_key != c.question_key and found.generated
    assert [turn["role"] for turn in a.chat] == ["system", "user", "assistant"] and b.text == ""
    assert right_answers(make_metric("gsm8k"), found.solutions) == [(True, "2"), (False, None), (False, "4")]
    assert found.skipped.total() == 1


def test_a_prediction_beside_its_chat():
    """What `sample_solutions` writes: the question's own row stays the reference, its chat the prompt."""
    row = chat("1 + 1?", "2", generated_response="3", index=5)
    row["messages"].insert(0, {"role": "system", "content": "Add."})
    (one,) = read([row]).solutions
    assert one.chat == [*row["messages"][:2], {"role": "assistant", "content": "3"}]
    assert right_answers(make_metric("exact"), [one]) == [(False, "3")]


def test_nothing_to_read():
    with pytest.raises(DataError, match="is empty"):
        read([])
    with pytest.raises(DataError, match="none of 2 rows holds a solution; first: list row 0"):
        read([{"x": 1}, {"y": 2}])
    assert len(read([chat("1?", "1")] * 3, limit=2).solutions) == 2
