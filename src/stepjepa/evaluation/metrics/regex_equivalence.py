r"""The metric `regex_equivalence`: whether two regular expressions match the same texts.

States of the automata are expressions, created on demand: the derivative of an expression with respect to a character is
what must match the rest of the text (Brzozowski 1964; Owens, Reppy and Turon 2009). So `&` and `~` cost no more than `|`,
only the visited part of an automaton is built, and the limit on the work, counted in steps, is the same on every machine.
Pairs of states are visited breadth first, until a text distinguishes them or no pair is left.

Libraries for automata lack word boundaries, which occur in a fifth of NL-RX's expressions, and do not bound their work. A
`\b` depends on both neighbours, so an expression is evaluated at a position between characters (Moseley et al., PLDI 2023,
"Derivative Based Nonbacktracking Real-World Regex Matching with Backtracking Semantics"), in one of nine contexts:

                      next: end   word  other        word: a letter of ASCII, a digit or _
    previous: begin          0     1     2           nulls: the contexts, as bits, in which an expression
              word           3     4     5                  matches the empty text
              other          6     7     8

The alphabet is printable ASCII.

The syntax is that of NL-RX and KB13: the part of the automaton package `dk.brics` that these data sets use. It has the usual
operators, `&` (and), `~` (not), and `\b`. From weakest to strongest binding: `|`, `&`, concatenation, repetition, `~`; so
`~a*` is `(~a)*`, and `\bA&B\b` is `(\bA)&(B\b)`. A repetition may follow another (`a{2,}*`). `.` is any character, `^` and
`$` are the ends of the text. A single character, an escape and a bracketed set mean the same as in Python's `re`.
"""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, reduce
from itertools import count
from operator import and_, or_
from string import printable
from typing import Literal

from stepjepa.config.option import option
from stepjepa.evaluation.metrics.base import OPTIONS, Judgement, Metric, Row

WordBoundary = Literal["zero_width", "letter"]
# Smallest and largest number of repetitions; None for no upper bound.
Turns = tuple[int, int | None]
# Characters of a pattern.
LONGEST_PATTERN = 2_000

# Kinds of the character before a position; BEGIN at the start of the text.
BEGIN, IN_WORD, OTHER = 0, 1, 2
# Steps of a comparison; each takes about a microsecond.
BUDGET = 600_000
# All nine contexts; bit 0 is the rightmost one.
_ALWAYS = 0b111_111_111
_WORD = r"\w"

_TOKEN = re.compile(
    r"""\[\^?\]?(?:\\.|[^\]\\])*\]       # a bracket
    |   \\.
    |   \{\d+(?:,\d*)?\} | \{,\d+\}      # a repetition
    |   \(\?:                            # a group
    |   .""",
    re.DOTALL | re.VERBOSE,
)
# Characters beyond printable ASCII, and escapes that are backreferences or name further characters.
_UNKNOWN = re.compile(r"[^ -~]|\\[0-9tnrfvxuN]")
# Tokens that end a concatenation; the empty one is the end of the pattern.
_ENDS = ("|", "&", ")", "")
_GROUPS = ("(", "(?:")
_REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
# The contexts in which a position matches: the row "other" of the table on the left, the row "begin" on the right.
_PLACES = {
    r"\b": 0b010_101_010,
    r"\B": 0b101_010_101,
    "^": 0b000_000_111,
    r"\A": 0b000_000_111,
    "$": 0b001_001_001,
    r"\Z": 0b001_001_001,
}


class PatternError(ValueError):
    """A text that is not a regular expression. The message says why."""


class NotSupportedError(PatternError):
    """A pattern that may be valid, but is too long or uses a feature that is not supported."""


def tokens_of(text: str, word_boundary: WordBoundary = "zero_width") -> list[str]:
    r"""Split a pattern into operators, places between characters, and sets of characters.

    Args:
        text: the pattern, which must match a text from end to end.
        word_boundary: the meaning of `\b`: the edge of a word, or the letter b as in `dk.brics`.

    Raises:
        PatternError: an invalid set of characters.
        NotSupportedError: a backreference, a character beyond printable ASCII, or a pattern that is too long.
    """
    if len(text) > LONGEST_PATTERN:
        raise NotSupportedError(f"longer than {LONGEST_PATTERN} characters")
    tokens = _TOKEN.findall(text)
    if word_boundary == "letter":
        tokens = ["b" if token == r"\b" else token for token in tokens]
    for token in filter(_is_set, tokens):
        if _UNKNOWN.search(token):
            raise NotSupportedError(
                f"{token} is not supported: only printable ASCII, no backreferences"
            )
        try:
            set_of(token)
        except re.error as error:
            raise PatternError(f"{token}: {error}") from None
    return tokens


