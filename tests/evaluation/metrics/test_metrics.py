"""Metrics by name, what each of them calls right, and functions of the user's own."""

import math

import pytest

from stepjepa.data.sources import RowSource
from stepjepa.data.tasks import generate_rows, make_task
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.metrics import Judgement, Metric, make_metric, make_metrics
from stepjepa.evaluation.metrics.base import METRICS
from stepjepa.evaluation.questions import SystemPrompt, read_questions
from stepjepa.evaluation.score import prediction_of, summarise
from stepjepa.generation.output import Reply


@pytest.mark.parametrize("name", METRICS)
def test_no_text_makes_a_metric_fail(name, tmp_path):
    if name == "math":
        pytest.importorskip("math_verify")
    (tmp_path / "empty.sqlite").touch()
    row = {"answer": "SELECT 1", "db_path": str(tmp_path / "empty.sqlite")}
    if name in ("task", "first_step"):
        (row,) = generate_rows(1, task=make_task("path_star"))
    hostile = ["", "\x00", "\ud800", "((((", "'; DROP TABLE t", "\\boxed{" * 1000, "\u0661" * 3000, "\\" * 999]
    with make_metric(name) as metric:
        verdicts = [metric.score(text, row) for text in hostile]
    assert isinstance(metric, Metric) and metric.name == name and metric.kind in ("score", "count")
    scores = [verdict.score for verdict in verdicts if isinstance(verdict, Judgement)]
    assert len(scores) == len(hostile)
    assert all(math.isnan(score) if metric.kind == "count" else score == 0 for score in scores)


