"""The dense mask: the visibility rule written out for every pair of positions.

Shapes: R rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from stepjepa.forest.visibility import in_window, visible


def dense_mask(batch: Mapping[str, torch.Tensor], window: int | None = None) -> torch.Tensor:
    """Boolean attention mask (R, 1, T, T), True where q (dim 2) sees k (dim 3), on the batch's device.

    Args:
        batch: integer tensors ``example``, ``segment``, ``order``, ``attach`` (and ``position_ids`` with a window),
            each (R, T), as `ForestCollator` gives them; ``floor`` where the rows are `inline`.
        window: sliding-window length of the layer, None for full attention.
    """
    example, segment, order, attach = (batch[key] for key in ("example", "segment", "order", "attach"))
    mask = visible(
        example[:, :, None],
        example[:, None, :],
        segment[:, :, None],
        segment[:, None, :],
        order[:, :, None],
        order[:, None, :],
        attach[:, :, None],
        batch["floor"][:, :, None] if "floor" in batch else 0,
    )
    if window is not None:
        position = batch["position_ids"]
        mask &= in_window(position[:, :, None], position[:, None, :], window)
    return mask[:, None]


def additive_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same mask (R, 1, T, T) to be added to attention scores: 0 where visible, the dtype's minimum elsewhere.

    No row is masked whole (padding sees itself), so the softmax never meets a row of minima.
    """
    hidden = torch.tensor(torch.finfo(dtype).min, dtype=dtype, device=mask.device)
    return torch.where(mask, torch.zeros((), dtype=dtype, device=mask.device), hidden)
