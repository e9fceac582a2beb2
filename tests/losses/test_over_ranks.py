"""Losses over two processes against one process with all rows: values, rows' gradients, a shared layer's gradients.

This file is also the program that the second process runs; pytest's own is the first.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import nn

from stepjepa.losses.distances import infonce_loss
from stepjepa.losses.gather import world_size
from stepjepa.losses.regularizers import random_directions, sigreg_regularizer, vicreg_regularizer
from stepjepa.training.run import leave_process_group

WIDTH_IN, WIDTH = 3, 4
# Pairs of rank 0 and rank 1.
SPLITS = {
    "uneven": (3, 5),
    "none_first": (0, 8),
    "none_second": (8, 0),
    "one": (0, 1),
    "one_each": (1, 1),
    "none": (0, 0),
}
DIRECTIONS = random_directions(WIDTH, 5, seed=0)

PER_PAIR = {
    "infonce": infonce_loss,
    "infonce_symmetric": lambda source, target: infonce_loss(source, target, 0.2, symmetric=True),
    "infonce_fixed_targets": lambda source, target: infonce_loss(source, target.detach(), 0.2),
}
REGULARIZERS = {
    "vicreg": lambda source, target: vicreg_regularizer(source, target, 0.5),
    "sigreg": lambda source, target: sigreg_regularizer(source, target, DIRECTIONS),
}
LOSSES = {**PER_PAIR, **REGULARIZERS}


def inputs(pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What all processes' sources and targets are computed from, (pairs, WIDTH_IN) each."""
    generator = torch.Generator().manual_seed(pairs)
    both = torch.randn(2, pairs, WIDTH_IN, generator=generator)
    return both[0], both[1]


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(WIDTH_IN, WIDTH)


def step(name: str, model: nn.Module, source_in: torch.Tensor, target_in: torch.Tensor, pairs: int) -> dict:
    """One loss and its gradients as a training step takes them, with `pairs` the count of all processes."""
    here = source_in.shape[0]
    states = model(torch.cat([source_in, target_in]))
    states.retain_grad()
    source, target = states[:here], states[here:]
    value = LOSSES[name](source, target)
    total = value.sum() if name in PER_PAIR else here * value
    (total / max(pairs, 1) * world_size()).backward()
    return {
        "value": value.detach(),
        "rows": states.grad / world_size(),  # what the average over processes makes of them
        "parameters": torch.cat([parameter.grad.flatten() for parameter in model.parameters()]),
    }


def run_process(rank: int, folder: Path) -> None:
    """Every loss on every split as one of two processes; the results go to a file."""
    rendezvous = f"file://{folder / 'rendezvous'}"
    wait = timedelta(seconds=120)
    torch.distributed.init_process_group("gloo", init_method=rendezvous, timeout=wait, rank=rank, world_size=2)
    results = {}
    for split, sizes in SPLITS.items():
        mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        source_in, target_in = inputs(sum(sizes))
        for name in LOSSES:
            # Not kept: a reducer must not outlive the process group, whose end it would wait for.
            model = nn.parallel.DistributedDataParallel(layer())
            results[split, name] = step(name, model, source_in[mine], target_in[mine], sum(sizes))
            del model
    torch.save(results, folder / f"rank{rank}.pt")
    leave_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """The results of both processes."""
    folder = tmp_path_factory.mktemp("ranks")
    other = subprocess.Popen([sys.executable, __file__, "1", str(folder)])
    try:
        run_process(0, folder)
        assert other.wait(timeout=120) == 0
    finally:
        other.kill()
        leave_process_group()
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradients_are_those_of_one_process(ranks, split, name):
    """Of the rows and, averaged by DistributedDataParallel, of a shared layer, also where a process holds no pair."""
    pairs, found = sum(SPLITS[split]), [results[split, name] for results in ranks]
    expected = step(name, layer(), *inputs(pairs), pairs)
    values = [one["value"] for one in found]
    assert name in PER_PAIR or torch.equal(*values)
    torch.testing.assert_close(torch.cat(values) if name in PER_PAIR else values[0], expected["value"])
    sides = [torch.cat(side) for side in zip(*(one["rows"].chunk(2) for one in found), strict=True)]
    torch.testing.assert_close(torch.cat(sides), expected["rows"], rtol=1e-4, atol=1e-6)
    for one in found:
        torch.testing.assert_close(one["parameters"], expected["parameters"], rtol=1e-4, atol=1e-6)
    if split == "uneven":
        assert expected["value"].abs().max() > 0.01
        assert all(expected[part].abs().max() > 1e-3 for part in ("rows", "parameters"))


if __name__ == "__main__":
    run_process(int(sys.argv[1]), Path(sys.argv[2]))
