"""The record of a row: layout, names and kinds of its tokens, readouts, and the visibility matrix."""

import numpy as np
import pytest

from stepjepa.data.dataset import ExampleStore
from stepjepa.data.types import Pair, Read
from stepjepa.inspect.record import Readout, Span
from stepjepa.inspect.rows import token_text
from stepjepa.modeling.presets import train_tokenizer
from support.models import Views, paired
from support.records import row_record

WORDS = "q a b c d e".split()


def matrix(drawing):
    """A drawing of ones and dots as a boolean matrix."""
    lines = [line.split() for line in drawing.strip().splitlines()]
    return np.array([[cell == "1" for cell in line] for line in lines])


# Prompt q; step 1 is a b, step 2 is c d; e ends the turn.
FIRST = paired(range(6), ((1, 6),), [Views(2, 3, 5)], 2)
# Prompt q; steps a, b, c; e ends the turn.
ALL = paired([0, 1, 2, 3, 5], ((1, 5),), [Views(1, 2, 3), Views(2, 3, 4)], 2)


def record(*examples, predictors=2, **options):
    return row_record(ExampleStore(examples), predictors, WORDS.__getitem__, vocabulary=6, **options)


def test_one_pair_with_two_predictors():
    row = record(FIRST)
    assert row.texts == ("q", "a", "b", "c", "d", "e", "<|predictor_1|>", "<|predictor_2|>", "c", "d")
    assert row.ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 3, 4]
    assert row.positions.tolist() == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6]
    assert row.orders.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 0, 1]
    assert row.segments.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 2, 2]
    assert row.attaches.tolist() == [-1] * 6 + [2, 2, -1, -1]
    assert row.labelled.tolist() == [False] + [True] * 5 + [False] * 4
    assert row.names == ("trunk: prompt", *["trunk: answer"] * 5, *["branch 1"] * 2, *["target 1"] * 2)
    expected = "prompt answer source_end original original answer predictor predictor target target"
    assert row.kinds == tuple(expected.split())
    assert row.sections == [(0, 1), (1, 6), (6, 8), (8, 10)]
    (pair,) = row.pairs
    assert (pair.example, pair.number) == (0, 1)
    assert pair.source_end == Readout(2, "b")
    assert pair.source == Readout(7, "<|predictor_2|>")
    assert pair.target == Readout(9, "d")
    assert (pair.original, pair.copy) == ((3, 5), (8, 10))
    expected = matrix("""
        1 . . . . .  . .  . .
        1 1 . . . .  . .  . .
        1 1 1 . . .  . .  . .
        1 1 1 1 . .  . .  . .
        1 1 1 1 1 .  . .  . .
        1 1 1 1 1 1  . .  . .
        1 1 1 . . .  1 .  . .
        1 1 1 . . .  1 1  . .
        . . . . . .  . .  1 .
        . . . . . .  . .  1 1
    """)
    assert row.visible.dtype == bool
    np.testing.assert_array_equal(row.visible, expected)


def test_all_pairs():
    row = record(ALL)
    assert row.texts[5:] == (
        *("<|predictor_1|>", "<|predictor_2|>", "b"),
        *("<|predictor_1|>", "<|predictor_2|>", "c"),
    )
    assert row.positions.tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 3, 4, 5]
    assert row.names[5:] == ("branch 1", "branch 1", "target 1", "branch 2", "branch 2", "target 2")
    # b is the first pair's target and ends the second pair's source.
    assert row.kinds[:5] == ("prompt", "source_end", "source_end", "original", "answer")
    assert [pair.source.index for pair in row.pairs] == [6, 9]
    assert [pair.target.index for pair in row.pairs] == [7, 10]
    assert [pair.source_end.text for pair in row.pairs] == ["a", "b"]
    expected = matrix("""
        1 . . . .  . . .  . . .
        1 1 . . .  . . .  . . .
        1 1 1 . .  . . .  . . .
        1 1 1 1 .  . . .  . . .
        1 1 1 1 1  . . .  . . .
        1 1 . . .  1 . .  . . .
        1 1 . . .  1 1 .  . . .
        . . . . .  . . 1  . . .
        1 1 1 . .  . . .  1 . .
        1 1 1 . .  . . .  1 1 .
        . . . . .  . . .  . . 1
    """)
    np.testing.assert_array_equal(row.visible, expected)


def test_two_examples_see_nothing_of_each_other():
    alone, other, both = record(FIRST), record(ALL), record(FIRST, ALL)
    first = len(alone)
    np.testing.assert_array_equal(both.visible[:first, :first], alone.visible)
    np.testing.assert_array_equal(both.visible[first:, first:], other.visible)
    assert not both.visible[:first, first:].any()
    assert not both.visible[first:, :first].any()
    assert both.texts == alone.texts + other.texts
    assert both.examples.tolist() == [0] * first + [1] * len(other)
    assert [pair.source.index for pair in both.pairs] == [7, first + 6, first + 9]
    assert both.pairs[1].original == (first + 2, first + 3)
    assert both.pairs[2].copy == (first + 10, first + 11)
    assert [(pair.example, pair.number) for pair in both.pairs] == [(0, 1), (1, 1), (1, 2)]


def test_without_predictors_the_source_is_read_on_the_trunk():
    late = paired(range(6), ((1, 6),), [Views(2, 3, 5)])
    late = late._replace(pairs=(Pair(Read.one(0, 3), late.pairs[0].target),))
    row = record(late, predictors=0)
    assert row.texts[6:] == ("c", "d")
    assert row.pairs[0].source_end == row.pairs[0].source == Readout(3, "c")
    assert row.pairs[0].copy == (6, 8)
    assert row.visible.sum() == 21 + 3


def test_descending_predictors():
    row = record(FIRST, predictor_order="descending")
    assert row.texts[6:8] == ("<|predictor_2|>", "<|predictor_1|>")
    assert row.ids[6:8].tolist() == [7, 6]
    assert row.pairs[0].source == Readout(7, "<|predictor_1|>")


def test_an_example_without_pairs():
    row = record(FIRST.plain())
    assert row.pairs == ()
    assert set(row.kinds) == {"prompt", "answer"}
    np.testing.assert_array_equal(row.visible, np.tri(6, dtype=bool))


def test_spans_name_the_trunk_and_are_cut_with_it():
    spans = [Span("user", 0, 1), Span("step 1", 1, 3), Span("step 2", 3, 5), Span("step 3", 6, 9)]
    names = record(FIRST, spans=[spans]).names[:6]
    assert [name.removeprefix("trunk: ") for name in names] == [
        *("user", "step 1", "step 1", "step 2", "step 2", "end of turn")
    ]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["First we add 2 and 3.\n\nThen we double it.\n\nSo 10. What is it?"], 320)


def test_texts_of_tokens_that_are_no_whole_character(tokenizer):
    text = token_text(tokenizer)
    pieces = [text(index) for index in tokenizer(" \U0001f600", add_special_tokens=False)["input_ids"]]
    assert "".join(pieces) in (r" \xf0\x9f\x98\x80", " \U0001f600")
    assert text(tokenizer.eos_token_id) == "<|end|>"
    assert text(10**6) == f"<id {10**6}>"


def test_texts_of_sentencepiece_tokens(mistral_tokenizer):
    text = token_text(mistral_tokenizer)
    numbers = mistral_tokenizer("two words", add_special_tokens=False)["input_ids"]
    assert "".join(map(text, numbers)) == " two words"
