"""Kinds of errors, and the analysis of one file and of two."""

import json

import pytest

from stepjepa.errors import DataError
from stepjepa.evaluation.predictions import (
    Prediction,
    analyze_predictions,
    compare,
    error_kind,
    paired_metrics,
    read_predictions,
    record_lines,
)


def wrong(text, gold, found, stop="stop", index=0, **more):
    values = {"correct": False, "tokens": len(text.split()), "scores": {"gsm8k": 0.0}, **more}
    return Prediction(index, f"Question {index}?", gold, text, gold, found, stop_reason=stop, **values)


KINDS = [
    ("refused", wrong("", "18", None, "refused")),
    ("empty", wrong(" \n", "18", None)),
    ("cut_off", wrong("First we add 3 and", "18", "3", "length")),
    ("no_answer", wrong("I do not know.", "18", None)),
    ("elsewhere", wrong("Of 18 eggs 3 are left", "18", "3")),
    ("wrong", wrong("Of 16 eggs 3 are left, minus 180", "18", "3")),
    ("unknown", wrong("x", "x^2", "x^{9^9}", note="not decided within 5 s", undecided="unknown")),
    ("invalid", wrong("(a", "a", "(a", note="the answer is not a regular expression", undecided="invalid")),
]


@pytest.mark.parametrize(("kind", "one"), KINDS)
def test_kinds(kind, one):
    assert error_kind(one) == kind


def predictions(right, *, first=0, scores=None):
    rows = []
    for index, correct in enumerate(right, first):
        score = {"gsm8k": float(correct)} if scores is None else scores(index, correct)
        found = str(index) if correct else "-7"
        row = wrong(f"It is {found}", str(index), found, index=index, correct=correct, scores=score)
        rows.append(row.record())
    return rows


@pytest.fixture
def file(tmp_path):
    def write(rows, name="a.jsonl"):
        path = tmp_path / name
        path.write_bytes(b"".join(record_lines(path, rows)))
        return path

    return write


def test_one_file(file):
    rows = predictions([True, False, True, False, True])
    for row, stop in zip(rows, ("stop", "length", "length", "stop", "stop"), strict=True):
        row["stop_reason"] = stop
    found = analyze_predictions(file(rows), show=1)
    assert (found.n, found.correct, found.metric) == (5, 3, "gsm8k")
    assert found.kinds == {"cut_off": 1, "wrong": 1} and [one.index for one in found.examples["wrong"]] == [3]
    text = str(found)
    assert "5 answers, 3 right, 2 wrong" in text and "60.0 % (23.1 to 88.2)" in text
    assert text.endswith("    expected '3'\n    found '-7'\n    response It is -7")
    record = json.loads(json.dumps(found.record()))
    assert record["accuracy"]["value"] == 0.6 and record["examples"]["wrong"][0]["question"] == "Question 3?"


def test_two_files(file):
    a = file(predictions([True] * 4 + [True] * 9 + [False] + [False] * 6))
    b = file(predictions([True] * 4 + [False] * 9 + [True] + [False] * 6), "b.json")
    found = compare(a, b)
    assert found.counts == (4, 9, 1, 6) and found.paired.difference.value == pytest.approx(-0.4)
    text = str(found)
    assert "B - A  -40.0 points (" in text and "p = 0.0215" in text
    assert "A right         4        9" in text and "A wrong         1        6" in text
    record = json.loads(json.dumps(found.record()))
    assert record["only_b"] == 1
    assert record["paired"]["difference"]["low"] < -0.4 < record["paired"]["difference"]["high"]


def test_the_metric_to_go_by(file):
    a = file(predictions([True, False], scores=lambda _, right: {"exact": float(right), "prefix": 1.0, "rouge": 0.5}))
    b = file(predictions([True, False], scores=lambda _, right: {"prefix": float(right), "own": 0.0}), "b.jsonl")
    with pytest.raises(DataError, match=r"no exact of 0 or 1 for every question \(metrics found: exact, .* and prefix"):
        compare(a, b)
    found = compare(a, b, metric="prefix")
    assert (found.counts[:2], found.paired.metric) == ((1, 1), "prefix")
    assert analyze_predictions(a, metric="prefix").correct == 2
    with pytest.raises(DataError, match=r"index 0 has no rouge of 0 or 1 \(metrics found: exact, prefix, rouge\)"):
        analyze_predictions(a, metric="rouge")


