r"""From the text of a regular expression to its parts.

Two dialects. `nl_rx` is what NL-RX and KB13 are written in, the syntax of the automaton package `dk.brics` as far as those
data sets use it: the operators of a usual regular expression, `&` (and), `~` (not), and `\b`. From weakest to strongest they
bind `|`, `&`, joining, repetition, `~`: `~a*` is `(~a)*`, `\bA&B\b` is `(\bA)&(B\b)`. A repetition may follow another
(`a{2,}*`). `python` is the syntax of `re` without what no automaton can do: there `&` and `~` are plain characters, and
`*?` is lazy. In both `.` is any character at all, `^` and `$` are the ends of the text.

    any ("|") of every ("&") of join of repeat of not ("~") of a set of characters, a place or a group
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Ranges = tuple[tuple[int, int], ...]  # code points, both ends included, sorted, never touching
Turns = tuple[int, "int | None"]  # of a part that is repeated, at least and at most

LAST = 0x10FFFF
EVERY: Ranges = ((0, LAST),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))


@dataclass(frozen=True)
class PatternPart:
    """A part of a pattern.

    Attributes:
        kind: what it matches. ``set``: one character of `ranges`, nothing where they are empty. ``word``, ``no word``,
            ``begin``, ``end``: a position between characters, at an edge of a word or at none, or at an end of the text.
            ``join``: its parts, one after the other; none is the empty text. ``any``: one of its parts. ``every``: all of
            them at once. ``not``: whatever its part does not match. ``repeat``: its part, again and again.
        turns: of a repetition, at least and at most; None for no upper bound.
    """

    kind: str
    parts: tuple[PatternPart, ...] = ()
    ranges: Ranges = ()
    turns: Turns = (1, 1)


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern.

    Attributes:
        part: all of it.
        named: characters that are written out in it, alone or as a range.
        sets: those of its parts of the kind ``set``.
    """

    part: PatternPart
    named: Ranges
    sets: tuple[Ranges, ...]


def merged(ranges: list[tuple[int, int]]) -> Ranges:
    """Ranges sorted, and those that touch as one."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def others(ranges: Ranges) -> Ranges:
    """The characters that are not in a set."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), LAST]
    return tuple((low, high) for low, high in zip(starts, ends, strict=True) if low <= high)


Dialect = Literal["nl_rx", "python"]
WordBoundary = Literal["zero_width", "letter"]

LONGEST_PATTERN = 2_000  # characters
DEEPEST = 80  # groups inside each other
MOST_REPEATS = 1_000_000

_SHORT: dict[str, Ranges] = {"d": ((48, 57),), "w": WORD, "s": ((9, 13), (32, 32))}
_CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "a": 7}
_BOUNDARIES = {"b": "word", "B": "no word", "A": "begin", "Z": "end"}
_BRACES = re.compile(r"\{(\d*)(?:(,)(\d*))?\}", re.ASCII)
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})")
_GROUP = re.compile(r"\?(?::|P<\w+>)")


class PatternError(ValueError):
    """A text that is no regular expression. The message says what is wrong."""


class NotSupportedError(PatternError):
    """A pattern that may be one, but is too long, too deep, or more than a regular language."""


def parse(text: str, dialect: Dialect = "nl_rx", word_boundary: WordBoundary = "zero_width") -> Pattern:
    r"""Read a pattern.

    Args:
        text: the pattern, which must match all of a text.
        dialect: see above.
        word_boundary: what `\b` is: the place where a word begins or ends, or the letter b, as `dk.brics` reads it.

    Raises:
        PatternError: syntax errors.
        NotSupportedError: backreferences, lookaround and flags; patterns that are too long or too deep.
    """
    if len(text) > LONGEST_PATTERN:
        raise NotSupportedError(f"longer than {LONGEST_PATTERN} characters")
    return _Reader(text, dialect == "nl_rx", word_boundary == "letter").read()


