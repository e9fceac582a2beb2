"""The record of a row: layout, names and kinds of tokens and readouts, typed by hand."""

from itertools import groupby

import numpy as np
import pytest

from stepjepa.data.types import ISOLATED, Example, Pair, Read, Segment, Term
from stepjepa.data.types import Span as Tokens
from stepjepa.inspect.layout import token_text
from stepjepa.inspect.record import KINDS, Readout
from stepjepa.modeling.load import train_tokenizer
from stepjepa.objectives.semantic_tube import pairs_of_spans
from support.models import Views, paired
from support.pages import stepped_example
from support.records import row_record, tube_record
from support.tube import tube_options

WORDS = "q a b c d e".split()
P1, P2 = "<|predictor_1|>", "<|predictor_2|>"


def ids(*numbers):
    return np.array(numbers, dtype=np.int32)


# Prompt q; step 1 is a b, step 2 is c d; e ends the turn.
def steps(predictors=2):
    return paired(range(6), ((1, 6),), [Views(2, 3, 5)], predictors)


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


def record(maker, predictors=2, **options):
    """The row of the example that is made for so many predictors."""
    return row_record(maker(predictors), predictors, WORDS.__getitem__, vocabulary=6, **options)


# maker, predictors; texts, positions, segments, names (with how many tokens), kinds; and of each pair the tokens
# source end, source, target, then source segment, original and copy.
LAYOUTS = {
    "packed": (
        (steps, 2),
        ["q", "a", "b", "c", "d", "e", P1, P2, "c", "d"],
        [0, 1, 2, 3, 4, 5, 3, 4, 5, 6],
        [0] * 6 + [1, 1, 2, 2],
        "trunk: prompt 1|trunk: answer 5|branch 1 2|target 1 2",
        "prompt answer source_end original original answer predictor predictor target target",
        [(2, 7, 9, None, (3, 5), (8, 10))],
    ),
    "shared": (
        (horizons, 1),
        ["q", "a", "b", "c", "e", P1, "b", "c", P1],
        [0, 1, 2, 3, 4, 2, 3, 4, 3],
        [0] * 5 + [1, 2, 3, 4],
        "trunk: prompt 1|trunk: answer 4|branch 1 1|target 1 1|target 2 1|branch 3 1",
        "prompt source_end source_end original answer predictor target target predictor",
        [(1, 5, 6, None, (2, 3), (6, 7)), (1, 5, 7, None, (3, 4), (7, 8)), (2, 8, 7, None, (3, 4), (7, 8))],
    ),
    "standalone": (
        (standalone, 2),
        ["q", "a", "q", "b", P1, P2, "e", "q", "c", "e"],
        [0, 1, 0, 1, 2, 3, 4, 0, 1, 2],
        [0] * 2 + [1] * 5 + [2] * 3,
        "trunk: prompt 1|trunk: answer 1|source 1 5|target 1 3",
        "prompt answer source source predictor predictor source target target target",
        [(6, 5, 8, (2, 7), None, (7, 10))],
    ),
    "inline": (
        (steps, 2),
        ["q", "a", "b", P1, P2, "c", "d", "e"],
        list(range(8)),
        [0] * 8,
        "trunk: prompt 1|trunk: answer 2|predictors 2|trunk: answer 3",
        "prompt answer source_end predictor predictor isolated isolated answer",
        [(2, 4, 6, None, (5, 7), (5, 7))],
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_by_hand(name):
    (maker, predictors), texts, positions, segments, names, kinds, pairs = LAYOUTS[name]
    row = record(maker, predictors, inline=name == "inline")
    assert list(row.texts) == texts and row.positions.tolist() == positions and row.segments.tolist() == segments
    assert "|".join(f"{one} {len(list(own))}" for one, own in groupby(row.names)) == names
    assert " ".join(row.kinds) == kinds
    labels = [token in ("a", "b", "c", "d", "e") for token in texts]
    on_trunk = [one.startswith("trunk") for one in row.names]
    assert row.labelled.tolist() == [label and trunk for label, trunk in zip(labels, on_trunk, strict=True)]
    for pair, (end, source, target, segment, original, copy) in zip(row.pairs, pairs, strict=True):
        views = pair.views
        terms = *pair.source, *pair.target
        assert [views.source_end, *(one.token for one in terms)] == [end, source, target]
        assert (views.source_segment, views.original, views.copy) == (segment, original, copy)


def test_fields_and_sections():
    row = record(steps)
    assert row.ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 3, 4]
    assert row.orders.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 0, 1]
    assert row.attaches.tolist() == [-1] * 6 + [2, 2, -1, -1]
    assert row.sections == [(0, 1), (1, 6), (6, 8), (8, 10)]
    assert record(steps, inline=True).floors.tolist() == [0, 0, 0, 0, 0, 5, 5, 0]
    assert record(halves, 1).pairs[0].views.original is None
    kinds = {kind for row in (record(steps), record(steps, inline=True), record(standalone)) for kind in row.kinds}
    assert kinds == set(KINDS)


