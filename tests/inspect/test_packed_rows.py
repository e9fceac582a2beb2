"""Several examples and several K: the rows they are packed into, what is said about them, and rows side by side."""

import io

import pytest
from rich.cells import cell_len

from stepjepa.forest.collate import ForestCollator
from stepjepa.inspect.layout import packing_line, row_records
from stepjepa.inspect.terminal import draw, make_console
from support.models import Views, paired
from support.records import form_of, row_record


# Trunks of 6, 6 and 3 tokens; with K = 2 the first two have 2 predictors and 2 target tokens.
def first(predictors=2):
    return paired(range(6), ((1, 6),), [Views(2, 3, 5)], predictors)


FIRST = first()
PLAIN = paired(range(3), ((1, 3),))
BATCH = [FIRST, FIRST, PLAIN]


@pytest.mark.parametrize("longest", [None, 10, 13])
@pytest.mark.parametrize("form", ["packed", "inline"])
def test_rows_are_the_collator_s(form, longest):
    rows = row_records(BATCH, form_of(2, 6, forward=form, pad_token_id=5, max_row_length=longest), str)
    batch = ForestCollator((6, 7), 5, 1, max_row_length=longest, inline=form == "inline")(BATCH)
    packed = batch.rows
    assert len(rows) == len(packed.input_ids)
    for number, row in enumerate(rows):
        assert row.batch == 3 and row.ids.tolist() == packed.input_ids[number].tolist()
        assert row.examples.tolist() == packed.example[number].tolist()
        assert row.segments.tolist() == packed.segment[number].tolist()
        assert [kind == "padding" for kind in row.kinds] == (packed.example[number] < 0).tolist()
    width = len(rows[0])
    found = [number * width + pair.source.index for number, row in enumerate(rows) for pair in row.pairs]
    assert sorted(found) == sorted(batch.sources.positions.tolist())


def test_how_many_positions_it_takes():
    # Forests of 10, 10 and 3 tokens. Apart: 3 chats of up to 6, and 4 views of up to 5 tokens (a b c and two predictors).
    line = packing_line(BATCH, form_of(2, 6, max_row_length=13))
    assert line == (
        "packing: 3 examples in 2 rows, 26 positions, 3 of them padding (11.5 %); every chat and view in a row of its own "
        "(two passes) takes 38, 1.5 times as many"
    )
    line = packing_line([FIRST], form_of(2, 6))
    assert (
        line.startswith("packing: 1 example in 1 row, 10 positions, no padding; every chat and view")
        and "takes 16" in line
    )
    line = packing_line(BATCH, form_of(2, 6, forward="two_pass"))
    assert line.startswith("two passes: 3 examples in 7 rows, 38 positions, 9 of them padding (23.7 %)")
    assert line.endswith("packed into forests they take 23")
    assert packing_line([PLAIN], form_of(0)) == "packing: 1 example in 1 row, 3 positions, no padding"
    line = packing_line([FIRST, FIRST], form_of(2, 6, separate_targets=True))
    assert "(targets in rows of their own, without gradient)" in line


def lines_of(draw_into, width):
    file = io.StringIO()
    draw_into(make_console(file, width))
    return file.getvalue().splitlines()


def test_padding_is_counted_not_spelled_out():
    record = next(r for r in row_records(BATCH, form_of(2, 6, max_row_length=13), str) if "padding" in r.kinds)
    lines = lines_of(lambda console: draw([("", record)], console, "rows", packing=["packing: so"]), 90)
    assert "13 positions: " in lines[0] and "3 of padding" in " ".join(lines[:2]) and "packing: so" in lines[:3]
    (line,) = (line for line in lines if line.startswith("padding "))
    assert line.split() == ["padding", "10", "0", "3", "in", "all"]
    assert "  - padding, which sees itself alone" in lines


def beside(width, counts=(1, 2)):
    several = [(f"K = {k}", row_record([first(k)], k, "qabcde".__getitem__, vocabulary=6)) for k in counts]
    return lines_of(lambda console: draw(several, console, "title", ["a note"], ["K = 1: packing"]), width)


def test_rows_side_by_side():
    lines = beside(130)
    assert lines[:3] == ["title", "K = 1: packing", "a note"]
    assert sum(line.startswith("  p predictor token") for line in lines) == 1
    heads = next(line for line in lines if line.startswith("K = 1   "))
    column = heads.index("K = 2")
    assert max(cell_len(line) for line in lines) <= 130
    (both,) = (line for line in lines if line.startswith("branch 1"))
    assert both[:column].split()[4:] == ["<|predictor_1|>", "\u00absource", "1\u00bb"]
    assert both[column:].split() == ["branch", "1", "6", "3", "<|predictor_1|>"]  # the second one is on the next line
    narrow = beside(80)
    assert sum(line == "K = 1" for line in narrow) == sum(line == "K = 2" for line in narrow) == 1
    assert max(cell_len(line) for line in narrow) <= 80
    masks = [line for line in narrow if line.endswith("asooapptt")]
    assert len(masks) == 1  # the second K's; the first has one predictor


def test_three_beside_each_other_in_two_groups():
    lines = beside(125, (0, 1, 2))
    heads = [line.split() for line in lines if line.startswith("K = ") and "packing" not in line]
    assert heads == [["K", "=", "0", "K", "=", "1"], ["K", "=", "2"]]
