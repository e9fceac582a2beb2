"""Sums and rows over all processes, with gradient, for the losses that look at a whole batch.

Convention: the backward pass adds up what all processes ask for, so a process's gradient is that of the *sum* of all
processes' losses. Whatever is divided by a count is divided by the count of all processes:

- a loss with one value a pair (`infonce`): each process sums its own pairs and divides by the pairs of all;
- a regulariser (`vicreg`, `sigreg`), the same value on every process: each process weighs it with its share of the pairs,
  so that the shares' sum counts it once.

DistributedDataParallel averages gradients; the caller takes that back by a factor of the number of processes.

Every process must call these functions and run backward through them, those without rows as well, and the rows
require gradients on all processes or on none: the others wait for a process that does not.

Shapes: P rows of this process, Q rows of all processes, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class _SumOverRanks(torch.autograd.Function):
    # torch.distributed.nn.functional has the same, deprecated in favour of a private module.

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        total = values.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _SumOverRanks.apply(gradient)


def world_size() -> int:
    """Number of processes, 1 where torch.distributed is not in use."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Sum of a tensor of the same shape and dtype on all processes, with gradient. Alone: the input itself."""
    return values if world_size() == 1 else _SumOverRanks.apply(values)


def gather_rows(rows_PD: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Rows of all processes in the order of their ranks, with gradient, and where this process's begin.

    Processes may hold different numbers of rows, none included; D and the dtype are the same on all.

    Args:
        rows_PD: (P, D) floating point.

    Returns:
        (Q, D) in the input's dtype, and the index of this process's first row. Alone: the input itself and 0.
    """
    if world_size() == 1:
        return rows_PD, 0
    rank = torch.distributed.get_rank()
    counts = torch.zeros(world_size(), dtype=torch.int64, device=rows_PD.device)
    counts[rank] = rows_PD.shape[0]
    torch.distributed.all_reduce(counts)
    sizes = counts.tolist()
    before, after = sum(sizes[:rank]), sum(sizes[rank + 1 :])
    # Each row is one process's values plus zeros, so the sum is exact, and unequal counts need no padding.
    return sum_over_ranks(F.pad(rows_PD, (0, 0, before, after))), before
