"""The start-up trial: whether a forward gives the model's own numbers, tried before anything is trained.

Two made-up examples go through the model's own forward, one at a time and as plain chats: these are the logits that every
form must come to. The views are compared with separate passes. What must hold:

* nothing before the last token moves when the last token does, else labels would be seen by what predicts them;
* `two_pass` gives the model's own logits, else no form does;
* `packed` gives the logits and states of `two_pass`, with sliding windows made so short that they show;
* all this also holds in training mode, for which some libraries (Unsloth) have a forward that drops the mask, or cuts the
  embeddings off from the graph and with them the predictor tokens;
* FlexAttention, which is compiled, also gives the gradient of eager attention, and takes rows of another shape.

Shapes: N labelled positions, D width, V vocabulary, P pairs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from stepjepa.config.option import Names
from stepjepa.data.types import Batch, Example, Span
from stepjepa.errors import ConfigError, said
from stepjepa.forest.collate import ForestCollator, collator_for
from stepjepa.forest.layout import label_indices
from stepjepa.modeling.extras import OBJECTIVE, is_extra, trained_extras
from stepjepa.modeling.load import ATTENTION_ASKED
from stepjepa.modeling.masks import (
    FLEX,
    SEGMENTS,
    attention_of,
    forward_only,
    heeds_window,
    is_flex,
    masks_unsupported,
    row_multiple,
    use_attention,
    window_of,
)
from stepjepa.modeling.options import ModelOptions
from stepjepa.modeling.parts import (
    backbone,
    causal_lm,
    decoder_layers,
    difference,
    distance,
    embedding_rows,
    output_head,
    own_forward,
    routed,
    text_config,
    tolerance,
    unchanged,
    vocabulary_size,
)
from stepjepa.objectives.pairs import PairBuilder

_NAME = Names(ModelOptions)
logger = logging.getLogger("stepjepa")
_WINDOW = 4  # tokens; the examples are longer
_SHORT, _LONG = 13, 200  # tokens of the examples, and of those for rows of another shape
_MASK = "its attention does not follow the mask"


@dataclass(frozen=True)
class Choice:
    """What serves a model.

    Attributes:
        forward: ``packed``, ``inline`` or ``two_pass``; empty where nothing does.
        attention: the one of `masks.OWN` that replaces the model's; empty for none.
        reason: why it is not what was asked for first; empty where it is.
    """

    forward: str
    attention: str = ""
    reason: str = ""

    @property
    def rank(self) -> int:
        """How far it is from the best; of the choices of several processes the worst serves all."""
        return 3 if not self.forward else 2 if self.forward == "two_pass" else 1 - bool(self.attention)


class Verdict(NamedTuple):
    """What a form gets wrong (empty for nothing), and the largest relative distance of its logits, loss and states from the
    model's own; NaN where it does not run."""

    fault: str
    off: float = math.nan


def choose_forward(
    model: nn.Module, asked: str, vocabulary: int, device: str, predictor_ids: Sequence[int] = (), keep: bool = False
) -> str:
    """The forward that is exact for the model, the same on all processes; its attention is set for it.

    A model that comes with `sdpa` attends by segments on CPU, and by FlexAttention on CUDA, where that is exact.

    Args:
        model: as `attach_forest_forward` leaves it.
        asked: ``auto`` (``packed`` where it is exact, else ``two_pass``), ``packed``, ``two_pass`` or ``inline``.
        device: type of the device that the run is on.
        predictor_ids: in the order in which they follow a source.
        keep: leave `sdpa` as it is, as in a model that was loaded with it by name.

    Raises:
        ConfigError: the form that is asked for, or any, would not give the model's own numbers.
    """
    inner = causal_lm(model)
    name = type(inner).__name__
    own = text_config(inner.config)._attn_implementation
    if asked != "two_pass" and forward_only(own, device):
        raise ConfigError(f"--{_NAME.attn_implementation} {own} has no backward on {device.upper()}; use sdpa")
    # FSDP may load the weights in the first process alone; the others have nothing to try until it shards them.
    waits = embedding_rows(inner).is_meta
    choices = [None if waits else _choice(model, asked, vocabulary, device, tuple(predictor_ids), keep)]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        choices *= torch.distributed.get_world_size()
        torch.distributed.all_gather_object(choices, choices[0])
    made = (one for one in choices if one is not None)
    choice = max(made, key=lambda one: one.rank, default=Choice("", reason="its weights are not loaded"))
    if not choice.forward:
        raise ConfigError(f"{name} cannot be trained with exact numbers: {choice.reason}")
    if choice.reason and asked in ("packed", "inline"):
        raise ConfigError(f"forward={asked} cannot serve {name}: {choice.reason}; use forward two_pass")
    if choice.attention:
        use_attention(inner, choice.attention)
    if choice.reason:
        logger.warning("%s: forward %s, because %s", name, choice.forward, choice.reason)
    if not heeds_window(inner):
        logger.warning(
            "%s: its configuration has a sliding_window that it does not use; every token sees all before it", name
        )
    return choice.forward