class _Reader:
    """Recursive descent; `position` is that of the next character."""

    def __init__(self, text: str, operators: bool, b_is_a_letter: bool):
        self.text, self.position, self.depth = text, 0, 0
        self.operators, self.b_is_a_letter = operators, b_is_a_letter
        self.named: list[tuple[int, int]] = []
        self.sets: list[Ranges] = []

    def read(self) -> Pattern:
        part = self.union()
        if self.position < len(self.text):
            raise PatternError(f"unmatched ) at {self.position}")
        return Pattern(part, merged(self.named), tuple(self.sets))

    def next_is(self, characters: str) -> bool:
        return self.position < len(self.text) and self.text[self.position] in characters

    def at_end(self) -> bool:
        """Whether a part ends here."""
        return self.position == len(self.text) or self.next_is("|)&" if self.operators else "|)")

    def take(self) -> str:
        if self.position == len(self.text):
            raise PatternError("ends in the middle")
        self.position += 1
        return self.text[self.position - 1]

    def chars(self, ranges: Ranges) -> PatternPart:
        self.sets.append(ranges)
        return PatternPart("set", ranges=ranges)

    def union(self) -> PatternPart:
        return self.listed("|", self.intersection, "any")

    def intersection(self) -> PatternPart:
        return self.listed("&" if self.operators else "", self.joined, "every")

    def listed(self, sign: str, read: Callable[[], PatternPart], kind: str) -> PatternPart:
        parts = [read()]
        while self.next_is(sign):
            self.position += 1
            parts.append(read())
        return parts[0] if len(parts) == 1 else PatternPart(kind, tuple(parts))

    def joined(self) -> PatternPart:
        parts: list[PatternPart] = []
        while not self.at_end():
            parts.append(self.repeated())
        return parts[0] if len(parts) == 1 else PatternPart("join", tuple(parts))

    def repeated(self) -> PatternPart:
        part = self.complement()
        counts = 0
        while (bounds := self.bounds()) is not None:
            counts += 1
            if counts > 1 and not self.operators:
                raise PatternError(f"multiple repeat at {self.position}")
            part = PatternPart("repeat", (part,), turns=bounds)
            if not self.operators and self.next_is("?"):
                self.position += 1  # lazy: the same texts
            elif not self.operators and self.next_is("+"):
                raise NotSupportedError("possessive repeats are not supported")
            if counts > DEEPEST:
                raise NotSupportedError("too many repeats of repeats")
        return part

    def bounds(self) -> Turns | None:
        """The repetition that follows, if one does."""
        if self.next_is("*+?"):
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[self.take()]
        braces = _BRACES.match(self.text, self.position)
        if braces is None or not (braces[1] or braces[3]):
            return None
        self.position = braces.end()
        low = int(braces[1] or 0)
        high = low if braces[2] is None else int(braces[3]) if braces[3] else None
        if max(low, high or 0) > MOST_REPEATS:
            raise NotSupportedError(f"more than {MOST_REPEATS} repeats")
        if high is not None and high < low:
            raise PatternError(f"{braces[0]} asks for fewer repeats at most than at least")
        return low, high

    def complement(self) -> PatternPart:
        negations = 0
        while self.operators and self.next_is("~"):
            self.position += 1
            negations += 1
        part = self.atom()
        return PatternPart("not", (part,)) if negations % 2 else part

    def atom(self) -> PatternPart:
        if self.next_is("*+?") or self.at_end():
            raise PatternError(f"nothing to repeat or to negate at {self.position}")
        sign = self.take()
        if sign == "(":
            return self.group()
        if sign == "[":
            return self.chars(self.bracket())
        if sign == "\\":
            return self.escaped()
        if sign == ".":
            return self.chars(EVERY)
        if sign in "^$":
            return PatternPart("begin" if sign == "^" else "end")
        return self.chars(self.name(ord(sign)))

    def group(self) -> PatternPart:
        if self.next_is("?"):
            kind = _GROUP.match(self.text, self.position)
            if kind is None:
                sign = self.text[self.position + 1 : self.position + 2]
                raise NotSupportedError(f"(?{sign} is not supported: no lookaround, no flags")
            self.position = kind.end()
        self.depth += 1
        if self.depth > DEEPEST:
            raise NotSupportedError(f"more than {DEEPEST} groups inside each other")
        part = self.union()
        if not self.next_is(")"):
            raise PatternError("a ( is not closed")
        self.position += 1
        self.depth -= 1
        return part

    def name(self, low: int, high: int | None = None) -> Ranges:
        one = (low, low if high is None else high)
        self.named.append(one)
        return (one,)

    def escaped(self) -> PatternPart:
        sign = self.text[self.position : self.position + 1]
        if sign == "b" and self.b_is_a_letter:
            self.position += 1
            return self.chars(self.name(ord("b")))
        if sign in _BOUNDARIES and sign:
            self.position += 1
            return PatternPart(_BOUNDARIES[sign])
        return self.chars(self.escape())

    def escape(self) -> Ranges:
        r"""The characters that a `\` means, inside brackets or outside."""
        code = _CODE.match(self.text, self.position)
        if code is not None:
            self.position = code.end()
            value = int(code[1] or code[2] or code[3], 16)
            if value > LAST:
                raise PatternError(f"\\{code[0]} is no character")
            return self.name(value)
        sign = self.take()
        if sign.lower() in _SHORT:
            characters = _SHORT[sign.lower()]
            return characters if sign.islower() else others(characters)
        if sign in _CONTROL:
            return self.name(_CONTROL[sign])
        if sign.isdecimal():
            raise NotSupportedError(f"\\{sign} is not supported: no backreferences")
        if sign.isalpha() and sign.isascii() and not self.operators:
            raise PatternError(f"\\{sign} is no escape")
        return self.name(ord(sign))

    def bracket(self) -> Ranges:
        """The characters between [ and ]."""
        negated = self.next_is("^")
        self.position += negated
        parts: list[tuple[int, int]] = []
        while not parts or not self.next_is("]"):
            low = self.member()
            if self.next_is("-") and self.text[self.position + 1 : self.position + 2] not in ("]", ""):
                self.position += 1
                high = self.member()
                if not (len(low) == len(high) == 1 and low[0][0] == low[0][1] <= high[0][0] == high[0][1]):
                    raise PatternError(f"a range in brackets goes backwards or has no ends, at {self.position}")
                low = self.name(low[0][0], high[0][0])
            parts += low
        self.position += 1
        ranges = merged(parts)
        return others(ranges) if negated else ranges

    def member(self) -> Ranges:
        sign = self.take()
        if sign != "\\":
            return self.name(ord(sign))
        if self.next_is("b"):
            self.position += 1
            return self.name(ord("b") if self.b_is_a_letter else 8)
        return self.escape()
