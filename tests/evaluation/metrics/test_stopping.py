"""Metrics that separate what a model knows from whether it stops, on responses typed by hand."""

import math

import pytest

from stepjepa.data.sources import RowSource
from stepjepa.evaluation.metrics import make_metrics
from stepjepa.evaluation.questions import SystemPrompt, read_questions
from stepjepa.evaluation.score import prediction_of, summarise
from stepjepa.generation.output import Reply

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


def test_each_response_by_each_metric():
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