def test_all_metrics_that_two_files_share_are_paired(file):
    """Whichever is the first of each file, and the likelihood of the reference answers among them."""
    rows = predictions([True, True, False, False], scores=lambda index, right: {"exact": float(right), "rouge": 0.5})
    others = predictions(
        [False, True, True, True],
        scores=lambda index, right: {"prefix": 1.0, "rouge": None if index == 1 else 0.75, "exact": float(right)},
    )
    for index, row in enumerate(rows):
        row |= {"answer_nll": 1.0 + index, "answer_tokens": 5}
    for index, row in enumerate(others):
        row |= {"answer_nll": 1.5 + index if index else None, "answer_tokens": 5}
    found = paired_metrics(file(rows), file(others, "b.jsonl"))
    assert [(one.metric, one.n, one.counts) for one in found] == [
        ("exact", 4, (1, 1, 2, 0)), ("rouge", 3, None), ("answer_nll", 3, None),
    ]  # fmt: skip
    assert [one.difference.value for one in found] == pytest.approx([0.25, 0.25, 0.5])
    with pytest.raises(DataError, match="share no metric: .*e.jsonl has prefix, .*a.jsonl has exact, rouge, answer_"):
        one = predictions([True] * 4, scores=lambda index, right: {"prefix": 1.0})
        paired_metrics(file(one, "e.jsonl"), file(rows))


def test_files_that_do_not_match(file):
    a = file(predictions([True, False, True]))
    shorter, later = file(predictions([True, False]), "b.jsonl"), file(predictions([True] * 3, first=1), "c.jsonl")
    for other in (shorter, later):
        with pytest.raises(DataError, match="evaluate both on the same rows"):
            compare(a, other)
    rows = predictions([True, False, True])
    rows[2]["question"] = "Another?"
    with pytest.raises(DataError, match="different questions at index 2"):
        compare(a, file(rows, "d.jsonl"))
    with pytest.raises(DataError, match="e.jsonl: an index occurs twice"):
        compare(file(predictions([True]) * 2, "e.jsonl"), a)


def test_predictions_of_other_programs(tmp_path):
    """The published evaluate_step_jepa wrote one array, without stop_reason and tokens."""
    first = {"index": 0, "question": "Q", "ground_truth": "3", "generated_response": "It is 4", "else": 1}
    first |= {"gt_answer": 3, "gen_answer": 4.0, "correct": False}
    rows = [first, {"question": "R", "generated_response": "So 5", "correct": True}]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(rows, indent=2))
    found = read_predictions(path)
    assert [one.index for one in found] == [0, 1] and found[0].gt_answer == "3" and found[1].tokens is None
    analysis = analyze_predictions(path)
    assert analysis.kinds == {"wrong": 1} and (analysis.metric, analysis.correct) == ("correct", 1)


def test_broken_files(tmp_path):
    path, good = tmp_path / "broken.json", '"question": "a", "generated_response": "b"'
    for text, words in {
        "": "contains no predictions",
        '{"question": "a"}\n': "line 1: is not a prediction: it has no text 'generated_response'",
        f'{{{good}, "index": "3"}}\n': "index is '3'",
        f'[{{{good}, "correct": 1}}]': "row 0: is not a prediction: correct is 1",
        f'[{{{good}, "scores": {{"exact": 1e308}}}}]': r"scores is {'exact': 1e\+308}",
        f'[{{{good}, "answer_nll": 1e308}}]': r"answer_nll is 1e\+308",
        "[{": "broken JSON",
        f"{{{good}}}\n": "index 0 has no correct of 0 or 1",
    }.items():
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            analyze_predictions(path)
