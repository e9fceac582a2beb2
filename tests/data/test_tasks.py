"""The built-in tasks: right, repeatable, as hard as asked for, no instance in two splits; and what checks their answers."""

import random
import re
import subprocess
import sys

import pytest

from stepjepa.data.tasks import TASKS, even_permutations, generate_rows, generate_split, make_task
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.metrics import make_metric
from stepjepa.modeling.load import load_tokenizer

EQUATION = re.compile(r"(\d+) ([-+*]) (\d+) = (\d+)")


def solution(row):
    return row["messages"][-1]["content"]


def test_one_row_typed_out():
    task = make_task("arithmetic", max_steps=3)
    (row,) = generate_rows(1, seed=12, task=task)
    question = "Tom starts with 4 bricks. He gives 2 to Ruth. He then has 3 times as many. "
    question += "What is the number of bricks now?"
    answer = "Giving away 2 leaves 4 - 2 = 2.\n\nHaving 3 times as many makes 2 * 3 = 6.\n\nThe answer is \\boxed{6}."
    assert (row["question"], solution(row), row["ground_truth"]) == (question, answer, "6")


def test_every_arithmetic_row_is_right():
    rows = generate_rows(2000, seed=5)
    for row in rows:
        steps = solution(row).split("\n\n")
        equations = EQUATION.findall(solution(row))
        assert len(steps) == row["total_steps"] == len(equations) + 1
        assert all(EQUATION.search(step) for step in steps[:-1])
        assert steps[-1] == f"The answer is \\boxed{{{row['ground_truth']}}}."
        value, *operands = map(int, re.findall(r"\d+", row["question"]))
        for operand, (one, sign, other, result) in zip(operands, equations, strict=True):
            a, b, c = int(one), int(other), int(result)
            assert (a, b) == (value, operand) and 0 <= c <= 99  # it starts from the result before it
            value = {"+": a + b, "-": a - b, "*": a * b}[sign]
            assert c == value
            assert 1 <= b <= 20 if sign in "+-" else 2 <= b <= 3
        assert row["ground_truth"] == str(value)
    assert {row["total_steps"] for row in rows} == {2, 3, 4, 5, 6}
    assert len({re.sub(r"\d+", "#", row["question"]) for row in rows}) > 0.9 * len(rows)


@pytest.mark.parametrize("name", TASKS)
def test_rows_are_repeatable_and_their_own_solutions_alone_are_right(name):
    """Whatever the number of rows and the process."""
    task, state = make_task(name), random.getstate()
    rows = generate_rows(200, 3, task)
    assert generate_rows(10, 3, task) == rows[:10] and generate_rows(5, 3, task, start=20) == rows[20:25]
    assert generate_rows(200, 4, task) != rows
    code = "from stepjepa.data.tasks import generate_rows, make_task; "
    code += f"print(generate_rows(200, 3, make_task('{name}')))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == str(rows) and random.getstate() == state
    for row, other in zip(rows, rows[1:], strict=False):
        steps = solution(row).split(task.separator)
        assert task.solves(row, solution(row)) and task.begins(row, solution(row))
        assert not task.solves(row, "") and not task.begins(row, "")
        # The last step of arithmetic only repeats the result.
        assert name == "arithmetic" or not task.solves(row, task.separator.join(steps[:-1]))
        assert len(steps) == row["total_steps"]
        assert row["messages"][0]["content"] == row["question"] and row["task"] == name
        if row["ground_truth"] != other["ground_truth"]:
            assert not task.solves(row, solution(other))


def test_a_star_has_arms_of_one_length_and_one_leads_to_the_goal():
    for row in generate_rows(50, 0, make_task("path_star", degree=3, path_length=4, nodes=40)):
        graph, _, asked = row["question"].partition(" : ")
        edges = [tuple(edge.split()) for edge in graph.split(" | ")]
        start, goal = asked.split()
        after = dict(edge for edge in edges if edge[0] != start)
        arms = [[first, after[first], after[after[first]]] for one, first in edges if one == start]
        assert len(edges) == 9 and len(arms) == 3 and len({node for edge in edges for node in edge}) == 10
        assert [arm for arm in arms if arm[-1] == goal] == [row["steps"]] and solution(row) == " ".join(row["steps"])
    (row,) = generate_rows(1, 0, make_task("path_star", path_length=3))
    edges = [edge.split() for edge in row["question"].partition(" : ")[0].split(" | ")]
    first, last = row["steps"]
    wrong = next(other for one, other in edges if one == row["question"][-3] and other != first)
    with make_metric("task") as right, make_metric("first_step") as first_step:
        assert (right.score(f"{first} {wrong}", row).score, first_step.score(f"{first} {wrong}", row).score) == (0, 1)
        assert first_step.score(f"{wrong} {last}", row).score == 0


