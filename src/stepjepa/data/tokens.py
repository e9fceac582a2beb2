"""From character spans to token spans.

One rule: a token belongs to the span that holds its last character. So a source view never sees a character of its
target, even where a tokenizer merges the end of one step with its separator.

Shapes: T tokens, V vocabulary.
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
    # Some special tokens (Phi-3's <|assistant|>) swallow the white space behind them, which may be the answer's first.
    greedy = {index for index, token in tokenizer.added_tokens_decoder.items() if token.rstrip}
    pairs = []
    for text, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        if greedy and not greedy.isdisjoint(ids):
            offsets = [
                (start, start + max(len(text[start:end].rstrip()), 1)) if index in greedy else (start, end)
                for index, (start, end) in zip(ids, offsets, strict=True)
            ]
        pairs.append((np.asarray(ids, dtype=np.int32), last_characters(offsets, len(text))))
    return pairs


def encode_apart(tokenizer: Any, text: str, cuts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """As `encode_texts` for one text, but no token reaches over any of the character positions `cuts`."""
    edges = [0, *cuts, len(text)]
    pieces = encode_texts(tokenizer, [text[a:b] for a, b in zip(edges[:-1], edges[1:], strict=True)])
    ids = np.concatenate([ids for ids, _ in pieces])
    return ids, np.concatenate([last + start for (_, last), start in zip(pieces, edges[:-1], strict=True)])


def last_characters(offsets: Sequence[tuple[int, int]], text_length: int) -> np.ndarray:
    """Index of the last character of each token, (T,) int64.

    A token without a character of its own has either lost it (offsets that are trimmed of white space, as GPT-NeoX's
    are, leave a gap before it) or never had one (an added leading space) and counts with the character behind it.
    """
    edges = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
    last = edges[:, 1] - 1
    empty = edges[:, 1] <= edges[:, 0]
    if empty.any():
        before = np.concatenate([[0], edges[:-1, 1]])
        behind = np.minimum(edges[:, 0], max(text_length - 1, 0))
        last = np.where(empty & (before >= edges[:, 0]), behind, last)
    return np.maximum.accumulate(last)


def token_span(last_character: np.ndarray, start: int, end: int) -> TokenSpan:
    """Tokens [first, stop) whose last character lies in [start, end). Empty (first == stop) where there is none.

    Args:
        last_character: (T,) as `last_characters` gives it.
    """
    first = int(last_character.searchsorted(start, side="left"))
    stop = int(last_character.searchsorted(end, side="left"))
    return first, max(first, stop)


class TurnEnds:
    """Finds end-of-turn tokens: the first of a template's special tokens behind a message's content.

    Chat markers such as ``<|eot_id|>`` are added tokens, special or not, without being named (bos, eos, ...) special
    tokens. Added tokens of white space alone (Gemma's line breaks) end nothing.
    """

    def __init__(self, tokenizer: Any):
        added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.content.strip("\u2581 \t\r\n")}
        marks = sorted(added | set(tokenizer.all_special_ids))
        self._is_mark = np.zeros(max([len(tokenizer), *(mark + 1 for mark in marks)]), dtype=bool)  # (V,)
        self._is_mark[marks] = True

    def find(self, ids: np.ndarray, start: int, stop: int) -> int | None:
        """Index of the first end-of-turn token of `ids` (T,) in [start, stop), None if there is none."""
        marks = self._is_mark[ids[start:stop]]
        return start + int(marks.argmax()) if marks.any() else None
