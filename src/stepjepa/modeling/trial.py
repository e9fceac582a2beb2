"""The start-up trial: whether a forward gives the model's own numbers, found out before anything is trained.

Two made-up examples go through the model's own forward, one at a time and as plain chats: these are the logits that every
form must come to. The views are compared with separate passes. What must hold:

* nothing before the last token moves when the last token does, else labels would be seen by what predicts them;
* `two_pass` gives the model's own logits, else no form does;
* `packed` gives the logits and states of `two_pass`, with sliding windows made so short that they show.

Shapes: N labelled positions, D width, V vocabulary, P pairs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from stepjepa.data.types import ISOLATED, TRUNK, Batch, Example, Pair, Read, Segment, Span
from stepjepa.errors import ConfigError
from stepjepa.forest.collate import ForestCollator, TwoPassCollator
from stepjepa.forest.layout import label_indices
from stepjepa.modeling.configs import text_config
from stepjepa.modeling.heads import is_objective_weight
from stepjepa.modeling.load import masks_unsupported
from stepjepa.modeling.logits import difference, output_head, tolerance
from stepjepa.modeling.parts import backbone, causal_lm, own_forward, unchanged, unreached
from stepjepa.modeling.segments import SEGMENTS, use_segments
from stepjepa.modeling.windows import heeds_window, window_of

logger = logging.getLogger("stepjepa")
_WINDOW = 4  # tokens; the examples are longer
_MASK = "its attention does not follow the mask"


@dataclass(frozen=True)
class Choice:
    """What serves a model.

    Attributes:
        forward: ``packed``, ``inline`` or ``two_pass``; empty where nothing does.
        segments: attention goes by segments.
        reason: why it is not what was asked for first; empty where it is.
    """

    forward: str
    segments: bool = False
    reason: str = ""

    @property
    def rank(self) -> int:
        """How far it is from the best; of the choices of several processes the worst serves all of them."""
        return 3 if not self.forward else 2 if self.forward == "two_pass" else 1 - self.segments


def choose_forward(model: Any, asked: str, vocabulary: int, device: str, predictor_ids: Sequence[int] = ()) -> str:
    """The forward that is exact for the model, the same on all processes; its attention is set for it.

    Args:
        model: as `attach_forest_forward` leaves it.
        asked: ``auto`` (``packed`` where it is exact, else ``two_pass``), ``packed``, ``two_pass`` or ``inline``.
        vocabulary: V of the LM softmax.
        device: type of the device that the run is on.
        predictor_ids: of the K predictor tokens, as they stand behind a source.

    Raises:
        ConfigError: the form that is asked for, or any, would not give the model's own numbers.
    """
    inner: Any = causal_lm(model)
    name = type(inner).__name__
    if asked != "two_pass" and text_config(inner.config)._attn_implementation == "flex_attention" and device == "cpu":
        raise ConfigError("--attn_implementation flex_attention has no backward on CPU; use sdpa")
    choice = _agreed(_choice(model, asked, vocabulary, device, tuple(predictor_ids)))
    if not choice.forward:
        raise ConfigError(f"{name} cannot be trained with exact numbers: {choice.reason}")
    if choice.reason and asked in ("packed", "inline"):
        raise ConfigError(f"forward={asked} cannot serve {name}: {choice.reason}; use --forward two_pass")
    if choice.segments:
        use_segments(inner)
    if choice.reason:
        logger.warning("%s: forward %s, because %s", name, choice.forward, choice.reason)
    if not heeds_window(inner):
        logger.warning(
            "%s: its configuration has a sliding_window that it does not use; every token sees all before it", name
        )
    return choice.forward


def packed_fault(model: Any, vocabulary: int, predictor_ids: Sequence[int] = ()) -> str | None:
    """Why packed rows would not give the model's own numbers; None where they do."""
    choice = _choice(model, "packed", vocabulary, "", tuple(predictor_ids))
    return choice.reason or None


