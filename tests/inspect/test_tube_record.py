"""The record of a semantic tube: stretches of tokens typed by hand, and back to the combinations of states."""

import numpy as np
import pytest

from stepjepa.data.types import Example, Span
from stepjepa.objectives.semantic_tube import pairs_of_spans
from support.records import tube_record
from support.tube import tube_options

#       0    1    2  3  4   5    6    7  8  9
WORDS = "bos  hdr  a  b  c   eot  hdr2 d  e  eot2".split()
USER, ANSWER = Span(2, 5), Span(7, 9)


def example_of(pairs, length=10, start=7):
    return Example(np.arange(length, dtype=np.int32), (Span(start, length),), pairs=tuple(pairs))


def record(spans=(), mode="span", times=1, **options):
    pairs = pairs_of_spans(USER, ANSWER, spans, tube_options(mode=mode, times=times, **options))
    return tube_record([example_of(pairs)], WORDS.__getitem__, mode)


# mode, spans; of each pair the ends, what source and target cover, and the tokens of kind "span".
CASES = [
    ("span", [(1, 2)], [("s 2 a, t 3 b", ((2, 3), (4, 5), (7, 9)), ((3, 4),))], [3]),
    ("span", [(2, 4)], [("s 3 b, t 7 d", ((2, 4), (8, 9)), ((4, 5), (7, 8)))], [4, 7]),  # over the gap
    (
        "span",
        [(0, 3), (3, 5)],
        [("s 1 hdr, t 4 c", ((7, 9),), ((2, 5),)), ("s 6 hdr2, t 8 e", ((2, 5),), ((7, 9),))],
        [2, 3, 4, 7, 8],
    ),
    ("three_index", [(0, 2, 4)], [("s 1 hdr, r 3 b, t 7 d", ((4, 5), (7, 8)), ((2, 4),))], [2, 3, 4, 7]),
    ("e2e", (), [("", (USER,), (ANSWER,))], []),
    ("curvature", (), [("", ((n, n + 1),), ((n + 1, n + 2),)) for n in (2, 3, 7)], []),
]
NAMES = {
    "span": ("T - P", "P", "T"),
    "three_index": ("r to t", "s to r", None),
    "e2e": ("user", "answer", None),
    "curvature": ("before", "after", None),
}


@pytest.mark.parametrize(("mode", "spans", "pairs", "kinds"), CASES, ids=str)
def test_stretches(mode, spans, pairs, kinds):
    row = record(spans, mode, times=max(len(spans), 1))
    assert len(row) == 10 and [pair.number for pair in row.pairs] == [*range(1, len(pairs) + 1)]
    for sampled, (ends, source, target) in zip(row.pairs, pairs, strict=True):
        assert ", ".join(f"{name} {index} {row.texts[index]}" for name, index in sampled.ends) == ends
        assert (sampled.source.covered, sampled.target.covered) == (source, target)
        total = sampled.total and sampled.total.name
        assert (sampled.kind, sampled.source.name, sampled.target.name, total) == (mode, *NAMES[mode])
        assert sampled.weight == pytest.approx(1 / 3 if mode == "curvature" else 1)
    assert [index for index, kind in enumerate(row.kinds) if kind == "span"] == kinds
    np.testing.assert_array_equal(row.visible, np.tri(10, dtype=bool))


def test_terms_and_weights():
    (sampled,) = record([(1, 2)]).pairs
    assert [(term.token, term.coefficient) for term in sampled.target.terms] == [(2, -1), (3, 1)]
    assert [(term.token, term.coefficient) for term in sampled.total.terms] == [(1, -1), (4, 1), (6, -1), (8, 1)]
    assert sampled.total.covered == ((2, 5), (7, 9))
    (sampled,) = record([(0, 1)], length_adjustment="jaccard_like").pairs
    assert sampled.weight == pytest.approx(1 - 3 / 5)


def test_several_examples():
    example = example_of(pairs_of_spans(USER, ANSWER, [(1, 2)], tube_options()))
    row = tube_record([example.plain(), example], WORDS.__getitem__)
    (sampled,) = row.pairs
    assert (sampled.example, sampled.number) == (1, 1) and sampled.target.covered == ((13, 14),)
    assert [(name, index, row.texts[index]) for name, index in sampled.ends] == [("s", 12, "a"), ("t", 13, "b")]
