"""The parts of a causal LM, whatever their names, and keeping it as it is while it is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from stepjepa.modeling.configs import text_config


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
    for child in model.children():
        if any(part is embedding for part in child.modules()):
            return child
    return model


def decoder(model: Any) -> Any:
    """The text decoder inside the backbone: the language model of a multimodal one, else the backbone itself."""
    part = backbone(model)
    inner = getattr(part, "language_model", None)
    return inner if isinstance(inner, torch.nn.Module) else part


def has_experts(model: Any) -> bool:
    """Whether the model routes tokens to experts, so that a batch may leave some parameters without a gradient."""
    config = text_config(model.config)
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return any(getattr(config, key, None) for key in names)


def unreached(model: Any, outputs: Iterable[torch.Tensor]) -> dict[str, torch.nn.Parameter]:
    """Trainable parameters that no gradient of `outputs` can reach, by name: towers for images and sound, mostly.

    The graph is followed without a backward pass. Experts that these few tokens were not sent to are left out.

    Args:
        outputs: of any shape, such as the loss () and the states (P, D) of a `ForestOutput`.
    """
    inner = causal_lm(model)
    pending = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen, reached = set(pending), set[int]()
    while pending:
        node = pending.pop()
        reached.add(id(getattr(node, "variable", None)))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
    routed = {id(parameter) for parameter in decoder(inner).parameters()} if has_experts(inner) else set()
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in reached | routed
    }


def idle_parts(model: Any) -> list[str]:
    """Names of the largest parts of a causal LM whose linear layers do nothing for plain text: towers, their projectors.

    Experts that these few tokens were not sent to are left out; so is everything where the model does not run.
    """
    linears = {name: part for name, part in model.named_modules() if isinstance(part, (torch.nn.Linear, Conv1D))}
    called, embedding = set[str](), model.get_input_embeddings().weight
    if embedding.device.type == "meta":
        return []
    hooks = [
        part.register_forward_pre_hook(lambda part, args, name=name: called.add(name)) for name, part in linears.items()
    ]
    try:
        with torch.no_grad(), unchanged(model):
            own_forward(model)(
                input_ids=torch.arange(5, 11, device=embedding.device)[None] % len(embedding), use_cache=False
            )
    except Exception:
        return []
    finally:
        for hook in hooks:
            hook.remove()
    routed = set(decoder(model).modules()) if has_experts(model) else set()
    found: dict[str, None] = {}
    for name in (name for name, part in linears.items() if name not in called and part not in routed):
        parts = name.split(".")
        prefixes = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        found[next(one for one in prefixes if not any(f"{other}.".startswith(f"{one}.") for other in called))] = None
    return list(found)


@contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Within this context the model is in evaluation mode; afterwards modes, buffers and the random state are as before."""
    training = [module for module in model.modules() if module.training]
    buffers = [
        (module, name, buffer, buffer.clone() if buffer.is_floating_point() and buffer.numel() < 2**20 else None)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = {p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")}
    kind = next(iter(devices)).type if devices else "cuda"
    model.eval()
    try:
        with torch.random.fork_rng([device.index or 0 for device in devices], device_type=kind):
            yield
    finally:
        for module in training:
            module.training = True
        for module, name, buffer, value in buffers:
            if value is not None:
                with torch.no_grad():
                    buffer.copy_(value)
            module._buffers[name] = buffer
