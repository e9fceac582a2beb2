"""The start-up trial tests, before training, that a forward computes the same numbers as the model's own forward.

Two synthetic examples go through the model's own forward, one at a time and as plain chats: every form except `inline` must
reproduce these logits. Views are compared with separate passes. The trial tests that:

* a change of the last token changes nothing before it, else a position could see the label that it predicts;
* `two_pass` gives the model's own logits (if it does not, no form can);
* `packed` gives the logits and states of `two_pass`, with sliding windows short enough to matter;
* the same holds in training mode, for which some libraries (Unsloth) have a forward that drops the mask, or detaches the
  embeddings, and with them the predictor tokens, from the graph;
* FlexAttention, which is compiled, also gives the gradient of eager attention, and takes rows of another shape.

Shapes: N labelled positions, D width, V vocabulary, P pairs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from stepjepa.config.option import Names
from stepjepa.data.types import Batch, Example, Span
from stepjepa.errors import ConfigError, said
from stepjepa.forest.collate import Collator, ForestCollator, TwoPassCollator
from stepjepa.forest.layout import label_indices
from stepjepa.losses.gather import world_size
from stepjepa.modeling.extras import is_extra, trained_extras
from stepjepa.modeling.load import ATTENTION_ASKED
from stepjepa.modeling.masks import (
    FLEX,
    SEGMENTS,
    attention_in,
    attention_of,
    forward_only,
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
    plain_ids,
    routed,
    tolerance,
    unchanged,
    vocabulary_size,
)
from stepjepa.objectives.pairs import PairBuilder

_NAME = Names(ModelOptions)
logger = logging.getLogger("stepjepa")
# Sliding windows during the trial, in tokens: shorter than the examples.
_WINDOW = 4
# Tokens of the examples, and of those for rows of another shape.
_SHORT, _LONG = 13, 200
_MASK = "its attention does not follow the mask"


class Choice(NamedTuple):
    """The forward and the attention for a model.

    Attributes:
        forward: ``packed``, ``inline`` or ``two_pass``; empty if none is exact.
        attention: the attention of `masks.OWN` that replaces the model's; empty to keep the model's.
        reason: why it is not the form that was requested; empty if it is.
    """

    forward: str
    attention: str = ""
    reason: str = ""

    @property
    def rank(self) -> int:
        """0 for the best choice, 3 for the worst. All processes use the worst of their choices."""
        return (
            3 if not self.forward else 2 if self.forward == "two_pass" else 1 - bool(self.attention)
        )


def choose_forward(
    model: nn.Module,
    asked: str,
    vocabulary: int,
    device: str,
    predictor_ids: Sequence[int] = (),
    keep: bool = False,
) -> str:
    """Choose a forward that is exact for the model, the same on all processes, and set the model's attention for it.

    A model with `sdpa` gets attention by segments on CPU, and FlexAttention on CUDA, if these are exact.

    Args:
        model: a model after `attach_forest_forward`.
        asked: ``auto`` (``packed`` where it is exact, else ``two_pass``), ``packed``, ``two_pass`` or ``inline``.
        device: type of the run's device.
        predictor_ids: in the order in which they follow a source.
        keep: do not replace `sdpa`, as for a model whose attention the user chose.

    Raises:
        ConfigError: the requested form, or every form, differs from the model's own numbers.
    """
    inner = causal_lm(model)
    name = type(inner).__name__
    original = attention_in(inner)
    if asked != "two_pass" and forward_only(original, device):
        raise ConfigError(
            f"--{_NAME.attn_implementation} {original} has no backward pass on {device.upper()}; use sdpa"
        )
    # FSDP may load the weights only in the first process; the others have nothing to test until it shards them.
    has_no_weights = embedding_rows(inner).is_meta
    choices = [
        None
        if has_no_weights
        else _choice(model, asked, vocabulary, device, tuple(predictor_ids), keep)
    ]
    if world_size() > 1:
        choices *= world_size()
        torch.distributed.all_gather_object(choices, choices[0])
    # Processes may come to different choices, for example on different GPUs, but must run the same forward.
    complete = (candidate for candidate in choices if candidate is not None)
    unloaded = Choice("", reason="its weights are not loaded")
    choice = max(complete, key=lambda candidate: candidate.rank, default=unloaded)
    if not choice.forward:
        raise ConfigError(f"{name} cannot be trained exactly: {choice.reason}")
    if choice.reason and asked in ("packed", "inline"):
        raise ConfigError(
            f"forward={asked} cannot be used for {name}: {choice.reason}; use forward two_pass"
        )
    if choice.attention:
        use_attention(inner, choice.attention)
    if choice.reason:
        logger.warning("%s: forward %s, because %s", name, choice.forward, choice.reason)
    return choice.forward


def freeze_unreached(model: nn.Module) -> list[str]:
    """Freeze the parameters that text cannot reach, so that no process waits for their gradients.

    These are a multimodal model's towers for images and sound, and layers that only such inputs use. Experts are not
    frozen, since a few tokens do not reach all of them.

    Returns:
        The names of the frozen parameters; empty if the weights are not loaded.
    """
    inner = causal_lm(model)
    ids = plain_ids(inner)
    if ids.is_meta:
        return []
    with unchanged(model), torch.enable_grad():
        logits = own_forward(inner)(input_ids=ids, use_cache=False).logits
    reached = _reached(logits)
    reached |= {id(parameter) for parameter in routed(inner).parameters()}
    frozen = []
    for name, parameter in model.named_parameters():
        # The JEPA loss reaches what training adds.
        if parameter.requires_grad and id(parameter) not in reached and not is_extra(name):
            parameter.requires_grad_(False)
            frozen.append(name)
    return frozen


def _reached(output: Tensor) -> set[int]:
    """The ids of the parameters in the autograd graph of a tensor (any shape), without a backward pass."""
    pending = [] if output.grad_fn is None else [output.grad_fn]
    seen, reached = set(pending), set[int]()
    while pending:
        node = pending.pop()
        # The nodes that accumulate gradients hold their parameter.
        reached.add(id(getattr(node, "variable", None)))
        following = {function for function, _ in node.next_functions if function is not None} - seen
        seen |= following
        pending += following
    return reached


def _choice(
    model: nn.Module,
    asked: str,
    vocabulary: int,
    device: str,
    predictor_ids: tuple[int, ...],
    keep: bool = False,
) -> Choice:
    inner = causal_lm(model)
    reason = "" if asked == "two_pass" else masks_unsupported(inner) or ""
    best = "inline" if asked == "inline" else "packed"
    original = attention_in(inner)
    # Attentions to try in order; an empty name keeps the model's own.
    attentions = [FLEX] if is_flex(original) else [""]
    if original == "sdpa" and not keep and not getattr(inner, ATTENTION_ASKED, False):
        if device == "cuda" and not forward_only(FLEX, embedding_rows(inner).device.type):
            attentions = [FLEX, ""]
        elif device == "cpu" and best == "packed":
            attentions = [SEGMENTS, ""]
    with torch.no_grad(), unchanged(model), window_of(inner, _WINDOW):
        trial = _Trial(model, vocabulary, predictor_ids)
        if fault := trial.plain_fault():
            return Choice("", reason=fault)
        for attention in [] if reason or asked == "two_pass" else attentions:
            if attention == FLEX and device == "cuda":
                logger.warning(
                    "compiling FlexAttention takes up to a minute; --%s sdpa avoids this",
                    _NAME.attn_implementation,
                )
            # `inline` differs from the model's own numbers by design, so the mask is tested with `packed` first.
            reason = trial.form_fault("packed", attention)
            if not reason and best == "inline":
                reason = trial.form_fault("inline", attention)
            if not reason:
                return Choice(best, attention)
    return Choice("two_pass", FLEX if is_flex(original) else "", reason)


class _Trial:
    """Synthetic examples, and the results of a model's own forward for them."""

    def __init__(self, model: nn.Module, vocabulary: int, predictor_ids: tuple[int, ...]):
        inner = causal_lm(model)
        self._model, self._inner, self._ids = model, inner, predictor_ids
        self._device = embedding_rows(inner).device
        self._head = output_head(inner, vocabulary)
        self._limit = tolerance(inner)
        predictors = len(predictor_ids)
        self._examples = _synthetic_examples(inner, vocabulary, predictors, _SHORT)
        self._long = _synthetic_examples(inner, vocabulary, predictors, _LONG)
        # Set by `plain_fault`: the model's own logits (N, V), and the states (P, D) of both views in separate passes.
        self._logits = torch.empty(0)
        self._states: tuple[Tensor, ...] = ()

    def plain_fault(self) -> str:
        """The fault of the model's own forward or of `two_pass`, the references of all other tests; empty for none."""
        # Not with FlexAttention, which would be compiled for these passes.
        original = attention_in(self._inner)
        with attention_of(self._inner, "eager" if is_flex(original) else original):
            return self._own_fault() or self.form_fault("two_pass")

    def _own_fault(self) -> str:
        """Run the model's own forward. Returns why its logits cannot be trained on, empty if they can."""
        logits_of_labels = []
        for example in self._examples:
            # Two rows that differ in the last token: in a causal model, the logits before it are equal.
            ids = torch.from_numpy(example.trunk).long().repeat(2, 1).to(self._device)
            ids[1, -1] = ids[0, 0]
            try:
                logits = own_forward(self._inner)(input_ids=ids, use_cache=False).logits[
                    ..., : self._head.vocabulary
                ]
            except Exception as error:
                return f"its own forward does not run on plain text ({said(error, lines=1)[:200]})"
            if logits.shape[:2] != ids.shape:
                return "its own forward does not give logits for every token"
            if not logits.isfinite().all():
                return "its own logits are not finite"
            if difference(logits[1, :-1], logits[0, :-1]) > self._limit:
                return "its attention sees the tokens that follow, so it would be trained on labels that it sees"
            logits_of_labels.append(logits[0, label_indices(example)[0]])
        self._logits = torch.cat(logits_of_labels)
        return ""

    def form_fault(self, form: str, attention: str = "") -> str:
        """Compare a form under an attention (empty for the model's own) with the reference. Returns the fault of the form,
        empty if it has none.

        Args:
            form: ``two_pass`` (must come first: its states are the reference), ``packed`` or ``inline``.
        """
        attention = attention or attention_in(self._inner)
        # The last hidden states of every call of the backbone; the first call is that of the chats.
        kept: list[Tensor] = []
        hook = backbone(self._inner).register_forward_hook(
            lambda module, args, output: kept.append(output[0])
        )
        try:
            with hook, attention_of(self._inner, attention):
                batch = self._batch(self._examples, form, attention)
                output = self._model(batch=batch)
                predicting = kept[0].flatten(0, 1).index_select(0, batch.label_positions)
                logits = self._head.logits(self._inner, predicting)
            # This raises an error for a model with attention dropout, which FlexAttention lacks.
            in_training = self._training_fault(form, attention)
            if is_flex(attention) and not forward_only(attention, self._device.type):
                self._try_gradient(form, attention)
        except Exception as error:
            what = "it does not run" if form == "two_pass" else "it does not take the mask"
            return f"{what} ({said(error, lines=1)[:200]})"
        errors = []
        # The LM loss of `inline` differs by design, since the tokens that predict its labels see the predictors.
        if form != "inline":
            own_loss = F.cross_entropy(self._logits.float(), batch.label_ids, reduction="sum")
            loss_error = abs(output.lm_loss_sum - own_loss) / own_loss.clamp(min=1.0)
            errors += [difference(logits, self._logits), float(loss_error)]
        fault = _MASK
        states = (output.source_states.float(), output.target_states.float())
        if form == "two_pass":
            fault = "ordinary passes through its backbone do not reproduce its own logits"
            self._states = states
        errors += [
            distance(side, expected) for side, expected in zip(states, self._states, strict=True)
        ]
        # The largest of errors that include NaN is NaN, which is never within the limit.
        return in_training if np.max(errors) <= self._limit else fault

    def _training_fault(self, form: str, attention: str) -> str:
        """The fault that a form has only in training mode; empty if it has none."""
        changed = [
            sample._replace(trunk=np.append(sample.trunk[-1:], sample.trunk[1:]))
            for sample in self._examples
        ]
        outputs = []
        for examples in (self._examples, changed):
            # `unchanged` restores the random state, so that dropout is the same in both passes.
            batch = self._batch(examples, form, attention)
            with (
                attention_of(self._inner, attention),
                unchanged(self._model, training=True),
                torch.enable_grad(),
            ):
                output = self._model(batch=batch)
            outputs.append(output)
        rows = trained_extras(self._inner).predictors
        if rows is not None and id(rows.weight) not in _reached(output.source_states):
            return "in training mode it detaches its embeddings, so predictor tokens would not be trained; use predictors=0"
        # The first token of a chat is in no target, and a target sees only itself, so its states must not change.
        expected, after_change = (output.target_states.float() for output in outputs)
        if distance(after_change, expected) <= self._limit:
            return ""
        return f"in training mode {_MASK}"

    def _try_gradient(self, form: str, attention: str) -> None:
        """Run forward and backward on rows of another shape. Raises an error if this fails or the gradient is not that of
        eager attention."""
        batch = self._batch(self._long, form, attention)
        # The gradient of the first layer has passed through all others.
        layers = decoder_layers(backbone(self._inner))
        module = layers[0] if layers else self._model
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        flat_gradients = []
        with torch.enable_grad():
            for name in (attention, "eager"):
                with attention_of(self._inner, name):
                    output = self._model(batch=batch)
                products = output.source_states * output.target_states
                loss = output.lm_loss_sum + products.float().sum()
                gradients = torch.autograd.grad(loss, weights, allow_unused=True)
                pieces = [
                    gradient.flatten().float() for gradient in gradients if gradient is not None
                ]
                flat_gradients.append(torch.cat(pieces))
        if not distance(*flat_gradients) <= self._limit:
            raise ValueError("its gradient is not that of eager attention")

    def _batch(self, examples: list[Example], form: str, attention: str) -> Batch:
        multiple = row_multiple(attention, self._device.type)
        collator: Collator = TwoPassCollator(self._ids, 0)
        if form != "two_pass":
            one_row, inline = attention == SEGMENTS, form == "inline"
            collator = ForestCollator(self._ids, 0, multiple, one_row=one_row, inline=inline)
        return collator(examples).to(self._device)


def _synthetic_examples(
    inner: PreTrainedModel, vocabulary: int, predictors: int, length: int
) -> list[Example]:
    """Two examples of different lengths with one pair each."""

    def example(ids: np.ndarray, label: int, source: int, target: Span) -> Example:
        builder = PairBuilder(ids, predictors)
        builder.pair(Span(0, source + 1), target)
        views = builder.found("")
        labels = Span(label, len(ids))
        return Example(ids, (labels,), views.segments, views.pairs)

    # Small ids exist in every vocabulary, and are seldom special tokens.
    size = min(vocabulary, vocabulary_size(inner))
    ids = (np.arange(5, 5 + length) % size).astype(np.int32)
    backwards = ids[-4:0:-1].copy()
    first = example(ids, 4, 5, Span(6, 11))
    second = example(backwards, 2, 3, Span(4, 8))
    return [first, second]