def freeze_unreached(model: nn.Module, predictor_ids: Sequence[int] = ()) -> list[str]:
    """Freeze the parameters that text cannot reach, so that no process waits for their gradients.

    They are those of a multimodal model's towers for images and sound, and layers that only such inputs use. Experts,
    which a few tokens need not reach, are left as they are.

    Returns:
        Their names; none where the model does not run.
    """
    inner = causal_lm(model)
    device, ids = embedding_rows(inner).device, tuple(predictor_ids)
    if device.type == "meta":
        return []
    try:
        with unchanged(model), torch.enable_grad():
            output = model(batch=collator_for("two_pass", ids, 0)(_examples(inner, 1 << 16, len(ids))).to(device))
    except Exception:
        return []
    reached = _reached(output.lm_loss_sum, output.source_states, output.target_states)
    reached |= {id(parameter) for parameter in routed(inner).parameters()}
    frozen = []
    for name, parameter in model.named_parameters():
        # The modules of the objective are reached by its loss, which made-up examples need not have.
        if parameter.requires_grad and id(parameter) not in reached and not is_extra(name, OBJECTIVE):
            parameter.requires_grad_(False)
            frozen.append(name)
    return frozen


def _reached(*outputs: torch.Tensor) -> set[int]:
    """The ids of the parameters in the graph of some tensors of any shape, which is followed without a backward pass."""
    pending = [one.grad_fn for one in outputs if one.grad_fn is not None]
    seen, reached = set(pending), set[int]()
    while pending:
        node = pending.pop()
        reached.add(id(getattr(node, "variable", None)))
        following = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= following
        pending += following
    return reached


def exactness(model: nn.Module, vocabulary: int, attention: str, predictor_ids: Sequence[int] = ()) -> Verdict:
    """How exact packed rows are under an attention of transformers or of `masks.OWN`; arguments as `choose_forward`.

    Within the context of autocast all numbers are in its dtype.
    """
    with torch.no_grad(), unchanged(model), window_of(model, _WINDOW):
        trial = _Trial(model, vocabulary, tuple(predictor_ids))
        fault = trial.plain_fault()
        return Verdict(fault) if fault else trial.verdict("packed", attention)


def _choice(
    model: nn.Module, asked: str, vocabulary: int, device: str, predictor_ids: tuple[int, ...], keep: bool = False
) -> Choice:
    inner = causal_lm(model)
    reason = "" if asked == "two_pass" else masks_unsupported(inner) or ""
    best = "inline" if asked == "inline" else "packed"
    own = text_config(inner.config)._attn_implementation
    wanted = [FLEX] if is_flex(own) else [""]  # the model's own
    if own == "sdpa" and not keep and not getattr(inner, ATTENTION_ASKED, False):
        faster = SEGMENTS if device == "cpu" and best == "packed" else ""
        faster = FLEX if device == "cuda" and not forward_only(FLEX, embedding_rows(inner).device.type) else faster
        wanted = [faster, ""] if faster else wanted
    with torch.no_grad(), unchanged(model), window_of(inner, _WINDOW):
        trial = _Trial(model, vocabulary, predictor_ids)
        if fault := trial.plain_fault():
            return Choice("", reason=fault)
        for attention in [] if reason or asked == "two_pass" else wanted:
            if attention == FLEX and device == "cuda":
                logger.warning("FlexAttention is compiled, up to a minute; --%s sdpa is not", _NAME.attn_implementation)
            reason = trial.verdict("packed", attention).fault
            reason = reason or (trial.verdict("inline", attention).fault if best == "inline" else "")
            if not reason:
                return Choice(best, attention)
    return Choice("two_pass", FLEX if is_flex(own) else "", reason)


