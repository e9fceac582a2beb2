"""The record of a row: layout, names and kinds of tokens and readouts, typed by hand."""

from itertools import groupby

import numpy as np
import pytest

from stepjepa.data.types import ISOLATED, Example, Pair, Read, Segment, Term
from stepjepa.data.types import Span as Tokens
from stepjepa.inspect.layout import packing_line, row_records, token_text
from stepjepa.inspect.record import KINDS, Readout
from stepjepa.modeling.load import train_tokenizer
from support.models import Views, paired
from support.pages import stepped_example
from support.records import form_of, row_record

WORDS = "q a b c d e".split()
P1, P2 = "<|predictor_1|>", "<|predictor_2|>"


def ids(*numbers):
    return np.array(numbers, dtype=np.int32)


# Prompt q; step 1 is a b, step 2 is c d; e ends the turn.
def steps(predictors=2):
    return paired(range(6), ((1, 6),), [Views(2, 3, 5)], predictors)


# Prompt q; steps a, b, c; e ends the turn. Every step predicts the next one.
def every_step(predictors=2):
    return paired([0, 1, 2, 3, 5], ((1, 5),), [Views(1, 2, 3), Views(2, 3, 4)], predictors)


# The same with horizons 1 and 2: a -> b, a -> c, b -> c.
def horizons(predictors=1):
    return paired([0, 1, 2, 3, 5], ((1, 5),), [Views(1, 2, 3), Views(1, 3, 4), Views(2, 3, 4)], predictors)


# Prompt q, answer a. Source view: q b <p1> <p2> e; target view: q c e, read at c.
def standalone(predictors=2):
    source, target = Segment(ids(0, 2, 5), ISOLATED, 0, slots=predictors, slot=2), Segment(ids(0, 3, 5), ISOLATED, 0)
    return Example(ids(0, 1), (Tokens(1, 2),), (source, target), (Pair(Read.one(1, 1 + predictors), Read.one(2, 1)),))


# The second half is a text of its own, which is not on the trunk.
def halves(predictors=1):
    segments = Segment(ids(), 1, 2, slots=predictors), Segment(ids(2, 4), ISOLATED, 0, origin=None)
    return Example(ids(0, 1, 2, 3), (Tokens(1, 4),), segments, (Pair(Read.one(1, 0), Read.one(2, 1)),))


def record(*makers, predictors=2, **options):
    """The row of the examples that are made for so many predictors."""
    examples = [make(predictors) for make in makers]
    return row_record(examples, predictors, WORDS.__getitem__, vocabulary=6, **options)


