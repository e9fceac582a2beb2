"""From one example to its forest: trunk, predictor branches and isolated views in one line of tokens; and which forests
share a row.

    ```
                 trunk                             branch     target
    tokens       [user][step 1 \\n\\n][step 2][end]  <p1><p2>   [step 2]
    position      0 ..            p   p+1 ..  T-1   p+1 p+2    p+3 ..
    order         0 ..            p   p+1 ..  T-1   0   1      0 ..
    segment       0 ..                        0     1   1      2 ..
    attach       -1 ..                       -1     p   p     -1 ..
    read                                                source      target
    ```

What hangs where, and at which positions, is decided by the example's `Segment`s; a layout only puts them in a row.

Packing never changes a forest; only how many rows a batch takes and how long these are. Attention over a row of T tokens
costs T x T whoever sees whom (with a dense mask), so a longer row saves padding and costs attention: `plan_rows` weighs the
two.

Shapes: L tokens of the forest, P pairs, M terms, N labelled positions.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stepjepa.data.types import ISOLATED, TRUNK, Example, Pair, Read, Segment, Span

# Tokens at which a row's attention costs as much as everything else of it, and what a call of the attention kernel costs
# beside its scores, forward and backward in every layer, in tokens. Measured on CPU for widths of 96 to 256
# (docs/performance.md); larger models favour longer rows, and then more padding is saved by them.
DEFAULT_ATTENTION_LENGTH = 1024
CALL_COST = 5

# Room beyond an even split that is tried, as shares of the longest forest.
_SLACKS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.25)


class Part(NamedTuple):
    """A segment behind the trunk: tokens [start, stop) of the forest.

    Attributes:
        kind: ``branch``, ``source`` (a source view of its own) or ``target``.
        pair: number of the first pair that it serves, from 0.
    """

    kind: str
    pair: int
    start: int
    stop: int


@dataclass(frozen=True)
class Forest:
    """One example laid out for one forward pass; see the drawing at the top of this file.

    Attributes:
        example: what is laid out; of the inline form, with what is inserted on its trunk.
        input_ids, position_ids, segment, order, attach: (L,) int32.
        label_positions: (N,) int32, the positions whose *next* token on the trunk is labelled.
        label_ids: (N,) int32, those next tokens.
        starts: where each segment of the example that is laid out begins, by its number.
        floor: (L,) int32, see `visibility.visible`; None where it is 0 everywhere.
    """

    example: Example
    input_ids: np.ndarray
    position_ids: np.ndarray
    segment: np.ndarray
    order: np.ndarray
    attach: np.ndarray
    label_positions: np.ndarray
    label_ids: np.ndarray
    starts: Mapping[int, int]
    floor: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def trunk_length(self) -> int:
        """Tokens of the trunk, with those that are inserted into it."""
        return len(self.example.trunk)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What follows the trunk, in order."""
        return tuple(
            Part(*segment_use(self.example, number), start, start + self.example.segments[number - 1].length)
            for number, start in self.starts.items()
            if number != TRUNK
        )


def segment_use(example: Example, number: int) -> tuple[str, int]:
    """What a segment of an example is (a kind of `Part`), and the first pair that it serves."""
    sides = (
        (kind, pair)
        for pair, one in enumerate(example.pairs)
        for kind, read in (("source", one.source), ("target", one.target))
        if any(term.segment == number for term in read.terms)
    )
    kind, pair = next(sides, ("target", 0))
    return "branch" if example.segments[number - 1].attach != ISOLATED else kind, pair


def target_segments(example: Example) -> list[int]:
    """Numbers of the segments that targets are read from, ascending."""
    return sorted({term.segment for pair in example.pairs for term in pair.target.terms} - {TRUNK})


def label_indices(example: Example) -> tuple[np.ndarray, np.ndarray]:
    """(positions that predict, ids to predict), each (N,) int32: the labelled tokens shifted by one."""
    spans = [np.arange(max(start, 1), stop) for start, stop in example.labels]
    labelled = np.concatenate(spans) if spans else np.zeros(0, np.int64)
    return (labelled - 1).astype(np.int32), np.asarray(example.trunk)[labelled].astype(np.int32)


