"""Rows that are not chats: plain text, and token ids with columns that label them.

The columns have the same meaning as in transformers and TRL:

    input_ids        7  8  9  4  5  2  0  0
    attention_mask   1  1  1  1  1  1  0  0     0: padding, which is removed
    labels        -100 -100 -100 4  5  2 -100 -100   -100: not labelled; else the token itself (the model shifts labels)
    completion_mask  0  0  0  1  1  1  0  0     1: labelled; the same for assistant_masks and loss_mask

A token is labelled if every mask labels it, as in TRL. If the labels are a copy of the ids, only the masks decide.

Shapes: T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepjepa.data.columns import (
    MASKS,
    LeftOver,
    first_filled,
    left_over,
    refuse_half_characters,
)
from stepjepa.data.tokens import spans_of
from stepjepa.data.types import NOT_LABELLED, Span
from stepjepa.errors import RowError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ATTENTION, LABELS = "attention_mask", "labels"


class StreamRow(NamedTuple):
    """A row of plain text or token ids.

    Attributes:
        ids: (T,) int32, without padding.
        labels: the labelled spans; None if no column labels tokens, so that all tokens are labelled.
        rest: the parts of the row that are not read.
    """

    ids: np.ndarray
    labels: tuple[Span, ...] | None = None
    rest: LeftOver = LeftOver()


def stream_row(row: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> StreamRow:
    """Return a row in tokens: its ids, or its text with the tokenizer's own special tokens and its EOS at the end; RowError
    as in `stream_content`."""
    content = stream_content(row, len(tokenizer))
    rest = left_over(row, ())
    if isinstance(content, StreamRow):
        return content._replace(rest=rest)
    ids = np.asarray(tokenizer(content, return_attention_mask=False)["input_ids"], dtype=np.int32)
    end = tokenizer.eos_token_id
    # Some tokenizers append their EOS by default, and a text may end in it.
    closed = end is None or (len(ids) and ids[-1] == end)
    if not closed:
        ids = np.append(ids, np.int32(end))
    return StreamRow(ids, rest=rest)


def stream_content(row: Mapping[str, Any], vocabulary: int = 2**31) -> str | StreamRow:
    """Return the text or the token ids of a row.

    Raises:
        RowError: no text, ids beyond the vocabulary, or columns that contradict each other.
    """
    if row.get("input_ids") is not None:
        return _token_row(row, vocabulary)
    text = row["text"]
    if not isinstance(text, str):
        raise RowError(
            "content_not_text", f"'text' has type {type(text).__name__}; it must be text"
        )
    refuse_half_characters(text, "'text'")
    if not text.strip():
        raise RowError("nothing_to_learn", "'text' is empty")
    return text


def _token_row(row: Mapping[str, Any], vocabulary: int) -> StreamRow:
    ids = _numbers(row, "input_ids", 0, vocabulary - 1)
    attended, *masks = (_mask(row, name, ids) for name in (ATTENTION, *MASKS))
    # The kept tokens must be contiguous: a gap would join tokens that never followed each other.
    kept = np.flatnonzero(attended)
    if not len(kept) or kept[-1] - kept[0] >= len(kept):
        raise _contradiction(
            f"{ATTENTION!r} masks all tokens, or some between others; it may only mask padding at the ends"
        )
    tokens = ids[kept].astype(np.int32)
    if first_filled(row, (LABELS, *MASKS)) is None:
        return StreamRow(tokens)

    masked = np.logical_and.reduce(masks)
    labels = (
        ids
        if row.get(LABELS) is None
        else _numbers(row, LABELS, NOT_LABELLED, vocabulary - 1, len(ids))
    )
    # The model shifts labels itself, so labels that are shifted in the file would be shifted twice.
    named = labels != NOT_LABELLED
    if (labels != ids)[named].any():
        known = f"the same token as in 'input_ids', or {NOT_LABELLED}"
        raise _contradiction(f"{LABELS!r} has other tokens; a label must be {known}")
    # Labels that are a copy of the ids, as collators make them, say nothing about training, so the masks decide.
    if named[attended].all():
        named = masked & attended if masked.all() else masked
    # Nothing predicts the first token, so the columns may differ there.
    elif not masked.all() and not np.array_equal(named[1:], masked[1:]):
        raise _contradiction(
            f"{LABELS!r} and the masks of the row label different tokens; keep only one of them"
        )
    if (named & ~attended).any():
        raise _contradiction(f"a token that {ATTENTION!r} masks is labelled")
    return StreamRow(tokens, spans_of(named[kept]))


def _contradiction(words: str) -> RowError:
    return RowError("contradicting_columns", words)


def _mask(row: Mapping[str, Any], name: str, ids: np.ndarray) -> np.ndarray:
    """A column of zeros and ones as (T,) bool; all ones without that column."""
    return (
        np.ones(len(ids), bool)
        if row.get(name) is None
        else _numbers(row, name, 0, 1, len(ids)) == 1
    )


def _numbers(
    row: Mapping[str, Any], name: str, least: int, most: int, length: int | None = None
) -> np.ndarray:
    """A column of whole numbers as (T,) int64, checked for bounds and length."""
    # NumPy refuses nested lists of different lengths.
    try:
        values = np.asarray(row[name])
    except ValueError:
        values = np.zeros(0)
    # A mask may consist of booleans.
    if (
        values.ndim != 1
        or not len(values)
        or values.dtype.kind not in ("biu" if most == 1 else "iu")
    ):
        raise RowError("content_not_text", f"{name!r} is not a list of whole numbers")
    wrong = values.min() if values.min() < least else values.max()
    if not least <= wrong <= most:
        known = f"{name!r} contains {wrong}; its values must be from {least} to {most}"
        raise _contradiction(known) if most == 1 else RowError("unknown_token", known)
    if length not in (None, len(values)):
        raise _contradiction(
            f"{name!r} has {len(values):,} entries, but 'input_ids' has {length:,}"
        )
    return values.astype(np.int64)
