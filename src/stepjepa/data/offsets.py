"""Where tokens stand in a text when the tokenizer does not say: slow tokenizers give no offsets.

Each token is spelt out in bytes (`token_text`), and the spellings, put together, must be the text. They may differ from it
in spaces that the tokenizer adds and white space that it drops or folds, as long as that leaves no doubt which token ends
with which white space; and in case, accents and compatibility forms, where all of the text is folded alike. A text that
cannot be verified in this way is refused. Time is linear in the text's length.

Shapes: T tokens, N bytes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from stepjepa.data.chat import RowError
from stepjepa.data.token_text import DecodedSpelling, Spelling, added_tokens, byte_level_spelling, spellings

_SPACE = np.zeros(256, dtype=bool)
_SPACE[list(b" \t\r\n\v\f")] = True

# The ways to spell a tokenizer's tokens, the one that served last in front. They keep what they have spelt.
_SPELLINGS: WeakKeyDictionary[Any, list[Spelling | DecodedSpelling]] = WeakKeyDictionary()
_BYTE_LEVEL: WeakKeyDictionary[Any, Spelling] = WeakKeyDictionary()


def traced_last_characters(tokenizer: Any, text: str, ids: Sequence[int]) -> np.ndarray:
    """Index of the last character of each token, (T,) int64, as `tokens.last_characters` gives it.

    Tokens that hold parts of a character count with that character.

    Args:
        ids: what the tokenizer makes of `text` without adding special tokens of its own.

    Raises:
        RowError: ``no_offsets``, the tokens cannot be traced to the text.
    """
    ways = _SPELLINGS.setdefault(tokenizer, spellings())
    stretches = _stretches(ids, added_tokens(tokenizer))
    for number, way in enumerate(ways):
        pieces = way.pieces(tokenizer, ids)
        last = None if pieces is None else align(pieces, text, stretches)
        if last is not None:
            ways.insert(0, ways.pop(number))
            return last
    why = "its tokens do not add up to the text"
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        why = "the text holds characters that it does not know"
    raise RowError("no_offsets", f"the tokenizer gives no character offsets, and {why}; use a fast tokenizer")


def byte_level_last_characters(tokenizer: Any, text: str, ids: Sequence[int]) -> np.ndarray | None:
    """As `traced_last_characters`, for byte-level BPE; None where its tokens do not add up to the text, (T,).

    This costs less than the offsets that a fast tokenizer gives, and is exact where these are trimmed of white space.
    """
    spelling = _BYTE_LEVEL.setdefault(tokenizer, byte_level_spelling())
    pieces, raw = spelling.pieces(tokenizer, ids), text.encode()
    if pieces is None:
        return None
    if b"".join(pieces) != raw:
        return align(pieces, text, _stretches(ids, added_tokens(tokenizer)))
    last = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces)).cumsum() - 1
    return last if len(raw) == len(text) else _owners(raw)[last]


def _stretches(ids: Sequence[int], added: Mapping[int, Any]) -> list[int]:
    """The first token and those behind added tokens: where tokenizers write spaces of their own."""
    return [0, *(place for place, index in enumerate(ids, 1) if index in added)]


def align(pieces: Sequence[bytes], text: str, stretches: Sequence[int] = (0,)) -> np.ndarray | None:
    """Index of the last character of each piece, (T,) int64, or None where that is in doubt.

    Args:
        pieces: T spellings in order; what holds a part of a character is spelt as bytes of it.
        stretches: indices of pieces in front of which the tokenizer may write a space of its own, as SentencePiece does at
            the beginning and behind special tokens.
    """
    spelt = np.frombuffer(b"".join(pieces), dtype=np.uint8)  # (N,)
    edges = np.cumsum([0, *map(len, pieces)])  # (T + 1,)
    leads = {int(edges[piece]) for piece in stretches}
    for raw, owner in _forms(text):
        place = _places(spelt, raw, edges, leads)
        if place is not None:
            return _last(place, owner, edges, len(text))
    return None


def _last(place: np.ndarray, owner: np.ndarray, edges: np.ndarray, length: int) -> np.ndarray:
    """(T,): the character of each piece's last byte that is the text's, and without one that of the next such byte.

    Args:
        place: (N,) as `_places` gives it.
        owner: index of the character of each of the text's bytes.
        edges: (T + 1,) first byte of each piece, and N.
        length: characters of the text.
    """
    mapped = np.flatnonzero(place >= 0)
    characters = np.append(owner[place[mapped]], max(length - 1, 0))
    first, stop = (mapped.searchsorted(side) for side in (edges[:-1], edges[1:]))  # of each piece, among the mapped
    return np.maximum.accumulate(characters[np.where(stop > first, stop - 1, stop)])


def _places(spelt: np.ndarray, raw: np.ndarray, edges: np.ndarray, leads: set[int]) -> np.ndarray | None:
    """For each spelt byte its index in the text's bytes `raw`, -1 for one that is not there, (N,); None where in doubt."""
    if np.array_equal(spelt, raw):
        return np.arange(len(raw))
    ours, theirs = np.flatnonzero(~_SPACE[spelt]), np.flatnonzero(~_SPACE[raw])
    if not np.array_equal(spelt[ours], raw[theirs]):
        return None
    place = np.full(len(spelt), -1, dtype=np.int64)
    place[ours] = theirs
    ours = np.concatenate([[-1], ours, [len(spelt)]])
    theirs = np.concatenate([[-1], theirs, [len(raw)]])
    for run in np.flatnonzero(np.diff(ours) > 1).tolist():  # white space between two other bytes
        start, stop = int(ours[run]) + 1, int(ours[run + 1])
        shown = int(theirs[run]) + 1
        ends = edges[edges.searchsorted(start, "right") : edges.searchsorted(stop, "right")] - start
        found = _white_space(
            spelt[start:stop].tobytes(), raw[shown : theirs[run + 1]].tobytes(), ends.tolist(), start in leads
        )
        if found is None:
            return None
        place[start:stop] = [-1 if at < 0 else shown + at for at in found]
    return place


