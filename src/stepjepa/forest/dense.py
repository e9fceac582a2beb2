"""The dense mask: the visibility rule written out for every pair of positions.

Shapes: R rows, T tokens.
"""

from __future__ import annotations

import torch

from stepjepa.data.types import Rows
from stepjepa.forest.visibility import in_window, visible


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
        position = rows.position_ids
        mask &= in_window(position[:, :, None], position[:, None, :], window)
    return mask[:, None]


def packed_fields(rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Example, segment, order and attach of packed rows, (R, T) each."""
    assert rows.example is not None and rows.segment is not None and rows.order is not None and rows.attach is not None
    return rows.example, rows.segment, rows.order, rows.attach


def additive_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same mask (R, 1, T, T) to be added to attention scores: 0 where visible, the dtype's minimum elsewhere.

    No row is masked whole (padding sees itself), so the softmax never meets a row of minima.
    """
    hidden = torch.tensor(torch.finfo(dtype).min, dtype=dtype, device=mask.device)
    return torch.where(mask, torch.zeros((), dtype=dtype, device=mask.device), hidden)
