"""What batches of examples cost: positions of padded rows and of packed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stepjepa.data.types import Batch, Example
from stepjepa.inspect.record import Form
from stepjepa.inspect.style import counted


@dataclass
class Padding:
    """Positions that a batch takes, padding included; means over the batches.

    Attributes:
        batch_size: examples of a batch; `batches`: number of batches.
        max_length: in tokens.
        sequences: rows of a batch with every chat and every view a row of its own.
        fixed_chats, fixed_views: all rows padded to `max_length`: the chats alone; chats and views.
        longest_chats, longest_views: the same, padded to the batch's longest chat, and longest view.
        packed: as training lays the batch out; `packed_rows`: its rows.
        tokens: those of them that are no padding.
    """

    batch_size: int
    batches: int
    max_length: int
    sequences: float
    fixed_chats: float
    fixed_views: float
    longest_chats: float
    longest_views: float
    packed: float
    packed_rows: float
    tokens: float


Collator = Callable[[Sequence[Example]], Batch]


def row_collator(
    form: Form,
    vocabulary: int,
    pad_token_id: int = 0,
    *,
    pad_to_multiple_of: int = 8,
    separate_targets: bool = False,
    max_row_length: int | None = None,
) -> Collator:
    """Training's collator for a form; loads torch."""
    from stepjepa.forest.collate import ForestCollator, TwoPassCollator

    ids = form.predictor_ids(vocabulary)
    if form.forward == "two_pass":
        return TwoPassCollator(ids, pad_token_id, separate_targets)
    return ForestCollator(
        ids,
        pad_token_id,
        pad_to_multiple_of,
        max_row_length=max_row_length,
        inline=form.forward == "inline",
        separate_targets=separate_targets,
    )


def measure_padding(
    examples: Sequence[Example], collator: Collator, standalone: Collator, batch_size: int, max_length: int
) -> Padding:
    """Lay out batches of `batch_size` examples in their order; a last batch that is not full counts only if it is alone.

    Args:
        examples: at least one, as training samples them.
        collator: of training; `standalone`: one that gives every chat and every view a row.
    """
    count = max(len(examples) // batch_size, 1)
    sums = np.zeros(8)
    for number in range(count):
        batch = examples[number * batch_size : (number + 1) * batch_size]
        packed, rows = collator(batch), standalone(batch)
        shapes = [one.input_ids.shape for one in rows.every_rows]
        areas = [height * width for height, width in shapes]
        every = sum(height for height, _ in shapes)
        sums += (
            every,
            shapes[0][0] * max_length,
            every * max_length,
            areas[0],
            sum(areas),
            sum(one.input_ids.numel() for one in packed.every_rows),
            sum(len(one.input_ids) for one in packed.every_rows),
            sum(int(one.filled.sum()) for one in packed.every_rows),
        )
    return Padding(min(batch_size, len(examples)), count, max_length, *(sums / count).tolist())


def packing_line(
    examples: Sequence[Example],
    form: Form,
    *,
    vocabulary: int,
    separate_targets: bool = False,
    max_row_length: int | None = None,
) -> str:
    """How many positions a batch takes as it is laid out, and as rows of their own; loads torch.

    Args:
        separate_targets: the targets go through a pass of their own.
    """
    packs = form._replace(forward="packed") if form.forward == "two_pass" else form
    if form.forward == "inline":
        examples = [example.with_pairs(example.pairs[:1]) for example in examples]
    collator = row_collator(
        packs, vocabulary, pad_to_multiple_of=1, separate_targets=separate_targets, max_row_length=max_row_length
    )
    rows = row_collator(form._replace(forward="two_pass"), vocabulary)
    packed, alone = (measure_padding(examples, one, rows, len(examples), 1) for one in (collator, rows))
    if form.forward == "two_pass":
        return (
            f"two passes: {_taken(alone, len(examples))}, the chats padded to the longest chat and the views to the longest "
            f"view; packed into forests they take {int(packed.packed):,}"
        )
    words = f"{'inline' if form.forward == 'inline' else 'packing'}: {_taken(packed, len(examples))}"
    if separate_targets and packed.packed_rows > 1:
        words += " (targets in rows of their own, without gradient)"
    if alone.sequences > len(examples):
        words += (
            "; every chat and view in a row of its own (two passes) takes "
            f"{int(alone.packed):,}, {alone.packed / packed.packed:.1f} times as many"
        )
    return words


def _taken(measured: Padding, examples: int) -> str:
    positions = int(measured.packed)
    padding = positions - int(measured.tokens)
    filled = f"{padding:,} of them padding ({100 * padding / positions:.1f} %)" if padding else "no padding"
    rows = counted(int(measured.packed_rows), "row")
    return f"{counted(examples, 'example')} in {rows}, {positions:,} positions, {filled}"
