r"""The metric `regex_equivalence`: whether two regular expressions match the same texts.

States of the automata are expressions, made on demand: the derivative of an expression by a character is what must match
the rest (Brzozowski 1964; Owens, Reppy and Turon 2009). So `&` and `~` cost no more than `|`, no part of an automaton is
built that the comparison does not visit, and the work is counted, which bounds it on every machine alike. Pairs of states
are visited, the nearest first, until a text tells them apart or nothing is left.

The libraries for automata have no word boundaries, which a fifth of NL-RX's expressions hold, and no bound on their work. A
`\b` says something about its two neighbours, so an expression is read at a place between characters (Moseley et al., PLDI
2023, "Derivative Based Nonbacktracking Real-World Regex Matching with Backtracking Semantics"), in one of nine contexts:

                      next: end   word  other        word: a letter of ASCII, a digit or _
    previous: begin          0     1     2           nulls: the contexts, as bits, in which an expression
              word           3     4     5                  matches the empty text
              other          6     7     8

The alphabet is printable ASCII.

The syntax is that of NL-RX and KB13, the automaton package `dk.brics` as far as those data sets use it: the operators of a
usual regular expression, `&` (and), `~` (not), and `\b`. From weakest to strongest they bind `|`, `&`, joining, repetition,
`~`: `~a*` is `(~a)*`, `\bA&B\b` is `(\bA)&(B\b)`. A repetition may follow another (`a{2,}*`). `.` is any character at all,
`^` and `$` are the ends of the text. A single character, an escape and a bracket mean what they mean in Python's `re`.
"""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any, Literal, NamedTuple

from stepjepa.config.option import option
from stepjepa.evaluation.metrics import OPTIONS, Judgement, Metric

WordBoundary = Literal["zero_width", "letter"]
LONGEST_PATTERN = 2_000  # characters

BEGIN, IN_WORD, OTHER = 0, 1, 2  # kinds of the character before a position; the first where there is none
BUDGET = 600_000  # steps of about a microsecond that a comparison may make
_ALWAYS = 0b111_111_111
_BOUNDARY_NULLS = {
    "word": 0b010_101_010,
    "no word": 0b101_010_101,
    "begin": 0b000_000_111,
    "end": 0b001_001_001,
}
_WORD = r"\w"

_TOKEN = re.compile(
    r"""\[\^?\]?(?:\\.|[^\]\\])*\]       # a bracket
    |   \\.
    |   \{\d+(?:,\d*)?\} | \{,\d+\}      # a repetition
    |   \(\?:                            # a group
    |   .""",
    re.DOTALL | re.VERBOSE,
)
_UNKNOWN = re.compile(r"[^ -~]|\\[0-9tnrfvxuN]")
_ENDS = ("|", "&", ")", "")
_REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_PLACES = {r"\b": "word", r"\B": "no word", "^": "begin", r"\A": "begin", "$": "end", r"\Z": "end"}


class PatternError(ValueError):
    """A text that is no regular expression. The message says what is wrong."""


class NotSupportedError(PatternError):
    """A pattern that may be one, but is too long, or more than a regular language."""


class PatternPart(NamedTuple):
    """A part of a pattern.

    Attributes:
        kind: what it matches. ``set``: one character that `text` matches, as Python's `re` reads it. ``word``, ``no word``,
            ``begin``, ``end``: a position between characters, at an edge of a word or at none, or at an end of the text.
            ``join``: its parts, one after the other; none is the empty text. ``any``: one of its parts. ``not``: whatever
            its part does not match. ``repeat``: its part, again and again.
        turns: of a repetition, at least and at most; None for no upper bound.
    """

    kind: str
    parts: tuple[PatternPart, ...] = ()
    text: str = ""
    turns: tuple[int, int | None] = (1, 1)


def parse(text: str, word_boundary: WordBoundary = "zero_width") -> PatternPart:
    r"""Read a pattern.

    Args:
        text: the pattern, which must match all of a text.
        word_boundary: what `\b` is: the place where a word begins or ends, or the letter b, as `dk.brics` reads it.

    Raises:
        PatternError: syntax errors.
        NotSupportedError: backreferences, lookaround and flags; patterns that are too long.
    """
    if len(text) > LONGEST_PATTERN:
        raise NotSupportedError(f"longer than {LONGEST_PATTERN} characters")
    tokens = _TOKEN.findall(text)
    if word_boundary == "letter":
        tokens = ["b" if token == r"\b" else token for token in tokens]
    reader = _Reader(tokens)
    part = reader.read()
    if reader.next():
        raise PatternError("unmatched )")
    return part


