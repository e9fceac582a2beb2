"""Plain token streams: rows of text (``text``) or of token ids (``input_ids``), without chats, for pre-training.

A text is tokenised as the tokenizer does by itself (its BOS once), closed with its EOS, and cut into blocks of `max_length`
tokens, none of which is lost but a last one of a single token. Every block is an example that is labelled whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepjepa.data.sources import TEXT_COLUMNS
from stepjepa.errors import RowError
from stepjepa.utils.text import lone_surrogate

# What makes a row a chat; text alone does not.
CHAT_COLUMNS = {"messages", *(name for names in TEXT_COLUMNS for name in names)} - {"text"}


def is_stream(row: Any) -> bool:
    """Whether a row is text or token ids alone, without a chat's columns."""
    if not isinstance(row, Mapping) or any(row.get(name) is not None for name in CHAT_COLUMNS):
        return False
    return row.get("text") is not None or row.get("input_ids") is not None


def stream_ids(row: Mapping[str, Any], tokenizer: Any) -> np.ndarray:
    """The tokens of one row, (T,) int32.

    Raises:
        RowError: no text, or ids that are none of the tokenizer's.
    """
    if row.get("input_ids") is not None:
        return _checked_ids(row["input_ids"], len(tokenizer))
    text = row["text"]
    if not isinstance(text, str):
        raise RowError("content_not_text", f"'text' has type {type(text).__name__}; it must be text")
    half = lone_surrogate(text)
    if half is not None:
        raise RowError("broken_text", f"'text' holds {half} without its other half, which is no character; remove it")
    if not text.strip():
        raise RowError("nothing_to_learn", "'text' is empty")
    ids = np.asarray(tokenizer(text, return_attention_mask=False)["input_ids"], dtype=np.int32)
    end = tokenizer.eos_token_id
    return ids if end is None or (len(ids) and ids[-1] == end) else np.append(ids, np.int32(end))


def blocks(ids: np.ndarray, length: int) -> list[np.ndarray]:
    """`ids` (T,) in pieces of at most `length` tokens; a last piece of one token, which predicts nothing, is left out."""
    pieces = [ids[start : start + length] for start in range(0, len(ids), length)]
    return [piece for piece in pieces if len(piece) > 1]


def _checked_ids(values: Any, vocabulary: int) -> np.ndarray:
    if not isinstance(values, (Sequence, np.ndarray)) or isinstance(values, (str, bytes)) or not len(values):
        raise RowError("content_not_text", "'input_ids' is no list of token ids")
    if any(type(value) is bool or not isinstance(value, (int, np.integer)) for value in values):
        raise RowError("content_not_text", "'input_ids' holds something that is no whole number")
    if min(values) < 0 or max(values) >= vocabulary:
        wrong = min(values) if min(values) < 0 else max(values)
        raise RowError("unknown_token", f"'input_ids' holds {wrong}; the tokenizer has ids 0 to {vocabulary - 1}")
    return np.asarray(values, dtype=np.int32)
