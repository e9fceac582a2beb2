"""The parts of a causal LM, whatever their names, and keeping it as it is while it is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

_WINDOW = "sliding_window"
_HEEDS = "_stepjepa_heeds_window"


def text_config(config: Any) -> Any:
    """The part of a model's configuration that is about text (multimodal configurations hold it inside)."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def causal_lm(model: torch.nn.Module) -> torch.nn.Module:
    """The Hugging Face causal LM inside a PEFT model, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def own_forward(model: Any) -> Callable[..., Any]:
    """The forward that came with a causal LM, also where it has learned to take batches."""
    return vars(model).get("_own_forward") or model.forward


def backbone(model: Any) -> Any:
    """The module of a causal LM that returns the states for its output head.

    It goes by the model's `base_model_prefix`; where that names nothing (Llama 4, Mllama), it is the child that holds the
    input embedding.
    """
    named = getattr(model, model.base_model_prefix, None)
    if isinstance(named, torch.nn.Module):
        return named
    embedding = model.get_input_embeddings()
    holders = (child for child in model.children() if any(part is embedding for part in child.modules()))
    return next(holders, model)


def decoder_layers(backbone: Any) -> torch.nn.ModuleList | None:
    """The decoder's layers in order; None where they go by no known name."""
    for owner in (backbone, getattr(backbone, "language_model", None)):
        for name in ("layers", "h", "blocks"):
            layers = getattr(owner, name, None)
            if isinstance(layers, torch.nn.ModuleList) and len(layers):
                return layers
    return None


def has_experts(model: Any) -> bool:
    """Whether the model routes tokens to experts, so that a batch may leave some parameters without a gradient."""
    config = text_config(model.config)
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return any(getattr(config, key, None) for key in names)


def _routed(model: Any) -> Any:
    """What holds the experts, which a few tokens need not reach: the text decoder; a module without parts for none."""
    part = backbone(model)
    decoder = getattr(part, "language_model", None)
    return (decoder if isinstance(decoder, torch.nn.Module) else part) if has_experts(model) else torch.nn.Identity()


def unreached(model: Any, outputs: Iterable[torch.Tensor]) -> dict[str, torch.nn.Parameter]:
    """Trainable parameters that no gradient of `outputs` can reach, by name: towers for images and sound, mostly.

    The graph is followed without a backward pass. Experts are left out.

    Args:
        outputs: of any shape, such as the loss () and the states (P, D) of a `ForestOutput`.
    """
    pending = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen, reached = set(pending), {id(parameter) for parameter in _routed(causal_lm(model)).parameters()}
    while pending:
        node = pending.pop()
        reached.add(id(getattr(node, "variable", None)))
        following = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= following
        pending += following
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in reached
    }


def idle_parts(model: Any) -> list[str]:
    """Names of the largest parts of a causal LM whose linear layers do nothing for plain text: towers, their projectors.

    Experts are left out; so is everything where the model does not run.
    """
    embedding, routed = model.get_input_embeddings().weight, set(_routed(model).modules())
    if embedding.device.type == "meta":
        return []
    linears = {name: part for name, part in model.named_modules() if isinstance(part, (torch.nn.Linear, Conv1D))}
    called = {name for name, part in linears.items() if part in routed}
    hooks = [
        part.register_forward_pre_hook(lambda part, args, name=name: called.add(name)) for name, part in linears.items()
    ]
    ids = torch.arange(5, 11, device=embedding.device)[None] % len(embedding)
    try:
        with torch.no_grad(), unchanged(model):
            own_forward(model)(input_ids=ids, use_cache=False)
    except Exception:
        return []
    finally:
        for hook in hooks:
            hook.remove()
    found: dict[str, None] = {}
    for name in linears.keys() - called:
        parts = name.split(".")
        prefixes = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        found[next(one for one in prefixes if not any(f"{other}.".startswith(f"{one}.") for other in called))] = None
    return sorted(found)


@contextmanager
def unchanged(model: torch.nn.Module, training: bool = False) -> Iterator[None]:
    """Within this context the model is in evaluation (or training) mode; afterwards modes, buffers and the random state are
    as before."""
    modes = {module: module.training for module in model.modules()}
    buffers = [
        (module, name, buffer, buffer.clone() if buffer.is_floating_point() and buffer.numel() < 2**20 else None)
        for module in modes
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = {p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")}
    kind = next(iter(devices)).type if devices else "cuda"
    model.train(training)
    try:
        with torch.random.fork_rng([device.index or 0 for device in devices], device_type=kind):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for module, name, buffer, value in buffers:
            if value is not None:
                with torch.no_grad():
                    buffer.copy_(value)
            module._buffers[name] = buffer


# Sliding windows


@contextmanager
def window_of(model: torch.nn.Module, length: int) -> Iterator[None]:
    """Within this context every sliding window of the model, in configurations and layers, has this length."""
    configs = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    owners = [*configs.values(), *(text_config(config) for config in configs.values()), *model.modules()]
    lengths = {id(owner): (owner, vars(owner).get(_WINDOW)) for owner in owners}
    changed = [(owner, own) for owner, own in lengths.values() if type(own) is int and own > 0]
    try:
        for owner, _ in changed:
            setattr(owner, _WINDOW, length)
        yield
    finally:
        for owner, own in changed:
            setattr(owner, _WINDOW, own)


def heeds_window(model: Any) -> bool:
    """Whether the `sliding_window` of the configuration changes what the model computes; tried once.

    A class that has no windows leaves such an entry in its configuration unread, and so must the masks.
    """
    if _HEEDS not in vars(model):
        object.__setattr__(model, _HEEDS, _heeds(model))
    return vars(model)[_HEEDS]


def _heeds(model: Any) -> bool:
    embedding = model.get_input_embeddings().weight
    if not getattr(text_config(model.config), _WINDOW, None) or embedding.device.type == "meta":
        return True
    ids, states = torch.arange(5, 14, device=embedding.device)[None] % len(embedding), []
    try:
        with torch.no_grad(), unchanged(model):
            for length in (2, 2 * ids.shape[1]):
                with window_of(model, length):
                    states.append(backbone(model)(input_ids=ids, use_cache=False)[0].float())
    except Exception:
        return True  # the start-up trial judges what does not run
    short, wide = states
    return not float((short - wide).norm()) <= 1e-5 * float(wide.norm())