def set_of(text: str) -> re.Pattern[str]:
    """What tells whether a character is in a set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of "[[a]", which may mean something else in a later version
        return re.compile(text, re.ASCII | re.DOTALL)


class _Reader:
    """Recursive descent."""

    def __init__(self, tokens: list[str]):
        self.tokens, self.position = tokens, 0

    def next(self) -> str:
        """The next token, empty at the end."""
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self) -> str:
        token = self.next()
        self.position += 1
        return token

    def read(self) -> PatternPart:
        parts = [self.intersection()]
        while self.next() == "|":
            self.take()
            parts.append(self.intersection())
        return parts[0] if len(parts) == 1 else PatternPart("any", tuple(parts))

    def intersection(self) -> PatternPart:
        parts = [self.joined()]
        while self.next() == "&":
            self.take()
            parts.append(self.joined())
        if len(parts) == 1:
            return parts[0]
        none = [PatternPart("not", (part,)) for part in parts]
        return PatternPart("not", (PatternPart("any", tuple(none)),))

    def joined(self) -> PatternPart:
        parts: list[PatternPart] = []
        while self.next() not in _ENDS:
            parts.append(self.repeated())
        return parts[0] if len(parts) == 1 else PatternPart("join", tuple(parts))

    def repeated(self) -> PatternPart:
        negated = False
        while self.next() == "~":
            self.take()
            negated = not negated
        part = self.atom()
        if negated:
            part = PatternPart("not", (part,))
        while self.next() in _REPEATS or len(self.next()) > 2 and self.next()[0] == "{":
            part = PatternPart("repeat", (part,), turns=_turns(self.take()))
        return part

    def atom(self) -> PatternPart:
        token = self.take()
        if token in _ENDS or token in _REPEATS:
            raise PatternError("nothing to repeat or to negate")
        if token in ("(", "(?:"):
            return self.group()
        if token in _PLACES:
            return PatternPart(_PLACES[token])
        if token == "\\":
            raise PatternError("ends in the middle")
        if _UNKNOWN.search(token):
            raise NotSupportedError(f"{token} is not supported: printable ASCII alone, no backreferences")
        text = token if len(token) > 1 or token in ".[" else re.escape(token)
        try:
            set_of(text)
        except re.error as error:
            raise PatternError(f"{token}: {error}") from None
        return PatternPart("set", text=text)

    def group(self) -> PatternPart:
        if self.next() == "?":
            raise NotSupportedError("(? is not supported: no lookaround, no flags")
        part = self.read()
        if self.take() != ")":
            raise PatternError("a ( is not closed")
        return part


def _turns(token: str) -> tuple[int, int | None]:
    """The repetition that a token writes."""
    if token in _REPEATS:
        return _REPEATS[token]
    least, comma, most = token[1:-1].partition(",")
    low = int(least or 0)
    high = int(most) if most else None
    if not comma:
        high = low
    if high is not None and high < low:
        raise PatternError(f"{token} asks for fewer repeats at most than at least")
    return low, high


class TooMuchWork(Exception):
    """The comparison needs more steps than it may make."""


class Alphabet:
    """Printable ASCII, one letter for all characters that no set tells apart.

    Attributes:
        kinds: `IN_WORD` or `OTHER`, of each letter.
        examples: a character of each letter.
        masks: set of characters -> its letters, as bits.
    """

    def __init__(self, sets: Iterable[str]):
        sets = list(dict.fromkeys([_WORD, *sets]))
        members = [set_of(text) for text in sets]
        readable = sorted(map(chr, range(32, 127)), key=lambda one: not one.isalnum())
        signatures: dict[int, str] = {}  # the sets that hold a letter, as bits -> a readable character of it
        for character in readable:
            signature = 0
            for bit, member in enumerate(members):
                if member.fullmatch(character):
                    signature |= 1 << bit
            signatures.setdefault(signature, character)
        self.kinds = [IN_WORD if signature & 1 else OTHER for signature in signatures]
        self.examples = list(signatures.values())
        self.masks = {
            text: sum((signature >> bit & 1) << letter for letter, signature in enumerate(signatures))
            for bit, text in enumerate(sets)
        }


def _sets(part: PatternPart) -> Iterator[str]:
    """The sets of characters of a pattern."""
    if part.kind == "set":
        yield part.text
    for one in part.parts:
        yield from _sets(one)


def difference(first: PatternPart, second: PatternPart) -> tuple[str, bool] | None:
    """The shortest text that only one of two patterns matches, and whether that is the first; None where there is none.

    Raises:
        TooMuchWork, RecursionError: the budget was not enough to decide, or Python's stack is not.
    """
    alphabet = Alphabet([*_sets(first), *_sets(second)])
    space = Expressions(alphabet)
    # Two states, the kind of the last character, and the text by which they were reached.
    start = space.of(first), space.of(second), BEGIN
    queue, visited = deque([(start, "")]), {start}
    while queue:
        (one, other, previous), text = queue.popleft()
        at_end = 1 << 3 * previous
        if (one.nulls ^ other.nulls) & at_end:
            return text, bool(one.nulls & at_end)
        space.spend(len(alphabet.kinds))
        for letter, (kind, example) in enumerate(zip(alphabet.kinds, alphabet.examples, strict=True)):
            after = space.derivative(one, previous, letter), space.derivative(other, previous, letter), kind
            if after[0] is not after[1] and after not in visited:
                visited.add(after)
                queue.append((after, text + example))
    return None


@dataclass(eq=False, slots=True)
class Expression:
    """A regular expression over letters; equal ones are one object.

    Attributes:
        number: in the order of making.
        kind: ``set``, ``all``, ``place``, or how the parts are put together: ``join``, ``any``, ``not``, ``repeat``.
        nulls: see above.
        mask: the letters of a set, as bits.
    """

    number: int
    kind: str
    nulls: int
    parts: tuple[Expression, ...] = ()
    mask: int = 0
    turns: tuple[int, int | None] = (1, 1)


class Expressions:
    """Makes expressions in a normal form: `|` and `&` sorted and flat, so that a pattern has few derivatives."""

    def __init__(self, alphabet: Alphabet):
        self._alphabet, self._left = alphabet, BUDGET
        self._made: dict[tuple[object, ...], Expression] = {}
        self._derivatives: dict[tuple[Expression, int, int], Expression] = {}
        self._whole = (1 << len(alphabet.kinds)) - 1
        self.nothing = self._make("set", 0)
        self.empty = self._make("join", _ALWAYS)
        self.all = self._make("all", _ALWAYS)

    def of(self, part: PatternPart) -> Expression:
        """The expression of a parsed pattern."""
        parts = [self.of(one) for one in part.parts]
        if part.kind == "set":
            return self._make("set", 0, mask=self._alphabet.masks[part.text])
        if part.kind == "join":
            return self._join(parts)
        if part.kind == "any":
            return self._any(parts)
        if part.kind == "not":
            return self._not(parts[0])
        if part.kind == "repeat":
            return self._repeat(parts[0], *part.turns)
        return self._make("place", _BOUNDARY_NULLS[part.kind])

    def derivative(self, one: Expression, previous: int, letter: int) -> Expression:
        """What must follow a letter so that all of it matches, after a character of the kind `previous`."""
        key = one, previous, letter
        if key not in self._derivatives:
            self._derivatives[key] = self._derive(one, previous, letter)
        return self._derivatives[key]

    def _derive(self, one: Expression, previous: int, letter: int) -> Expression:
        here = 1 << 3 * previous + self._alphabet.kinds[letter]
        if one.kind == "set":
            return self.empty if one.mask >> letter & 1 else self.nothing
        if one.kind == "all":
            return one
        if one.kind == "place":
            return self.nothing
        if one.kind == "join":
            alternatives = []
            for place, part in enumerate(one.parts):
                alternatives.append(self._join([self.derivative(part, previous, letter), *one.parts[place + 1 :]]))
                if not part.nulls & here:
                    break
            return self._any(alternatives)
        parts = [self.derivative(part, previous, letter) for part in one.parts]
        if one.kind == "any":
            return self._any(parts)
        if one.kind == "not":
            return self._not(parts[0])
        low, high = one.turns
        # Where the part may match nothing here, any number of the turns may have passed already.
        low = 0 if one.parts[0].nulls & here else max(low - 1, 0)
        rest = self._repeat(one.parts[0], low, None if high is None else high - 1)
        return self._join([parts[0], rest])

    def spend(self, work: int) -> None:
        """Count steps. Raises TooMuchWork: there are none left."""
        self._left -= work
        if self._left < 0:
            raise TooMuchWork

    def _make(
        self,
        kind: str,
        nulls: int,
        parts: tuple[Expression, ...] = (),
        mask: int = 0,
        turns: tuple[int, int | None] = (1, 1),
    ) -> Expression:
        self.spend(4 + len(parts))
        key = kind, nulls, parts, mask, turns
        if key not in self._made:
            self._made[key] = Expression(len(self._made), kind, nulls, parts, mask, turns)
        return self._made[key]

    def _join(self, parts: Iterable[Expression]) -> Expression:
        flat: list[Expression] = []
        for part in parts:
            for one in part.parts if part.kind == "join" else (part,):
                if one is self.nothing:
                    return one
                endless = one is self.all or one.turns == (0, None)
                if not (endless and flat and flat[-1] is one):  # x*x*
                    flat.append(one)
        if len(flat) == 1:
            return flat[0]
        return self._make("join", reduce(and_, (one.nulls for one in flat), _ALWAYS), tuple(flat))

    def _any(self, parts: Iterable[Expression]) -> Expression:
        mask, members = 0, set[Expression]()
        for part in parts:
            for one in part.parts if part.kind == "any" else (part,):
                mask |= one.mask
                if one.kind != "set":
                    members.add(one)
        if mask:
            members.add(self._make("set", 0, mask=mask))
        if not members:
            return self.nothing
        if len(members) == 1:
            return members.pop()
        if self.all in members:
            return self.all
        flat = sorted(members, key=lambda one: one.number)
        return self._make("any", reduce(or_, (one.nulls for one in flat)), tuple(flat))

    def _not(self, part: Expression) -> Expression:
        if part.kind == "not":
            return part.parts[0]
        if part is self.nothing:
            return self.all
        if part is self.all:
            return self.nothing
        return self._make("not", _ALWAYS & ~part.nulls, (part,))

    def _repeat(self, part: Expression, low: int, high: int | None) -> Expression:
        if high == 0 or part is self.empty:
            return self.empty
        if part is self.nothing:
            return part if low else self.empty
        if (low, high) == (1, 1) or part is self.all:
            return part
        alternatives = part.parts if part.kind == "any" else (part,)
        if (low, high) == (0, None):
            if any(one.mask == self._whole for one in alternatives):
                return self.all
            if part.turns == (0, None):
                return part
        nulls = _ALWAYS if low == 0 else part.nulls
        return self._make("repeat", nulls, (part,), turns=(low, high))


@dataclass(kw_only=True)
class RegexEquivalence(Metric):
    r"""Compares the languages of two regular expressions, each of which must match all of a line.

    The judge of the published functional accuracy (`dk.brics.automaton`) reads `\b` as the letter b; NL-RX's sentences mean
    the edge of a word.
    """

    word_boundary: WordBoundary = option("zero_width", r"What \b is: the edge of a word, or the letter b.", OPTIONS)

    name = "regex_equivalence"

    def score(self, generated: str, row: Mapping[str, Any]) -> Judgement:
        """1 where the languages are the same."""
        gold, answer = self.pair(generated, row)
        if not answer:
            return Judgement(0.0, gold, None, "no answer found")
        if gold == answer:
            return Judgement(1.0, gold, answer)
        note, undecided = self._difference(gold, answer)
        return Judgement(float(not note), gold, answer, note, undecided)

    def _difference(self, gold: str, answer: str) -> tuple[str, Literal["unknown", "invalid"] | None]:
        """Why two patterns differ, empty where they do not, and `Judgement.undecided`."""
        first = None
        try:
            first = parse(gold, self.word_boundary)
            example = difference(first, parse(answer, self.word_boundary))
        except (TooMuchWork, RecursionError):
            return f"unknown: not decided in {BUDGET} steps", "unknown"
        except NotSupportedError as error:
            return f"unknown: cannot be compared: {error}", "unknown"
        except PatternError as error:
            if first is None:
                return f"the reference is no regular expression: {error}", None
            return f"the answer is no regular expression: {error}", "invalid"
        if example is None:
            return "", None
        text, in_first = example
        return f"only {'the reference' if in_first else 'the answer'} matches {text!r}", None