def freeze_unreached(model: Any, predictor_ids: Sequence[int] = ()) -> list[str]:
    """Freeze the parameters that text cannot reach, so that no process waits for their gradients.

    They are those of a multimodal model's towers for images and sound, and layers that only such inputs use.

    Returns:
        Their names; none where the model does not run.
    """
    inner: Any = causal_lm(model)
    device = inner.get_input_embeddings().weight.device
    if device.type == "meta":
        return []
    try:
        with unchanged(model), torch.enable_grad():
            ids = tuple(predictor_ids)
            output = model(batch=TwoPassCollator(ids, 0)(_examples(inner, 1 << 16, len(ids))).to(device))
    except Exception:
        return []
    found = unreached(model, [output.lm_loss_sum, output.source_states, output.target_states])
    # The modules of the objective are reached by its loss, which made-up examples need not have.
    found = {name: parameter for name, parameter in found.items() if not is_objective_weight(name)}
    for parameter in found.values():
        parameter.requires_grad_(False)
    return list(found)


def _choice(model: Any, asked: str, vocabulary: int, device: str, predictor_ids: tuple[int, ...]) -> Choice:
    inner: Any = causal_lm(model)
    reason = "" if asked == "two_pass" else masks_unsupported(inner) or ""
    best = "inline" if asked == "inline" else "packed"
    if inner.get_input_embeddings().weight.device.type == "meta":
        return Choice("two_pass" if reason or asked == "two_pass" else best, reason=reason)
    with torch.no_grad(), unchanged(model), window_of(inner, _WINDOW):
        trial = Trial(model, vocabulary, predictor_ids)
        with _plain_attention(inner):
            fault = trial.own_fault() or trial.fault("two_pass")
        if fault:
            return Choice("", reason=fault)
        if asked == "two_pass":
            return Choice("two_pass")
        by_segments = text_config(inner.config)._attn_implementation == "sdpa" and device == "cpu" and best == "packed"
        if by_segments and not reason and not trial.fault("segments"):
            return Choice("packed", segments=True)
        reason = reason or trial.fault("packed") or (trial.fault("inline") if best == "inline" else "")
    return Choice("two_pass" if reason else best, reason=reason)


