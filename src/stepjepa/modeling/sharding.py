"""Weights that FSDP2 shards over the processes: a part of each in this process, or all of them for a while.

While a forward runs, torch puts gathered weights in the place of the sharded ones. Everything here is the identity for a
model that is not sharded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from stepjepa.modeling.parts import is_sharded


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor (any shape), in the same memory."""
    sharded: Any = tensor
    return sharded.to_local() if is_sharded(tensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor (any shape). Every process must call it."""
    sharded: Any = tensor
    return sharded.full_tensor() if is_sharded(tensor) else tensor


def like(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A tensor that every process has whole, sharded as `other` (of the same shape) is."""
    sharded: Any = other
    if not is_sharded(other):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = sharded.device_mesh, sharded.placements
    return distribute_tensor(tensor.to(mesh.device_type), mesh, placements, src_data_rank=None)


def free_gathered(model: nn.Module) -> None:
    """Put the sharded weights back where a pass has left gathered ones."""
    for module in _sharded(model):
        module.reshard()


def _sharded(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "reshard")]  # torch may come without its class


@contextmanager
def whole_weights(model: nn.Module, here: bool) -> Iterator[None]:
    """Within this context the parameters of a model that is not called are whole, on the host, where `here` is set. Every
    process must enter it."""
    free_gathered(model)
    places, found = [], dict[int, nn.Parameter | None]()  # tied parameters stay one
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or not is_sharded(parameter):
                continue
            if id(parameter) not in found:
                value = whole(parameter.detach())
                found[id(parameter)] = nn.Parameter(value.cpu(), parameter.requires_grad) if here else None
            places.append((module, name, parameter))
    try:
        for module, name, parameter in places if here else ():
            module._parameters[name] = found[id(parameter)]
        yield
    finally:
        for module, name, parameter in places:
            module._parameters[name] = parameter


@contextmanager
def gathered(model: nn.Module, reshard_after_forward: bool = True) -> Iterator[None]:
    """Within this context every process has all weights and may call the model as often as it likes, without gradients;
    `reshard_after_forward` is for afterwards."""
    modules = _sharded(model)
    registered = vars(model).pop("generate", None)  # the Trainer's, which gathers and frees at every call
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            module.reshard()
            module.set_reshard_after_forward(reshard_after_forward, recurse=False)
        if registered is not None:
            vars(model)["generate"] = registered
