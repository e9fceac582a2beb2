"""The parts of training with a JEPA objective, for your own training loop.

    encoder = parts.Encoder(tokenizer, model, objective="step_jepa", predictors=2)
    data = encoder.read("train.jsonl")                     # encoder.report: what was skipped, and why
    model = parts.attach(model, encoder)                   # before DDP, FSDP or an optimizer gets the model
    collate = parts.Collator(encoder, model)
    window = [collate(encoder(data, epoch)[:8])]           # the micro-batches of one optimizer step
    counts = parts.counts(encoder, window)                 # to be summed over the processes, if there are several
    for batch in window:
        output = parts.forward(model, batch, step)         # a `ForestOutput`, computed in the model's (wrapped) forward
        parts.loss(output, encoder.lbd(step, steps), counts).backward()
    optimizer.step()

Like `stepjepa.api`, this module is a layer above the training package, and the Trainer does not import it. What the Trainer
and your own loop share (set-up, collator, counts, loss, target encoder) is implemented in that package, which both call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn

from stepjepa.config.option import Names, options_of
from stepjepa.config.spellings import by_our_names, checked_options
from stepjepa.data.options import ReadingOptions
from stepjepa.data.report import DataReport
from stepjepa.data.types import Batch, Example, ForestOutput
from stepjepa.errors import ConfigError
from stepjepa.modeling.extras import begin_targets, move_targets
from stepjepa.modeling.load import check_vocabulary, max_positions
from stepjepa.modeling.masks import attention_in
from stepjepa.modeling.parts import (
    causal_lm,
    embedding_rows,
    is_sharded,
    vocabulary_size,
)
from stepjepa.objectives.base import objective_of
from stepjepa.objectives.options import ReplayOptions
from stepjepa.training.datasets import chat_tokenizer, encode
from stepjepa.training.metrics import lbd_at, on_device, total_loss, window_counts
from stepjepa.training.options import LoopOptions, OutputOptions, TrainerOptions
from stepjepa.training.sampling import Draw, DrawnExamples
from stepjepa.training.setup import detach_setup, make_collator, set_up_model, setup_of

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from typing_extensions import Unpack

    from stepjepa.keywords import EncoderKeywords

__all__ = [
    "Collator",
    "Encoder",
    "attach",
    "counts",
    "detach",
    "forward",
    "loss",
    "move_target_encoder",
]

_NAME = Names(LoopOptions)
# Options that only the Trainer reads: its own, and those for its output and for the order of examples. The Encoder refuses
# them, because ignoring them silently would mislead.
ONLY_TRAINERS = {
    _NAME.loss_scale,
    _NAME.same_flop,
    *options_of(TrainerOptions, OutputOptions, ReadingOptions, ReplayOptions),
}
# The Encoder reads these two as well.
ONLY_TRAINERS -= {_NAME.seed, _NAME.dataset_num_proc}


class Encoder:
    """Turns rows into examples.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        model: the model to train. Without a model, rows are not cut to the model's positions, and their token ids are not
            checked against its vocabulary.
        options: the options of the method by name, as for ``stepjepa train``, and ``seed``.

    Attributes:
        options: the checked options.
        report: the data report of the last `read`, with the skipped rows and the reasons; None before the first one.

    Raises:
        ConfigError: an option is unknown or read only by the Trainer, or a value cannot be used.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        model: PreTrainedModel | PeftModel | None = None,
        **options: Unpack[EncoderKeywords],
    ):
        # Converted to our names first, so that other spellings of such an option are refused, too.
        for name in by_our_names(options, LoopOptions):
            if name in ONLY_TRAINERS:
                raise ConfigError(
                    f"{name} is for JEPATrainer only; leave it out, because your own loop controls this"
                )
        self.options = checked_options(LoopOptions, options)
        self.tokenizer = chat_tokenizer(tokenizer, self.options)
        # Padding is masked by position, so any id will do.
        self.pad_id = self.tokenizer.pad_token_id or 0
        self.positions = None if model is None else max_positions(causal_lm(model))
        self.vocabulary = None if model is None else vocabulary_size(causal_lm(model))
        self.report: DataReport | None = None

    def read(self, rows: object) -> DrawnExamples:
        """Read and tokenise rows once; the result samples the examples of every epoch.

        Args:
            rows: a data set as for `JEPATrainer`: a path, a list of rows (``{"messages": [...]}``), a `datasets.Dataset`,
                or the name of a data set on the Hub.

        Raises:
            DataError: no row can be trained on, or no row has a pair for a JEPA objective.
        """
        options = self.options
        store, self.report = encode(
            rows, self.tokenizer, options, self.positions, vocabulary=self.vocabulary
        )
        return DrawnExamples(
            store, objective_of(options), options.seed, options.jepa_ratio, self.pad_id
        )

    def __call__(self, rows: object, epoch: int = 0) -> list[Example]:
        """The examples of an epoch in the order of the rows.

        Args:
            rows: as for `read`, or the result of `read`.
            epoch: from 0; seeds what an objective samples, such as pairs, and which examples train without their pairs.

        Raises:
            DataError: see `read`.
        """
        data = rows if isinstance(rows, DrawnExamples) else self.read(rows)
        return [data[Draw(epoch, row)] for row in range(len(data))]

    def lbd(self, step: int = 0, steps: int = 1) -> float:
        """The weight lambda at optimizer step `step` (from 0) of `steps`, with the warm-up and schedule of the options."""
        return lbd_at(self.options, step, steps)