class _Trial:
    """Made-up examples and what a model's own forward says of them."""

    def __init__(self, model: nn.Module, vocabulary: int, predictor_ids: tuple[int, ...]):
        inner = causal_lm(model)
        self._model, self._inner, self._ids = model, inner, predictor_ids
        self._device = embedding_rows(inner).device
        self._head = output_head(inner, vocabulary)
        self._limit = tolerance(inner)
        predictors = len(predictor_ids)
        self._examples = _examples(inner, vocabulary, predictors, _SHORT)
        self._long = _examples(inner, vocabulary, predictors, _LONG)
        self._own = torch.empty(0)  # (N, V) the model's own logits
        self._states: tuple[torch.Tensor, ...] = ()  # of the views in passes of their own, (P, D) each

    def plain_fault(self) -> str:
        """What is wrong with the model's own forward, or with `two_pass`: all else is compared with these."""
        # FlexAttention, which is what is tried, would be compiled for these passes.
        own = text_config(self._inner.config)._attn_implementation
        with attention_of(self._inner, "eager" if is_flex(own) else own):
            return self._own_fault() or self.verdict("two_pass").fault

    def _own_fault(self) -> str:
        """Run the model's own forward; what speaks against training on its logits, empty for nothing."""
        own = []
        for example in self._examples:
            both = torch.from_numpy(np.stack([example.trunk, example.trunk]).astype(np.int64)).to(self._device)
            both[1, -1] = both[0, 0]
            try:
                logits = own_forward(self._inner)(input_ids=both, use_cache=False).logits[..., : self._head.vocabulary]
            except Exception as error:
                return f"its own forward does not run on plain text ({said(error, lines=1)[:200]})"
            if logits.shape[:2] != both.shape:
                return "its own forward does not give logits for every token"
            if not logits.isfinite().all():
                return "its own logits are not finite"
            if difference(logits[1, :-1], logits[0, :-1]) > self._limit:
                return "its attention sees the tokens that follow, so it would be trained on labels that it sees"
            own.append(logits[0, label_indices(example)[0]])
        self._own = torch.cat(own)
        return ""

    def verdict(self, form: str, attention: str = "") -> Verdict:
        """What a form gets wrong under an attention (empty for the model's own), and how far off it is.

        Args:
            form: ``two_pass`` (tried first: the others are compared with its states), ``packed``, ``inline``.
        """
        attention = attention or text_config(self._inner.config)._attn_implementation
        kept: list[torch.Tensor] = []  # last hidden states of every call of the backbone
        hook = backbone(self._inner).register_forward_hook(lambda module, args, output: kept.append(output[0]))
        try:
            with hook, attention_of(self._inner, attention):
                batch = self._batch(self._examples, form, attention)
                output = self._model(batch=batch)
                predicting = kept[0].flatten(0, 1).index_select(0, batch.label_positions)
                logits = self._head.logits(self._inner, predicting)
            if is_flex(attention) and not forward_only(attention, self._device.type):
                self._try_gradient(form, attention)
            in_training = self._training_fault(form, attention)
        except Exception as error:
            what = "it does not run" if form == "two_pass" else "it does not take the mask"
            return Verdict(f"{what} ({said(error, lines=1)[:200]})")
        errors = []
        if form != "inline":  # whose LM loss is another by design
            own_loss = F.cross_entropy(self._own.float(), batch.label_ids, reduction="sum")
            loss_error = abs(output.lm_loss_sum - own_loss) / own_loss.clamp(min=1.0)
            errors += [difference(logits, self._own), float(loss_error)]
        fault = _MASK
        states = (output.source_states.float(), output.target_states.float())
        if form == "two_pass":
            fault = "plain passes of its backbone do not give its own logits"
            self._states = states
        errors += [distance(side, expected) for side, expected in zip(states, self._states, strict=True)]
        exact = all(error <= self._limit for error in errors)  # no comparison with NaN holds
        return Verdict(in_training if exact else fault, float(np.max(errors)))

    def _training_fault(self, form: str, attention: str) -> str:
        """What a form gets wrong in training mode alone; empty for nothing."""
        changed = [one._replace(trunk=np.append(one.trunk[-1:], one.trunk[1:])) for one in self._examples]
        outputs = []
        for examples in (self._examples, changed):  # with the same random numbers, for dropout
            batch = self._batch(examples, form, attention)
            with attention_of(self._inner, attention), unchanged(self._model, training=True), torch.enable_grad():
                output = self._model(batch=batch)
            outputs.append(output)
        rows = trained_extras(self._inner).predictors
        if rows is not None and id(rows.weight) not in _reached(output.source_states):
            return "in training mode it cuts off its embeddings, so predictor tokens would not be trained; use predictors=0"
        # The first token of a chat is in no target, and a target sees itself alone.
        expected, found = (output.target_states.float() for output in outputs)
        if distance(found, expected) <= self._limit:
            return ""
        return f"in training mode {_MASK}"

    def _try_gradient(self, form: str, attention: str) -> None:
        """Train on rows of another shape; raises where that does not run or has another gradient than eager attention."""
        batch = self._batch(self._long, form, attention)
        layers = decoder_layers(backbone(self._inner))
        module = layers[0] if layers else self._model
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        flat_gradients = []
        with torch.enable_grad():
            with attention_of(self._inner, attention), unchanged(self._model, training=True):
                self._model(batch=batch)  # FlexAttention has no dropout
            for name in (attention, "eager"):
                with attention_of(self._inner, name):
                    output = self._model(batch=batch)
                products = output.source_states * output.target_states
                loss = output.lm_loss_sum + products.float().sum()
                gradients = torch.autograd.grad(loss, weights, allow_unused=True)
                pieces = [gradient.flatten().float() for gradient in gradients if gradient is not None]
                flat_gradients.append(torch.cat(pieces))
        if not distance(*flat_gradients) <= self._limit:
            raise ValueError("its gradient is not that of eager attention")

    def _batch(self, examples: list[Example], form: str, attention: str) -> Batch:
        collator = collator_for(form, self._ids, 0, row_multiple=row_multiple(attention, self._device.type))
        if attention == SEGMENTS and isinstance(collator, ForestCollator):
            return collator.in_one_row(examples).to(self._device)
        return collator(examples).to(self._device)


def _examples(inner: PreTrainedModel, vocabulary: int, predictors: int, length: int = _SHORT) -> list[Example]:
    """Two examples of different lengths with a pair each, of tokens without a meaning of their own."""

    def example(ids: np.ndarray, label: int, source: int, target: Span) -> Example:
        builder = PairBuilder(ids, predictors)
        builder.pair(Span(0, source + 1), target)
        pairs = builder.found("")
        labels = Span(label, len(ids))
        return Example(ids, (labels,), pairs.segments, pairs.pairs)

    size = min(vocabulary, vocabulary_size(inner))
    settings = vars(inner.config)
    special = {value for name, value in settings.items() if "token" in name and isinstance(value, int)}
    plain = [index for index in range(size) if index not in special] or [0]
    places = (7 * np.arange(length) + 5) % len(plain)
    ids = np.array(plain, dtype=np.int32)[places]
    backwards = ids[-4:0:-1].copy()
    return [example(ids, 4, 5, Span(6, 11)), example(backwards, 2, 3, Span(4, 8))]
