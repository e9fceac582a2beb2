"""Differentiable sums and gathered rows over all processes, for losses of the whole batch.

Convention: the backward pass adds the gradients of all processes, so a process gets the gradient of the *sum* of all
processes' losses. A loss that is divided by a count is divided by the count over all processes:

- a loss with one value per pair (`infonce`): each process sums its own pairs and divides by the pairs of all processes;
- a regularizer (`vicreg`, `sigreg`), whose value is the same on every process: each process weights it with its share of
  the pairs, so that it counts once in the sum.

DistributedDataParallel averages gradients; the caller compensates by a factor of the number of processes.

Every process must call these functions and run backward through them, even without rows, and the rows must require
gradients on all processes or on none. Otherwise the other processes wait forever.

Shapes: P rows of this process, Q rows of all processes, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _SumOverRanks(torch.autograd.Function):
    # torch.distributed.nn.functional has the same, but is deprecated in favour of a private module.

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _SumOverRanks.apply(gradient)


def world_size() -> int:
    """Number of processes; 1 if torch.distributed is not in use."""
    distributed = torch.distributed
    return (
        distributed.get_world_size()
        if distributed.is_available() and distributed.is_initialized()
        else 1
    )


def sum_over_ranks(values: Tensor) -> Tensor:
    """Sum of a tensor of any shape over all processes, with gradient; every process gets the same sum. With one process: the
    input itself."""
    return values if world_size() == 1 else _SumOverRanks.apply(values)


def gather_rows(rows_PD: Tensor) -> tuple[Tensor, int]:
    """Rows of all processes in the order of ranks, with gradient, and the index of this process's first row.

    Processes may have different numbers of rows, including none; D and the dtype are equal.

    Args:
        rows_PD: (P, D) floating point.

    Returns:
        (Q, D) in the input's dtype, and the index of this process's first row. With one process: the input itself and 0.
    """
    if world_size() == 1:
        return rows_PD, 0
    rank = torch.distributed.get_rank()
    counts = torch.zeros(world_size(), dtype=torch.int64, device=rows_PD.device)
    counts[rank] = rows_PD.shape[0]
    torch.distributed.all_reduce(counts)
    sizes = counts.tolist()
    before, after = sum(sizes[:rank]), sum(sizes[rank + 1 :])
    # Each row is one process's values plus zeros, so the sum is exact, and unequal counts need no padding to one size.
    return sum_over_ranks(F.pad(rows_PD, (0, 0, before, after))), before
