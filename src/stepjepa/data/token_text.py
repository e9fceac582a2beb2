"""What tokens say, in bytes: by their names, or by decoding them between two letters. For tokenizers without offsets.

Nothing here is checked; `offsets` compares the spellings with the text.

Shapes: T tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

_BYTE_NAME = re.compile("<0x([0-9A-Fa-f]{2})>")
_PARTIAL = "\ufffd"  # what decoders write for bytes that are no whole character
_LONGEST_GROUP = 32  # tokens that hold parts of the same characters; an emoji of several code points takes about 12


def added_tokens(tokenizer: Any) -> dict[int, Any]:
    """The tokenizer's added tokens by id; none for kinds that keep no record of them."""
    found = tokenizer.added_tokens_decoder
    return dict(found) if isinstance(found, Mapping) else {}


class Spelling:
    """Spells the tokens of one tokenizer in one way; added tokens are spelt as their own text.

    Args:
        spell: (tokenizer, token id) -> its bytes, None where this way has no word for it.
    """

    def __init__(self, spell: Callable[[Any, int], bytes | None]):
        self._spell = spell
        self._known: dict[int, bytes] = {}

    def pieces(self, tokenizer: Any, ids: Sequence[int]) -> list[bytes] | None:
        """T spellings, None where there is none of a token."""
        known = self._known
        try:
            return [known[index] for index in ids]
        except KeyError:
            added = added_tokens(tokenizer)
        for index in set(ids).difference(known):
            spelt = str(added[index]).encode() if index in added else self._spell(tokenizer, index)
            if spelt is None:
                return None
            known[index] = spelt
        return [known[index] for index in ids]


class DecodedSpelling:
    """Spells tokens as what the tokenizer writes for them between two tokens that are letters.

    The letters keep decoders from trimming what they write at the ends of a text. Tokens that hold parts of characters are
    decoded together with their neighbours, one more at a time.
    """

    def __init__(self) -> None:
        self._known: dict[int, str | None] = {}

    def pieces(self, tokenizer: Any, ids: Sequence[int]) -> list[bytes] | None:
        """As `Spelling.pieces`."""
        between, added = _Letters.of(tokenizer), added_tokens(tokenizer)
        if between is None:
            return None
        found: list[bytes] = []
        while len(found) < len(ids):
            at = len(found)
            index = ids[at]
            if index in added:
                found.append(str(added[index]).encode())
                continue
            if index not in self._known:
                self._known[index] = between.decode([index])
            shown = self._known[index]
            if shown and _PARTIAL not in shown:
                found.append(shown.encode())
                continue
            group = _group(between, ids[at : at + _LONGEST_GROUP])
            if group is None:
                return None
            found += group
        return found


class _Letters:
    """Decodes tokens between two letters, and takes these away again."""

    def __init__(self, tokenizer: Any, letter: int, before: str, behind: str):
        self._tokenizer, self._letter, self._before, self._behind = tokenizer, letter, before, behind

    @classmethod
    def of(cls, tokenizer: Any) -> _Letters | None:
        """None where the tokenizer does not decode a letter to itself."""
        letter = int(tokenizer("x", add_special_tokens=False)["input_ids"][-1])
        one, two = (_decode(tokenizer, [letter] * count) for count in (1, 2))
        behind = two.removeprefix(one)
        return cls(tokenizer, letter, one, behind) if one.strip() == "x" == behind.strip() else None

    def decode(self, ids: Sequence[int]) -> str | None:
        """What the tokenizer writes for the tokens inside a text."""
        text = _decode(self._tokenizer, [self._letter, *ids, self._letter])
        if not text.startswith(self._before):
            return None
        text = text[len(self._before) :]
        for behind in (self._behind, self._behind.lstrip()):
            if text.endswith(behind):
                return text[: len(text) - len(behind)]
        return None


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _group(between: _Letters, ids: Sequence[int]) -> list[bytes] | None:
    """Spellings of the fewest of `ids` that make whole characters together; None if none of them do.

    A token that ends inside a character gets a part of its bytes, whichever: what counts is in which character it ends.
    """
    shown: list[str] = []
    for count in range(1, len(ids) + 1):
        text = between.decode(ids[:count])
        if text is None:
            return None
        shown.append(text)
        if text and _PARTIAL not in text:
            break
    else:
        return None
    whole = shown[-1]
    ends = []
    for text in shown[:-1]:
        complete = text.rstrip(_PARTIAL)
        if not whole.startswith(complete) or len(complete) == len(whole):
            return None
        inside = text != complete and len(whole[len(complete)].encode()) > 1
        ends.append(len(complete.encode()) + inside)
    raw = whole.encode()
    edges = [0, *ends, len(raw)]
    return (
        [raw[start:end] for start, end in zip(edges[:-1], edges[1:], strict=True)] if edges == sorted(edges) else None
    )


@cache
def _byte_letters() -> dict[str, int]:
    """Byte-level BPE's letter for each byte (GPT-2): printable ones stand for themselves, the others from U+0100 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + number): byte for number, byte in enumerate(others)}


def _sentencepiece(name: str) -> bytes:
    byte = _BYTE_NAME.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace("\u2581", " ").encode()


def _byte_level(name: str) -> bytes | None:
    letters = _byte_letters()
    return bytes(letters[letter] for letter in name) if all(letter in letters for letter in name) else None


def _one_byte_a_letter(name: str) -> bytes | None:
    return name.encode("latin-1") if all(ord(letter) < 0x100 for letter in name) else None


def _by_name(read: Callable[[str], bytes | None]) -> Spelling:
    def spell(tokenizer: Any, index: int) -> bytes | None:
        name = tokenizer.convert_ids_to_tokens(index)
        return name if isinstance(name, bytes) else read(name) if isinstance(name, str) else None

    return Spelling(spell)


def byte_level_spelling() -> Spelling:
    """Spells tokens by the names that byte-level BPE gives them."""
    return _by_name(_byte_level)


def spellings() -> list[Spelling | DecodedSpelling]:
    """All ways to spell a tokenizer's tokens, in the order in which they are to be tried."""
    named = [_by_name(read) for read in (str.encode, _sentencepiece, _byte_level, _one_byte_a_letter)]
    return [*named, DecodedSpelling()]
