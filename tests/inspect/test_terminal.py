"""The drawing of a row: what it shows, that it is the record's matrix, and that text in the data does nothing."""

import io
import re
import subprocess
import sys

import numpy as np
import pytest
from rich.cells import cell_len

from stepjepa.inspect.record import ASCII, UNICODE, token_label
from stepjepa.inspect.terminal import draw, make_console, mask_lines, shown_positions, token_lines
from support.models import Views, paired
from support.records import row_record

HOSTILE = ["[bold]q[/bold]", "[/]", "\x1b[31mb\x1b[0m", " \U0001f600\u200d\u202e", "\r\n", ":smile:\t", "\x07\x9b"]


class Screen(io.StringIO):
    """A terminal that remembers what was written."""

    encoding = "utf-8"

    def isatty(self):
        return True


def record(words=("q", "a", "b", "c", "d", "e"), predictors=2, length=None):
    length = length or len(words)
    example = paired(range(length), ((1, length),), [Views(2, 3, length - 1)], predictors)
    return row_record([example], predictors, lambda index: words[index % len(words)], vocabulary=length)


@pytest.fixture(autouse=True)
def terminal_with_colours(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def drawn(row, width=80, file=None, **options):
    file = io.StringIO() if file is None else file
    draw([("", row)], make_console(file, width), **options)
    return file.getvalue()


def test_a_drawing_in_full():
    text = drawn(record(), title="row 0", notes=["a note"])
    lines = [line.rstrip() for line in text.splitlines()]
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


def seen_in(lines, blocks, width):
    """The matrix that a drawing of half blocks shows."""
    matrix = []
    for line in lines:
        cells = [blocks.index(cell) for cell in line.plain[10:].ljust(width, blocks[0])]
        matrix += [[bool(cell & 1) for cell in cells], [bool(cell & 2) for cell in cells]]
    return np.array(matrix[:width])


@pytest.mark.parametrize("length", [6, 7, 40])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("width", [30, 60, 200])
def test_the_blocks_are_the_matrix(length, glyphs, width):
    row = record(length=length)
    shown = shown_positions(row, width - 10)
    lines = list(mask_lines(row, width, glyphs))
    drawing = lines[2:] if len(shown) == len(row) else lines[3:]
    np.testing.assert_array_equal(seen_in(drawing, glyphs.blocks, len(shown)), row.visible[np.ix_(shown, shown)])
    assert max(len(line.plain) for line in drawing) <= width


def test_a_wide_row_is_shortened_and_says_so():
    row = record(length=200)
    text = drawn(row, width=60)
    assert f"50 of {len(row)} positions fit" in text
    assert "positions fit" not in drawn(row, width=len(row) + 10)
    shown = shown_positions(row, 50)
    assert len(shown) == 50 and shown == sorted(set(shown))
    pair = row.pairs[0]
    edges = {0, 1, 199, 200, 201, 202, len(row) - 1}
    assert edges | {pair.source_end.index, pair.source.index, pair.target.index} <= set(shown)
    assert len(shown_positions(row, 5)) == 5


def test_token_lines_fit_the_width():
    row = record(words=["word", " and", " \u65e5\u672c"], length=100)
    lines = [line.plain for line in token_lines(row, 60)]
    assert 50 < max(map(cell_len, lines)) <= 60
    assert sum(line.count("\u65e5\u672c") for line in lines) == row.texts.count(" \u65e5\u672c")


def test_text_in_the_data_does_nothing():
    text = drawn(record(words=HOSTILE))
    assert all(character == "\n" or character.isprintable() for character in text)
    for shown in ("[bold]q[/bold]", "[/]", r"\x1b[31mb\x1b[0m", "·\U0001f600\\u200d\\u202e", "\\r↵", ":smile:⇥"):
        assert shown in text
    assert r"\x07\x9b" in text
    coloured = drawn(record(words=HOSTILE), file=Screen())
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text  # nothing but rich's own colours is added


def test_colour_on_terminals_only(monkeypatch):
    assert "\x1b[" in drawn(record(), file=Screen())
    assert "\x1b" not in drawn(record())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in drawn(record(), file=Screen())


def test_an_encoding_without_half_blocks():
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding="ascii")
    draw([("", record(words=["\u65e5", " x", "\n", "c", "d", "e"]))], make_console(file, 80))
    file.flush()
    text = buffer.getvalue().decode("ascii")
    assert "     0 .a #." in text
    assert r"\u65e5" in text
    assert r"\n <end of source 1>|c" in text


def test_several_examples_are_told_apart():
    example = paired(range(6), ((1, 6),), [Views(2, 3, 5)], 1)
    row = row_record([example, example], 1, "qabcde".__getitem__, vocabulary=6)
    text = drawn(row)
    assert "0 trunk: prompt      0         0  q" in text
    assert "1 trunk: prompt      9         0  q" in text
    assert "example 1, pair 1  source ends at 11" in text


def test_a_row_without_pairs():
    row = row_record([paired(range(3), ((1, 3),))], 2, "abc".__getitem__, vocabulary=3)
    text = drawn(row, notes=["no pair: [red]why[/red]\x1b"])
    assert "pairs: none" in text
    assert r"no pair: [red]why[/red]\x1b" in text


def test_labels_of_tokens():
    assert token_label(" a\tb\r\n") == "·a⇥b\\r↵"
    assert token_label(" a\tb\r\n", ASCII) == " a\\tb\\r\\n"
    assert token_label("") == ""


def test_no_torch_is_loaded():
    code = "import sys, stepjepa.inspect.terminal, stepjepa.cli.check; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
