"""Lays an example out as a forest, a line of tokens with its trunk, predictor branches and isolated views, and chooses the
forests that share a row.

    ```
                 trunk                             branch     target
    tokens       [user][step 1 \\n\\n][step 2][end]  <p1><p2>   [step 2]
    position      0 ..            p   p+1 ..  T-1   p+1 p+2    p+3 ..
    order         0 ..            p   p+1 ..  T-1   0   1      0 ..
    segment       0 ..                        0     1   1      2 ..
    attach       -1 ..                       -1     p   p     -1 ..
    read                                                source      target
    ```

The example's `Segment`s decide what is attached where, and at which positions; a layout only puts them in a row.

Packing changes the number and the length of the rows, but never a forest. Under a dense mask, attention over a row of T
tokens costs T x T whichever pairs are visible. Longer rows save padding but cost attention: `plan_rows` weighs the two.

Shapes: L tokens of the forest, P pairs, M terms, N labelled positions.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepjepa.data.types import ISOLATED, TRUNK, Example, Pair, Read, Segment

# Length of a row whose attention costs as much as all its other computation. Measured on CPU for widths of 96 to 256
# (docs/performance.md); for larger models it is greater, so longer rows, which save padding, become cheaper.
ATTENTION_LENGTH = 1024
# Overhead of a call of the attention kernel, forward and backward in every layer, in tokens.
CALL_COST = 5

# Capacities to try above an even split of the tokens, as shares of the longest forest.
_SLACKS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.25)


@dataclass(frozen=True)
class Forest:
    """One example laid out for one forward pass; see the drawing at the top of this file.

    Attributes:
        example: the example; in the inline form, with the predictors inserted into its trunk.
        input_ids, position_ids, segment, order, attach: (L,) int32.
        label_positions: (N,) int32, the positions whose *next* token on the trunk is labelled.
        label_ids: (N,) int32, those next tokens.
        starts: start of each segment in the forest, by its number.
        floor: (L,) int32, see `visibility.visible`; None if it is 0 everywhere.
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


def target_segments(example: Example) -> list[int]:
    """Numbers of the segments that targets are read from, in ascending order."""
    segments = set[int]()
    for pair in example.pairs:
        segments.update(term.segment for term in pair.target.terms)
    return sorted(segments - {TRUNK})


def label_indices(example: Example) -> tuple[np.ndarray, np.ndarray]:
    """(positions that predict, ids to predict), each (N,) int32: the labelled tokens shifted by one."""
    # Nothing predicts the first token.
    places = [np.zeros(0, np.int64)]
    for start, stop in example.labels:
        places.append(np.arange(max(start, 1), stop))
    labelled = np.concatenate(places)
    return (labelled - 1).astype(np.int32), example.trunk[labelled]


def build_forest(
    example: Example, predictor_ids: Sequence[int], targets: bool = True, trunk: bool = True
) -> Forest:
    """Lay out one example.

    Args:
        predictor_ids: token ids of the K predictors of every group, group by group, in the order in which they follow a
            source.
        targets: if False, omit the segments of the targets.
        trunk: if False, lay out only the segments of the targets, for a forward pass without a gradient. The example must
            have a pair.
    """
    of_targets = target_segments(example)
    numbers = list(range(TRUNK, 1 + len(example.segments)))
    if not trunk:
        numbers = of_targets
    elif not targets:
        numbers = [number for number in numbers if number not in of_targets]

    chat = Segment(example.trunk, ISOLATED, 0)
    segments = [chat if number == TRUNK else example.segments[number - 1] for number in numbers]
    pieces = [segment.tokens(predictor_ids) for segment in segments]
    lengths = [len(piece) for piece in pieces]
    starts = np.cumsum([0, *lengths]).tolist()

    # Each token gets its index in its segment, and the number, first position and attach position of the segment.
    order = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    first = TRUNK if trunk else TRUNK + 1
    segment_number = np.arange(first, first + len(lengths), dtype=np.int32)
    first_position = np.array([segment.position for segment in segments], np.int32)
    attach = np.array([segment.attach for segment in segments], np.int32)

    label_positions, label_ids = label_indices(example if trunk else example._replace(labels=()))
    return Forest(
        example,
        np.concatenate(pieces),
        np.repeat(first_position, lengths) + order,
        np.repeat(segment_number, lengths),
        order,
        np.repeat(attach, lengths),
        label_positions,
        label_ids,
        dict(zip(numbers, starts, strict=False)),
    )


def segment_row(
    example: Example, number: int, predictor_ids: Sequence[int]
) -> tuple[np.ndarray, int]:
    """A row of the two-pass form: ids (T',) of the trunk that a segment sees and of the segment, and the first position."""
    segment = example.segments[number - 1]
    seen = example.trunk[: segment.attach + 1]
    ids = np.concatenate([seen, segment.tokens(predictor_ids)])
    return ids, segment.position if segment.attach == ISOLATED else 0


