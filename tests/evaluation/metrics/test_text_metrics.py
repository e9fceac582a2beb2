"""Metrics that compare texts: `exact`, `prefix`, `rouge`, `bleu`, and final answers of rows by `gsm8k`."""

import pytest

from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.metrics import make_metric

CHAT = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "[a-z]"}]}


def test_exact():
    metric = make_metric("exact")
    assert metric.kind == "accuracy"
    assert metric.score(" [a-z]\n", CHAT) == (1.0, "[a-z]", "[a-z]", "")
    assert metric.score("[a-z]+", CHAT) == (0.0, "[a-z]", "[a-z]+", "another text")
    assert metric.score("", CHAT).score == 0


def test_prefix_is_the_published_startswith():
    metric = make_metric("prefix")
    assert metric.score("[a-z]+.*", CHAT) == (1.0, "[a-z]", "[a-z]+.*", "")
    assert metric.score("\n[a-z]<|end|>", CHAT).score == 1
    assert metric.score("[a-", CHAT) == (0.0, "[a-z]", "[a-", "begins otherwise")
    assert metric.score("x[a-z]", CHAT).score == 0
    assert metric.score("[A-Z]", CHAT).score == 0


def test_where_the_reference_is():
    metric = make_metric("exact")
    assert metric.score("b", {"question": "a", "answer": "b"}).score == 1
    assert metric.score("b", {"prompt": "a", "completion": "b"}).score == 1
    assert metric.score("b", {"text": "a", "code": "b"}).score == 1
    assert metric.score("5", {"ground_truth": 5}).score == 1
    assert make_metric("exact", reference_column="solution").score("c", {"answer": "b", "solution": "c"}).score == 1
    for row in ({"question": "a"}, {"answer": ""}, {"answer": None}, {"answer": float("nan")}, {"messages": []}):
        with pytest.raises(DataError, match="no reference answer in the columns messages, completion, code, answer"):
            metric.score("b", row)
    with pytest.raises(DataError, match=r"in the columns solution \(columns found: answer\)"):
        make_metric("exact", reference_column="solution").score("b", {"answer": "b"})


def test_gsm8k_rows():
    metric = make_metric("gsm8k")
    raw = {"question": "?", "answer": "16 - 7 = 9\n9 * 2 = <<9*2=18>>18\n#### 18"}
    assert metric.score("So \\boxed{\\$18.00} a day", raw) == (1.0, "18", "\\$18.00", "")
    assert metric.score("It is 9.", raw) == (0.0, "18", "9", "another answer")
    assert metric.score("I do not know", raw) == (0.0, "18", None, "no answer found")
    # A prepared row: its ground truth counts, not the answer behind it.
    assert metric.score("18", {**raw, "answer": "#### 17", "ground_truth": "18"}).score == 1
    assert metric.score("18", {"answer": "It says \\boxed{18}."}).score == 1
    assert metric.score("18", {"messages": [{"role": "assistant", "content": "9 * 2\n#### 18"}]}).score == 1
    assert metric.score("the answer is Monday", {"ground_truth": "Monday"}).score == 0
    assert metric.score("\\boxed{\\text{Monday}}", {"ground_truth": "Monday"}).score == 1
    assert metric.score("18", {"answer": "no number\nanywhere"}) == (
        0.0,
        None,
        "18",
        "the reference has no final answer",
    )


def test_rouge_by_hand():
    pytest.importorskip("rouge_score", reason="needs the package rouge-score")
    row = {"answer": "the cat sat on the mat"}
    # "the cat on the mat": 5 of 6 words in order, all 5 of its own: F = 2 * 1 * (5/6) / (1 + 5/6).
    assert make_metric("rouge").score("the cat on the mat", row).score == pytest.approx(10 / 11)
    assert make_metric("rouge", variant="rouge2").score("the cat on the mat", row).score == pytest.approx(
        2 * 3 / (4 + 5)
    )
    assert make_metric("rouge").score("", row).score == 0
    assert make_metric("rouge", stem=True).score("cats", {"answer": "cat"}).score == 1
    assert make_metric("rouge").kind == "score"
    with pytest.raises(ConfigError, match="variant is 'rouge'; known: rouge1"):
        make_metric("rouge", variant="rouge")


def test_bleu_by_hand():
    pytest.importorskip("sacrebleu", reason="needs the package sacrebleu")
    metric = make_metric("bleu")
    row = {"answer": "the cat sat on the mat"}
    assert metric.score("the cat sat on the mat", row).score == 1
    assert metric.score("", row).score == 0
    # Of 5 words, 5, 3, 1 (the cat sat) n-grams match of 5, 4, 3; none of 2 four-grams. Corpus BLEU of both rows together:
    # precisions 11/11, 8/9, 5/7, 3/5, lengths 11 against 12.
    both = metric.corpus_score(["the cat sat on the mat", "the cat sat the mat"], [row, row])
    expected = (11 / 11 * 8 / 9 * 5 / 7 * 3 / 5) ** 0.25 * 2.718281828459045 ** (1 - 12 / 11)
    assert both == pytest.approx(expected, rel=1e-6)
    assert metric.corpus_score([], []) is None
    assert make_metric("exact").corpus_score(["a"], [row]) is None
    assert make_metric("bleu", lowercase=True).score("THE CAT SAT ON THE MAT", row).score == 1
    with pytest.raises(ConfigError, match="tokenize is 'words'; known: 13a"):
        make_metric("bleu", tokenize="words")
