"""Which rows become questions, and what their ground truth is."""

from __future__ import annotations

import json

import pytest

from stepjepa.errors import DataError
from stepjepa.generation import mended, seed_of
from stepjepa.generation.options import GenerateOptions
from stepjepa.generation.solve import Solver, ground_truth, read_problems


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("She has 3.\n#### 1,234", "1,234"),
        ("#### 1\nNo:\n####  7 \nThat is it.", "7"),
        (r"So \boxed{5}.\n#### 6", "6"),
        (r"Thus \boxed{\frac{1}{2}} of it.", r"\frac{1}{2}"),
        (" 70000 ", "70000"),
        (r"\frac{1}{2}", r"\frac{1}{2}"),
        ("She has 3.\nThen 4.", None),
        ("She has 3 apples and gives one of them to each of her four best friends, which leaves 2.", None),
        ("It is 3.\n####", None),
        ("", None),
    ],
)
def test_ground_truth(answer, expected):
    assert ground_truth(answer.replace("\\n", "\n")) == expected


CHAT = [{"role": role, "content": text} for role, text in (("system", "s"), ("user", "q"), ("assistant", "3"))]
TURNS = [{"role": role, "content": "c"} for role in ("user", "assistant") * 2]


@pytest.fixture
def read(tmp_path):
    def run(*rows, **options):
        file = tmp_path / "data.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_problems(GenerateOptions(file=str(file), **options))

    return run


@pytest.mark.parametrize(
    ("row", "options", "expected"),
    [
        ({"question": "q", "answer": "a\n#### 3"}, {}, ("q", "a\n#### 3", "3")),
        ({"prompt": "q", "completion": "3"}, {}, ("q", "3", "3")),
        ({"question": None, "answer": None, "text": "q", "code": "[a-z]+"}, {}, ("q", "[a-z]+", "[a-z]+")),
        ({"question": "q", "answer": 3.5}, {}, ("q", "3.5", "3.5")),
        ({"question": "q", "ground_truth": 3}, {}, ("q", "", "3")),
        ({"question": "q", "answer": "#### 3", "ground_truth": "4"}, {}, ("q", "#### 3", "4")),
        ({"problem": "q", "solution": "#### 3"}, {"question_column": "problem", "answer_column": "solution"}, "q"),
        ({"problem": "q", "answer": "3"}, {"question_column": "problem"}, ("q", "3", "3")),
        ({"question": "q", "solution": "long", "final": "3"}, {"ground_truth_column": "final"}, ("q", "", "3")),
        ({"messages": CHAT}, {}, ("q", "3", "3")),
    ],
)
def test_a_row_that_can_be_asked(row, options, expected, read):
    (found,) = read(row, **options).problems
    assert found.row == 1
    if expected == "q":
        expected = ("q", "#### 3", "3")
    assert (found.question, found.answer, found.ground_truth) == expected


@pytest.mark.parametrize(
    ("row", "options", "reason", "words"),
    [
        (3, {}, "not_an_object", "the row is a int"),
        ({"answer": "3"}, {}, "no_question", "columns found: answer"),
        ({"question": " ", "answer": "3"}, {}, "no_question", "--question_column"),
        ({"question": 5, "answer": "3"}, {}, "no_question", "--question_column"),
        ({"question": "q"}, {}, "no_ground_truth", "--ground_truth_column"),
        ({"question": "q", "answer": "words " * 20}, {}, "no_ground_truth", "no ####"),
        ({"question": "q", "answer": True}, {}, "no_ground_truth", "--ground_truth_column"),
        ({"question": "q", "answer": float("nan")}, {}, "no_ground_truth", "--ground_truth_column"),
        ({"question": "q", "answer": "3"}, {"ground_truth_column": "final"}, "no_ground_truth", "column 'final'"),
        ({"question": "q", "answer": "3"}, {"answer_column": "solution"}, "no_ground_truth", "no column 'solution'"),
        ({"question": "q \ud83d", "answer": "3"}, {}, "broken_text", "lone surrogate"),
        ({"messages": [{"role": "user", "content": "q"}]}, {}, "no_assistant_message", "assistant"),
        ({"messages": TURNS}, {}, "several_turns", "one question"),
    ],
)
def test_a_row_that_cannot(row, options, reason, words, read):
    good = {"question": "q", "answer": "3", "problem": "q", "solution": "3", "final": "3"}
    found = read(good, row, good, **options)
    assert [question.row for question in found.problems] == [1, 3]
    assert found.rows_read == 3 and dict(found.skipped) == {reason: 1}
    assert "data.jsonl line 2: " in found.first_skipped[reason] and words in found.first_skipped[reason]
    with pytest.raises(DataError, match="none of 1 rows can be asked; first: .* line 1: "):
        read(row, **options)


def test_the_first_so_many_and_csv(read, tmp_path):
    found = read(*({"question": f"q{n}", "answer": "1" if n else None} for n in range(9)), max_examples=3)
    assert [question.question for question in found.problems] == ["q1", "q2", "q3"]
    assert found.rows_read == 4 and found.skipped.total() == 1
    (tmp_path / "data.csv").write_text("id,question,answer\n1,How many?,070\n")
    (found,) = read_problems(GenerateOptions(file=str(tmp_path / "data.csv"))).problems
    assert (found.question, found.ground_truth) == ("How many?", "070")


def test_what_changes_the_fingerprint(read):
    row = {"question": "q", "answer": "1"}
    same = read(row, row).fingerprint()
    assert read({**row, "id": 5}, row).fingerprint() == same
    others = [read(row), read(row, row, row), read(row, {**row, "answer": "2"}), read(row, 3, row)]
    assert len({same, *(other.fingerprint() for other in others)}) == 5


def test_the_chat_that_asks(read):
    problems = read({"question": r"{question} \boxed{} {0}", "answer": "1"})
    options = GenerateOptions(prompt_template="<{question}>", system_prompt="s")
    user = {"role": "user", "content": r"<{question} \boxed{} {0}>"}
    asked = Solver(problems, options).request(problems.problems[0], 1).messages
    assert asked == [{"role": "system", "content": "s"}, user]
    options.system_prompt = None
    assert Solver(problems, options).request(problems.problems[0], 1).messages == [user]


def test_seeds_differ():
    seeds = {seed_of(seed, row, attempt) for seed in range(3) for row in range(30) for attempt in range(1, 5)}
    assert len(seeds) == 3 * 30 * 4 and all(0 <= seed < 2**31 for seed in seeds)
    assert seed_of(1, 23) != seed_of(12, 3)
    assert seed_of(42, 1, 1) == 1538944245  # a run that resumes after an update must ask with the same seeds


def test_halves_of_characters_are_replaced():
    assert mended(" a\ud83d\ude00 \ud83d b\n") == " a\U0001f600 \ufffd b\n"