def _agreed(choice: Choice) -> Choice:
    """The worst of the choices of all processes."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return choice
    choices: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(choices, choice)
    return max(choices, key=lambda one: one.rank)


class Trial:
    """Made-up examples and what a model's own forward says of them.

    Args:
        model: as `attach_forest_forward` leaves it, maybe inside PEFT.
        vocabulary: V of the LM softmax.
        predictor_ids: of the K predictor tokens.
    """

    def __init__(self, model: Any, vocabulary: int, predictor_ids: tuple[int, ...]):
        inner: Any = causal_lm(model)
        self._model, self._inner, self._ids = model, inner, predictor_ids
        self._device = inner.get_input_embeddings().weight.device
        self._examples = _examples(inner, vocabulary, len(predictor_ids))
        self._head = output_head(inner, vocabulary)
        self._own: torch.Tensor | None = None  # (N, V) the model's own logits
        self._states: tuple[torch.Tensor, ...] = ()  # of the views in passes of their own, (P, D) each

    def own_fault(self) -> str:
        """Run the model's own forward; what speaks against training on its logits, empty for nothing."""
        own = []
        for example in self._examples:
            ids = torch.from_numpy(example.trunk.astype(np.int64))
            moved = ids.clone()
            moved[-1] = ids[0]
            both = torch.stack([ids, moved]).to(self._device)
            try:
                logits = own_forward(self._inner)(input_ids=both, use_cache=False).logits[..., : self._head.vocabulary]
            except Exception as error:
                return f"its own forward does not run on plain text ({_first_line(error)})"
            if logits.shape[:2] != both.shape:
                return "its own forward does not give logits for every token"
            if not logits.isfinite().all():
                return "its own logits are not finite"
            if difference(logits[1, :-1], logits[0, :-1]) > tolerance(self._inner):
                return "its attention sees the tokens that follow, so it would be trained on labels that it sees"
            own.append(logits[0, label_indices(example)[0]])
        self._own = torch.cat(own)
        return ""

    def fault(self, form: str) -> str:
        """What a form gets wrong, empty for nothing.

        Args:
            form: ``two_pass`` (tried first: the others are compared with its states), ``packed``, ``segments``, ``inline``.
        """
        try:
            with _attention(self._inner, SEGMENTS if form == "segments" else ""), self._kept() as kept:
                output = self._model(batch=self._batch(form).to(self._device))
                predicting = kept[0].flatten(0, 1).index_select(0, self._labels)
                logits = self._head.logits(self._inner, predicting)
        except Exception as error:
            what = "it does not run" if form == "two_pass" else "it does not take the mask"
            return f"{what} ({_first_line(error)})"
        limit = tolerance(self._inner)
        assert self._own is not None
        if form != "inline":  # whose LM loss is another by design
            loss = F.cross_entropy(self._own.float(), self._label_ids, reduction="sum")
            wrong = difference(logits, self._own) > limit or abs(output.lm_loss_sum - loss) > limit * loss.clamp(
                min=1.0
            )
            if wrong or not output.lm_loss_sum.isfinite():
                return "plain passes of its backbone do not give its own logits" if form == "two_pass" else _MASK
        states = (output.source_states, output.target_states)
        if form == "two_pass":
            self._states = states
        for one, other in zip(states, self._states, strict=True):
            if not float((one.float() - other.float()).norm()) <= limit * float(other.float().norm()):
                return _MASK
        return ""

    def _batch(self, form: str) -> Batch:
        if form == "two_pass":
            batch = TwoPassCollator(self._ids, 0)(self._examples)
        else:
            flex = text_config(self._inner.config)._attn_implementation == "flex_attention"
            collator = ForestCollator(self._ids, 0, 128 if flex else 1, inline=form == "inline")
            batch = collator.in_one_row(self._examples) if form == "segments" else collator(self._examples)
        self._labels, self._label_ids = batch.label_positions.to(self._device), batch.label_ids.to(self._device)
        return batch

    @contextmanager
    def _kept(self) -> Iterator[list[torch.Tensor]]:
        """Within this context the last hidden states of every call of the backbone are kept."""
        kept: list[torch.Tensor] = []
        handle = backbone(self._inner).register_forward_hook(lambda module, args, output: kept.append(output[0]))
        try:
            yield kept
        finally:
            handle.remove()


def _plain_attention(inner: Any) -> AbstractContextManager[None]:
    """For the passes that others are compared with: FlexAttention would be compiled for them, and is what is tried."""
    return _attention(inner, "eager" if text_config(inner.config)._attn_implementation == "flex_attention" else "")


@contextmanager
def _attention(inner: Any, implementation: str) -> Iterator[None]:
    """Within this context the layers attend in another way (no other for an empty one)."""
    config = text_config(inner.config)
    own = config._attn_implementation
    if implementation == SEGMENTS:
        use_segments(inner)
    elif implementation:
        config._attn_implementation = implementation
    try:
        yield
    finally:
        config._attn_implementation = own


def _examples(inner: Any, vocabulary: int, predictors: int) -> list[Example]:
    """Two examples of different lengths with a pair each, of tokens without a meaning of their own."""

    def example(ids: np.ndarray, label: int, source: int, target: Span) -> Example:
        nothing = np.zeros(0, np.int32)
        branch = Segment(nothing, source, source + 1, slots=predictors)
        copy = Segment(ids[slice(*target)], ISOLATED, target.start + predictors, origin=target.start)
        segments = (branch, copy) if predictors else (copy,)
        read = Read.one(1, predictors - 1) if predictors else Read.one(TRUNK, source)
        pair = Pair(read, Read.one(len(segments), target.stop - target.start - 1))
        return Example(ids, (Span(label, len(ids)),), segments, (pair,))

    size = min(vocabulary, len(inner.get_input_embeddings().weight))
    special = {value for name, value in vars(inner.config).items() if "token" in name and isinstance(value, int)}
    plain = [index for index in range(size) if index not in special] or [0]
    ids = np.array([plain[(7 * place + 5) % len(plain)] for place in range(13)], dtype=np.int32)
    return [example(ids, 4, 5, Span(6, 11)), example(ids[9:0:-1].copy(), 2, 3, Span(4, 8))]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
