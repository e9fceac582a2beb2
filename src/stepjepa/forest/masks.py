"""The visibility rule as masks: dense ones, and FlexAttention's block mask for CUDA.

FlexAttention has no backward on CPU, so training uses the dense mask there. A block mask can be built anywhere, which is how
the tests compare it with the dense one.

Shapes: R rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from stepjepa.data.types import Rows
from stepjepa.forest.visibility import in_window, visible

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK_SIZE = 128


def packed_fields(rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Example, segment, order and attach of packed rows, (R, T) each."""
    assert rows.example is not None and rows.segment is not None and rows.order is not None and rows.attach is not None
    return rows.example, rows.segment, rows.order, rows.attach


def dense_mask(rows: Rows, window: int | None = None) -> torch.Tensor:
    """Boolean attention mask (R, 1, T, T), True where q (dim 2) sees k (dim 3), on the rows' device.

    Args:
        rows: packed ones.
        window: sliding-window length of the layer, None for full attention.
    """
    example, segment, order, attach = packed_fields(rows)
    mask = visible(
        example[:, :, None],
        example[:, None, :],
        segment[:, :, None],
        segment[:, None, :],
        order[:, :, None],
        order[:, None, :],
        attach[:, :, None],
        0 if rows.floor is None else rows.floor[:, :, None],
    )
    if window is not None:
        mask &= in_window(rows.position_ids[:, :, None], rows.position_ids[:, None, :], window)
    return mask[:, None]


def additive_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same mask (R, 1, T, T) to be added to attention scores: 0 where visible, the dtype's minimum elsewhere.

    In every row something is visible (padding sees itself), so the softmax never meets a row of minima.
    """
    hidden = torch.tensor(torch.finfo(dtype).min, dtype=dtype, device=mask.device)
    return torch.where(mask, torch.zeros((), dtype=dtype, device=mask.device), hidden)


def mask_mod(rows: Rows, window: int | None = None) -> Callable:
    """The rule as FlexAttention calls it: ``(row, head, q, k) -> bool``, scalar tensors; arguments as `dense_mask`."""
    example, segment, order, attach = packed_fields(rows)
    position, floor = rows.position_ids, rows.floor

    def rule(row: torch.Tensor, head: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
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
        return seen if window is None else seen & in_window(position[row, q], position[row, k], window)

    return rule


def block_mask(rows: Rows, window: int | None = None) -> BlockMask:
    """Block mask for (R, T) rows on their device; T should be a multiple of `BLOCK_SIZE`."""
    from torch.nn.attention.flex_attention import create_block_mask

    count, length = rows.input_ids.shape
    return create_block_mask(
        mask_mod(rows, window), count, None, length, length, str(rows.input_ids.device), BLOCK_SIZE
    )