def test_inline_holds_the_first_pair_and_rows_may_have_none():
    row = record(lambda k: paired(range(6), ((1, 6),), [Views(2, 3, 5), Views(4, 5, 6)], k), inline=True)
    assert row.pairs == record(steps, inline=True).pairs and "original" not in row.kinds
    for inline in (False, True):
        row = record(lambda k: steps(k).plain(), inline=inline)
        assert row.pairs == () and set(row.kinds) == {"prompt", "answer"}


def test_predictors():
    assert record(steps, predictor_order="descending").texts[6:8] == (P2, P1)
    assert record(standalone, predictor_order="descending").texts[4:6] == (P2, P1)
    row = record(steps, predictors=3, same_predictor=True)
    assert row.texts[6:9] == (P1, P1, P1) and row.ids[6:9].tolist() == [6, 6, 6]
    late = steps(0)._replace(pairs=(Pair(Read.one(0, 3), steps(0).pairs[0].target),))
    row = record(lambda k: late, predictors=0)
    assert row.texts[6:] == ("c", "d") and row.visible.sum() == 21 + 3
    assert row.pairs[0].source == (Readout(3),) and row.pairs[0].views.source_end == 3 and row.texts[3] == "c"
    row = record(steps, inline=True, predictors=0)
    assert row.pairs[0].source == (Readout(2),) and row.texts[2] == "b" and row.floors.tolist() == [0, 0, 0, 3, 3, 0]


def test_sums_of_states_of_any_objective():
    """Means over a branch and over a copy: shown as what they are, under plain names."""
    source, target = Read((Term(1, 0, 0.5), Term(1, 1, 0.5))), Read((Term(2, 0, 0.5), Term(2, 1, 0.5)))
    row = record(lambda k: steps()._replace(pairs=(Pair(source, target, weight=2.0),)))
    (pair,) = row.pairs
    assert (pair.views, pair.arrow, pair.title) == (None, None, "pair 1, weight 2")
    assert row.sides(pair) == ("source: mean h[6-7]", "target: mean h[8-9]")


#       0    1    2  3  4   5    6    7  8  9
TUBE = "bos  hdr  a  b  c   eot  hdr2 d  e  eot2".split()
USER, ANSWER = Tokens(2, 5), Tokens(7, 9)

# mode, spans; of each pair the states of source and target.
TUBES = [
    ("span", [(1, 2)], [("T - P: - h[1] + h[2] - h[3] + h[4] - h[6] + h[8]", "P: - h[2] + h[3]")]),
    (
        "span",
        [(0, 3), (3, 5)],
        [("T - P: - h[6] + h[8]", "P: - h[1] + h[4]"), ("T - P: - h[1] + h[4]", "P: - h[6] + h[8]")],
    ),
    ("mean", (), [("user: mean h[2-4]", "answer: mean h[7-8]")]),
    ("curvature", (), [(f"before: - h[{n - 1}] + h[{n}]", f"after: - h[{n}] + h[{n + 1}]") for n in (2, 3, 7)]),
]


@pytest.mark.parametrize(("mode", "spans", "pairs"), TUBES, ids=str)
def test_sums_of_a_tube(mode, spans, pairs):
    options = tube_options(mode=mode, times=max(len(spans), 1))
    drawn = tuple(pairs_of_spans(USER, ANSWER, spans, options))
    row = tube_record(Example(ids(*range(10)), (Tokens(7, 10),), pairs=drawn), TUBE.__getitem__, mode)
    assert [row.sides(pair) for pair in row.pairs] == pairs
    assert [pair.number for pair in row.pairs] == [*range(1, len(pairs) + 1)]
    assert {pair.weight for pair in row.pairs} == {1 / 3 if mode == "curvature" else 1}
    assert row.tags == {} and "; " in row.counts
    np.testing.assert_array_equal(row.visible, np.tri(10, dtype=bool))


def test_lanes():
    lanes = row_record(stepped_example(9, 2), 2, str, vocabulary=97).lanes  # pairs end at 4 and 6; targets are 5-6, 7-8
    assert lanes.names == ("trunk", "sources", "sources", "targets", "targets")
    assert lanes.of_section == (0, 0, 1, 3, 2, 4) and lanes.width == 11
    alone = record(standalone).lanes
    assert alone.names == ("trunk", "sources", "targets") and alone.of_section == (0, 0, 1, 2)


def test_texts_of_tokens():
    tokenizer = train_tokenizer(["First we add 2 and 3.\n\nThen we double it."], 300)
    text = token_text(tokenizer)
    assert [text(index) for index in tokenizer(" 3.", add_special_tokens=False)["input_ids"]] == [" ", "3", "."]
    assert text(tokenizer.eos_token_id) == "<|end|>"
    assert text(10**6) == f"<id {10**6}>"


def test_texts_of_sentencepiece_tokens(mistral_tokenizer):
    numbers = mistral_tokenizer("two words", add_special_tokens=False)["input_ids"]
    assert "".join(map(token_text(mistral_tokenizer), numbers)) == " two words"