def build_forest(example: Example, predictor_ids: Sequence[int], targets: bool = True, trunk: bool = True) -> Forest:
    """Lay out one example.

    Args:
        predictor_ids: token ids of the K predictors of every group, group by group, in the order in which they follow a
            source.
        targets: False leaves out the segments of the targets.
        trunk: False lays out these alone, for a forward pass that needs no gradient. The example must have a pair.
    """
    aims = target_segments(example)
    numbers = list(range(TRUNK, 1 + len(example.segments)))
    if not trunk:
        numbers = aims
    elif not targets:
        numbers = [number for number in numbers if number not in aims]

    chat = Segment(np.asarray(example.trunk, np.int32), ISOLATED, 0)
    segments = [chat if number == TRUNK else example.segments[number - 1] for number in numbers]
    pieces = [segment.tokens(predictor_ids) for segment in segments]
    lengths = [len(piece) for piece in pieces]
    starts = np.cumsum([0, *lengths]).tolist()

    # Of every token: its index in its segment, and its segment's number, first position and place on the trunk.
    order = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    first = TRUNK if trunk else TRUNK + 1
    segment_number = np.arange(first, first + len(lengths), dtype=np.int32)
    first_position = np.array([segment.position for segment in segments], np.int32)
    attach = np.array([segment.attach for segment in segments], np.int32)

    label_positions, label_ids = label_indices(example if trunk else example._replace(labels=()))
    return Forest(
        example,
        np.concatenate(pieces).astype(np.int32, copy=False),
        np.repeat(first_position, lengths) + order,
        np.repeat(segment_number, lengths),
        order,
        np.repeat(attach, lengths),
        label_positions,
        label_ids,
        dict(zip(numbers, starts, strict=False)),
    )


def segment_row(example: Example, number: int, predictor_ids: Sequence[int]) -> tuple[np.ndarray, int]:
    """A segment with what it sees of the trunk before it, as a row of the two-pass form: ids (T',), the first position."""
    segment = example.segments[number - 1]
    ids = np.concatenate([np.asarray(example.trunk[: segment.attach + 1], np.int32), segment.tokens(predictor_ids)])
    return ids, segment.position if segment.attach == ISOLATED else 0


def build_inline(example: Example, predictor_ids: Sequence[int]) -> Forest:
    """One sequence with the predictors behind the first pair's source and its target isolated in place (`inline`).

    Labels move with their tokens: the first token behind the predictors is predicted from the last of them, the predictors
    themselves are no labels. Tokens of the target see the target alone, what stands behind it sees everything.

    Raises:
        ValueError: a pair that is no branch or state of the trunk and a copy of the trunk's tokens.
    """
    trunk = np.asarray(example.trunk, dtype=np.int32)
    inserted = np.zeros(0, np.int32)
    stop = len(trunk)  # where the predictors are inserted
    begin = end = 0  # of the isolated target
    pairs: tuple[Pair, ...] = ()

    def place(token: int) -> int:
        return token if token < stop else token + len(inserted)

    def on_trunk(read: Read, start: int) -> Read:
        terms = [term._replace(segment=TRUNK, token=start + term.token) for term in read.terms]
        return read._replace(terms=tuple(terms))

    for pair in example.pairs[:1]:
        branch = example.segment(pair.source)
        copy = example.segment(pair.target)
        on_the_chat = branch is None or (branch.attach != ISOLATED and not len(branch.ids))
        single_states = len(pair.source.terms) == len(pair.target.terms) == 1
        if copy is None or copy.origin is None or not on_the_chat or not single_states:
            raise ValueError("inline takes predictors on the trunk and a copy of its tokens")
        source_start = 0
        if branch is not None:
            inserted = branch.tokens(predictor_ids)
            source_start = stop = branch.attach + 1
        begin = place(copy.origin)
        end = place(copy.origin + len(copy.ids) - 1) + 1
        source = on_trunk(pair.source, source_start)
        target = on_trunk(pair.target, begin)
        pairs = (pair._replace(source=source, target=target),)

    # A label span that the predictors part becomes two.
    around = [Span(first, min(last, stop)) for first, last in example.labels]
    around += [Span(place(max(first, stop)), place(last - 1) + 1) for first, last in example.labels]
    moved = Example(
        np.concatenate([trunk[:stop], inserted, trunk[stop:]]),
        tuple(sorted(span for span in around if span.start < span.stop)),
        pairs=pairs,
    )
    floor = np.zeros(len(moved.trunk), np.int32)
    floor[begin:end] = begin
    return replace(build_forest(moved, predictor_ids), floor=floor)


