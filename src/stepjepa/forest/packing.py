"""Packing: whole forests into the rows of one batch.

The examples of a batch are never changed by packing; only how many rows they take and how long these are. Attention over
a row of T tokens costs T x T whoever sees whom (with a dense mask), so a longer row saves padding and costs attention:
`plan_rows` weighs the two.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

# Tokens at which a row's attention costs as much as everything else of it. Measured on CPU for widths of 96 to 256
# (docs/performance.md); larger models favour longer rows, and then more padding is saved by them.
DEFAULT_ATTENTION_LENGTH = 1024

# Room beyond an even split that is tried, as shares of the longest forest.
_SLACKS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.25)


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Best-fit decreasing bin packing.

    Args:
        lengths: tokens of each forest; one longer than `capacity` gets a row of its own.
        capacity: tokens a row may hold.

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
    lengths: Sequence[int],
    attention_length: float = DEFAULT_ATTENTION_LENGTH,
    max_row_length: int | None = None,
) -> list[list[int]]:
    """Choose the row length that makes a batch cheapest, and pack it.

    The cost is that of `rows_cost`.

    Args:
        lengths: tokens of each forest of the batch.
        attention_length: row length at which attention costs as much as all the rest.
        max_row_length: longest row to try; a longer forest still gets its own row.

    Returns:
        As `best_fit`.
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
    best: tuple[float, list[list[int]]] | None = None
    for capacity in sorted(capacities):
        rows = best_fit(lengths, capacity)
        cost = rows_cost(rows, lengths, attention_length)
        if best is None or cost < best[0]:
            best = (cost, rows)
    assert best is not None
    return best[1]
