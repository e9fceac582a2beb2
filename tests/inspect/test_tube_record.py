"""The semantic tube in words: stretches of tokens typed by hand, and back to the combinations of states."""

import numpy as np
import pytest

from stepjepa.data.types import Example, Span
from stepjepa.objectives.semantic_tube import draw_pairs, pairs_of_spans
from support.records import tube_record
from support.tube import tube_of, tube_options

#       0    1    2  3  4   5    6    7  8  9
WORDS = "bos  hdr  a  b  c   eot  hdr2 d  e  eot2".split()
USER, ANSWER = Span(2, 5), Span(7, 9)


def record(spans=(), mode="span", times=1, **options):
    pairs = pairs_of_spans(USER, ANSWER, spans, tube_options(mode=mode, times=times, **options))
    example = Example(np.arange(10, dtype=np.int32), (Span(7, 10),), pairs=tuple(pairs))
    return tube_record([example], WORDS.__getitem__, mode)


def terms(vector):
    return [(term.index, term.coefficient) for term in vector.terms]


def ends(drawn):
    return [(name, term.index, term.text) for name, term in drawn.ends]


def test_a_span_within_the_question():
    row = record([(1, 2)])
    (drawn,) = row.vectors
    assert ends(drawn) == [("s", 2, "a"), ("t", 3, "b")]
    assert (drawn.total.name, drawn.source.name, drawn.target.name) == ("T", "T - P", "P")
    assert drawn.total.covered == ((2, 5), (7, 9))
    assert drawn.target.covered == ((3, 4),)
    assert drawn.source.covered == ((2, 3), (4, 5), (7, 9))
    assert terms(drawn.target) == [(2, -1), (3, 1)]
    assert terms(drawn.total) == [(1, -1), (4, 1), (6, -1), (8, 1)]
    assert row.kinds == (*["prompt"] * 3, "span", *["prompt"] * 3, "answer", "answer", "answer")
    assert row.pairs == () and len(row) == 10
    np.testing.assert_array_equal(row.visible, np.tri(10, dtype=bool))


def test_a_span_over_the_gap():
    (drawn,) = record([(2, 4)]).vectors
    assert ends(drawn) == [("s", 3, "b"), ("t", 7, "d")]
    assert drawn.target.covered == ((4, 5), (7, 8))
    assert drawn.source.covered == ((2, 4), (8, 9))
    assert record([(2, 4)]).kinds[4:8] == ("span", "prompt", "prompt", "span")


def test_spans_that_begin_or_end_with_the_content():
    row = record([(0, 3), (3, 5)], times=2)
    first, second = row.vectors
    assert (first.number, second.number) == (1, 2)
    assert first.target.covered == second.source.covered == ((2, 5),)
    assert first.source.covered == second.target.covered == ((7, 9),)
    assert ends(first) == [("s", 1, "hdr"), ("t", 4, "c")]
    assert ends(second) == [("s", 6, "hdr2"), ("t", 8, "e")]
    assert row.kinds.count("span") == 5


def test_three_indices():
    (drawn,) = record([(0, 2, 4)], "three_index").vectors
    assert ends(drawn) == [("s", 1, "hdr"), ("r", 3, "b"), ("t", 7, "d")]
    assert drawn.total is None
    assert drawn.target.covered == ((2, 4),)
    assert drawn.source.covered == ((4, 5), (7, 8))


@pytest.mark.parametrize("mode", ["e2e", "mean"])
def test_modes_that_draw_nothing(mode):
    row = record(mode=mode)
    (drawn,) = row.vectors
    assert (drawn.source.name, drawn.target.name) == ("user", "answer")
    assert (drawn.source.covered, drawn.target.covered) == ((USER,), (ANSWER,))
    assert drawn.ends == () and drawn.total is None
    assert "span" not in row.kinds


def test_curvature_has_a_pair_for_each_angle():
    row = record(mode="curvature")
    assert [(drawn.source.covered, drawn.target.covered) for drawn in row.vectors] == [
        (((2, 3),), ((3, 4),)),
        (((3, 4),), ((4, 5),)),
        (((7, 8),), ((8, 9),)),
    ]
    assert [drawn.weight for drawn in row.vectors] == pytest.approx([1 / 3] * 3)


def test_weights_and_several_examples():
    (drawn,) = record([(0, 1)], length_adjustment="jaccard_like").vectors
    assert drawn.weight == pytest.approx(1 - 3 / 5)
    pairs = pairs_of_spans(USER, ANSWER, [(1, 2)], tube_options())
    example = Example(np.arange(10, dtype=np.int32), (Span(7, 10),), pairs=tuple(pairs))
    row = tube_record([example.plain(), example], WORDS.__getitem__)
    (drawn,) = row.vectors
    assert (drawn.example, drawn.number) == (1, 1)
    assert drawn.target.covered == ((13, 14),)
    assert ends(drawn) == [("s", 12, "a"), ("t", 13, "b")]


@pytest.mark.parametrize("mode", ["span", "three_index", "e2e", "mean", "curvature"])
def test_records_are_the_tubes_terms(mode):
    # A content that begins with token 0, one that ends where the other begins, and one turn after another.
    options = tube_options(mode=mode, times=4 if mode in ("span", "three_index") else 1)
    rng = np.random.default_rng(0)
    turns = [((0, 3), (3, 6)), ((7, 8), (8, 10)), ((11, 15), (17, 20))]
    pairs = [pair for user, answer in turns for pair in draw_pairs(Span(*user), Span(*answer), options, rng)]
    tube = tube_of(pairs)
    words = [str(number) for number in range(20)]
    example = Example(np.arange(20, dtype=np.int32), (Span(3, 20),), pairs=tuple(pairs))
    row = tube_record([example], words.__getitem__, mode)
    assert len(row.vectors) == len(tube.weight) > 1
    for name in ("source", "target"):
        want, got = np.zeros((2, len(row.vectors), 20), np.float32)
        side = getattr(tube, name)
        np.add.at(want, (side.pair, side.position), side.coefficient)
        for pair, drawn in enumerate(row.vectors):
            for term in getattr(drawn, name).terms:
                got[pair, term.index] = term.coefficient
                assert term.text == words[term.index]
        np.testing.assert_array_equal(got, want)
