"""The drawing of a row: what it shows in every form, the record's matrix, and that text in the data does nothing."""

import io
import re

import numpy as np
import pytest
from rich.cells import cell_len

from stepjepa.data.types import ISOLATED, Example, Pair, Read, Segment, Span
from stepjepa.inspect.layout import row_records
from stepjepa.inspect.record import token_label
from stepjepa.inspect.terminal import draw, make_console, mask_lines, shown_positions, token_lines
from stepjepa.objectives.semantic_tube import pairs_of_spans
from support.models import Views, paired
from support.records import form_of, row_record, tube_record
from support.tube import tube_options

HOSTILE = ["[bold]q[/bold]", "[/]", "\x1b[31mb\x1b[0m", " \U0001f600\u200d\u202e", "\r\n", ":smile:\t", "\x07\x9b"]
LETTERS = "qabcdefghij"


class Screen(io.StringIO):
    """A terminal that remembers what was written."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def terminal_with_colours(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def record(words="qabcde", length=None):
    length = length or len(words)
    example = paired(range(length), ((1, length),), [Views(2, 3, length - 1)], predictors=2)
    return row_record([example], 2, lambda index: words[index % len(words)], vocabulary=length)


def drawn(row, width=80, file=None, **options):
    file = io.StringIO() if file is None else file
    draw([row], make_console(file, width), **options)
    return file.getvalue()


def shown(example, predictors=2, **options):
    row = row_record([example], predictors, LETTERS.__getitem__, vocabulary=11, **options)
    return [line.rstrip() for line in drawn(row, 140).splitlines()]


def shown_tube(mode, spans=()):
    pairs = pairs_of_spans(Span(2, 5), Span(7, 9), spans, tube_options(mode=mode))
    example = Example(np.arange(10, dtype=np.int32), (Span(7, 10),), pairs=tuple(pairs))
    return [line.rstrip() for line in drawn(tube_record([example], LETTERS.__getitem__, mode), 140).splitlines()]


def test_a_drawing_in_full():
    lines = [line.rstrip() for line in drawn(record(), title="row 0", notes=["a note"]).splitlines()]
    assert lines == [
        "row 0: 10 tokens: 6 on the trunk (5 labelled), 2 predictors, 2 in isolated",
        "targets; 1 pair",
        "a note",
        "",
        "  . trunk, no label",
        "  a trunk, labelled",
        "  s end of a source view on the trunk",
        "  o a target view's original on the trunk",
        "  p predictor token",
        "  t isolated copy of a target view",
        "",
        "segment        index  position  tokens",
        "trunk: prompt      0         0  q",
        "trunk: answer      1         1  a│b «end of source 1»│c│d│e",
        "branch 1           6         3  <|predictor_1|>│<|predictor_2|> «source 1»",
        "target 1           8         5  c│d «target 1»",
        "",
        "LM loss on 5 tokens: 1-5",
        "",
        "pairs",
        '  pair 1  source ends at 2 "b", read at 7 "<|predictor_2|>"',
        '          target 8-9 (on the trunk 3-4), read at 9 "d"',
        "",
        "who sees whom (down: who looks, two a line; across: who is seen)",
        "          .asooapptt",
        "     0 .a █▄",
        "     2 so ███▄",
        "     4 oa █████▄",
        "     6 pp ███   █▄",
        "     8 tt         █▄",
    ]


STEPS = paired(range(6), ((1, 6),), [Views(2, 3, 5)], 2)
SOURCE = Segment(np.array([0, 2, 5], np.int32), ISOLATED, 0, slots=2, slot=2)
TARGET = Segment(np.array([0, 3], np.int32), ISOLATED, 0)
STANDALONE = Example(
    np.arange(2, dtype=np.int32), (Span(1, 2),), (SOURCE, TARGET), (Pair(Read.one(1, 2), Read.one(2, 1)),)
)


@pytest.mark.parametrize(
    ("example", "predictors", "forward", "lines"),
    [
        (
            STEPS,
            2,
            "inline",
            [
                "8 tokens: 6 on the trunk (5 labelled), 2 predictors; 1 pair",
                "  i a target view isolated in its place",
                "predictors         3         3  <|predictor_1|>│<|predictor_2|> «source 1»",
                "trunk: answer      5         5  c│d «target 1»│e",
                "LM loss on 5 tokens: 1-2, 5-7",
                '          target 5-6 (isolated in its place), read at 6 "d"',
                "     6 ia ▄▄▄▄▄██▄",
            ],
        ),
        (
            STANDALONE,
            2,
            "packed",
            [
                "source 1           2         0  q│b│<|predictor_1|> «source 1»│<|predictor_2|>│e",
                "target 1           7         0  q│c «target 1»",
                '  pair 1  source 2-6, read at 4 "<|predictor_1|>"',
                '          target 7-8, read at 8 "c"',
                "     6 vt   ▀▀▀▀▀▄",
                "     8 t         ▀▀",
            ],
        ),
        (STEPS, 2, "two_pass", ['  pair 1  source ends at 2 "b" (row 6-10), read at 10 "<|predictor_2|>"']),
        (
            paired(range(5), ((1, 5),), [Views(1, 2, 3), Views(1, 3, 4), Views(2, 3, 4)]),
            0,
            "packed",
            [
                "trunk: answer      1         1  a «end of source 1, 2; source 1, 2»│b «end of source 3; source 3»│c│d",
                "target 2           6         3  c «target 2, 3»",
            ],
        ),
    ],
)
def test_lines_of_every_form(example, predictors, forward, lines):
    found = shown(example, predictors, forward=forward)
    assert [line for line in lines if line not in found] == []


def test_sampled_spans():
    lines = shown_tube("span", [(2, 4)])
    assert lines[0] == "10 tokens: 10 on the trunk (3 labelled); 1 span" and "  x within a sampled span" in lines
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


def test_vectors_that_are_not_sampled():
    lines = shown_tube("mean")
    assert lines[0].endswith("; 1 pair of vectors") and '  pair 1  user    mean of h over 2-4 ("b" .. "d")' in lines
    lines = shown_tube("curvature")
    assert lines[0].endswith("; 3 pairs of vectors") and '  pair 3  before  h[7] - h[6]: 7 ("g")' in lines
    assert "          compared: before (source) with after (target), weight 0.333" in lines
    many = pairs_of_spans(Span(2, 12), Span(13, 23), (), tube_options(mode="curvature"))
    example = Example(np.arange(24, dtype=np.int32), (Span(13, 24),), pairs=tuple(many))
    assert "  and 12 more" in drawn(tube_record([example], str, "curvature"), 140).splitlines()


def seen_in(lines, blocks, width):
    """The matrix that a drawing of half blocks shows."""
    matrix = []
    for line in lines:
        cells = [blocks.index(cell) for cell in line.plain[10:].ljust(width, blocks[0])]
        matrix += [[bool(cell & 1) for cell in cells], [bool(cell & 2) for cell in cells]]
    return np.array(matrix[:width])


@pytest.mark.parametrize("length", [7, 40])
@pytest.mark.parametrize("width", [30, 60])
def test_the_blocks_are_the_matrix(length, width):
    row = record(length=length)
    shown = shown_positions(row, width - 10)
    lines = list(mask_lines(row, width))
    drawing = lines[2:] if len(shown) == len(row) else lines[3:]
    np.testing.assert_array_equal(
        seen_in(drawing, " \u2580\u2584\u2588", len(shown)), row.visible[np.ix_(shown, shown)]
    )
    assert max(len(line.plain) for line in drawing) <= width


def test_a_wide_row_is_shortened_and_says_so():
    row = record(length=60)
    assert f"50 of {len(row)} positions fit" in drawn(row, width=60)
    assert "positions fit" not in drawn(record(length=20), width=60)
    shown = shown_positions(row, 50)
    assert len(shown) == 50 and shown == sorted(set(shown))
    pair = row.pairs[0]
    edges = {0, 1, 59, 60, 61, 62, len(row) - 1}
    assert edges | {pair.views.source_end, pair.source.index, pair.target.index} <= set(shown)
    assert len(shown_positions(row, 5)) == 5


def test_token_lines_fit_the_width():
    row = record(words=["word", " and", " \u65e5\u672c"], length=40)
    lines = [line.plain for line in token_lines(row, 60)]
    assert 50 < max(map(cell_len, lines)) <= 60
    assert sum(line.count("\u65e5\u672c") for line in lines) == row.texts.count(" \u65e5\u672c")


def test_text_in_the_data_does_nothing():
    text = drawn(record(words=HOSTILE), notes=["no pair: [red]why[/red]\x1b"])
    assert all(character == "\n" or character.isprintable() for character in text)
    shown = ("[bold]q[/bold]", "[/]", r"\x1b[31mb\x1b[0m", "·\U0001f600\\u200d\\u202e", "\\r↵", ":smile:⇥", r"\x07\x9b")
    assert all(one in text for one in (*shown, r"no pair: [red]why[/red]\x1b"))
    coloured = drawn(record(words=HOSTILE), file=Screen())
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == drawn(record(words=HOSTILE))  # only rich's own colours are added

    assert token_label(" a\tb\r\n") == "·a⇥b\\r↵"


def test_colour_on_terminals_only(monkeypatch):
    assert "\x1b[" in drawn(record(), file=Screen()) and "\x1b" not in drawn(record())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in drawn(record(), file=Screen())


def test_several_examples_and_padding():
    example = paired(range(6), ((1, 6),), [Views(2, 3, 5)], 1)
    text = drawn(row_record([example, example], 1, LETTERS.__getitem__, vocabulary=6))
    assert "0 trunk: prompt      0         0  q" in text and "1 trunk: prompt      9         0  q" in text
    assert "example 1, pair 1  source ends at 11" in text
    assert "pairs: none" in drawn(row_record([example.plain()], 2, LETTERS.__getitem__, vocabulary=6))
    rows = row_records([STEPS, STEPS, paired(range(3), ((1, 3),))], form_of(2, 6, max_row_length=13), str)
    file = io.StringIO()
    draw(rows, make_console(file, 140), "rows", ["packing: so"], ["a note"])
    lines = file.getvalue().splitlines()
    assert lines[:3] == ["rows", "packing: so", "a note"]
    assert {"packed row 1 of 2", "packed row 2 of 2", "  - padding, which sees itself alone"} <= set(lines)
    (line,) = (line for line in lines if line.startswith("padding "))  # counted, not spelled out
    assert line.split() == ["padding", "10", "0", "3", "in", "all"]
    assert any(line.startswith("13 positions: ") and "3 of padding" in line for line in lines)
