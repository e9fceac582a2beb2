"""Drawings of every form and of the semantic tube, in full or by their lines."""

import io

import numpy as np
import pytest

from stepjepa.data.types import ISOLATED, Example, Pair, Read, Segment, Span
from stepjepa.inspect.record import KINDS
from stepjepa.inspect.terminal import draw, make_console
from stepjepa.objectives.semantic_tube import pairs_of_spans
from support.models import Views, paired
from support.records import row_record, tube_record
from support.tube import tube_options


@pytest.fixture(autouse=True)
def no_colours(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")


def drawn(row, width):
    file = io.StringIO()
    draw([("", row)], make_console(file, width))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def shown(example, predictors=2, **options):
    return drawn(row_record([example], predictors, "qabcdefghij".__getitem__, vocabulary=11, **options), 140)


def test_the_inline_form():
    example = paired(range(6), ((1, 6),), [Views(2, 3, 5)], 2)
    lines = shown(example, forward="inline")
    assert lines == [
        "8 tokens: 6 on the trunk (5 labelled), 2 predictors; 1 pair",
        "",
        "  . trunk, no label",
        "  a trunk, labelled",
        "  s end of a source view on the trunk",
        "  i a target view isolated in its place",
        "  p predictor token",
        "",
        "segment        index  position  tokens",
        "trunk: prompt      0         0  q",
        "trunk: answer      1         1  a│b «end of source 1»",
        "predictors         3         3  <|predictor_1|>│<|predictor_2|> «source 1»",
        "trunk: answer      5         5  c│d «target 1»│e",
        "",
        "LM loss on 5 tokens: 1-2, 5-7",
        "",
        "pairs",
        '  pair 1  source ends at 2 "b", read at 4 "<|predictor_2|>"',
        '          target 5-6 (isolated in its place), read at 6 "d"',
        "",
        "who sees whom (down: who looks, two a line; across: who is seen)",
        "          .asppiia",
        "     0 .a █▄",
        "     2 sp ███▄",
        "     4 pi ▀▀▀▀▀▄",
        "     6 ia ▄▄▄▄▄██▄",
    ]


def test_views_apart_and_their_rows_in_two_passes():
    source = Segment(np.array([0, 2, 5], np.int32), ISOLATED, 0, slots=2, slot=2)
    target = Segment(np.array([0, 3], np.int32), ISOLATED, 0)
    pair = Pair(Read.one(1, 2), Read.one(2, 1))
    example = Example(np.arange(2, dtype=np.int32), (Span(1, 2),), (source, target), (pair,))
    lines = shown(example)
    assert (
        lines[0]
        == "9 tokens: 2 on the trunk (1 labelled), 2 predictors, 3 in sources of their own, 2 in isolated targets; 1 pair"
    )
    assert "source 1           2         0  q│b│<|predictor_1|> «source 1»│<|predictor_2|>│e" in lines
    assert "target 1           7         0  q│c «target 1»" in lines
    assert '  pair 1  source 2-6, read at 4 "<|predictor_1|>"' in lines
    assert '          target 7-8, read at 8 "c"' in lines
    assert lines[-6:] == [
        "          .avvppvtt",
        "     0 .a █▄",
        "     2 vv   █▄",
        "     4 pp   ███▄",
        "     6 vt   ▀▀▀▀▀▄",
        "     8 t         ▀▀",
    ]
    steps = paired(range(6), ((1, 6),), [Views(2, 3, 5)], 2)
    lines = shown(steps, forward="two_pass")
    assert '  pair 1  source ends at 2 "b" (row 6-10), read at 10 "<|predictor_2|>"' in lines
    assert '          target 11-12 (on the trunk 3-4), read at 12 "d"' in lines


def test_shared_segments_say_whom_they_serve():
    views = [Views(1, 2, 3), Views(1, 3, 4), Views(2, 3, 4)]
    lines = shown(paired(range(5), ((1, 5),), views, 1), predictors=1)
    assert "trunk: answer      1         1  a «end of source 1, 2»│b «end of source 3»│c│d" in lines
    assert "branch 1           5         2  <|predictor_1|> «source 1, 2»" in lines
    assert "target 2           7         4  c «target 2, 3»" in lines
    assert "branch 3           8         3  <|predictor_1|> «source 3»" in lines
    lines = shown(paired(range(5), ((1, 5),), views), predictors=0)
    assert any("a «end of source 1, 2; source 1, 2»│b «end of source 3; source 3»│c│d" in line for line in lines)


def shown_tube(mode, spans=()):
    pairs = pairs_of_spans(Span(2, 5), Span(7, 9), spans, tube_options(mode=mode))
    example = Example(np.arange(10, dtype=np.int32), (Span(7, 10),), pairs=tuple(pairs))
    return drawn(tube_record([example], "qabcdefghij".__getitem__, mode), 140)


def test_drawn_spans():
    lines = shown_tube("span", [(2, 4)])
    assert lines[:6] == [
        "10 tokens: 10 on the trunk (3 labelled); 1 span",
        "",
        "  . trunk, no label",
        "  a trunk, labelled",
        "  x within a sampled span",
        "",
    ]
    first = lines.index("spans (h: the state of a token)")
    assert lines[first + 1 : first + 6] == [
        '  pair 1  s = 3 "c", t = 7 "g"',
        '          T      h[4] - h[1] + h[8] - h[6]: 2-4 ("b" .. "d"), 7-8 ("g" .. "h")',
        '          P      h[4] - h[3] + h[7] - h[6]: 4 ("d"), 7 ("g")',
        '          T - P  h[3] - h[1] + h[8] - h[7]: 2-3 ("b" .. "c"), 8 ("h")',
        "          compared: T - P (source) with P (target)",
    ]
    assert "trunk: prompt      0         0  q│a│b│c «s 1»│d│e│f" in lines
    assert "trunk: answer      7         7  g «t 1»│h│i" in lines
    three = shown_tube("three_index", [(0, 2, 4)])
    assert '  pair 1  s = 1 "a", r = 3 "c", t = 7 "g"' in three
    assert "          compared: r to t (source) with s to r (target)" in three


def test_vectors_that_are_not_drawn():
    lines = shown_tube("mean")
    assert lines[0].endswith("; 1 pair of vectors")
    assert '  pair 1  user    mean of h over 2-4 ("b" .. "d")' in lines
    lines = shown_tube("curvature")
    assert lines[0].endswith("; 3 pairs of vectors")
    assert '  pair 3  before  h[7] - h[6]: 7 ("g")' in lines
    assert "          compared: before (source) with after (target), weight 0.333" in lines
    many = pairs_of_spans(Span(2, 30), Span(32, 60), (), tube_options(mode="curvature"))
    example = Example(np.arange(60, dtype=np.int32), (Span(32, 60),), pairs=tuple(many))
    row = tube_record([example], str, "curvature")
    assert "  and 48 more" in drawn(row, 140)


def test_every_kind_has_a_letter_of_its_own():
    assert len({kind.letter for kind in KINDS.values()}) == len(KINDS)