def _white_space(held: bytes, shown: bytes, ends: Sequence[int], leads: bool) -> Sequence[int] | None:
    """For each byte of the white space `held` its index in the white space `shown` in its place, -1 for none.

    Args:
        ends: where in `held` pieces end, from 1 to its length.
        leads: the tokenizer may write a space of its own in front.

    Returns:
        None where several readings would end pieces at different white space.
    """
    if held == shown:
        return range(len(held))
    none = [-1] * len(held)
    if not ends or not shown:
        return none
    at, only = held.find(shown), held.find(shown) == held.rfind(shown)
    if leads and held == b" " + shown:
        at, only = 1, True
    if at >= 0 and only and not (held[:at] + held[at + len(shown) :]).strip(b" "):
        return none[:at] + list(range(len(shown))) + none[at + len(shown) :]
    return none[:-1] + [len(shown) - 1] if set(ends) == {len(held)} else None  # one piece for all of it


def _forms(text: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The text as bytes (N,) and the index of each byte's character (N,): as it is, then as normalisers fold it."""
    yield _bytes_and_owners(text)
    groups = _groups(text)
    seen = {text}
    for fold in _FOLDS:
        parts = [fold(group) for _, group in groups]
        folded = "".join(parts)
        if folded in seen:
            continue
        seen.add(folded)
        owners: list[int] = []
        for (end, group), part in zip(groups, parts, strict=True):
            owners += range(end - len(group), end) if len(part) == len(group) else [end - 1] * len(part)
        raw, letters = _bytes_and_owners(folded)
        yield raw, np.asarray(owners, dtype=np.int64)[letters]


def _bytes_and_owners(text: str) -> tuple[np.ndarray, np.ndarray]:
    raw = text.encode()
    return np.frombuffer(raw, dtype=np.uint8), _owners(raw)


def _owners(raw: bytes) -> np.ndarray:
    """Index of the character of each byte of UTF-8, (N,): every byte but a continuation begins one."""
    return ((np.frombuffer(raw, dtype=np.uint8) & 0xC0) != 0x80).cumsum() - 1


def _groups(text: str) -> list[tuple[int, str]]:
    """The text's characters, each with the marks that combine with it and the index behind them."""
    groups: list[tuple[int, str]] = []
    for end, letter in enumerate(text, 1):
        if groups and unicodedata.combining(letter):
            groups[-1] = (end, groups[-1][1] + letter)
        else:
            groups.append((end, letter))
    return groups


def _bare(text: str) -> str:
    """Lower case without accents and characters that do not show, as BERT's tokenizers write it."""
    letters = unicodedata.normalize("NFD", text.lower())
    return "".join(letter for letter in letters if letter in "\t\n\r" or unicodedata.category(letter) not in _UNSEEN)


_UNSEEN = ("Mn", "Cc", "Cf")
_FOLDS: tuple[Callable[[str], str], ...] = (
    lambda text: unicodedata.normalize("NFC", text),
    lambda text: unicodedata.normalize("NFKC", text),
    str.lower,
    lambda text: unicodedata.normalize("NFKC", text).lower(),
    _bare,
)
