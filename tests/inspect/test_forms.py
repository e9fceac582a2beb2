"""Records of views apart, shared segments, the inline and the two-pass form, against layouts typed by hand."""

import numpy as np
import pytest

from stepjepa.data.types import ISOLATED, Example, Pair, Read, Segment
from stepjepa.data.types import Span as Tokens
from stepjepa.inspect.record import KINDS, Readout
from support.models import Views, paired
from support.records import row_record

WORDS = "q a b c d e".split()
P1, P2, P3 = (f"<|predictor_{number}|>" for number in (1, 2, 3))


# Prompt q; step 1 is a b, step 2 is c d; e ends the turn.
def steps(predictors=2):
    return paired(range(6), ((1, 6),), [Views(2, 3, 5)], predictors)


def plain(predictors=2):
    return steps().plain()


def ids(*numbers):
    return np.array(numbers, dtype=np.int32)


def matrix(drawing):
    """A drawing of ones and dots as a boolean matrix."""
    lines = [line.split() for line in drawing.strip().splitlines()]
    return np.array([[cell == "1" for cell in line] for line in lines])


def record(*makers, predictors=2, **options):
    """The row of the examples that are made for so many predictors."""
    examples = [make(predictors) for make in makers]
    return row_record(examples, predictors, WORDS.__getitem__, vocabulary=6, **options)


def runs(names):
    """[(name, how often)] of neighbours that are equal."""
    found = []
    for name in names:
        if found and found[-1][0] == name:
            found[-1][1] += 1
        else:
            found.append([name, 1])
    return [(name, count) for name, count in found]


def test_inline():
    row = record(steps, forward="inline")
    assert row.texts == ("q", "a", "b", P1, P2, "c", "d", "e")
    assert row.positions.tolist() == row.orders.tolist() == list(range(8))
    assert row.segments.tolist() == [0] * 8
    assert row.floors.tolist() == [0, 0, 0, 0, 0, 5, 5, 0]
    assert runs(row.names) == [("trunk: prompt", 1), ("trunk: answer", 2), ("predictors", 2), ("trunk: answer", 3)]
    assert " ".join(row.kinds) == "prompt answer source_end predictor predictor isolated isolated answer"
    assert row.labelled.tolist() == [False, True, True, False, False, True, True, True]
    (pair,) = row.pairs
    assert (pair.source_end, pair.source, pair.target) == (Readout(2, "b"), Readout(4, P2), Readout(6, "d"))
    assert pair.original == pair.copy == (5, 7)
    assert pair.source_segment is None and not pair.standalone
    expected = matrix("""
        1 . .  . .  . .  .
        1 1 .  . .  . .  .
        1 1 1  . .  . .  .
        1 1 1  1 .  . .  .
        1 1 1  1 1  . .  .
        . . .  . .  1 .  .
        . . .  . .  1 1  .
        1 1 1  1 1  1 1  1
    """)
    np.testing.assert_array_equal(row.visible, expected)


def test_inline_with_names_and_without_predictors():
    row = record(steps, forward="inline", predictors=0)
    assert row.texts == tuple(WORDS)
    assert row.pairs[0].source == Readout(2, "b")
    assert row.floors.tolist() == [0, 0, 0, 3, 3, 0]
    assert row.visible.sum() == 21 - 3 * 2
    both = record(steps, steps, forward="inline", predictors=1)
    assert both.pairs[1].source == Readout(7 + 3, P1)
    assert both.pairs[1].copy == (7 + 4, 7 + 6)
    np.testing.assert_array_equal(both.visible[7:, 7:], both.visible[:7, :7])
    assert not both.visible[7:, :7].any()


def test_inline_holds_the_first_pair_only():
    views = [Views(2, 3, 5), Views(4, 5, 6)]
    row = record(lambda k: paired(range(6), ((1, 6),), views, k), forward="inline")
    assert row.pairs == record(steps, forward="inline").pairs
    assert "original" not in row.kinds


# Prompt q, answer a. Source view: q b <p1> <p2> e; target view: q c e, read at c.
def standalone(predictors=2):
    source = Segment(ids(0, 2, 5), ISOLATED, 0, slots=predictors, slot=2)
    target = Segment(ids(0, 3, 5), ISOLATED, 0)
    pair = Pair(Read.one(1, 1 + predictors), Read.one(2, 1))
    return Example(ids(0, 1), (Tokens(1, 2),), (source, target), (pair,))


def test_views_apart():
    row = record(standalone)
    assert row.texts == ("q", "a", "q", "b", P1, P2, "e", "q", "c", "e")
    assert row.positions.tolist() == [0, 1, 0, 1, 2, 3, 4, 0, 1, 2]
    assert row.segments.tolist() == [0, 0, 1, 1, 1, 1, 1, 2, 2, 2]
    assert set(row.attaches.tolist()) == {-1}
    assert runs(row.names) == [("trunk: prompt", 1), ("trunk: answer", 1), ("source 1", 5), ("target 1", 3)]
    kinds = "prompt answer source source predictor predictor source target target target"
    assert " ".join(row.kinds) == kinds
    assert row.labelled.tolist() == [False, True, *[False] * 8]
    (pair,) = row.pairs
    assert (pair.source_end, pair.source, pair.target) == (Readout(6, "e"), Readout(5, P2), Readout(8, "c"))
    assert (pair.source_segment, pair.original, pair.copy, pair.standalone) == ((2, 7), None, (7, 10), True)
    expected = matrix("""
        1 .  . . . . .  . . .
        1 1  . . . . .  . . .
        . .  1 . . . .  . . .
        . .  1 1 . . .  . . .
        . .  1 1 1 . .  . . .
        . .  1 1 1 1 .  . . .
        . .  1 1 1 1 1  . . .
        . .  . . . . .  1 . .
        . .  . . . . .  1 1 .
        . .  . . . . .  1 1 1
    """)
    np.testing.assert_array_equal(row.visible, expected)