# maker, predictors, forward; texts, positions, segments, names (with how many tokens), kinds; and of each pair the tokens
# source end, source, target, then source segment, original and copy.
LAYOUTS = {
    "packed": (
        (steps, 2, "packed"),
        ["q", "a", "b", "c", "d", "e", P1, P2, "c", "d"],
        [0, 1, 2, 3, 4, 5, 3, 4, 5, 6],
        [0] * 6 + [1, 1, 2, 2],
        "trunk: prompt 1|trunk: answer 5|branch 1 2|target 1 2",
        "prompt answer source_end original original answer predictor predictor target target",
        [(2, 7, 9, None, (3, 5), (8, 10))],
    ),
    "shared": (
        (horizons, 1, "packed"),
        ["q", "a", "b", "c", "e", P1, "b", "c", P1],
        [0, 1, 2, 3, 4, 2, 3, 4, 3],
        [0] * 5 + [1, 2, 3, 4],
        "trunk: prompt 1|trunk: answer 4|branch 1 1|target 1 1|target 2 1|branch 3 1",
        "prompt source_end source_end original answer predictor target target predictor",
        [(1, 5, 6, None, (2, 3), (6, 7)), (1, 5, 7, None, (3, 4), (7, 8)), (2, 8, 7, None, (3, 4), (7, 8))],
    ),
    "standalone": (
        (standalone, 2, "packed"),
        ["q", "a", "q", "b", P1, P2, "e", "q", "c", "e"],
        [0, 1, 0, 1, 2, 3, 4, 0, 1, 2],
        [0] * 2 + [1] * 5 + [2] * 3,
        "trunk: prompt 1|trunk: answer 1|source 1 5|target 1 3",
        "prompt answer source source predictor predictor source target target target",
        [(6, 5, 8, (2, 7), None, (7, 10))],
    ),
    "inline": (
        (steps, 2, "inline"),
        ["q", "a", "b", P1, P2, "c", "d", "e"],
        list(range(8)),
        [0] * 8,
        "trunk: prompt 1|trunk: answer 2|predictors 2|trunk: answer 3",
        "prompt answer source_end predictor predictor isolated isolated answer",
        [(2, 4, 6, None, (5, 7), (5, 7))],
    ),
    "two_pass_shared": (
        (horizons, 1, "two_pass"),
        ["q", "a", "b", "c", "e", "q", "a", P1, "q", "a", "b", P1, "b", "c"],
        [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 3, 4],
        [0] * 5 + [1] * 3 + [2] * 4 + [3, 4],
        "trunk: prompt 1|trunk: answer 4|source 1 3|source 3 4|target 1 1|target 2 1",
        "prompt source_end source_end original answer source source predictor source source source predictor target target",
        [
            (1, 7, 12, (5, 8), (2, 3), (12, 13)),
            (1, 7, 13, (5, 8), (3, 4), (13, 14)),
            (2, 11, 13, (8, 12), (3, 4), (13, 14)),
        ],
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_by_hand(name):
    (maker, predictors, forward), texts, positions, segments, names, kinds, pairs = LAYOUTS[name]
    row = record(maker, predictors=predictors, forward=forward)
    assert list(row.texts) == texts and row.positions.tolist() == positions and row.segments.tolist() == segments
    assert "|".join(f"{one} {len(list(own))}" for one, own in groupby(row.names)) == names
    assert " ".join(row.kinds) == kinds
    labels = [token in ("a", "b", "c", "d", "e") for token in texts]
    on_trunk = [one.startswith("trunk") for one in row.names]
    assert row.labelled.tolist() == [label and trunk for label, trunk in zip(labels, on_trunk, strict=True)]
    for pair, (end, source, target, segment, original, copy) in zip(row.pairs, pairs, strict=True):
        views = pair.views
        terms = *pair.source.terms, *pair.target.terms
        assert [views.source_end, *(one.token for one in terms)] == [end, source, target]
        assert (views.source_segment, views.original, views.copy) == (segment, original, copy)
        assert views.standalone == (name == "standalone")


def test_fields_and_sections():
    row = record(steps)
    assert row.ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 3, 4]
    assert row.orders.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 0, 1]
    assert row.attaches.tolist() == [-1] * 6 + [2, 2, -1, -1]
    assert row.sections == [(0, 1), (1, 6), (6, 8), (8, 10)]
    assert record(steps, forward="inline").floors.tolist() == [0, 0, 0, 0, 0, 5, 5, 0]
    assert record(halves, predictors=1).pairs[0].views.original is None
    kinds = {kind for row in (record(steps), record(steps, forward="inline"), record(standalone)) for kind in row.kinds}
    assert kinds == set(KINDS) - {"span", "padding"}


def test_two_examples_see_nothing_of_each_other():
    alone, other, both = record(steps), record(every_step), record(steps, every_step)
    first = len(alone)
    np.testing.assert_array_equal(both.visible[:first, :first], alone.visible)
    np.testing.assert_array_equal(both.visible[first:, first:], other.visible)
    assert not both.visible[:first, first:].any() and not both.visible[first:, :first].any()
    assert both.texts == alone.texts + other.texts and both.examples.tolist() == [0] * first + [1] * len(other)
    assert [pair.source.index for pair in both.pairs] == [7, first + 6, first + 9]
    assert both.pairs[1].views.original == (first + 2, first + 3)
    assert both.pairs[2].views.copy == (first + 10, first + 11)
    assert [(pair.example, pair.number) for pair in both.pairs] == [(0, 1), (1, 1), (1, 2)]
    inline = record(steps, steps, forward="inline", predictors=1)
    assert inline.pairs[1].source.terms == (Readout(7 + 3),) and inline.texts[7 + 3] == P1
    assert inline.pairs[1].views.copy == (7 + 4, 7 + 6)


def test_inline_holds_the_first_pair_and_rows_may_have_none():
    row = record(lambda k: paired(range(6), ((1, 6),), [Views(2, 3, 5), Views(4, 5, 6)], k), forward="inline")
    assert row.pairs == record(steps, forward="inline").pairs and "original" not in row.kinds
    for forward in ("packed", "inline", "two_pass"):
        row = record(lambda k: steps(k).plain(), forward=forward)
        assert row.pairs == () and set(row.kinds) == {"prompt", "answer"}


