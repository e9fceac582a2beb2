"""The rows into which a batch's examples are really packed, as records, and what packing saves in words.

Shapes: T positions of a packed row, K predictors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepjepa.data.examples import Example
from stepjepa.forest.packing import plan_rows
from stepjepa.inspect.model import LAYOUTS, RowRecord, row_record
from stepjepa.inspect.padding import Form, Padding, measure_padding
from stepjepa.inspect.spans import TrunkSpan


def packed_rows(
    examples: Sequence[Example],
    form: Form,
    token_text: Callable[[int], str],
    *,
    vocabulary: int,
    pad_token_id: int = 0,
    max_row_length: int | None = None,
    tube_mode: str = "span",
    spans: Sequence[Sequence[TrunkSpan]] | None = None,
) -> list[RowRecord]:
    """The records of the rows that `forest.collate.ForestCollator` lays a batch into, padding included; loads torch.

    Two passes have no packed rows: their one record holds all rows of all examples, each a segment of its own.

    Args:
        examples: of one batch, at least one.
        form: how views are read and computed.
        token_text, vocabulary, tube_mode: see `model.row_record`.
        pad_token_id: fills rows.
        max_row_length: longest row to try.
        spans: for each example, see `model.row_record`.
    """
    from stepjepa.forest.collate import ForestCollator

    shared = {
        "token_text": token_text,
        "vocabulary": vocabulary,
        "predictor_order": "descending" if form.descending else "ascending",
        "same_predictor": form.same,
        "forward": form.forward,
        "tube_mode": tube_mode,
        "batch": len(examples),
    }
    if form.forward == "two_pass":
        return [row_record(examples, form.predictors, spans=spans, **shared)]  # type: ignore[arg-type]
    ids = tuple(form.predictor_ids(vocabulary))
    collator = ForestCollator(ids, pad_token_id, 1, max_row_length=max_row_length, inline=form.forward == "inline")
    forests = [LAYOUTS[form.forward](example, ids) for example in examples]
    rows = plan_rows([len(forest) for forest in forests], collator.attention_length, max_row_length)
    batch = collator.pack(forests, rows)
    names = ("input_ids", "position_ids", "example", "segment", "order", "attach", "floor")
    return [
        row_record(
            [examples[index] for index in members],
            form.predictors,
            spans=None if spans is None else [spans[index] for index in members],
            numbers=members,
            laid_out={name: batch[name][number].numpy() for name in names if name in batch},
            **shared,  # type: ignore[arg-type]
        )
        for number, members in enumerate(rows)
    ]


def packing_lines(
    examples: Sequence[Example],
    form: Form,
    *,
    vocabulary: int,
    separate_targets: bool = False,
    max_row_length: int | None = None,
) -> list[str]:
    """How many positions a batch takes as it is laid out, and as rows of their own; loads torch.

    Args:
        separate_targets: the targets go through a pass of their own.
    """
    from stepjepa.forest.collate import ForestCollator
    from stepjepa.forest.two_pass import TwoPassCollator

    ids = tuple(form.predictor_ids(vocabulary))
    inline = form.forward == "inline"
    collator = ForestCollator(
        ids, 0, 1, max_row_length=max_row_length, inline=inline, separate_targets=separate_targets
    )
    if inline:
        examples = [example._replace(pairs=example.pairs[:1]) for example in examples]
    packed = measure_padding(examples, collator, len(examples), 1)
    apart = measure_padding(examples, TwoPassCollator(ids, 0), len(examples), 1)
    if form.forward == "two_pass":
        return [
            f"two passes: {_taken(apart, len(examples))}, the chats padded to the longest chat and the views to the longest "
            f"view; packed into forests they take {int(packed.packed):,}"
        ]
    name = "inline" if inline else "packing"
    words = f"{name}: {_taken(packed, len(examples))}"
    if separate_targets and packed.packed_rows > 1:
        words += " (targets in rows of their own, without gradient)"
    if any(example.pairs for example in examples):
        more = apart.packed / packed.packed
        taken = f"{int(apart.packed):,}, {more:.1f} times as many"
        words += f"; every chat and view in a row of its own (two passes) takes {taken}"
    return [words]


def _taken(measured: Padding, examples: int) -> str:
    rows, positions = int(measured.packed_rows), int(measured.packed)
    padding = positions - int(measured.tokens)
    filled = f"{padding:,} of them padding ({100 * padding / positions:.1f} %)" if padding else "no padding"
    laid = f"{examples:,} example{'s' * (examples != 1)} in {rows:,} row{'s' * (rows != 1)}"
    return f"{laid}, {positions:,} positions, {filled}"
