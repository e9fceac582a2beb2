"""What one process of a run will hold in memory: weights, gradients and optimizer states by count, the rest as an estimate.

    ```
    weights        elements * bytes of their dtype; buffers and the shadows of an EMA encoder included
    gradients      the same of what is trained; twice under DDP, which keeps a copy for sending
    optimizer      states of a weight (AdamW: 2) * gradients
    activations    R (b T + c T^2) + a for R rows of T tokens, of the largest batch (an estimate); with gradient
                   checkpointing the states between the layers, and the activations of one layer
    logits         2 * 4 bytes * V * labelled positions, or those of one chunk (an estimate)
    ```

a, b and c come from no formula of the architecture: autograd is asked what it keeps of forwards of 8, 16 and 32 tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks

from stepjepa.losses.lm import chunk_rows
from stepjepa.modeling.configs import text_config
from stepjepa.modeling.ema import target_encoder
from stepjepa.modeling.extras import with_predictors
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.parts import backbone
from stepjepa.modeling.trim import decoder_layers

_PROBES = (8, 16, 32)
# States that an optimizer keeps for a weight, in its dtype; of others nothing is said.
_STATES = {"adamw_torch": 2, "adamw_torch_fused": 2, "adagrad": 1, "rmsprop": 1, "sgd": 0}


class Memory(NamedTuple):
    """Bytes of one process; None for what cannot be said."""

    weights: float
    gradients: float
    optimizer: float | None
    activations: float | None
    logits: float | None

    @property
    def counted(self) -> float:
        """What is no estimate."""
        return self.weights + self.gradients + (self.optimizer or 0.0)


class BatchShape(NamedTuple):
    """A micro-batch: rows and tokens of each of its calls with gradient, and labelled positions."""

    calls: tuple[tuple[int, int], ...]
    labels: int

    @classmethod
    def of(cls, batch: dict[str, torch.Tensor]) -> BatchShape:
        """Of a batch of the collator (ids (R, T), label positions (N,)). Targets without gradient leave nothing behind."""
        names = [name for name in ("input_ids", "view_input_ids") if name in batch]
        return cls(tuple(tuple(batch[name].shape) for name in names), len(batch["label_positions"]))  # type: ignore[misc]


def estimate_memory(trainer: Any, shapes: Iterable[BatchShape]) -> Memory:
    """What a process of `trainer` will hold; `shapes` of some of its batches, none where they are not known."""
    args, model = trainer.args, trainer.model
    inner: Any = causal_lm(model)
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    shards = args.world_size if sharded else 1
    encoder = target_encoder(inner)
    weights = _bytes([*model.parameters(), *model.buffers(), *(encoder.shadow.values() if encoder else ())]) / shards
    trained = _bytes(p for p in model.parameters() if p.requires_grad) / shards
    states = _STATES.get(getattr(args.optim, "value", args.optim))
    copies = 2 if args.world_size > 1 and not sharded else 1
    shapes = list(shapes)
    known = kept_by_autograd(trainer) if shapes and not sharded else None
    activations = logits = None
    if known is not None:
        layers, width = decoder_layers(backbone(inner)), text_config(inner.config).hidden_size
        between = (len(layers or ()) * width * inner.dtype.itemsize) if args.gradient_checkpointing else 0
        share = 1 / len(layers) if between and layers else 1
        activations = max(_activations(shape, known, between, share) for shape in shapes)
        rows = chunk_rows(trainer.setup.vocabulary)
        logits = max(min(shape.labels, rows) for shape in shapes) * trainer.setup.vocabulary * 2 * 4
    return Memory(weights, trained * copies, None if states is None else states * trained, activations, logits)


def _activations(shape: BatchShape, known: tuple[float, float, float], between: float, share: float) -> float:
    once, linear, square = known
    kept = sum(rows * (linear * tokens + square * tokens**2) for rows, tokens in shape.calls)
    return once + share * kept + between * sum(rows * tokens for rows, tokens in shape.calls)


def kept_by_autograd(trainer: Any) -> tuple[float, float, float] | None:
    """Bytes that autograd keeps of the backbone's forward on one row of T tokens: (a, b, c) of ``a + b T + c T^2``.

    Parameters and buffers do not count. The random state is left as it was; None where the model does not run like this.
    """
    inner: Any = causal_lm(trainer.model)
    config, part = text_config(inner.config), backbone(inner)
    device = inner.get_input_embeddings().weight.device
    if device.type == "meta":
        return None
    own, modes = config._attn_implementation, {part: part.training for part in inner.modules()}
    if own == "flex_attention":  # keeps what sdpa keeps, and would be compiled for these few tokens
        config._attn_implementation = "sdpa"
    devices = [] if device.type == "cpu" else [device.index or 0]
    try:
        with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
            inner.train()
            sizes = [_kept(trainer, part, tokens, device) for tokens in _PROBES]
    except Exception:  # a summary must not stop a run
        return None
    finally:
        config._attn_implementation = own
        for part, mode in modes.items():
            part.training = mode
    square, linear, once = np.polyfit(_PROBES, sizes, 2)
    return max(once, 0.0), max(linear, 0.0), max(square, 0.0)


def _kept(trainer: Any, part: Any, tokens: int, device: torch.device) -> float:
    own = {tensor.untyped_storage().data_ptr() for tensor in (*part.parameters(), *part.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with trainer.compute_loss_context_manager(), torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
        zeros = torch.zeros((1, tokens), dtype=torch.long, device=device)
        with with_predictors(causal_lm(trainer.model), zeros) as ids:
            output = part(input_ids=ids, use_cache=False)
        del output
    torch.clear_autocast_cache()
    return float(sum(kept.values()))


def _bytes(tensors: Iterable[torch.Tensor]) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def in_words(number: float) -> str:
    """``512 KB``, ``1.4 MB``, ``21 GB``: decimal units."""
    for unit in ("KB", "MB", "GB"):
        number /= 1000
        if number < 1000 or unit == "GB":
            break
    return f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"
