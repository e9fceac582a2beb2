"""The visibility rule: which key positions a query position may attend to in a packed row of forests, and its masks.

The dense mask, the FlexAttention block mask and the inspector's picture all call `visible`; no other code decides what is
visible. For one example with trunk ``a b c d``, a branch of two predictors attached after ``b`` and the isolated copy of ``c
d`` as target (q down, k across):

    ```
              a b c d  p p  c d      segment  order  attach
        a     1 . . .  . .  . .         0       0      -1
        b     1 1 . .  . .  . .         0       1      -1
        c     1 1 1 .  . .  . .         0       2      -1
        d     1 1 1 1  . .  . .         0       3      -1
        p1    1 1 . .  1 .  . .         1       0       1
        p2    1 1 . .  1 1  . .         1       1       1
        c'    . . . .  . .  1 .         2       0      -1
        d'    . . . .  . .  1 1         2       1      -1
    ```

The `inline` form puts the predictors and the isolated view into one sequence. All of it is trunk, and a further number,
`floor`, isolates the view: the first place that a query sees. It is 0 except for the isolated tokens, so the tokens after
them see everything, including them:

    ```
              a b  p p  c d  e       segment  order  attach  floor
        b     1 1  . .  . .  .         0       1      -1       0
        p2    1 1  1 1  . .  .         0       3      -1       0
        c     . .  . .  1 .  .         0       4      -1       4
        d     . .  . .  1 1  .         0       5      -1       4
        e     1 1  1 1  1 1  1         0       6      -1       0
    ```

Importing this module does not load torch. Shapes: R rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from stepjepa.data.types import TRUNK, Rows

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor
    from torch.nn.attention.flex_attention import BlockMask

# FlexAttention's unit: a block of keys that no query of a block sees is skipped.
BLOCK_SIZE = 128
_UNCOMPILED = ("cpu",)
# Number of parts in which a long mask is filled.
_PARTS = 8
Numbers = TypeVar("Numbers", int, "np.ndarray", "Tensor")


def visible(
    example_q: Numbers,
    example_k: Numbers,
    segment_q: Numbers,
    segment_k: Numbers,
    order_q: Numbers,
    order_k: Numbers,
    attach_q: Numbers,
    floor_q: Numbers | int = 0,
) -> Numbers:
    """Whether query q sees key k.

    same example AND ( same segment AND floor[q] <= order[k] <= order[q]  OR  k on the trunk AND order[k] <= attach[q] )

    The arguments are integers, or integer tensors or arrays that broadcast against each other; the result is a boolean
    of their broadcast shape.

    Args:
        example_q, example_k: number of the example in the row.
        segment_q, segment_k: 0 for the trunk, 1 and up for branches and targets.
        order_q, order_k: index inside the segment.
        attach_q: index on the trunk up to which q sees it: p for a branch attached after token p, -1 for an isolated target
            (and for the trunk itself, which is causal by its own segment).
        floor_q: first index of its own segment that q sees; 0 except in the isolated view of `inline`.
    """
    same_segment = (segment_q == segment_k) & (order_k <= order_q) & (order_k >= floor_q)
    trunk = (segment_k == TRUNK) & (order_k <= attach_q)
    return (example_q == example_k) & (same_segment | trunk)


def in_window(position_q: Numbers, position_k: Numbers, window: int) -> Numbers:
    """The additional condition of a sliding-window layer: k is less than `window` positions before q."""
    # Shifting one side avoids a tensor of differences for every q and k.
    return position_q - window < position_k


def packed_fields(rows: Rows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Example, segment, order and attach of packed rows, (R, T) each."""
    assert (
        rows.example is not None
        and rows.segment is not None
        and rows.order is not None
        and rows.attach is not None
    )
    return rows.example, rows.segment, rows.order, rows.attach


def dense_mask(rows: Rows, window: int | None = None, queries: slice = slice(None)) -> Tensor:
    """Boolean attention mask (R, 1, Q, T), True where q (dim 2) sees k (dim 3), on the rows' device.

    Args:
        rows: packed rows.
        window: sliding-window length of the layer; None for full attention.
        queries: the query positions; all (Q = T) by default.
    """
    example, segment, order, attach = packed_fields(rows)
    mask = visible(
        example[:, queries, None],
        example[:, None, :],
        segment[:, queries, None],
        segment[:, None, :],
        order[:, queries, None],
        order[:, None, :],
        attach[:, queries, None],
        0 if rows.floor is None else rows.floor[:, queries, None],
    )
    if window is not None:
        mask &= in_window(
            rows.position_ids[:, queries, None], rows.position_ids[:, None, :], window
        )
    return mask[:, None]


def additive_mask(rows: Rows, dtype: torch.dtype, window: int | None = None) -> Tensor:
    """The mask (R, 1, T, T) to be added to attention scores: 0 where visible, the dtype's minimum elsewhere.

    Every query sees something (padding sees itself), so no softmax is over minima only. The mask is filled in parts, so
    that the boolean mask adds little to its memory. Arguments as in `dense_mask`.
    """
    import torch

    count, length = rows.input_ids.shape
    lowest = torch.finfo(dtype).min
    mask = torch.full((count, 1, length, length), lowest, dtype=dtype, device=rows.input_ids.device)
    parts = [slice(None)]
    # The compiler fuses the fill; with a loop, the compiled code would be specialised to one length.
    if not torch.compiler.is_compiling():
        step = max(BLOCK_SIZE, -(-length // _PARTS))
        parts = [slice(start, start + step) for start in range(0, length, step)]
    for queries in parts:
        mask[:, :, queries].masked_fill_(dense_mask(rows, window, queries), 0)
    return mask


def mask_mod(rows: Rows, window: int | None = None) -> Callable:
    """The rule in FlexAttention's form, ``(row, head, q, k) -> bool`` of scalar tensors. Arguments as in `dense_mask`."""
    example, segment, order, attach = packed_fields(rows)
    position, floor = rows.position_ids, rows.floor

    def rule(row: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = visible(
            example[row, q],
            example[row, k],
            segment[row, q],
            segment[row, k],
            order[row, q],
            order[row, k],
            attach[row, q],
            0 if floor is None else floor[row, q],
        )
        if window is None:
            return seen
        return seen & in_window(position[row, q], position[row, k], window)

    return rule


def block_mask(rows: Rows, window: int | None = None) -> BlockMask:
    """Block mask for (R, T) rows on their device; T should be a multiple of `BLOCK_SIZE`."""
    import torch

    count, length = rows.input_ids.shape
    device = rows.input_ids.device
    build = _block_mask_builder(device.type)
    rule = mask_mod(rows, window)
    # Autocast would trigger another compilation.
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        return build(rule, count, None, length, length, str(device), BLOCK_SIZE)


@cache
def _block_mask_builder(device: str) -> Callable:
    """FlexAttention's builder, compiled except on CPU: without compilation it materialises the dense mask. The compiler
    specialises to the first shape, and keeps a version for all shapes from the second on."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask if device in _UNCOMPILED else torch.compile(create_block_mask)