def test_orders_are_products_in_the_group():
    def product(one, other):  # the letters of `one`, as `other` takes them
        return "".join(one["abcde".index(letter)] for letter in other)

    group, rows = {"abcde"}, generate_rows(300, 2, make_task("a5", length=9, symbols=2))
    for row in rows:
        place, answer = "abcde", iter(row["steps"])
        for symbol in row["question"].split():
            place = product(place, symbol)
            assert next(answer) == place
        assert row["ground_truth"] == place
    symbols = {symbol for row in rows for symbol in row["question"].split()}
    for _ in range(20):  # what the two symbols generate
        group |= {product(one, symbol) for one in group for symbol in symbols}
    assert len(symbols) == 2 and group == set(even_permutations()) and len(group) == 60
    assert {row["total_steps"] for row in rows} == {9}
    (row,) = generate_rows(1, 2, make_task("a5", length=7, every=3))
    assert row["total_steps"] == 3 and row["steps"][-1] == row["ground_truth"]
    with make_metric("task") as metric:  # the last order decides
        assert metric.score(f"abcde {row['ground_truth']}", row).score == 1


def test_split_shares_no_instance():
    # Questions repeat soon: there are 100 of a5, and 120 stars, each with 24 orders of its edges.
    for task in (make_task("a5", length=2, symbols=10), make_task("path_star", path_length=3)):
        train, test = generate_split(40, 10, 1, task)
        assert train == generate_rows(40, 1, task)
        asked = {task.instance(row) for row in train}
        others = {task.instance(row) for row in generate_rows(40, 1 + 1_000_003, task)}
        assert asked & others, f"{task}: nothing had to be dropped, so nothing is tested"
        held_out = {task.instance(row) for row in test}
        assert len(held_out) == 10 == len(test) and not held_out & asked
    row, again = {"question": "A B | B C : A C"}, {"question": "B C | A B : A C"}
    assert task.instance(row) == task.instance(again)
    with pytest.raises(ConfigError, match="found only .* of 100 held-out rows that are new"):
        generate_split(100, 100, task=task)
    train, test = generate_split(50, 20, 0, make_task("a5", length=4), test_task=make_task("a5", length=9))
    assert {row["total_steps"] for row in train} == {4} and {row["total_steps"] for row in test} == {9}


def test_a_node_is_a_token_of_the_preset():
    rows = generate_rows(200, 0, make_task("path_star"))
    tokenizer = load_tokenizer("micro", [message["content"] for row in rows for message in row["messages"]])
    ids = tokenizer.apply_chat_template(rows[0]["messages"], return_dict=False)
    assert len(ids) == 8 * 3 + 2 + 4 + 5  # edges with a mark after each, start and goal, path, five of the template
    assert tokenizer.decode(tokenizer(solution(rows[0]))["input_ids"]) == solution(rows[0])
    assert tokenizer.unk_token_id in tokenizer("A never")["input_ids"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("arithmetic", {"min_steps": 4, "max_steps": 3}, "must not be below"),
        ("path_start", {}, "did you mean 'path_star'"),
        ("path_star", {"nodes": 8}, "nodes is 8, but the star needs at least 9"),
        ("a5", {"symbols": 61}, "at most 60"),
    ],
)
def test_what_is_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        generate_rows(1, task=make_task(name, **options))


def test_rows_of_no_task():
    with make_metric("first_step") as metric:
        with pytest.raises(DataError, match="KeyError: 'task'"):
            metric.score("3", {"answer": "3"})
        with pytest.raises(DataError, match="unknown task 'countdown' .known: arithmetic, .* a5"):
            metric.score("3", {"answer": "3", "task": "countdown"})
