"""What one token costs a model in training, in floating point operations, read off its modules by a forward of a few tokens.

    ```
    matrix product          forward 1, backward 1 for the input's gradient and 1 for the weight's (0 if frozen)
    scores and values       forward 2 products, backward 5 in fused kernels (they compute the scores again), 4 in eager
    gradient checkpointing  the layers' forward once more, up to the last product of each: nothing needs its result
    without gradient        forward only
    ```

With frozen weights it is no matter of course that an input needs a gradient. Below the first adapter nothing does: there a
frozen matrix has no backward pass at all, LoRA's A only its own gradient's. Trained predictor tokens lie below everything,
and with them every input needs one.

FLOPs are 2 a multiply-add. `flops` says what counts and sums over batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import eager_mask

from stepjepa.losses.lm import chunk_rows
from stepjepa.modeling.configs import text_config
from stepjepa.modeling.extras import predictor_head, with_predictors
from stepjepa.modeling.logits import output_head, output_module
from stepjepa.modeling.parts import backbone, causal_lm
from stepjepa.modeling.trim import decoder_layers, last_mlp

_PROBE = "stepjepa_probe"
_PROBE_TOKENS = 2


@dataclass(frozen=True)
class Work:
    """FLOPs of one token; of one query and key for attention scores.

    Attributes:
        forward, backward: of the two passes.
        again: what gradient checkpointing repeats of the forward.
    """

    forward: float = 0.0
    backward: float = 0.0
    again: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.forward + other.forward, self.backward + other.backward, self.again + other.again)

    def total(self, checkpointing: bool = False, gradient: bool = True) -> float:
        """All passes of a training step; only the forward where no gradient is taken."""
        return self.forward + gradient * (self.backward + checkpointing * self.again)


@dataclass(frozen=True)
class LayerCost:
    """One decoder layer.

    Attributes:
        mlp: the matrices of its MLP or mixture of experts (where it has the name that `trim.last_mlp` knows).
        other: all other matrices: the projections of the attention.
        scores: scores and values of one query and key, all heads.
    """

    mlp: Work = Work()
    other: Work = Work()
    scores: Work = Work()


@dataclass(frozen=True)
class ModelCost:
    """What one token costs.

    Attributes:
        layers: the decoder layers.
        outside: matrices of the backbone outside its layers.
        head: the LM head, at one labelled position.
        head_chunk: labelled positions of a batch beyond which the head's forward runs once more in the backward pass; None
            where it never does.
        predictor: the predictor head, at one source.
        trims: whether the last MLP runs on `read_positions` only.
        checkpointing: whether the layers run again in the backward pass (in transformers' default form, not reentrant).
    """

    layers: tuple[LayerCost, ...]
    outside: Work
    head: Work
    head_chunk: int | None = None
    predictor: Work = Work()
    trims: bool = False
    checkpointing: bool = False

    @classmethod
    def of(cls, model: Any, vocabulary: int, *, autocast: bool = False) -> ModelCost:
        """The cost of a model as it stands: what is frozen, its attention implementation, gradient checkpointing.

        Args:
            model: a Hugging Face causal LM, bare or inside PEFT, before DDP or FSDP wrap it. Left as it was.
            vocabulary: V of the LM softmax.
            autocast: whether training runs under autocast, where a long head is computed in chunks that are repeated.
        """
        inner: Any = causal_lm(model)
        part = backbone(inner)
        head, module = output_head(inner, vocabulary), output_module(inner)
        if head.own:
            outside = [child for child in inner.children() if child is not part and child is not predictor_head(inner)]
            head_work = sum((_linears(child) for child in outside), Work())
        elif head.plain:
            head_work = _product(vocabulary * module.weight.shape[1], 1.0, True, module.weight)
        else:
            head_work = _linears(module)
        # The choice of `losses.lm.linear_cross_entropy_sum`: torch's own kernel takes the gradients chunk by chunk.
        bare = head.plain and not head.own and getattr(module, "bias", None) is None
        bare = bare and head.scale == 1.0 and head.softcap is None
        kernel = bare and not autocast and module.weight.dtype == torch.float32 and hasattr(F, "linear_cross_entropy")
        layers, rest = _probe(inner, part)
        predictor = predictor_head(inner)
        return cls(
            layers=layers,
            outside=rest,
            head=head_work,
            head_chunk=None if kernel else chunk_rows(vocabulary),
            predictor=Work() if predictor is None else _linears(predictor),
            trims=last_mlp(part) is not None,
            checkpointing=any(getattr(module, "gradient_checkpointing", False) for module in part.modules()),
        )

    def tokens(self, count: float, read: float, keys: float, gradient: bool = True) -> float:
        """FLOPs of `count` tokens in the backbone.

        Args:
            count: tokens.
            read: those of them that the last MLP is run on.
            keys: keys of all their queries together, in one layer.
            gradient: False for a forward pass alone.
        """

        def total(works: Iterable[Work]) -> float:
            return sum(work.total(self.checkpointing, gradient) for work in works)

        always = self.outside.total(gradient=gradient) + total(layer.other for layer in self.layers)
        always += total(layer.mlp for layer in self.layers[:-1])
        return (
            count * always + read * total([self.layers[-1].mlp]) + keys * total(layer.scores for layer in self.layers)
        )

    def heads(self, labels: int, sources: int, chunk: int | None = None) -> float:
        """FLOPs of the LM head at `labels` positions and of the predictor head at `sources`; `chunk` as `head_chunk`."""
        again = chunk is not None and labels > chunk
        return labels * (self.head.total() + again * self.head.forward) + sources * self.predictor.total()


def _product(size: float, rows: float, needs_gradient: bool, weight: torch.Tensor) -> Work:
    """A matrix of `size` entries that each token meets `rows` times; whether its input needs a gradient."""
    forward = 2.0 * size * rows
    return Work(forward, forward * (int(needs_gradient) + int(weight.requires_grad)), forward)


def _linears(module: torch.nn.Module) -> Work:
    """All `nn.Linear` inside a module, each once."""
    linears = [part for part in module.modules() if isinstance(part, torch.nn.Linear)]
    works = (_product(part.in_features * part.out_features, 1.0, True, part.weight) for part in linears)
    return sum(works, Work())


def _matrices(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> list[tuple[float, torch.Tensor]]:
    """(entries that one row of the input meets, weight) of a module's own matrices.

    A weight of three dimensions holds E experts, of which a row meets the k that an integer input (., k) names, or all.
    LoRA on such a weight adds its B @ A to the whole weight in each call; that product, the same for any number of tokens,
    is left out.
    """
    if isinstance(module, torch.nn.Linear):  # by its features: quantised weights have another shape
        return [(module.in_features * module.out_features, module.weight)]
    if isinstance(module, (torch.nn.Embedding, torch.nn.Conv1d)) or "Norm" in type(module).__name__:
        return []
    adapted: Iterable[str] = getattr(module, "parametrizations", ())
    weights = [*module.parameters(recurse=False), *(getattr(module, name) for name in adapted)]
    experts = [weight for weight in weights if weight.dim() == 3]
    if experts:
        chosen = [part.shape[-1] for part in inputs if part.dtype in (torch.int64, torch.int32)]
        return [(w.numel() * chosen[0] / len(w) if chosen else w.numel(), w) for w in experts]
    return [(weight.numel(), weight) for weight in weights if weight.dim() == 2]


class _Call(NamedTuple):
    """One call of a module in the probe; `layer` is None outside the layers, `work` None without matrices."""

    layer: int | None
    in_mlp: bool
    work: Work | None


def _probe(inner: Any, backbone: Any) -> tuple[tuple[LayerCost, ...], Work]:
    """The layers and what lies outside them: which matrices a token meets, how often, which inputs need a gradient."""
    layers: Any = decoder_layers(backbone) or [backbone]
    layer_of = {part: number for number, layer in enumerate(layers) for part in layer.modules()}
    in_mlp = {part for layer in layers if hasattr(layer, "mlp") for part in layer.mlp.modules()}
    eager = text_config(inner.config)._attn_implementation == "eager"
    calls: list[_Call] = []
    scores = [Work() for _ in layers]

    def on_call(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = [part for part in (*args, *kwargs.values()) if isinstance(part, torch.Tensor)]
        matrices = _matrices(module, inputs)
        work = None
        if matrices:
            rows = inputs[0].shape[:-1].numel() / _PROBE_TOKENS
            work = sum((_product(size, rows, inputs[0].requires_grad, weight) for size, weight in matrices), Work())
        elif isinstance(module, torch.nn.Identity) or (isinstance(module, torch.nn.Dropout) and module.p == 0):
            return
        calls.append(_Call(layer_of.get(module), module in in_mlp, work))

    def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> tuple[Any, None]:
        scores[layer_of[module]] += _attention(query, key, value, eager)
        groups = query.shape[1] // key.shape[1]
        mixed = F.scaled_dot_product_attention(query, repeat_kv(key, groups), repeat_kv(value, groups), is_causal=True)
        return mixed.transpose(1, 2).contiguous(), None

    watched = [part for part in backbone.modules() if not list(part.children()) or list(part.parameters(recurse=False))]
    hooks = [part.register_forward_pre_hook(on_call, with_kwargs=True) for part in watched]
    try:
        with _attending(inner, attend), torch.enable_grad():
            device = inner.get_input_embeddings().weight.device
            with with_predictors(inner, torch.arange(_PROBE_TOKENS, device=device)[None]) as ids:
                backbone(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    outside = (call.work for call in calls if call.layer is None and call.work is not None)
    return tuple(_layer_cost(calls, number, score) for number, score in enumerate(scores)), sum(outside, Work())


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, eager: bool) -> Work:
    """Scores and values of one query and key; (R, H, T, D) each. Fused kernels take all gradients or none."""
    heads, wide, values = query.shape[1], query.shape[-1], value.shape[-1]
    q, k, v = (part.requires_grad for part in (query, key, value))
    forward = 2.0 * heads * (wide + values)
    if eager:
        backward = 2.0 * heads * (wide * (int(q) + int(k)) + values * (int(q or k) + int(v)))
    else:
        backward = 2.0 * heads * (3 * wide + 2 * values) * (q or k or v)
    return Work(forward, backward, forward)


@contextmanager
def _attending(inner: Any, attend: Any) -> Iterator[None]:
    """Within this context the model is in evaluation mode and its layers call `attend` for their attention."""
    config, modes = text_config(inner.config), {part: part.training for part in inner.modules()}
    own = config._attn_implementation
    AttentionInterface.register(_PROBE, attend)
    AttentionMaskInterface.register(_PROBE, eager_mask)
    config._attn_implementation = _PROBE
    inner.eval()
    try:
        yield
    finally:
        config._attn_implementation = own
        AttentionInterface.register(_PROBE, sdpa_attention_forward)  # `attend` would keep the model alive
        for part, mode in modes.items():
            part.training = mode


def _layer_cost(calls: Sequence[_Call], number: int, scores: Work) -> LayerCost:
    own = [call for call in calls if call.layer == number]
    parts = {True: Work(), False: Work()}
    for place, call in enumerate(own):
        if call.work is not None:
            # A checkpointed layer is repeated until all saved tensors are there again. A product that only the residual
            # addition follows is none of them.
            again = 0.0 if place == len(own) - 1 else call.work.again
            parts[call.in_mlp] += Work(call.work.forward, call.work.backward, again)
    return LayerCost(parts[True], parts[False], scores)
