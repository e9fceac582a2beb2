"""The built-in arithmetic problems: right, repeatable, diverse, and as hard as asked for."""

import random
import re
import subprocess
import sys
from collections import Counter

import pytest

from stepjepa.data import synthetic
from stepjepa.data.synthetic import ArithmeticConfig, generate_rows, generate_split

EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
ALL = ArithmeticConfig(operations=("add", "sub", "mul", "div"))


def _solution(row):
    return row["messages"][-1]["content"]


def _equations(row):
    return [(int(a), sign, int(b), int(c)) for a, sign, b, c in EQUATION.findall(_solution(row))]


def _numbers(text):
    return [int(number) for number in re.findall(r"\d+", text)]


@pytest.fixture(scope="module")
def rows():
    return generate_rows(2000, seed=5, config=ALL)


def test_one_row_typed_out():
    (row,) = generate_rows(1, seed=12, config=ArithmeticConfig(max_steps=3, operations=("add", "sub")))
    question = "Tom starts with 4 bricks. He gives 2 to Ruth. He gives 1 to Ruth. What is the number of bricks now?"
    solution = "Giving away 2 leaves 4 - 2 = 2.\n\nGiving away 1 leaves 2 - 1 = 1.\n\nThe answer is \\boxed{1}."
    assert row == {
        "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": solution}],
        "question": question,
        "ground_truth": "1",
        "total_steps": 3,
    }


def test_every_equation_holds(rows):
    for row in rows:
        for a, sign, b, c in _equations(row):
            expected = {"+": a + b, "-": a - b, "*": a * b}.get(sign)
            if sign == "/":
                expected, rest = divmod(a, b)
                assert rest == 0, _solution(row)
            assert c == expected and c >= 0, _solution(row)


def test_steps_follow_the_question(rows):
    """The first equation starts from the question's first number, the others from the result before them."""
    for row in rows:
        start, *operands = _numbers(row["question"])
        equations = _equations(row)
        assert [b for _, _, b, _ in equations] == operands
        assert [a for a, _, _, _ in equations] == [start, *(c for _, _, _, c in equations[:-1])]
        assert row["ground_truth"] == str(equations[-1][3])


def test_steps_and_final_answer(rows):
    for row in rows:
        steps = _solution(row).split("\n\n")
        assert len(steps) == row["total_steps"] == len(_equations(row)) + 1
        assert all(EQUATION.search(step) for step in steps[:-1])
        assert steps[-1] == f"The answer is \\boxed{{{row['ground_truth']}}}."
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
        assert row["messages"][0]["content"] == row["question"]
    assert set(Counter(row["total_steps"] for row in rows)) == {2, 3, 4, 5, 6}


def test_numbers_stay_in_range():
    config = ArithmeticConfig(max_number=50, max_operand=7, max_factor=4, operations=ALL.operations)
    for row in generate_rows(500, config=config):
        assert all(0 <= number <= 50 for number in _numbers(row["question"]) + _numbers(_solution(row)))
        for _, sign, b, _ in _equations(row):
            assert 1 <= b <= 7 if sign in "+-" else 2 <= b <= 4


def test_rows_do_not_depend_on_how_many_are_drawn():
    many = generate_rows(50, seed=3)
    assert generate_rows(10, seed=3) == many[:10]
    assert generate_rows(5, seed=3, start=20) == many[20:25]
    assert generate_rows(50, seed=3) == many
    assert generate_rows(50, seed=4) != many


def test_questions_are_diverse(rows):
    questions = [row["question"] for row in rows]
    assert len(set(questions)) > 0.98 * len(questions)
    shapes = Counter(re.sub(r"\d+", "#", question) for question in questions)
    assert len(shapes) > 0.9 * len(questions)
    assert len({question.split()[-2] for question in questions}) >= 2
    words = Counter(word for question in questions for word in set(re.findall(r"[a-z]+", question)))
    assert sum(1 for count in words.values() if count >= 20) > 40


