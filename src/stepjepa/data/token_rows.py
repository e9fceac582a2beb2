"""Rows that are not chats: plain text, and token ids with columns that label them.

The columns have the same meaning as in transformers and TRL:

    input_ids        7  8  9  4  5  2  0  0
    attention_mask   1  1  1  1  1  1  0  0     0: padding, which is removed
    labels        -100 -100 -100 4  5  2 -100 -100   -100: not labelled; else the token itself (the model shifts labels)
    completion_mask  0  0  0  1  1  1  0  0     1: labelled; the same for assistant_masks and loss_mask

A token is labelled if the labels and every mask label it, as in TRL; labels may be a copy of the ids.

Shapes: T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepjepa.data.columns import MASKS, Row, left_over, refuse_half_characters
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
        unread: names of the columns with text that is not read.
    """

    ids: np.ndarray
    labels: tuple[Span, ...] | None = None
    unread: Sequence[str] = ()


def stream_row(row: Row, tokenizer: PreTrainedTokenizerBase) -> StreamRow:
    """Return a row in tokens: its ids, or its text with the tokenizer's own special tokens and its EOS at the end; RowError
    as in `stream_content`."""
    content = stream_content(row, len(tokenizer))
    unread = left_over(row, ())
    if isinstance(content, StreamRow):
        return content._replace(unread=unread)
    ids = np.asarray(tokenizer(content, return_attention_mask=False)["input_ids"], dtype=np.int32)
    end = tokenizer.eos_token_id
    # Some tokenizers append their EOS by default, and a text may end in it.
    closed = end is None or (len(ids) and ids[-1] == end)
    if not closed:
        ids = np.append(ids, np.int32(end))
    return StreamRow(ids, unread=unread)


def stream_content(row: Row, vocabulary: int = 2**31) -> str | StreamRow:
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


def _token_row(row: Row, vocabulary: int) -> StreamRow:
    ids = _numbers(row, "input_ids")
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise RowError("unknown_token", f"'input_ids' has values outside of 0 to {vocabulary - 1}")
    columns = {
        name: _numbers(row, name, len(ids))
        for name in (ATTENTION, LABELS, *MASKS)
        if row.get(name) is not None
    }
    # The kept tokens must be contiguous: a gap would join tokens that never followed each other.
    kept = np.flatnonzero(columns.pop(ATTENTION, np.ones_like(ids)))
    if not len(kept) or kept[-1] - kept[0] >= len(kept):
        raise _contradiction(
            f"{ATTENTION!r} masks all tokens, or some between others; it may only mask padding at the ends"
        )
    tokens = ids[kept].astype(np.int32)
    if not columns:
        return StreamRow(tokens)

    # Labels that are a copy of the ids, as collators make them, leave the decision to the masks.
    labels = columns.pop(LABELS, ids)
    # The model shifts labels itself, so labels that are shifted in the file would be shifted twice.
    labelled = labels != NOT_LABELLED
    if (labels != ids)[labelled].any():
        known = f"the same token as in 'input_ids', or {NOT_LABELLED}"
        raise _contradiction(f"{LABELS!r} has other tokens; a label must be {known}")
    for mask in columns.values():
        labelled &= mask != 0
    return StreamRow(tokens, spans_of(labelled[kept]))


def _contradiction(words: str) -> RowError:
    return RowError("contradicting_columns", words)


def _numbers(row: Row, name: str, length: int | None = None) -> np.ndarray:
    """A column of whole numbers as (T,) int64, checked for its length."""
    # NumPy refuses nested lists of different lengths.
    try:
        values = np.asarray(row[name])
    except ValueError:
        values = np.zeros(0)
    # Only a mask may consist of booleans.
    kinds = "iu" if name in ("input_ids", LABELS) else "biu"
    if values.ndim != 1 or not len(values) or values.dtype.kind not in kinds:
        raise RowError("content_not_text", f"{name!r} is not a list of whole numbers")
    if length not in (None, len(values)):
        raise _contradiction(
            f"{name!r} has {len(values):,} entries, but 'input_ids' has {length:,}"
        )
    return values.astype(np.int64)
