r"""The metric `regex_equivalence`: whether two regular expressions match the same texts.

States of the automata are expressions, made on demand: the derivative of an expression by a character is what must match
the rest (Brzozowski 1964; Owens, Reppy and Turon 2009). So `&` and `~` cost no more than `|`, no part of an automaton is
built that the comparison does not visit, and the work is counted, which bounds it on every machine alike. Two states are
compared by merging what must be equal (Hopcroft and Karp 1971) until a text tells them apart or nothing is left.

The libraries for automata have no word boundaries, which a fifth of NL-RX's expressions hold, and no bound on their work. A
`\b` says something about its two neighbours, so an expression is read at a place between characters (Moseley et al., PLDI
2023, "Derivative Based Nonbacktracking Real-World Regex Matching with Backtracking Semantics"), in one of nine contexts:

                      next: end   word  other        word: a letter of ASCII, a digit or _
    previous: begin          0     1     2           nulls: the contexts, as bits, in which an expression
              word           3     4     5                  matches the empty text
              other          6     7     8

The alphabet is printable ASCII and whatever else the two patterns write out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any, Literal

from stepjepa.config.option import option
from stepjepa.evaluation.metrics import OPTIONS, Judgement, Metric
from stepjepa.evaluation.metrics.regex_syntax import (
    LAST,
    WORD,
    Dialect,
    NotSupportedError,
    Pattern,
    PatternError,
    PatternPart,
    Ranges,
    Turns,
    WordBoundary,
    merged,
    parse,
)

PRINTABLE = (32, 126)
BEGIN, IN_WORD, OTHER = 0, 1, 2  # kinds of the character before a position; the first where there is none
_MOST_WORK = 300_000  # characters times sets of an alphabet
_PAIR, _DERIVATIVE = 8, 6  # steps; one takes about a microsecond
_ALWAYS = 0b111_111_111
Parts = tuple["Expression", ...]
_BOUNDARY_NULLS = {
    "word": 0b010_101_010,
    "no word": 0b101_010_101,
    "begin": 0b000_000_111,
    "end": 0b001_001_001,
}


class TooMuchWork(Exception):
    """The comparison needs more steps than it may make."""


class Alphabet:
    """Printable ASCII and whatever else the patterns write out; one letter for all characters that no pattern tells apart.

    Attributes:
        size: letters.
        kinds: `IN_WORD` or `OTHER`, of each letter.
        examples: a character of each letter.
        masks: set of characters -> its letters, as bits.
    """

    def __init__(self, patterns: Iterable[Pattern]):
        patterns = list(patterns)
        universe = merged([PRINTABLE, *(one for pattern in patterns for one in pattern.named)])
        sets = list(dict.fromkeys([WORD, *(ranges for pattern in patterns for ranges in pattern.sets)]))
        cuts = {bound for ranges in (*sets, universe) for low, high in ranges for bound in (low, high + 1)}
        points = [point for point in sorted(cuts) if _holds(universe, point)]
        if len(points) * len(sets) > _MOST_WORK:
            raise TooMuchWork
        signatures: dict[int, int] = {}  # the sets that hold a letter, as bits -> a readable character of it
        for point in points:
            signature = sum(_holds(ranges, point) << bit for bit, ranges in enumerate(sets))
            signatures[signature] = min(signatures.get(signature, point), point, key=_readability)
        self.size = len(signatures)
        self.kinds = [IN_WORD if signature & 1 else OTHER for signature in signatures]
        self.examples = [chr(point) for point in signatures.values()]
        self.masks = {
            ranges: sum((signature >> bit & 1) << letter for letter, signature in enumerate(signatures))
            for bit, ranges in enumerate(sets)
        }


def _readability(point: int) -> int:
    """Letters and digits first, then the other printable characters."""
    return 0 if chr(point).isalnum() else 1 if 32 < point < 127 else 2


def _holds(ranges: Ranges, point: int) -> bool:
    place = bisect_right(ranges, (point, LAST))
    return place > 0 and point <= ranges[place - 1][1]


def difference(first: Pattern, second: Pattern, budget: int) -> tuple[str, bool] | None:
    """The shortest text that only one of two patterns matches, and whether that is the first; None where there is none.

    Args:
        budget: steps that may be made, of about a microsecond.

    Raises:
        TooMuchWork, RecursionError: that was not enough to decide, or Python's stack is not.
    """
    from scipy.cluster.hierarchy import DisjointSet

    same = DisjointSet()
    space = Expressions(Alphabet([first, second]), budget)
    # Two states, the kind of the last character, and the text by which they were reached.
    queue = deque([(space.of(first.part), space.of(second.part), BEGIN, "")])
    while queue:
        one, other, previous, text = queue.popleft()
        if one is other:
            continue
        # What does not look at the character before is the same state after any.
        both = [(state.number, previous if state.looks_back else -1) for state in (one, other)]
        for state in both:
            same.add(state)
        if not same.merge(*both):
            continue
        space.spend(_PAIR)
        at_end = 1 << 3 * previous
        if bool(one.nulls & at_end) != bool(other.nulls & at_end):
            return text, bool(one.nulls & at_end)
        for letter in range(space.alphabet.size):
            kind = space.alphabet.kinds[letter]
            after = space.derivative(one, previous, letter), space.derivative(other, previous, letter)
            if after[0] is not after[1]:
                queue.append((*after, kind, text + space.alphabet.examples[letter]))
    return None


@dataclass(eq=False, slots=True)
class Expression:
    """A regular expression over letters; equal ones are one object.

    Attributes:
        number: in the order of making.
        kind: ``set``, ``all``, ``place``, or how the parts are put together: ``join``, ``any``, ``not``, ``repeat``.
        nulls: see above.
        looks_back: whether it holds a boundary.
        mask: the letters of a set, as bits.
    """

    number: int
    kind: str
    nulls: int
    looks_back: bool
    parts: Parts = ()
    mask: int = 0
    turns: Turns = (1, 1)


class Expressions:
    """Makes expressions in a normal form: `|` and `&` sorted and flat, so that a pattern has few derivatives."""

    def __init__(self, alphabet: Alphabet, budget: int):
        self.alphabet, self._left = alphabet, budget
        self._made: dict[tuple[object, ...], Expression] = {}
        self._derivatives: dict[tuple[int, int, int], Expression] = {}
        self._whole = (1 << alphabet.size) - 1
        self.nothing = self._make("set", 0)
        self.empty = self._make("join", _ALWAYS)
        self.all = self._make("all", _ALWAYS)

    def of(self, part: PatternPart) -> Expression:
        """The expression of a parsed pattern."""
        if part.kind == "every":
            return self._not(self._any(list(map(self._not, map(self.of, part.parts)))))
        parts = list(map(self.of, part.parts))
        if part.kind == "set":
            return self._make("set", 0, mask=self.alphabet.masks[part.ranges])
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
        if not one.looks_back:
            previous = BEGIN
        key = one.number, previous, letter
        derivative = self._derivatives.get(key)
        if derivative is None:
            self.spend(_DERIVATIVE)
            derivative = self._derivatives[key] = self._derive(one, previous, letter)
        return derivative

    def _derive(self, one: Expression, previous: int, letter: int) -> Expression:
        here = 1 << 3 * previous + self.alphabet.kinds[letter]
        if one.kind == "set":
            return self.empty if one.mask >> letter & 1 else self.nothing
        if one.kind == "all":
            return one
        if one.kind == "join":
            alternatives = []
            for place, part in enumerate(one.parts):
                alternatives.append(self._join([self.derivative(part, previous, letter), *one.parts[place + 1 :]]))
                if not part.nulls & here:
                    break
            return self._any(alternatives)
        if one.kind == "any":
            return self._any([self.derivative(part, previous, letter) for part in one.parts])
        if one.kind == "not":
            return self._not(self.derivative(one.parts[0], previous, letter))
        if one.kind == "repeat":
            part, (low, high) = one.parts[0], one.turns
            # Where the part may match nothing here, any number of the turns may have passed already.
            low = 0 if part.nulls & here else max(low - 1, 0)
            rest = self._repeat(part, low, None if high is None else high - 1)
            return self._join([self.derivative(part, previous, letter), rest])
        return self.nothing  # a place

    def spend(self, work: int) -> None:
        """Count steps. Raises TooMuchWork: there are none left."""
        self._left -= work
        if self._left < 0:
            raise TooMuchWork

    def _make(self, kind: str, nulls: int, parts: Parts = (), mask: int = 0, turns: Turns = (1, 1)) -> Expression:
        key = kind, nulls, parts, mask, turns
        expression = self._made.get(key)
        if expression is None:
            looks_back = kind == "place" or any(part.looks_back for part in parts)
            expression = self._made[key] = Expression(len(self._made), kind, nulls, looks_back, parts, mask, turns)
        return expression

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
        self.spend(2 + len(flat) // 4)
        return self._make("join", reduce(and_, (one.nulls for one in flat), _ALWAYS), tuple(flat))

    def _any(self, parts: Iterable[Expression]) -> Expression:
        mask, members = 0, {}
        for part in parts:
            for one in part.parts if part.kind == "any" else (part,):
                if one is self.all:
                    return one
                if one.kind == "set":
                    mask |= one.mask
                else:
                    members[one.number] = one
        if mask:
            letters = self._make("set", 0, mask=mask)
            members[letters.number] = letters
        self.spend(2 + len(members))
        if len(members) > 1:
            self._absorb(members)
        if not members:
            return self.nothing
        flat = tuple(members[number] for number in sorted(members))
        if len(flat) == 1:
            return flat[0]
        # `x|~x` is everything; `x&~x`, which is its complement, nothing.
        if any(one.kind == "not" and one.parts[0].number in members for one in flat):
            return self.all
        return self._make("any", reduce(or_, (one.nulls for one in flat)), flat)

    def _absorb(self, members: dict[int, Expression]) -> None:
        """Leave out of a union what another of its parts matches anyway; without this, counted repeats of `.*` explode.

        `x.*s` is within `.*s`, and `xr{5,}` in `xr{4,}`.
        """
        joins = [one.parts for one in members.values() if one.kind == "join"]
        tails = {parts[1:] for parts in joins if parts and parts[0] is self.all}
        fewest: dict[tuple[object, ...], Expression] = {}
        for number, one in list(members.items()):
            parts = one.parts if one.kind == "join" else (one,)
            self.spend(1 + len(tails) // 2)
            if any(parts[-len(tail) :] == tail and parts[: -len(tail)] != (self.all,) for tail in tails):
                del members[number]
            elif parts and parts[-1].turns[1] is None:
                key = (parts[:-1], parts[-1].parts)
                other = fewest.setdefault(key, one)
                if other is not one:
                    last = other.parts[-1] if other.kind == "join" else other
                    fewest[key], lost = (one, other) if parts[-1].turns[0] < last.turns[0] else (other, one)
                    del members[lost.number]

    def _not(self, part: Expression) -> Expression:
        if part.kind == "not":
            return part.parts[0]
        if part is self.nothing:
            return self.all
        if part is self.all:
            return self.nothing
        return self._make("not", _ALWAYS & ~part.nulls, (part,))

    def _repeat(self, part: Expression, low: int, high: int | None) -> Expression:
        if part.nulls == _ALWAYS:
            low = 0
        if high == 0 or part is self.empty or (part is self.nothing and low == 0):
            return self.empty
        if (low, high) == (1, 1) or part is self.nothing or part is self.all:
            return part
        if low == 0 and high is None:
            if self._whole in [one.mask for one in (part.parts if part.kind == "any" else (part,))]:
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

    dialect: Dialect = option("nl_rx", "nl_rx (with & and ~) or python; see `regex_syntax`.", OPTIONS)
    word_boundary: WordBoundary = option("zero_width", r"What \b is: the edge of a word, or the letter b.", OPTIONS)
    budget: int = option(
        600_000, "Steps of about a microsecond until a comparison is given up as different.", OPTIONS, at_least=1
    )

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
        patterns = []
        for whose, text in (("the reference", gold), ("the answer", answer)):
            try:
                patterns.append(parse(text, self.dialect, self.word_boundary))
            except NotSupportedError as error:
                return f"unknown: {whose} cannot be compared: {error}", "unknown"
            except PatternError as error:
                return f"{whose} is no regular expression: {error}", "invalid" if patterns else None
        try:
            example = difference(patterns[0], patterns[1], self.budget)
        except (TooMuchWork, RecursionError):
            return f"unknown: not decided in {self.budget} steps", "unknown"
        if example is None:
            return "", None
        text, in_first = example
        return f"only {'the reference' if in_first else 'the answer'} matches {text!r}", None
