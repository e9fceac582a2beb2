"""Metrics that separate what a model knows from whether it stops, on responses typed by hand."""

import math

import pytest

from stepjepa.data.sources import RowSource
from stepjepa.evaluation.metrics import make_metrics
from stepjepa.evaluation.questions import SystemPrompt, read_questions
from stepjepa.evaluation.run import AnswerScorer
from stepjepa.evaluation.score import prediction_of, summarise
from stepjepa.generation.output import Reply

GOLD = "[a-z]+"
# (response, ended by the model) -> exact, prefix, contains, stopped, text_after
CASES = {
    ("[a-z]+", True): (1, 1, 1, 1, 0),
    ("[a-z]+ [a-z]+", False): (1 - 1, 1, 1, 0, 7),
    (" it is [a-z]+.", True): (0, 0, 1, 1, 1),
    ("[A-Z]+", True): (0, 0, 0, 1, math.nan),
    ("", False): (0, 0, 0, 0, math.nan),
}
NAMES = ["exact", "prefix", "contains", "stopped", "text_after"]


def asked(n):
    rows = [
        {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": GOLD}]} for i in range(n)
    ]
    return read_questions(RowSource(rows), SystemPrompt(None, True, "")).questions


def predictions():
    metrics = make_metrics(NAMES)
    replies = [Reply(number, text, stopped) for number, (text, stopped) in enumerate(CASES)]
    found = [prediction_of(*pair, metrics, {}) for pair in zip(asked(len(CASES)), replies, strict=True)]
    return found, {metric.name: summarise(metric, found) for metric in metrics}


def test_each_response_by_each_metric():
    found, summary = predictions()
    for one, expected in zip(found, CASES.values(), strict=True):
        values = tuple(one.scores.values())
        assert values[:4] == expected[:4] and values[4] == pytest.approx(expected[4], nan_ok=True)
    assert {name: summary[name]["value"] for name in NAMES} == pytest.approx(
        {"exact": 1 / 5, "prefix": 2 / 5, "contains": 3 / 5, "stopped": 3 / 5, "text_after": 8 / 3}
    )
    assert summary["stopped"]["kind"] == "accuracy" and summary["stopped"]["correct"] == 3
    assert summary["text_after"]["kind"] == "count" and summary["text_after"]["n"] == 3


def test_an_evaluation_on_the_way_counts_what_can_be_counted(monkeypatch):
    found, summary = predictions()
    result = type("Result", (), {"predictions": found, "generation": {"did_not_stop": {"count": 2, "n": 5}}})
    monkeypatch.setattr("stepjepa.evaluation.run.evaluate_model", lambda *args, **more: result)
    rows = [{"messages": question.chat} for question in asked(5)]
    sums = AnswerScorer(rows, NAMES, 5)(None, None)
    assert sums["text_after"] == (8.0, 3) and sums["contains"] == (3.0, 5)