def test_what_cannot_be_made():
    for name, options, message in (
        ("gsm8", {}, "metric is 'gsm8'; known: gsm8k, .*, or your own file.py:Name; did you mean gsm8k?"),
        ("gsm8k", {"refernce_column": "a"}, "no option 'refernce_column' of gsm8k; did you mean 'reference_column'"),
        ("no_such_module_at_all:f", {}, "No module named .no_such_module_at_all"),
        ("math", {"time_limit": 0}, "time_limit is 0; it must be a finite number above 0"),
        ("missing.py:f", {}, "missing.py: there is no such file"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_metric(name, **options)


def test_a_function_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "own_metrics_for_test.py").write_text(
        "def words(generated, reference, row):\n"
        "    return len(generated.split()) == len(reference.split()) + row.get('more', 0)\n"
        "def broken(generated, reference, row):\n"
        "    return row['missing']\n"
        "def text(generated, reference, row):\n"
        "    return '1'\n"
    )
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    metric = make_metric("own_metrics_for_test:words")
    assert metric.name == "own_metrics_for_test:words" and metric.kind == "score"
    assert metric.score("a b", {"answer": "c d"})[:4] == (1.0, "c d", "a b", "")
    assert metric.score("a b", {"answer": "c d", "more": 1}).score == 0
    assert metric.score("", {"question": "no reference"})[:4] == (1.0, "", "", "")
    assert make_metric("own_metrics_for_test.py:words", reference_column="b").score("x", {"b": "y"}).score == 1
    with pytest.raises(ConfigError, match="broken.py cannot be loaded .division by zero"):
        make_metric("broken.py:f")
    with pytest.raises(DataError, match="broken: KeyError: 'missing'"):
        make_metric("own_metrics_for_test:broken").score("", {"answer": "x"})
    with pytest.raises(DataError, match="must return a bool or a number from 0 to 1; it returned '1'"):
        make_metric("own_metrics_for_test:text").score("", {"answer": "x"})


def test_gsm8k_rows():
    metric = make_metric("gsm8k")
    raw = {"question": "?", "answer": "16 - 7 = 9\n9 * 2 = <<9*2=18>>18\n#### 18"}
    assert metric.score("So \\boxed{\\$18.00} a day", raw)[:4] == (1.0, "18", "\\$18.00", "")
    assert metric.score("It is 9.", raw)[:4] == (0.0, "18", "9", "a different answer")
    assert metric.score("I do not know", raw)[:4] == (0.0, "18", None, "no answer found")
    # A prepared row: its ground truth counts, not the answer behind it.
    assert metric.score("18", {**raw, "answer": "#### 17", "ground_truth": "18"}).score == 1
    assert metric.score("18", {"answer": "It says \\boxed{18}."}).score == 1
    assert metric.score("18", {"messages": [{"role": "assistant", "content": "9 * 2\n#### 18"}]}).score == 1
    assert metric.score("the answer is Monday", {"ground_truth": "Monday"}).score == 0
    assert metric.score("\\boxed{\\text{Monday}}", {"ground_truth": "Monday"}).score == 1
    nothing = (0.0, None, "18", "the reference has no final answer")
    assert metric.score("18", {"answer": "no number\nanywhere"})[:4] == nothing


@pytest.fixture(scope="module")
def mathematics():
    pytest.importorskip("math_verify", reason="needs the package math-verify")
    with make_metric("math") as metric:
        yield metric


# Known answer, response, marked by hand.
EQUAL = [
    (r"\frac{1}{2}", r"\boxed{0.5}"), (r"\frac{\sqrt{2}}{2}", r"\boxed{\frac{1}{\sqrt{2}}}"),
    (r"3\sqrt{2}", r"\boxed{\sqrt{18}}"), ("x^2+2x+1", r"\boxed{(x+1)^2}"), ("x^2+2x+1", r"so it is $(x+1)^2$."),
    (r"2\pi", r"The answer is \(2\pi\)."), (r"\{1,2\}", r"\boxed{\{2,1\}}"), ("5", r"\boxed{x = 5}"),
    ("18", "She makes 18."), ("50\\%", r"\boxed{0.5}"), (r"\text{Saturday}", r"\boxed{Saturday}"),
    (r"We get \boxed{7}.", r"\boxed{7}"), ("3k", r"\boxed{3000}"),
]  # fmt: skip
UNEQUAL = [
    (r"\frac{1}{2}", r"\boxed{\frac{1}{3}}"), (r"\frac{1}{3}", r"\boxed{0.33}"), ("x^2+2x+1", r"\boxed{(x-1)^2}"),
    ("(1,2)", r"\boxed{(2,1)}"), ("[0,1)", r"\boxed{(0,1)}"), ("5y", r"\boxed{5}"), ("18", r"\boxed{}"), ("18", ""),
    ("18", r"\boxed{__import__('os').getcwd()}"),
]  # fmt: skip


def test_equal_and_unequal_mathematics(mathematics):
    for gold, response in EQUAL:
        verdict = mathematics.score(response, {"answer": gold})
        assert verdict.score == 1 and verdict.note == "" and verdict.answer, (gold, response)
    for gold, response in UNEQUAL:
        verdict = mathematics.score(response, {"answer": gold})
        assert verdict.score == 0 and verdict.note in ("a different answer", "no answer found"), (gold, response)


def test_endless_computations_end(mathematics):
    long = mathematics.score(r"\boxed{" + "x+" * 2000 + "1}", {"answer": "5"})
    assert long.note == "longer than 2000 characters"
    mathematics.time_limit = 0.5
    verdict = mathematics.score(r"\boxed{9^{9^{9^{9^9}}}}", {"answer": "5"})
    assert verdict == (0.0, "5", r"9^{9^{9^{9^9}}}", "not decided: no result after 0.5 s", "unknown")
    mathematics.time_limit = 30
    assert mathematics.score(r"\boxed{0.5}", {"answer": r"\frac{1}{2}"}).score == 1, "in a process of its own again"


ROW = {"answerKey": "B", "choices": {"text": ["red", "blue", "green", "dark blue"], "label": ["A", "B", "C", "D"]}}
RIGHT = [
    "B", "(B)", "b", "B.", "B) blue", "**B. blue**", "blue", "The answer is blue.", "Final Answer: **B**", r"\boxed{B}",
    r"\boxed{\text{(B)}}", r"\boxed{blue}", r"A? No. \boxed{B. blue}", "I think the best choice is **(B)**.",
    "A is wrong, C is wrong, so it must be B", "(A) is red, but the answer is (B).", "B\n\nBecause the sky is blue.",
    "the answer is a colour: B",
]  # fmt: skip


def test_the_chosen_option():
    metric = make_metric("multiple_choice")
    for text in RIGHT:
        assert metric.score(text, ROW)[:4] == (1.0, "B", "B", ""), text
    for text, answer in [
        ("", None), ("I do not know", None), ("A good question.", None), ("A", "A"), ("The answer is E", "E"),
        ("dark blue", "D"), ("D) dark blue", "D"), (r"\boxed{A} B", "A"), ("C. green\nNot B", "C"),
    ]:  # fmt: skip
        note = "no option named" if answer is None else "a different option"
        assert metric.score(text, ROW)[:4] == (0.0, "B", answer, note), text
    for row, gold in [
        ({"choices": ["x", "y"], "answer": 1}, "B"),
        ({"endings": ["x", "y"], "label": "0"}, "A"),
        ({"choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"}, "2"),
        ({"choices": ["x", "y"], "answer": "y"}, "B"),
        ({"answer": "So the answer is C."}, "C"),
        ({"messages": [{"role": "assistant", "content": "(C)"}]}, "C"),
        ({"choices": ["x", "y"], "answer": 7}, None),
    ]:
        verdict = metric.score(gold or "A", row)
        assert (verdict.gold, verdict.score) == (gold, float(gold is not None)), row
    with pytest.raises(DataError, match="must be a list of texts"):
        metric.score("A", {"answer": "A", "choices": {"text": ["x"], "label": ["A", "B"]}})


# (response, ended by the model) -> exact, prefix, contains, stopped, text_after
CASES = {
    ("[a-z]+", True): (1, 1, 1, 1, 0),
    ("[a-z]+ [a-z]+", False): (0, 1, 1, 0, 7),
    (" it is [a-z]+.", True): (0, 0, 1, 1, 1),
    ("\n[a-z]+<|end|>", True): (0, 1, 1, 1, 7),
    (" [a-z]+\n", True): (1, 1, 1, 1, 0),
    ("[A-Z]+", True): (0, 0, 0, 1, math.nan),
    ("", False): (0, 0, 0, 0, math.nan),
}
MEANS = {"exact": 2 / 7, "prefix": 4 / 7, "contains": 5 / 7, "stopped": 5 / 7, "text_after": 3}


def test_what_a_model_knows_is_apart_from_whether_it_stops():
    rows = RowSource([{"question": "q", "answer": "[a-z]+"}] * len(CASES))
    questions, metrics = read_questions(rows, SystemPrompt(None, True, "")).questions, make_metrics(MEANS)
    found = []
    for number, ((text, stopped), expected) in enumerate(CASES.items()):
        found.append(prediction_of(questions[number], Reply(number, text, stopped), metrics, {}))
        assert tuple(found[-1].scores.values()) == pytest.approx(expected, nan_ok=True)
    summary = {metric.name: summarise(metric, found) for metric in metrics}
    assert {name: summary[name]["value"] for name in MEANS} == pytest.approx(MEANS)
    assert summary["stopped"]["kind"] == "accuracy" and summary["stopped"]["correct"] == 5
    assert summary["text_after"]["kind"] == "count" and summary["text_after"]["n"] == 5