def test_predictors():
    assert record(steps, predictor_order="descending").texts[6:8] == (P2, P1)
    assert record(standalone, predictor_order="descending").texts[4:6] == (P2, P1)
    row = record(steps, predictors=3, same_predictor=True)
    assert row.texts[6:9] == (P1, P1, P1) and row.ids[6:9].tolist() == [6, 6, 6]
    late = steps(0)._replace(pairs=(Pair(Read.one(0, 3), steps(0).pairs[0].target),))
    row = record(lambda k: late, predictors=0)
    assert row.texts[6:] == ("c", "d") and row.visible.sum() == 21 + 3
    assert row.pairs[0].source.terms == (Readout(3),) and row.pairs[0].views.source_end == 3 and row.texts[3] == "c"
    row = record(steps, forward="inline", predictors=0)
    assert (
        row.pairs[0].source.terms == (Readout(2),) and row.texts[2] == "b" and row.floors.tolist() == [0, 0, 0, 3, 3, 0]
    )


def test_sums_of_states_of_any_objective():
    """Means over a branch and over a copy: shown as what they are, under plain names."""
    example = steps()
    source, target = Read((Term(1, 0, 0.5), Term(1, 1, 0.5))), Read((Term(2, 0, 0.5), Term(2, 1, 0.5)))
    mean = example._replace(pairs=(Pair(source, target, weight=2.0),))
    for forward, first in (("packed", 6), ("two_pass", 9)):
        row = record(lambda k: mean, forward=forward)
        (pair,) = row.pairs
        assert (pair.views, pair.kind, pair.weight, pair.total, pair.ends) == (None, "vectors", 2.0, None, ())
        assert (pair.source.name, pair.source.covered) == ("source", ((first, first + 2),))
        assert (pair.target.name, pair.target.covered) == ("target", ((first + 2, first + 4),))
        assert row.counts.endswith("; 1 pair of vectors")


# Trunks of 6, 6 and 3 tokens; with K = 2 the first two have 2 predictors and 2 target tokens.
PLAIN = paired(range(3), ((1, 3),))
BATCH = [steps(), steps(), PLAIN]


def test_how_many_positions_it_takes():
    # Forests of 10, 10 and 3 tokens. Apart: chats of 6, 6 and 3, and 4 views of 5 (a b c and two predictors) and 2 tokens.
    def line(examples, predictors=2, **options):
        form = form_of(predictors, 6, **options)
        return packing_line(examples, row_records(examples, form, str), form.forward)

    padded = "packing: 3 examples in 2 rows, 26 positions, 3 of them padding (11.5%)"
    assert line(BATCH, max_row_length=13) == padded
    assert line([steps()]) == "packing: 1 example in 1 row, 10 positions, no padding"
    assert line(BATCH, forward="two_pass") == "two passes: 3 examples in 7 rows, 29 positions, no padding"
    assert line([PLAIN], 0) == "packing: 1 example in 1 row, 3 positions, no padding"


def test_lanes():
    example = stepped_example(9, 2)  # pairs end at 4 and 6; the targets are 5-6 and 7-8
    placed = row_record([example], 2, str, vocabulary=97).lanes
    assert placed.names == ("trunk", "branches", "targets")
    assert placed.columns.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8, 7, 8, 9, 10]
    assert placed.of_section == (0, 0, 1, 2, 1, 2) and placed.width == 11
    placed = row_record([example], 2, str, vocabulary=97, forward="two_pass").lanes
    assert placed.names == ("trunk", "sources", "sources", "targets")  # sources overlap, targets do not
    both = row_record([example, example], 2, str, vocabulary=97).lanes
    assert both.columns.tolist() == [*range(9), 5, 6, 7, 8, 7, 8, 9, 10, *range(15, 24), 20, 21, 22, 23, 22, 23, 24, 25]


def test_texts_of_tokens_that_are_no_whole_character():
    tokenizer = train_tokenizer(["First we add 2 and 3.\n\nThen we double it."], 300)
    text = token_text(tokenizer)
    pieces = [text(index) for index in tokenizer(" \U0001f600", add_special_tokens=False)["input_ids"]]
    assert "".join(pieces) in (r" \xf0\x9f\x98\x80", " \U0001f600")
    assert text(tokenizer.eos_token_id) == "<|end|>"
    assert text(10**6) == f"<id {10**6}>"


def test_texts_of_sentencepiece_tokens(mistral_tokenizer):
    numbers = mistral_tokenizer("two words", add_special_tokens=False)["input_ids"]
    assert "".join(map(token_text(mistral_tokenizer), numbers)) == " two words"