def test_one_object_is_singular():
    config = ArithmeticConfig(max_number=3, max_steps=2)
    openings = [row["question"].split(".")[0] for row in generate_rows(400, config=config)]
    nouns = {number: set() for number in "123"}
    for opening in openings:
        number, noun = re.search(r"(\d) (\w+)", opening).groups()
        nouns[number].add(noun)
    assert nouns["2"] and nouns["2"] <= {f"{noun}s" for noun in nouns["1"]}
    assert "apple" in nouns["1"] and "apples" not in nouns["1"]


@pytest.mark.parametrize(
    ("easy", "hard", "measure"),
    [
        ({"max_steps": 3}, {"min_steps": 5}, lambda row: row["total_steps"]),
        ({"max_number": 20}, {"max_number": 500}, lambda row: max(_numbers(_solution(row)))),
        ({"max_operand": 3}, {"max_operand": 30}, lambda row: max(b for _, _, b, _ in _equations(row))),
        ({"operations": ("add",)}, {"operations": ("mul",)}, lambda row: _solution(row).count("*")),
    ],
)
def test_difficulty_has_an_effect(easy, hard, measure):
    def mean(options):
        rows = generate_rows(300, config=ArithmeticConfig(**options))
        return sum(measure(row) for row in rows) / len(rows)

    assert mean(hard) > 1.3 * mean(easy)


def test_system_prompt():
    (row,) = generate_rows(1, config=ArithmeticConfig(system_prompt="Solve it."))
    (plain,) = generate_rows(1)
    assert row["messages"][0] == {"role": "system", "content": "Solve it."}
    assert row["messages"][1:] == plain["messages"]


@pytest.fixture
def few_words(monkeypatch):
    """So few names and objects that questions repeat soon."""
    monkeypatch.setattr(synthetic, "_PEOPLE", synthetic._PEOPLE[:2])
    monkeypatch.setattr(synthetic, "_OBJECTS", synthetic._OBJECTS[:1])


def test_split_shares_no_question(few_words):
    config = ArithmeticConfig(max_steps=2, max_number=9, max_operand=5)
    train, test = generate_split(1000, 100, seed=1, config=config)
    assert train == generate_rows(1000, seed=1, config=config)
    asked = {row["question"] for row in train}
    raw = generate_rows(100, seed=1 + 1_000_003, config=config)
    assert any(row["question"] in asked for row in raw), "nothing had to be dropped: nothing is tested"
    assert len(test) == 100 == len({row["question"] for row in test})
    assert not asked & {row["question"] for row in test}


def test_split_says_when_questions_run_out(few_words):
    config = ArithmeticConfig(max_steps=2, max_number=2, max_operand=1, operations=("add",))
    with pytest.raises(ValueError, match="found only .* of 100 test questions"):
        generate_split(100, 100, config=config)


def test_split_needs_two_seeds():
    with pytest.raises(ValueError, match="both 7"):
        generate_split(5, 5, seed=7, test_seed=7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_steps": 1}, "min_steps"),
        ({"min_steps": 4, "max_steps": 3}, "exclude each other"),
        ({"max_number": 1}, "max_number"),
        ({"max_operand": 0}, "max_operand"),
        ({"max_factor": 1}, "max_factor"),
        ({"operations": ()}, "empty"),
        ({"operations": ("add", "pow")}, "'pow'"),
        ({"operations": "add"}, "must be a list"),
    ],
)
def test_bad_configurations(options, message):
    with pytest.raises(ValueError, match=message):
        ArithmeticConfig(**options)


def test_impossible_chain_is_an_error():
    config = ArithmeticConfig(min_steps=6, max_number=10, operations=("mul",))
    with pytest.raises(ValueError, match="no chain of 5 operations"):
        generate_rows(1, config=config)


def test_rows_are_the_same_in_another_process_and_leave_global_randomness_alone():
    state = random.getstate()
    code = "from stepjepa.data.synthetic import generate_rows; print(generate_rows(20, seed=3))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == str(generate_rows(20, seed=3)) and random.getstate() == state
