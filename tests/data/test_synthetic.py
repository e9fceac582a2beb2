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


def solution(row):
    return row["messages"][-1]["content"]


def equations(row):
    return [(int(a), sign, int(b), int(c)) for a, sign, b, c in EQUATION.findall(solution(row))]


def numbers(text):
    return [int(number) for number in re.findall(r"\d+", text)]


def test_one_row_typed_out():
    config = ArithmeticConfig(max_steps=3, operations=("add", "sub"), system_prompt="Solve it.")
    (row,) = generate_rows(1, seed=12, config=config)
    question = "Tom starts with 4 bricks. He gives 2 to Ruth. He gives 1 to Ruth. What is the number of bricks now?"
    answer = "Giving away 2 leaves 4 - 2 = 2.\n\nGiving away 1 leaves 2 - 1 = 1.\n\nThe answer is \\boxed{1}."
    contents = {"system": "Solve it.", "user": question, "assistant": answer}
    assert row == {
        "messages": [{"role": role, "content": content} for role, content in contents.items()],
        "question": question,
        "ground_truth": "1",
        "total_steps": 3,
    }


def test_every_row_is_right():
    rows = generate_rows(2000, seed=5, config=ALL)
    for row in rows:
        steps = solution(row).split("\n\n")
        assert len(steps) == row["total_steps"] == len(equations(row)) + 1
        assert all(EQUATION.search(step) for step in steps[:-1])
        assert steps[-1] == f"The answer is \\boxed{{{row['ground_truth']}}}."
        value, *operands = numbers(row["question"])  # each equation starts from the result before it
        for operand, (a, sign, b, c) in zip(operands, equations(row), strict=True):
            assert (a, b) == (value, operand) and 0 <= c <= ALL.max_number
            value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]
            assert c == value and (sign != "/" or a % b == 0)
            assert 1 <= b <= ALL.max_operand if sign in "+-" else 2 <= b <= ALL.max_factor
        assert row["ground_truth"] == str(value)
    assert {row["total_steps"] for row in rows} == {2, 3, 4, 5, 6}
    questions = [row["question"] for row in rows]
    assert len(set(questions)) > 0.98 * len(rows)
    assert len({re.sub(r"\d+", "#", question) for question in questions}) > 0.9 * len(rows)
    words = Counter(word for question in questions for word in set(re.findall(r"[a-z]+", question)))
    assert sum(count >= 20 for count in words.values()) > 40


def test_rows_do_not_depend_on_how_many_are_drawn_nor_on_the_process():
    many, state = generate_rows(50, seed=3), random.getstate()
    assert generate_rows(10, seed=3) == many[:10] and generate_rows(5, seed=3, start=20) == many[20:25]
    assert generate_rows(50, seed=4) != many
    code = "from stepjepa.data.synthetic import generate_rows; print(generate_rows(50, seed=3))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == str(many) and random.getstate() == state


def test_split_shares_no_question(monkeypatch):
    monkeypatch.setattr(synthetic, "_PEOPLE", synthetic._PEOPLE[:2])  # so that questions repeat soon
    monkeypatch.setattr(synthetic, "_OBJECTS", synthetic._OBJECTS[:1])
    config = ArithmeticConfig(max_steps=2, max_number=9, max_operand=5)
    train, test = generate_split(1000, 100, seed=1, config=config)
    assert train == generate_rows(1000, seed=1, config=config)
    asked = {row["question"] for row in train}
    raw = generate_rows(100, seed=1 + 1_000_003, config=config)
    assert any(row["question"] in asked for row in raw), "nothing had to be dropped: nothing is tested"
    assert len(test) == 100 == len({row["question"] for row in test}) and not asked & {row["question"] for row in test}
    config = ArithmeticConfig(max_steps=2, max_number=2, max_operand=1, operations=("add",))
    with pytest.raises(ValueError, match="found only .* of 100 test questions"):
        generate_split(100, 100, config=config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_steps": 1}, "min_steps"),
        ({"min_steps": 4, "max_steps": 3}, "must not be below"),
        ({"operations": ("add", "pow")}, "'pow'"),
        ({"operations": "add"}, "must be a list"),
        ({"min_steps": 6, "max_number": 10, "operations": ("mul",)}, "no chain of 5 operations"),
        (None, "both 7"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        if options is None:
            generate_split(5, 5, seed=7, test_seed=7)
        else:
            generate_rows(1, config=ArithmeticConfig(**options))
