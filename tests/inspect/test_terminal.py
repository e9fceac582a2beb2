"""The drawing of a row: what it shows in every form, the record's matrix, and that text in the data does nothing."""

import io
import re

import numpy as np
import pytest
from rich.console import Console

from stepjepa.data.types import ISOLATED, Example, Pair, Read, Segment, Span
from stepjepa.inspect.terminal import draw, mask_lines
from support.models import Views, paired
from support.records import row_record

HOSTILE = ["[bold]q[/bold]", "[/]", "\x1b[31mb\x1b[0m", " \U0001f600\u200d\u202e", "\r\n", ":smile:\t", "\x07\x9b"]


def record(words="qabcde", length=None):
    length = length or len(words)
    example = paired(range(length), ((1, length),), [Views(2, 3, length - 1)], predictors=2)
    return row_record(example, 2, lambda index: words[index % len(words)], vocabulary=length)


def drawn(row, width=80, colours=None, notes=("a note",)):
    file = io.StringIO()
    draw(row, Console(file=file, width=width, color_system=colours, no_color=False), "row 0", notes)
    return file.getvalue()


def lines_of(text):
    return [line.rstrip() for line in text.splitlines()]


def test_a_drawing_in_full():
    assert lines_of(drawn(record())) == [
        "row 0: 10 tokens: 6 on the trunk (5 labelled), 2 of predictors, 2 in isolated",
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
        "pairs (h: the state of a token)",
        '  pair 1  source ends at 2 "b", read at 7 "<|predictor_2|>"',
        '          target 8-9 (on the trunk 3-4), read at 9 "d"',
        "",
        "who sees whom (down: who looks, two per line; across: who is seen)",
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
INLINE_LINES = [
    "row 0: 8 tokens: 6 on the trunk (5 labelled), 2 of predictors; 1 pair",
    "  i a target view isolated in place",
    "predictors         3         3  <|predictor_1|>│<|predictor_2|> «source 1»",
    "trunk: answer      5         5  c│d «target 1»│e",
    "LM loss on 5 tokens: 1-2, 5-7",
    '          target 5-6 (isolated in place), read at 6 "d"',
    "     6 ia ▄▄▄▄▄██▄",
]
STANDALONE_LINES = [
    "source 1           2         0  q│b│<|predictor_1|> «source 1»│<|predictor_2|>│e",
    "target 1           7         0  q│c «target 1»",
    '  pair 1  source 2-6, read at 4 "<|predictor_1|>"',
    '          target 7-8, read at 8 "c"',
    "     6 vt   ▀▀▀▀▀▄",
    "     8 t         ▀▀",
]


@pytest.mark.parametrize(
    ("example", "inline", "lines"), [(STEPS, True, INLINE_LINES), (STANDALONE, False, STANDALONE_LINES)]
)
def test_lines_of_every_form(example, inline, lines):
    shown = lines_of(drawn(row_record(example, 2, "qabcdefghij".__getitem__, vocabulary=11, inline=inline), 140))
    assert [line for line in lines if line not in shown] == []


def test_a_wide_row_is_sampled():
    first, *lines = mask_lines(record(length=40), 30)
    assert first.plain.endswith("who is seen; 20 of 78 positions)")
    assert len(lines) == 1 + 20 // 2 and max(len(line.plain) for line in lines) == 30


def test_text_in_the_data_does_nothing():
    notes = ["no pair: [red]why[/red]\x1b"]
    text = drawn(record(words=HOSTILE), notes=notes)
    assert all(character == "\n" or character.isprintable() for character in text)
    shown = ("[bold]q[/bold]", "[/]", r"\x1b[31mb\x1b[0m", "·\U0001f600\\u200d\\u202e", "\\r↵", ":smile:⇥", r"\x07\x9b")
    assert all(one in text for one in (*shown, r"no pair: [red]why[/red]\x1b"))
    coloured = drawn(record(words=HOSTILE), colours="truecolor", notes=notes)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text != coloured  # only rich's own colours are added