def _is_set(token: str) -> bool:
    """Whether a token matches one character of a set."""
    return not (
        token in _ENDS or token in _GROUPS or token in _PLACES or token == "~" or _repeats(token)
    )


def _repeats(token: str) -> bool:
    """Whether a token is a repetition. A lone { is an ordinary character."""
    return token in _REPEATS or len(token) > 2 and token[0] == "{"


def set_of(token: str) -> re.Pattern[str]:
    """A pattern that matches exactly the characters of a set."""
    text = token if len(token) > 1 or token in ".[\\" else re.escape(token)
    with warnings.catch_warnings():
        # Python warns about "[[a]", whose meaning may change in a later version.
        warnings.simplefilter("ignore")
        return re.compile(text, re.ASCII | re.DOTALL)


class _Reader:
    """A recursive-descent parser, with a method for each level of precedence from `read` (weakest) to `atom`."""

    def __init__(self, tokens: list[str], space: Expressions):
        self.tokens, self.position = [*tokens, ""], 0
        self.space = space

    def pattern(self) -> Expression:
        """The expression of all tokens. Raises PatternError: a syntax error; NotSupportedError: lookaround or flags."""
        expression = self.read()
        # The reader stops at an unmatched closing bracket.
        if self.next():
            raise PatternError("unmatched )")
        return expression

    def next(self) -> str:
        """The next token, empty at the end."""
        return self.tokens[self.position]

    def take(self) -> str:
        token = self.next()
        self.position += 1
        return token

    def read(self) -> Expression:
        parts = [self.intersection()]
        while self.next() == "|":
            self.take()
            parts.append(self.intersection())
        return self.space.any_of(parts)

    def intersection(self) -> Expression:
        parts = [self.joined()]
        while self.next() == "&":
            self.take()
            parts.append(self.joined())
        if len(parts) == 1:
            return parts[0]
        # a & b = ~(~a | ~b), so expressions need no separate kind for "and".
        return self.space.negate(self.space.any_of(map(self.space.negate, parts)))

    def joined(self) -> Expression:
        parts: list[Expression] = []
        while self.next() not in _ENDS:
            parts.append(self.repeated())
        return self.space.join(parts)

    def repeated(self) -> Expression:
        part = self.atom()
        while _repeats(self.next()):
            part = self.space.repeat(part, *_turns(self.take()))
        return part

    def atom(self) -> Expression:
        token = self.take()
        # ~ binds more strongly than a repetition.
        if token == "~":
            return self.space.negate(self.atom())
        if token in _ENDS or _repeats(token):
            raise PatternError("nothing to repeat or to negate")
        if token in _GROUPS:
            return self.group()
        if token in _PLACES:
            return self.space.make("place", _PLACES[token])
        return self.space.one_of(token)

    def group(self) -> Expression:
        if self.next() == "?":
            raise NotSupportedError("(? is not supported: no lookaround, no flags")
        part = self.read()
        if self.take() != ")":
            raise PatternError("a ( is not closed")
        return part


def _turns(token: str) -> Turns:
    """Smallest and largest number of repetitions of a token such as ``{2,}``."""
    if token in _REPEATS:
        return _REPEATS[token]
    least, comma, most = token[1:-1].partition(",")
    low = int(least or 0)
    high = int(most) if most else None
    if not comma:
        high = low
    if high is not None and high < low:
        raise PatternError(f"{token}: the upper limit is below the lower limit")
    return low, high


class TooMuchWork(Exception):
    """The comparison needs more steps than its budget."""


class Alphabet:
    """Printable ASCII, with one letter for all characters that belong to the same sets.

    Attributes:
        kinds: `IN_WORD` or `OTHER` for each letter.
        examples: a character for each letter.
        masks: set of characters -> its letters, as bits.
    """

    def __init__(self, sets: Iterable[str]):
        # \w is the first set, so bit 0 of a signature says whether a character belongs to a word.
        sets = list(dict.fromkeys([_WORD, *sets]))
        patterns = [set_of(text) for text in sets]
        # Signature (the sets that contain a letter, as bits) -> the letter's first character.
        signatures: dict[int, str] = {}
        # The space is number 95; only other white space follows. Digits and letters, which make the most readable examples,
        # come first.
        for character in printable[:95]:
            signature = 0
            for bit, pattern in enumerate(patterns):
                if pattern.fullmatch(character):
                    signature |= 1 << bit
            signatures.setdefault(signature, character)
        self.kinds = [IN_WORD if signature & 1 else OTHER for signature in signatures]
        self.examples = list(signatures.values())
        self.masks = {
            text: sum(
                (signature >> bit & 1) << letter for letter, signature in enumerate(signatures)
            )
            for bit, text in enumerate(sets)
        }


