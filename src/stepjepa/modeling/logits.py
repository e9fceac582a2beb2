"""From last hidden states to logits: the model's own way, or a faster one that was found equal to it.

The common head is one matrix, with a scale and a cap that the configuration names; it is used without holding all logits.
Whether it is right is never guessed: `output_head` compares it with the model's own forward on made-up states. What differs
(a dense layer before the matrix, a multiplier of another name) takes the model's own forward at the labelled positions.

Shapes: N positions, D width, V vocabulary.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.modeling_outputs import ModelOutput

from stepjepa.losses.lm import chunk_rows, chunked_cross_entropy_sum, linear_cross_entropy_sum, scaled_logits
from stepjepa.modeling.parts import backbone, own_forward, text_config, unchanged

_NAME = "_stepjepa_output_head"


@dataclass(frozen=True)
class OutputHead:
    """How a causal LM turns states into logits.

    Attributes:
        vocabulary: V, entries of the softmax; predictor tokens follow them and never enter.
        scale, softcap: what the model does to its logits.
        plain: the output embedding is one matrix (and a bias) that may be used without calling the module.
        own: the module whose states the model's own forward turns into logits, where that forward is used; `scale`,
            `softcap` and `plain` say nothing then.
    """

    vocabulary: int
    scale: float = 1.0
    softcap: float | None = None
    plain: bool = True
    own: str = ""

    def logits(self, model: torch.nn.Module, states_ND: torch.Tensor) -> torch.Tensor:
        """(N, V) logits of a causal LM for its last hidden states."""
        if self.own:
            return own_logits(model, states_ND, self.own)[..., : self.vocabulary]
        return scaled_logits(_output_module(model)(states_ND)[..., : self.vocabulary], self.scale, self.softcap)

    def loss_sum(
        self, model: torch.nn.Module, states_ND: torch.Tensor, labels_N: torch.Tensor, rows: int | None = None
    ) -> torch.Tensor:
        """Summed cross-entropy () float32 of `states_ND` against `labels_N`.

        Args:
            rows: positions whose logits are held at once; None for as many as memory should bear.
        """
        rows = chunk_rows(self.vocabulary) if rows is None else rows
        if self.plain and not self.own:
            module = _output_module(model)
            weight, bias = module.weight[: self.vocabulary], getattr(module, "bias", None)
            bias = None if bias is None else bias[: self.vocabulary]
            limit = 4 * self.vocabulary * rows
            return linear_cross_entropy_sum(states_ND, weight, labels_N, bias, self.scale, self.softcap, limit)
        return chunked_cross_entropy_sum(lambda states_CD: self.logits(model, states_CD), states_ND, labels_N, rows)

    def most_likely(self, model: torch.nn.Module, states_ND: torch.Tensor) -> torch.Tensor:
        """(N,) int64, the token with the largest logit for each state, chunk by chunk."""
        chunks = states_ND.split(chunk_rows(self.vocabulary))
        return torch.cat([self.logits(model, states_CD).argmax(dim=-1) for states_CD in chunks])


@dataclass
class _Given(ModelOutput):
    """What a backbone returns, made of given states: whatever else a model's forward asks of it is None."""

    last_hidden_state: torch.Tensor | None = None

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _output_module(model: Any) -> Any:
    """The output embedding, out of PEFT's wrapper for trained token rows."""
    module = model.get_output_embeddings()
    adapter = getattr(module, "token_adapter", None)
    return module if adapter is None else adapter.base_layer


def own_logits(model: Any, states_ND: torch.Tensor, part: str) -> torch.Tensor:
    """(N, V) logits by the model's own forward, with the states (N, D) of its module `part` given; V as its head has it.

    Raises:
        ValueError: that forward does not ask this module.
    """
    given = states_ND if len(states_ND) else states_ND.new_zeros(1, states_ND.shape[1])
    ids = torch.zeros(1, len(given), dtype=torch.long, device=given.device)
    module, asked = model.get_submodule(part), list[bool]()
    own, patched_before = module.forward, "forward" in vars(module)

    def answer(*args: Any, **kwargs: Any) -> Any:
        asked.append(True)
        return _Given(last_hidden_state=given[None])

    module.forward = answer
    try:
        logits = own_forward(model)(input_ids=ids, use_cache=False).logits[0]
    finally:
        del module.forward
        if patched_before:
            module.forward = own
    if not asked:
        raise ValueError(f"the model's forward does not call its {part}")
    return logits if len(states_ND) else logits[:0] + states_ND.sum()


def output_head(model: Any, vocabulary: int) -> OutputHead:
    """The head of a causal LM, tried once: the fast form where it gives the model's own logits, else the model's own.

    Its vocabulary is the given one, or the model's where that is smaller: some embed more tokens than they predict.
    """
    known = vars(model).get(_NAME)
    if known is None or known[0] != vocabulary:
        known = (vocabulary, _tried(model, vocabulary))
        object.__setattr__(model, _NAME, known)
    return known[1]


def _tried(model: Any, vocabulary: int) -> OutputHead:
    config, module = text_config(model.config), _output_module(model)
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    softcap = getattr(config, "final_logit_softcapping", None)
    weight = getattr(module, "weight", None)
    rows = vocabulary if weight is None else min(vocabulary, len(weight))
    plain = OutputHead(rows, plain=type(module) is torch.nn.Linear)
    # Also without the options: a configuration may have those that its class does not read.
    forms = [(scale, softcap), (1.0, softcap), (scale, None), (1.0, None)]
    heads = list(dict.fromkeys(replace(plain, scale=one, softcap=cap) for one, cap in forms))
    if weight is None or weight.device.type == "meta":
        return heads[0]
    # What gives the head its states: the backbone, or a decoder right inside it (OPT).
    part = backbone(model)
    name = next((name for name, module in model.named_modules() if module is part), "")
    inside = [f"{name}.{child}" for child, _ in part.named_children() if "decoder" in child or "model" in child]
    widths = dict.fromkeys([getattr(config, "hidden_size", weight.shape[-1]), weight.shape[-1]])
    with torch.no_grad(), unchanged(model):
        for source, width in itertools.product([name, *inside] if name else [], widths):
            states_ND = torch.randn(4, width, generator=torch.Generator().manual_seed(0)).to(weight.device, model.dtype)
            candidates = heads
            try:  # logits so large that a cap bends them
                states_ND *= 50 / plain.logits(model, states_ND).float().std().clamp(min=1e-3)
            except Exception:
                candidates = []
            try:
                own = own_logits(model, states_ND, source)[:, :rows]
            except Exception:
                continue  # of another width, or not what the head is given: the start-up trial judges
            equal = (one for one in candidates if difference(one.logits(model, states_ND), own) <= tolerance(model))
            return next(equal, replace(heads[0], own=source))
    return heads[0]


def difference(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative distance of two tensors (N, V) of logits; what softmax does not see, a shift of a whole row, aside."""
    one, other = logits.float(), expected.float()
    one, other = one - one.mean(-1, keepdim=True), other - other.mean(-1, keepdim=True)
    return float((one - other).norm() / other.norm().clamp(min=1e-12))


def tolerance(model: Any) -> float:
    """What rounding may make of states and logits, relative to their size: 1e-4 in float32, more in shorter dtypes."""
    dtype = model.dtype
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        dtype = torch.bfloat16
    return max(1e-4, 8 * torch.finfo(dtype).eps)
