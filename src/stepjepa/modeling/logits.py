"""From last hidden states to logits: the model's own way, or a faster one that was found equal to it.

The common head is one matrix, with a scale and a cap that the configuration names; it is used without holding all logits.
Whether it is right is never guessed: `output_head` compares it with the model's own forward on made-up states. What differs
(a dense layer before the matrix, a multiplier of another name) takes the model's own forward at the labelled positions.

Shapes: N positions, D width, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.modeling_outputs import ModelOutput

from stepjepa.losses.lm import chunk_rows, chunked_cross_entropy_sum, linear_cross_entropy_sum, scaled_logits
from stepjepa.modeling.configs import text_config
from stepjepa.modeling.parts import backbone, own_forward, unchanged

_NAME = "_stepjepa_output_head"


@dataclass(frozen=True)
class OutputHead:
    """How a causal LM turns states into logits.

    Attributes:
        vocabulary: V, entries of the softmax; predictor tokens lie behind them and never enter.
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
        return scaled_logits(output_module(model)(states_ND)[..., : self.vocabulary], self.scale, self.softcap)

    def loss_sum(self, model: torch.nn.Module, states_ND: torch.Tensor, labels_N: torch.Tensor) -> torch.Tensor:
        """Summed cross-entropy () float32 of `states_ND` against `labels_N`."""
        if self.plain and not self.own:
            module = output_module(model)
            bias = getattr(module, "bias", None)
            bias = None if bias is None else bias[: self.vocabulary]
            weight = module.weight[: self.vocabulary]
            return linear_cross_entropy_sum(states_ND, weight, labels_N, bias, self.scale, self.softcap)
        rows = chunk_rows(self.vocabulary)
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


def output_module(model: Any) -> Any:
    """The output embedding, out of PEFT's wrapper for trained token rows: those are predictors, behind the softmax."""
    module = model.get_output_embeddings()
    adapter = getattr(module, "token_adapter", None)
    return module if adapter is None else adapter.base_layer


def own_logits(model: Any, states_ND: torch.Tensor, part: str) -> torch.Tensor:
    """(N, V) logits by the model's own forward, with the states (N, D) of its module `part` given; V as its head has it.

    Raises:
        ValueError: that forward does not ask this module.
    """
    count = len(states_ND)
    given = states_ND if count else states_ND.new_zeros(1, states_ND.shape[1])
    ids = torch.zeros(1, len(given), dtype=torch.long, device=given.device)
    with _answering(model.get_submodule(part), _Given(last_hidden_state=given[None])) as asked:
        output = own_forward(model)(input_ids=ids, use_cache=False)
    if not asked:
        raise ValueError(f"the model's forward does not call its {part}")
    logits = output.logits[0]
    return logits if count else logits[:0] + states_ND.sum()


@contextmanager
def _answering(part: Any, answer: Any) -> Iterator[list[bool]]:
    """Within this context `part` returns `answer`; the list that it yields gets an entry for each time."""
    own, patched_before, asked = part.forward, "forward" in vars(part), list[bool]()

    def forward(*args: Any, **kwargs: Any) -> Any:
        asked.append(True)
        return answer

    part.forward = forward
    try:
        yield asked
    finally:
        if patched_before:
            part.forward = own
        else:
            del part.forward


def output_head(model: Any, vocabulary: int) -> OutputHead:
    """The head of a causal LM, found once: the fast form where it gives the model's own logits, else the model's own.

    Its vocabulary is the given one, or the model's where that is smaller: some embed more tokens than they predict.
    """
    known = vars(model).get(_NAME)
    if known is None or known[0] != vocabulary:
        known = (vocabulary, _found(model, vocabulary))
        object.__setattr__(model, _NAME, known)
    return known[1]


def _found(model: Any, vocabulary: int) -> OutputHead:
    config, module = text_config(model.config), output_module(model)
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    if getattr(config, "logits_scaling", None):
        scale /= float(config.logits_scaling)
    softcap = getattr(config, "final_logit_softcapping", None)
    weight = getattr(module, "weight", None)
    rows = vocabulary if weight is None else min(vocabulary, len(weight))
    head = OutputHead(rows, scale, softcap, plain=type(module) is torch.nn.Linear)
    if weight is None or weight.device.type == "meta":
        return head
    # Also without the options: a configuration may have those that its class does not read.
    forms = [(scale, softcap), (1.0, softcap), (scale, None), (1.0, None)]
    heads = dict.fromkeys(replace(head, scale=scale, softcap=softcap) for scale, softcap in forms)
    widths = dict.fromkeys([getattr(config, "hidden_size", weight.shape[-1]), weight.shape[-1]])
    with torch.no_grad(), unchanged(model):
        for part, width in itertools.product(_sources(model), widths):
            states_ND = _states(model, head, width, weight.device)
            try:
                own = own_logits(model, states_ND, part)[:, :rows]
            except Exception:
                continue  # of another width, or not what the head is given: the start-up trial judges
            return next((one for one in heads if _same(one, model, states_ND, own)), replace(head, own=part))
    return head


def _sources(model: Any) -> list[str]:
    """Names of the modules that may give the head its states: the backbone, or a decoder right inside it (OPT)."""
    part = backbone(model)
    name = next((name for name, module in model.named_modules() if module is part), "")
    inside = [f"{name}.{child}" for child, _ in part.named_children() if "decoder" in child or "model" in child]
    return [name, *inside] if name else []


def _states(model: Any, head: OutputHead, width: int, device: torch.device) -> torch.Tensor:
    """(4, width) states with logits so large that a cap bends them."""
    generator = torch.Generator().manual_seed(0)
    states_ND = torch.randn(4, width, generator=generator).to(device, model.dtype)
    try:
        size = float(replace(head, scale=1.0, softcap=None).logits(model, states_ND).float().std())
    except Exception:
        return states_ND
    return states_ND * (50 / max(size, 1e-3))


def _same(head: OutputHead, model: Any, states_ND: torch.Tensor, own: torch.Tensor) -> bool:
    try:
        return difference(head.logits(model, states_ND), own) <= tolerance(model)
    except Exception:
        return False


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