@pytest.mark.parametrize(("order", "texts"), [("ascending", (P1, P2)), ("descending", (P2, P1))])
def test_predictors_of_views_apart_stand_in_the_runs_order(order, texts):
    assert record(standalone, predictor_order=order).texts[4:6] == texts


def test_the_same_predictor_again_and_again():
    row = record(steps, predictors=3, same_predictor=True)
    assert row.texts[6:9] == (P1, P1, P1)
    assert row.ids[6:9].tolist() == [6, 6, 6]
    assert row.kinds[6:9] == ("predictor",) * 3


def test_shared_branches_and_copies():
    # Steps a, b, c and horizons 1 and 2: a -> b, a -> c, b -> c.
    views = [Views(1, 2, 3), Views(1, 3, 4), Views(2, 3, 4)]
    row = record(lambda k: paired([0, 1, 2, 3, 5], ((1, 5),), views, k), predictors=1)
    assert row.texts == ("q", "a", "b", "c", "e", P1, "b", "c", P1)
    assert row.names[5:] == ("branch 1", "target 1", "target 2", "branch 3")
    assert row.positions.tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 3]
    assert row.kinds[:5] == ("prompt", "source_end", "source_end", "original", "answer")
    assert [pair.source.index for pair in row.pairs] == [5, 5, 8]
    assert [pair.target.index for pair in row.pairs] == [6, 7, 7]
    assert [pair.copy for pair in row.pairs] == [(6, 7), (7, 8), (7, 8)]
    assert [pair.original for pair in row.pairs] == [(2, 3), (3, 4), (3, 4)]
    expected = matrix("""
        1 . . . .  .  .  .  .
        1 1 . . .  .  .  .  .
        1 1 1 . .  .  .  .  .
        1 1 1 1 .  .  .  .  .
        1 1 1 1 1  .  .  .  .
        1 1 . . .  1  .  .  .
        . . . . .  .  1  .  .
        . . . . .  .  .  1  .
        1 1 1 . .  .  .  .  1
    """)
    np.testing.assert_array_equal(row.visible, expected)


def test_split():
    def text(predictors, target=(2, 3), origin=2):
        segments = Segment(ids(), 1, 2, slots=predictors), Segment(ids(*target), ISOLATED, 0, origin=origin)
        return Example(ids(0, 1, 2, 3), (Tokens(1, 4),), segments, (Pair(Read.one(1, 0), Read.one(2, 1)),))

    row = record(text, predictors=1)
    assert row.texts == ("q", "a", "b", "c", P1, "b", "c")
    assert row.positions.tolist() == [0, 1, 2, 3, 2, 0, 1]
    assert " ".join(row.kinds) == "prompt source_end original original predictor target target"
    assert row.names[4:] == ("branch 1", "target 1", "target 1")
    (pair,) = row.pairs
    assert (pair.source_end, pair.source, pair.target) == (Readout(1, "a"), Readout(4, P1), Readout(6, "c"))
    assert (pair.original, pair.copy, pair.standalone) == ((2, 4), (5, 7), False)
    assert row.visible[4].tolist() == [True, True, False, False, True, False, False]
    assert row.visible[6].tolist() == [False] * 5 + [True, True]
    other = record(lambda k: text(k, (2, 4), None), predictors=1)  # text of its own
    assert other.pairs[0].original is None and "original" not in other.kinds


def test_two_pass_rows():
    row = record(steps, forward="two_pass")
    assert row.texts == (*WORDS, "q", "a", "b", P1, P2, "c", "d")
    assert row.positions.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6]
    assert runs(row.names)[2:] == [("source 1", 5), ("target 1", 2)]
    assert row.kinds[6:] == ("source", "source", "source", "predictor", "predictor", "target", "target")
    (pair,) = row.pairs
    assert (pair.source_end, pair.source, pair.target) == (Readout(2, "b"), Readout(10, P2), Readout(12, "d"))
    assert (pair.source_segment, pair.original, pair.copy) == ((6, 11), (3, 5), (11, 13))
    blocks = [(0, 6), (6, 11), (11, 13)]
    expected = np.zeros((13, 13), bool)
    for start, stop in blocks:
        expected[start:stop, start:stop] = np.tri(stop - start)
    np.testing.assert_array_equal(row.visible, expected)
    alone = record(plain, forward="two_pass")
    assert alone.texts == tuple(WORDS) and alone.pairs == ()


def test_two_pass_rows_are_shared():
    views = [Views(1, 2, 3), Views(1, 3, 4)]
    row = record(lambda k: paired([0, 1, 2, 3, 5], ((1, 5),), views, k), predictors=1, forward="two_pass")
    assert runs(row.names[5:]) == [("source 1", 3), ("target 1", 1), ("target 2", 1)]
    assert [pair.source.index for pair in row.pairs] == [7, 7]
    assert [pair.target.index for pair in row.pairs] == [8, 9]
    alone = record(standalone, forward="two_pass")
    np.testing.assert_array_equal(alone.visible, record(standalone).visible)
    assert alone.pairs == record(standalone).pairs


def test_every_kind_is_explained():
    rows = [record(steps, plain), record(steps, forward="inline"), record(standalone)]
    assert {kind for row in rows for kind in row.kinds} == set(KINDS) - {"span", "padding"}
