"""The FlexAttention block mask: the visibility rule as a `mask_mod`, for CUDA.

FlexAttention has no backward on CPU, so training uses the dense mask there. The block mask itself can be built anywhere,
which is how the tests compare it with the dense one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from stepjepa.data.types import Rows
from stepjepa.forest.dense import packed_fields
from stepjepa.forest.visibility import in_window, visible

BLOCK_SIZE = 128


def mask_mod(rows: Rows, window: int | None = None) -> Callable:
    """The rule as FlexAttention calls it: ``(row, head, q, k) -> bool``; arguments as `dense.dense_mask`.

    row, head, q and k are scalar tensors.
    """
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
        if window is not None:
            seen = seen & in_window(position[row, q], position[row, k], window)
        return seen

    return rule


def block_mask(rows: Rows, window: int | None = None) -> BlockMask:
    """Block mask for (R, T) rows on their device; T should be a multiple of `BLOCK_SIZE`."""
    count, length = rows.input_ids.shape
    device = rows.input_ids.device
    return create_block_mask(
        mask_mod(rows, window),
        B=count,
        H=None,
        Q_LEN=length,
        KV_LEN=length,
        device=device,
        BLOCK_SIZE=BLOCK_SIZE,
    )