# Packing: whole forests into the rows of one batch


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Best-fit decreasing bin packing of forests, by their tokens, into rows of `capacity` tokens; a longer one gets a
    row of its own.

    Returns:
        For each row the indices into `lengths`; every index once, longest first.
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (room left, row), ascending
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        slot = bisect.bisect_left(free, (lengths[index], -1))
        if slot < len(free):
            room, row = free.pop(slot)
            rows[row].append(index)
        else:
            room, row = max(capacity, lengths[index]), len(rows)
            rows.append([index])
        bisect.insort(free, (room - lengths[index], row))
    return rows


def row_lengths(rows: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[int]:
    """Tokens in each row."""
    return [sum(lengths[index] for index in row) for row in rows]


def rows_cost(rows: Sequence[Sequence[int]], lengths: Sequence[int], attention_length: float) -> float:
    """Cost of R rows padded to the longest of T tokens: ``R * T * (1 + T / attention_length)``, in tokens."""
    width = max(row_lengths(rows, lengths))
    return len(rows) * width * (1 + width / attention_length)


def plan_rows(
    lengths: Sequence[int], attention_length: float = DEFAULT_ATTENTION_LENGTH, max_row_length: int | None = None
) -> list[list[int]]:
    """Choose the row length that makes a batch cheapest (`rows_cost`), and pack it as `best_fit`.

    Args:
        attention_length: row length at which attention costs as much as all the rest.
        max_row_length: longest row to try; a longer forest still gets its own row.
    """
    longest, total = max(lengths), sum(lengths)
    limit = max(longest, min(total, max_row_length or total))
    capacities: set[int] = set()
    for count in range(1, len(lengths) + 1):
        even = min(max(longest, -(-total // count)), limit)
        # A perfect split is rarely to be had, and a little more room often saves a whole row.
        capacities.update(min(limit, even + int(slack * longest)) for slack in _SLACKS)
        if even == longest:
            break
    cheapest, best = float("inf"), list[list[int]]()
    for capacity in sorted(capacities):
        # No row is shorter than the longest forest, and of two rows one is more than half full.
        least = total * (1 + max(longest, capacity / 2) / attention_length)
        if cheapest <= least:
            break
        rows = best_fit(lengths, capacity)
        cost = rows_cost(rows, lengths, attention_length)
        if cost < cheapest:
            cheapest, best = cost, rows
    return best


def attention_costs(lengths: Sequence[int], attached: Sequence[int]) -> tuple[float, float]:
    """What the attention of one forest costs, in tokens: segment by segment, and in one call under a mask.

    Args:
        lengths: tokens of its segments, the trunk first.
        attached: of each segment, up to which trunk token it sees (-1: none).
    """
    seen = (length / 2 if at == ISOLATED else lengths[0] + length for length, at in zip(lengths, attached, strict=True))
    apart = sum(length * keys for length, keys in zip(lengths, seen, strict=True)) / DEFAULT_ATTENTION_LENGTH
    whole = sum(lengths) ** 2 / DEFAULT_ATTENTION_LENGTH
    return apart + CALL_COST * len(lengths), whole + CALL_COST