def difference(
    first: str, second: str, word_boundary: WordBoundary = "zero_width"
) -> tuple[str, bool] | None:
    """The shortest text that only one of two patterns matches, and whether the first one does; None if they are equal.

    Raises:
        PatternError, NotSupportedError: see `tokens_of` and `_Reader.pattern`.
        TooMuchWork, RecursionError: the budget, or Python's stack, is not sufficient to decide.
    """
    tokens_a, tokens_b = tokens_of(first, word_boundary), tokens_of(second, word_boundary)
    alphabet = Alphabet(filter(_is_set, tokens_a + tokens_b))
    space = Expressions(alphabet)
    # The two states, the kind of the last character, and the text that leads to the states.
    start = _Reader(tokens_a, space).pattern(), _Reader(tokens_b, space).pattern(), BEGIN
    queue, visited = deque([(start, "")]), {start}
    while queue:
        (state_a, state_b, previous), text = queue.popleft()
        # In the context after `previous` at the end of the text, only one of the patterns may match.
        at_end = 1 << 3 * previous
        if (state_a.nulls ^ state_b.nulls) & at_end:
            return text, bool(state_a.nulls & at_end)
        space.spend(len(alphabet.kinds))
        for letter, (kind, example) in enumerate(
            zip(alphabet.kinds, alphabet.examples, strict=True)
        ):
            after_a = space.derivative(state_a, previous, letter)
            after_b = space.derivative(state_b, previous, letter)
            after = after_a, after_b, kind
            # Equal expressions are one object, and no further text can distinguish them.
            if after_a is not after_b and after not in visited:
                visited.add(after)
                queue.append((after, text + example))
    return None


@dataclass(eq=False, slots=True)
class Expression:
    """A regular expression over letters; equal expressions are one object.

    Attributes:
        kind: ``set``, ``place``, or how the parts are combined: ``join``, ``any``, ``not``, ``repeat``.
        nulls: contexts in which the expression matches the empty text, as bits.
        mask: the letters of a set, as bits.
        turns: smallest and largest number of repetitions.
        number: position in the order of creation, by which alternatives are sorted.
    """

    kind: str
    nulls: int
    parts: tuple[Expression, ...]
    mask: int
    turns: Turns
    number: int = field(default_factory=count().__next__)