def build_inline(example: Example, predictor_ids: Sequence[int]) -> Forest:
    """Lay out the `inline` form: predictors inserted after the first pair's source, and its target isolated in place.

    Labels move with their tokens: the last predictor predicts the first token after it; no predictor is a label. Tokens of
    the target see only the target; tokens after it see everything.

    Raises:
        ValueError: the source is neither a branch nor a state of the trunk, or the target is not a copy of its tokens.
    """
    trunk = example.trunk
    inserted = np.zeros(0, np.int32)
    # The predictors are inserted at `stop`; the isolated target is at [begin, end).
    stop = len(trunk)
    begin = end = 0
    pairs: tuple[Pair, ...] = ()

    def place(token: int) -> int:
        return token if token < stop else token + len(inserted)

    def on_trunk(read: Read, start: int) -> Read:
        (term,) = read.terms
        moved = term._replace(segment=TRUNK, token=start + term.token)
        return read._replace(terms=(moved,))

    for pair in example.pairs[:1]:
        branch = example.segment(pair.source)
        copy = example.segment(pair.target)
        # A branch with ids holds tokens besides the predictors, which the sequence does not have.
        on_the_chat = branch is None or (branch.attach != ISOLATED and not len(branch.ids))
        single_states = len(pair.source.terms) == len(pair.target.terms) == 1
        if copy is None or copy.origin is None or not on_the_chat or not single_states:
            raise ValueError(
                "inline needs a source on the trunk and a target that copies its tokens"
            )
        source_start = 0
        if branch is not None:
            inserted = branch.tokens(predictor_ids)
            source_start = stop = branch.attach + 1
        # The last token is moved instead of the end: predictors right after the target do not belong to it.
        begin = place(copy.origin)
        end = place(copy.origin + len(copy.ids) - 1) + 1
        source = on_trunk(pair.source, source_start)
        target = on_trunk(pair.target, begin)
        pairs = (pair._replace(source=source, target=target),)

    sequence = np.concatenate([trunk[:stop], inserted, trunk[stop:]])
    moved = Example(sequence, (), pairs=pairs)
    # The last predictor predicts the first token after it.
    label_positions, label_ids = label_indices(example)
    label_positions += np.int32(len(inserted)) * (label_positions + 1 >= stop)
    floor = np.zeros(len(moved.trunk), np.int32)
    floor[begin:end] = begin
    forest = build_forest(moved, predictor_ids)
    return replace(forest, floor=floor, label_positions=label_positions, label_ids=label_ids)


# Packing: whole forests into the rows of one batch


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Best-fit decreasing bin packing of forests into rows of `capacity` tokens; a longer forest gets a separate row.

    Returns:
        The indices into `lengths` of each row; every index once, longest forest first.
    """
    rows: list[list[int]] = []
    # (room left, row) in ascending order, so that a binary search finds the fullest row that has enough room.
    free: list[tuple[int, int]] = []
    longest_first = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for index in longest_first:
        length = lengths[index]
        slot = bisect.bisect_left(free, (length, -1))
        if slot < len(free):
            room, row = free.pop(slot)
        else:
            room, row = max(capacity, length), len(rows)
            rows.append([])
        rows[row].append(index)
        bisect.insort(free, (room - length, row))
    return rows


def row_lengths(rows: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[int]:
    """Number of tokens in each row."""
    return [sum(lengths[index] for index in row) for row in rows]


def rows_cost(rows: Sequence[Sequence[int]], lengths: Sequence[int]) -> float:
    """Cost of R rows padded to the longest one, T tokens: ``R * T * (1 + T / ATTENTION_LENGTH)``, in tokens."""
    width = max(row_lengths(rows, lengths))
    return len(rows) * width * (1 + width / ATTENTION_LENGTH)


def plan_rows(lengths: Sequence[int], max_row_length: int | None = None) -> list[list[int]]:
    """Choose the row length that makes a batch cheapest (`rows_cost`), and pack the batch with `best_fit`.

    Args:
        max_row_length: longest row to try; a longer forest still gets a row.
    """
    longest = max(lengths)
    total = sum(lengths)
    limit = max(longest, min(total, max_row_length or total))
    capacities: set[int] = set()
    for count in range(1, len(lengths) + 1):
        even = min(max(longest, -(-total // count)), limit)
        # Forests rarely fill an even split exactly, and a little more room often saves a row.
        for slack in _SLACKS:
            capacity = even + int(slack * longest)
            capacities.add(min(capacity, limit))
        # More rows do not help once a row is as short as the longest forest.
        if even == longest:
            break
    cheapest = float("inf")
    plan: list[list[int]] = []
    for capacity in sorted(capacities):
        # A lower bound: rows are at least as long as the longest forest, and of any two rows one is more than half full.
        if cheapest <= total * (1 + max(longest, capacity / 2) / ATTENTION_LENGTH):
            break
        rows = best_fit(lengths, capacity)
        cost = rows_cost(rows, lengths)
        if cost < cheapest:
            cheapest, plan = cost, rows
    return plan


def attention_costs(lengths: Sequence[int], attached: Sequence[int]) -> tuple[float, float]:
    """Costs of the attention of one forest, in tokens: segment by segment, and in one call under a mask.

    Args:
        lengths: tokens of its segments, the trunk first.
        attached: index of the last trunk token that each segment sees (-1: none).
    """
    # The causal kernel skips the upper triangle, half of an isolated segment's scores; a branch, under a mask, pays for all.
    scores = sum(
        length * (length / 2 if at == ISOLATED else lengths[0] + length)
        for length, at in zip(lengths, attached, strict=True)
    )
    by_segment = scores / ATTENTION_LENGTH
    together = sum(lengths) ** 2 / ATTENTION_LENGTH
    return by_segment + CALL_COST * len(lengths), together + CALL_COST
