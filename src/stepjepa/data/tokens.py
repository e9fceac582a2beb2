"""From character spans to token spans.

One rule: a token belongs to the span that holds its last character. So a source view never sees a character of its
target, even where a tokenizer merges the end of one step with its separator.

Shapes: T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepjepa.errors import ConfigError

TokenSpan = tuple[int, int]


def check_tokenizer(tokenizer: Any) -> None:
    """Make sure that the tokenizer can tell where its tokens stand in the text.

    Raises:
        ConfigError: a tokenizer without offsets (a slow one).
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"the tokenizer of {getattr(tokenizer, 'name_or_path', '') or 'this model'} is a slow one and gives no "
            "character offsets; load or convert it as a fast tokenizer"
        )


def encode_texts(tokenizer: Any, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Token ids and last-character positions of each text.

    No special tokens are added: the chat template has written them, so there is never a second BOS.

    Returns:
        For each text: ids (T,) int32, and the index of each token's last character (T,) int64, never decreasing.
    """
    encoded = tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True, return_attention_mask=False)
    pairs = []
    for text, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        pairs.append((np.asarray(ids, dtype=np.int32), last_characters(offsets, len(text))))
    return pairs


def last_characters(offsets: Sequence[tuple[int, int]], text_length: int) -> np.ndarray:
    """Index of the last character of each token, (T,) int64.

    A token without a character of its own (SentencePiece's added leading space) counts with the character behind it.
    """
    edges = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
    last = np.where(edges[:, 1] > edges[:, 0], edges[:, 1] - 1, np.minimum(edges[:, 0], max(text_length - 1, 0)))
    return np.maximum.accumulate(last)


def token_span(last_character: np.ndarray, start: int, end: int) -> TokenSpan:
    """Tokens [first, stop) whose last character lies in [start, end). Empty (first == stop) where there is none.

    Args:
        last_character: (T,) as `last_characters` gives it.
    """
    first = int(np.searchsorted(last_character, start, side="left"))
    stop = int(np.searchsorted(last_character, end, side="left"))
    return first, max(first, stop)