class Collator:
    """Lays out examples in the rows of one forward pass.

    Args:
        encoder: the encoder of the examples.
        model: the model with the encoder attached, already sharded if FSDP shards it. The ids of predictor tokens follow
            its vocabulary, its attention decides the layout, and what `attach` tried out decides the forward.

    Raises:
        ConfigError: no encoder is attached to the model, or a different one.
    """

    def __init__(self, encoder: Encoder, model: nn.Module):
        inner = causal_lm(extract_model_from_parallel(model))
        setup = setup_of(inner)
        if setup.objective.options != encoder.options:
            raise ConfigError("another Encoder is attached to the model; call attach with this one")
        attention = attention_in(inner)
        device = embedding_rows(inner).device.type
        collator: Any = make_collator(setup, encoder.options, encoder.pad_id, attention, device)
        # Under FSDP every forward gathers weights from all processes. A process that skipped a pass, because its batch has
        # no pairs, would leave the others waiting.
        self._collator = replace(collator, every_pass=any(map(is_sharded, inner.parameters())))

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Collate examples into a batch on the CPU; `Batch.to` moves it."""
        return self._collator(examples)  # type: ignore[no-any-return]


def attach(
    model: PreTrainedModel | PeftModel, encoder: Encoder, peft_config: LoraConfig | None = None
) -> PreTrainedModel | PeftModel:
    """Prepare a model for batches: `JEPATrainer` documents what this adds and what stays unchanged.

    Call this before DDP, FSDP or an optimizer gets the model. An earlier attachment is removed.

    Args:
        model: a causal LM, or a PEFT model of one.
        encoder: the encoder with the options of the training run.
        peft_config: adds an adapter to the model; the result is then a PEFT model around the same, frozen weights.

    Returns:
        The model to train; with `peft_config` a new object.

    Raises:
        ConfigError: the model cannot compute the objective, or does not fit the tokenizer.
    """
    inner = causal_lm(model)
    check_vocabulary(encoder.tokenizer, vocabulary_size(inner), "the model")
    # The encoder has already cut the rows, so its limit must match this model's.
    positions = max_positions(inner)
    if positions != encoder.positions:
        raise ConfigError(
            f"the model has {positions or 'no'} learned positions, and the Encoder was made for "
            f"{encoder.positions or 'none'}: make it with this model, as in Encoder(tokenizer, model, ...)"
        )
    options, device = encoder.options, embedding_rows(inner).device.type
    attached, _ = set_up_model(model, options, options.seed, device, peft_config, encoder.tokenizer)
    return attached  # type: ignore[no-any-return]


def detach(model: nn.Module) -> nn.Module:
    """Remove what `attach` added to a model, and a DDP or `torch.compile` wrapper.

    Returns:
        The plain model with the trained weights: its forward, attention, configuration, state dict and trainable parameters
        are as before. A PEFT model remains a PEFT model.
    """
    plain = extract_model_from_parallel(model)
    detach_setup(plain)
    return plain  # type: ignore[no-any-return]


def forward(model: nn.Module, batch: Batch, step: int = 0) -> ForestOutput:
    """Compute all sums of the loss and the states of both views inside the model's (wrapped) forward.

    Args:
        model: a model with an encoder attached; it may be wrapped, as by DDP.
        batch: a batch on the model's device.
        step: optimizer step, from 0; it seeds the random parts of the loss.

    Raises:
        ConfigError: no encoder is attached to the model.
    """
    plain = extract_model_from_parallel(model)
    objective = setup_of(plain).objective
    # At the first step rather than in `attach`: the copy must be of sharded weights, and FSDP shards them after `attach`.
    if objective.makes_pairs:
        begin_targets(plain, objective.options.target_encoder)
    # DDP and FSDP synchronise gradients only if the wrapper itself is called.
    return model(batch=batch, step=step)  # type: ignore[no-any-return]


def counts(encoder: Encoder, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """The divisors of the parts of the loss, () float64 by name: the numbers of labels and pairs in this process's
    micro-batches of one optimizer step, on the device of the batches.

    With several processes, sum them (``torch.distributed.all_reduce`` for each, or ``accelerator.reduce`` for all) before
    the first `loss` of the step.
    """
    return window_counts(objective_of(encoder.options), batches, batches[0].label_ids.device)


def loss(output: ForestOutput, lbd: float, counts: dict[str, Tensor] | None = None) -> Tensor:
    """``gamma * LM + lbd * JEPA`` of one micro-batch, scaled for the optimizer step: a tensor () with its autograd graph.

    DDP and FSDP average gradients over the processes: if `counts` are sums over the processes, multiply the loss by the
    number of processes.

    Args:
        output: the result of `forward`.
        lbd: lambda of this step, see `Encoder.lbd`; gamma is an option of the encoder.
        counts: the result of `counts`; None for the counts of this batch only.
    """
    # A mean over one batch, as in an evaluation or without gradient accumulation.
    if counts is None:
        device = output.lm_loss_sum.device
        counts = {name: on_device(part.count, device) for name, part in output.parts.items()}
    return total_loss(output.parts, counts, lbd)


def move_target_encoder(model: nn.Module, done: float) -> None:
    """Update the EMA target encoder, if there is one; call this after every optimizer step.

    Args:
        done: the fraction of training that is finished, in [0, 1].
    """
    plain = extract_model_from_parallel(model)
    move_targets(plain, setup_of(plain).objective.options, done)