class Expressions:
    """Creates expressions in a normal form, with alternatives flat and sorted, so that a pattern has few derivatives."""

    def __init__(self, alphabet: Alphabet):
        self._alphabet, self._steps_left = alphabet, BUDGET
        # Looked up by value: equal expressions must be one object, because states are compared by identity.
        self._expression = cache(Expression)
        self.derivative = cache(self._derive)
        # The set of all letters, as bits.
        self._all_letters = (1 << len(alphabet.kinds)) - 1
        self.nothing = self.make("set", 0)
        self.empty = self.make("join", _ALWAYS)
        self.all = self.negate(self.nothing)

    def one_of(self, token: str) -> Expression:
        """One character of a set."""
        return self.make("set", 0, mask=self._alphabet.masks[token])

    def _derive(self, expression: Expression, previous: int, letter: int) -> Expression:
        """The expression of all texts that may follow `letter`, after a character of the kind `previous`."""
        # The context between `previous` and `letter`, as a bit of `nulls`.
        here = 1 << 3 * previous + self._alphabet.kinds[letter]
        if expression.kind == "set":
            return self.empty if expression.mask >> letter & 1 else self.nothing
        if expression.kind == "place":
            return self.nothing
        if expression.kind == "join":
            # The letter belongs to the first part, or to a later one if all parts before it match the empty text here.
            alternatives = []
            for place, part in enumerate(expression.parts):
                rest_parts = expression.parts[place + 1 :]
                alternatives.append(
                    self.join([self.derivative(part, previous, letter), *rest_parts])
                )
                if not part.nulls & here:
                    break
            return self.any_of(alternatives)
        parts = [self.derivative(part, previous, letter) for part in expression.parts]
        if expression.kind == "any":
            return self.any_of(parts)
        if expression.kind == "not":
            return self.negate(parts[0])
        low, high = expression.turns
        # If the part can match the empty text here, any number of repetitions may be over already.
        low = 0 if expression.parts[0].nulls & here else max(low - 1, 0)
        rest = self.repeat(expression.parts[0], low, None if high is None else high - 1)
        return self.join([parts[0], rest])

    def spend(self, work: int) -> None:
        """Count steps. Raises TooMuchWork: the budget is used up."""
        self._steps_left -= work
        if self._steps_left < 0:
            raise TooMuchWork

    def make(
        self,
        kind: str,
        nulls: int,
        parts: tuple[Expression, ...] = (),
        mask: int = 0,
        turns: Turns = (1, 1),
    ) -> Expression:
        """The expression of this kind, with these values; equal ones are one object."""
        self.spend(4 + len(parts))
        return self._expression(kind, nulls, parts, mask, turns)

    def join(self, parts: Iterable[Expression]) -> Expression:
        """The parts in order; without parts the empty text."""
        flat: list[Expression] = []
        for part in parts:
            for member in part.parts if part.kind == "join" else (part,):
                if member is self.nothing:
                    return member
                # x*x* is x*.
                endless = member is self.all or member.turns == (0, None)
                if not (endless and flat and flat[-1] is member):
                    flat.append(member)
        if len(flat) == 1:
            return flat[0]
        return self.make(
            "join", reduce(and_, (member.nulls for member in flat), _ALWAYS), tuple(flat)
        )

    def any_of(self, parts: Iterable[Expression]) -> Expression:
        """One of the parts."""
        # All sets become one, and the set without letters disappears.
        mask, members = 0, set[Expression]()
        for part in parts:
            for member in part.parts if part.kind == "any" else (part,):
                mask |= member.mask
                if member.kind != "set":
                    members.add(member)
        if mask:
            members.add(self.make("set", 0, mask=mask))
        if not members:
            return self.nothing
        if len(members) == 1:
            return members.pop()
        if self.all in members:
            return self.all
        flat = sorted(members, key=lambda member: member.number)
        return self.make("any", reduce(or_, (member.nulls for member in flat)), tuple(flat))

    def negate(self, part: Expression) -> Expression:
        """Every text that the part does not match."""
        if part.kind == "not":
            return part.parts[0]
        return self.make("not", _ALWAYS & ~part.nulls, (part,))

    def repeat(self, part: Expression, low: int, high: int | None) -> Expression:
        """The part at least `low` times, and at most `high` times; None for no upper bound."""
        if high == 0 or part is self.empty:
            return self.empty
        if part is self.nothing:
            return part if low else self.empty
        if (low, high) == (1, 1) or part is self.all:
            return part
        # x** is x*, and .* is all texts, also as one alternative among others.
        alternatives = part.parts if part.kind == "any" else (part,)
        if (low, high) == (0, None):
            if any(alternative.mask == self._all_letters for alternative in alternatives):
                return self.all
            if part.turns == (0, None):
                return part
        nulls = _ALWAYS if low == 0 else part.nulls
        return self.make("repeat", nulls, (part,), turns=(low, high))


@dataclass(kw_only=True)
class RegexEquivalence(Metric):
    r"""Compares the languages of two regular expressions, which must match a line from end to end.

    The program behind the published functional accuracy (`dk.brics.automaton`) reads `\b` as the letter b; the sentences of
    NL-RX mean the edge of a word.
    """

    word_boundary: WordBoundary = option(
        "zero_width", r"What \b means: the edge of a word, or the letter b.", OPTIONS
    )

    name = "regex_equivalence"

    def score(self, generated: str, row: Row) -> Judgement:
        """1 if the languages are the same."""
        gold, answer = self.pair(generated, row)
        if not answer:
            return Judgement(0.0, gold, None, "no answer found")
        if gold == answer:
            return Judgement(1.0, gold, answer)
        note, undecided = self._difference(gold, answer)
        return Judgement(float(not note), gold, answer, note, undecided)

    def _difference(
        self, gold: str, answer: str
    ) -> tuple[str, Literal["unknown", "invalid"] | None]:
        """Why two patterns differ, empty if they do not, and `Judgement.undecided`."""
        reference_is_read = False
        try:
            # The reference is compared with itself first, which shows which pattern an error is about.
            difference(gold, gold, self.word_boundary)
            reference_is_read = True
            example = difference(gold, answer, self.word_boundary)
        except (TooMuchWork, RecursionError):
            return f"unknown: not decided in {BUDGET} steps", "unknown"
        except NotSupportedError as error:
            return f"unknown: cannot be compared: {error}", "unknown"
        except PatternError as error:
            if not reference_is_read:
                return f"the reference is not a regular expression: {error}", None
            return f"the answer is not a regular expression: {error}", "invalid"
        if example is None:
            return "", None
        text, in_first = example
        return f"only {'the reference' if in_first else 'the answer'} matches {text!r}", None
