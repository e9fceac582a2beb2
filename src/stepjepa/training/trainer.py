"""`JEPATrainer`: `transformers.Trainer` with ``gamma * LM + lbd * JEPA`` in one forward pass.

It only conducts: the data package finds the pairs, the forest lays them out, the model returns states, the losses are
plain functions. What is its own is the scale (counts of the whole optimizer step), the order of examples, and the log.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
import transformers
from transformers import PrinterCallback
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction, PredictionOutput

from stepjepa.data.types import LM, Batch, ForestOutput
from stepjepa.errors import ConfigError
from stepjepa.modeling.export import check_keeps_predictors
from stepjepa.modeling.extras import add_target_encoder, trained_extras
from stepjepa.modeling.flops import ModelCost, batch_flops
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import is_preset, load_model, max_positions
from stepjepa.modeling.parts import has_experts
from stepjepa.training.batches import EpochCallback, EpochSampler
from stepjepa.training.callbacks import ResumedLogCallback, TargetEncoderCallback
from stepjepa.training.compute import EqualCompute, cost_over_regular, equal_compute, planned_steps
from stepjepa.training.config import JEPAConfig
from stepjepa.training.encoding import chat_tokenizer
from stepjepa.training.evaluating import ScoreAnswers, evaluated
from stepjepa.training.finite import FiniteWatch
from stepjepa.training.interface import check_arguments, check_optimizer, full_config
from stepjepa.training.loss_scale import batch_counts, lbd_at, total_loss
from stepjepa.training.meter import MEANS, precise_dtype
from stepjepa.training.predicting import Predictions
from stepjepa.training.progress import display_callback
from stepjepa.training.reading import ExampleReader, tokenizer_for
from stepjepa.training.resuming import ResumingTrainer
from stepjepa.training.setup import make_collator, set_up_model
from stepjepa.training.streaming import StreamedExamples, stream_loader


class JEPATrainer(ResumingTrainer):
    """Trains a causal language model with a JEPA objective.

    Args:
        model: a causal LM, the Hub id or folder of one, or a preset (``tiny``, ``mini``), made anew. The weights of a model
            object are trained, and its configuration is replaced by an equal one, to which the Trainer writes. Its `forward`
            also takes batches, and it gets a submodule `jepa` (predictor rows and head), which its state dict leaves out.
            All that it could do before, it does as before. Another trainer starts with fresh ones. With `peft_config` the
            object stays as it is: the trainer's `model` is PEFT's, around the same frozen weights.
        args: the configuration; it stays as it is, and the trainer's `args` are a copy.
        train_dataset, eval_dataset: rows with ``messages``, ``question``/``answer`` or ``prompt``/``completion``: a
            `datasets.Dataset`, a list of dicts, a path or a Hub data set; or an `ExampleStore`. `Sources` holds several data
            sets to train on.
        processing_class: the tokenizer (fast, with a chat template); loaded with the model if `model` is a name, trained on
            the training data if it is a preset.
        peft_config: a PEFT configuration; it stays as it is. The predictor rows are trained along with the adapter.
        score_answers: called at every evaluation with the model, the tokenizer, this process's number and how many there
            are, it gives sum and number of scores by name (`stepjepa.evaluation.while_training.AnswerScorer`); their means
            are metrics like the losses.

    Raises:
        ConfigError, DataError: options or data that cannot be used, before anything is trained.

    Examples:
        >>> trainer = JEPATrainer(
        ...     "meta-llama/Llama-3.2-1B-Instruct",
        ...     JEPAConfig(output_dir="run", objective="step_jepa", predictors=2, lbd=0.1),
        ...     train_dataset="train.jsonl",
        ... )
        >>> trainer.train()
        >>> trainer.save_model("run/final")
    """

    args: JEPAConfig

    # The loss is divided by the counts of the whole accumulation window, so the Trainer must not divide again.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: Any,
        args: transformers.TrainingArguments | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        peft_config: Any = None,
        score_answers: ScoreAnswers | None = None,
        **kwargs: Any,
    ):
        check_arguments(kwargs)
        args = copy.copy(full_config(args))  # some options are resolved below
        if args.n_gpu > 1:
            raise ConfigError("several GPUs in one process: start with 'torchrun --nproc_per_node N -m stepjepa train'")
        args.learning_rate = args.settled_learning_rate(isinstance(model, (str, os.PathLike)) and is_preset(str(model)))
        if isinstance(model, (str, os.PathLike)):
            if processing_class is None:
                processing_class, train_dataset = tokenizer_for(str(model), train_dataset, args)
            model = load_model(str(model), processing_class, seed=args.seed)
        if processing_class is None:
            raise ConfigError("processing_class (the tokenizer) is missing")
        processing_class = chat_tokenizer(processing_class, args)
        if args.keep_predictors and peft_config is not None and not args.merge_lora:
            raise ConfigError("keep_predictors needs merge_lora: an adapter cannot change the vocabulary")
        if args.ddp_find_unused_parameters is None:
            # Every parameter takes part in every batch, but for experts that no token is routed to.
            args.ddp_find_unused_parameters = has_experts(model)
        reader = self._reader = ExampleReader(processing_class, args, max_positions(model))
        self.data_reports = reader.reports
        train = reader.read_training(train_dataset)
        evaluation = reader.read_evaluation(eval_dataset)
        model, self.setup = set_up_model(model, args, args.seed, args.device.type, peft_config, processing_class)
        if args.keep_predictors:
            check_keeps_predictors(model, processing_class)
        # What torch.compile compiles keeps its shapes: dense rows, not attention by segments.
        attention = "sdpa" if args.torch_compile else model.config._attn_implementation
        collator = make_collator(self.setup, args, reader.pad_id, attention, args.device.type)
        use_cache = getattr(model.config, "use_cache", None)
        check_optimizer(args, model)
        try:
            super().__init__(
                model=model,
                args=args,
                data_collator=collator,  # type: ignore[arg-type]  # a batch is a `Batch`
                train_dataset=train,
                eval_dataset=evaluation,
                processing_class=processing_class,
                **kwargs,
            )
        except (ValueError, ImportError, RuntimeError) as error:
            raise ConfigError(" ".join(str(error).split())) from error
        if use_cache is not None:  # the Trainer turns it off, and a batch's forward asks for none
            model.config.use_cache = use_cache
        extras = trained_extras(causal_lm(model))
        if extras is not None:  # what is sharded is gathered by name
            extras.in_state_dict = self.is_fsdp_enabled or self.is_deepspeed_enabled
        if self.is_fsdp_enabled and peft_config is not None:
            raise ConfigError("FSDP with LoRA is not supported: its final model could not be written; use DDP")
        if args.uses_pairs and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            for name, plain in (("target_encoder", "self"), ("predictor_head", "none")):
                if getattr(args, name) != plain:
                    raise ConfigError(f"{name}={getattr(args, name)} keeps whole weights on every process; use DDP")
        if args.uses_pairs and args.target_encoder == "ema":
            self.add_callback(TargetEncoderCallback(add_target_encoder(causal_lm(model))))
        self.model_accepts_loss_kwargs = True
        for shown in (DEFAULT_PROGRESS_CALLBACK, PrinterCallback):  # the former is a table in a notebook
            self.remove_callback(shown)
        self._view = display_callback(bool(args.disable_tqdm), getattr(score_answers, "metrics", ()))
        self.add_callback(self._view)
        self._meter = self.new_meter()
        self._watch = FiniteWatch(self.args.device)
        self.add_callback(ResumedLogCallback(self))
        if score_answers is not None and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            raise ConfigError("eval_metrics generates with whole weights on every process; use DDP")
        self.score_answers = score_answers

    # Order of examples

    def get_train_dataloader(self) -> Any:
        """As `Trainer.get_train_dataloader`; a stream is already that of this process, and is not shared out again."""
        if not isinstance(self.train_dataset, StreamedExamples):
            return super().get_train_dataloader()
        collator: Any = self.data_collator
        return stream_loader(self.train_dataset, collator, self.args, self._train_batch_size)

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler:
        sampler = self._order(self.train_dataset if train_dataset is None else train_dataset)
        self.pop_callback(EpochCallback)
        self.add_callback(EpochCallback(sampler))
        return sampler

    def _order(self, dataset: Any) -> EpochSampler:
        drop_last = self.args.dataloader_drop_last
        examples = self._train_batch_size * self.accelerator.num_processes
        multiple = 1 if drop_last else examples
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        strategy = self.args.train_sampling_strategy
        lengths = dataset.store.lengths if strategy == "group_by_length" else None
        window = examples * self.args.gradient_accumulation_steps
        return EpochSampler(dataset.mixture, multiple, seed, strategy != "sequential", lengths, window)

    def _get_eval_sampler(self, eval_dataset: Any) -> EpochSampler:
        multiple = self.args.eval_batch_size * self.accelerator.num_processes
        return EpochSampler(len(eval_dataset), multiple, self.args.seed, shuffle=False)

    # The loss

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs.to(self.args.device) if isinstance(inputs, Batch) else super()._prepare_inputs(inputs)

    def _track_num_input_tokens(self, inputs: Any) -> None:
        super()._track_num_input_tokens({"input_ids": inputs.rows.input_ids})

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts of the loss, as `_get_num_items_in_batch` orders their counts."""
        return (LM, *self.setup.objective.part_names)

    def _counts(self, batches: Sequence[Batch]) -> torch.Tensor:
        """What each part of the loss is divided by, (parts,), of micro-batches of this process."""
        counts = [batch_counts(self.setup.objective, batch) for batch in batches]
        sums = [sum(one[name] for one in counts) for name in self.part_names]
        return torch.tensor(sums, device=self.args.device, dtype=precise_dtype(self.args.device))

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor:
        """What each part of the loss is divided by, (parts,): of all micro-batches of one optimizer step on all
        processes."""
        counts = self._counts(batch_samples).to(device)
        # What was not finite in earlier steps is summed along, so that all processes stop together.
        sums = self.accelerator.reduce(torch.cat([counts, self._watch.flag.to(counts)]), reduction="sum")
        self._watch.copy_to_host(sums[-1])
        return sums[:-1]

    def forward(self, model: Any, inputs: Batch, step: int, predict_ids: bool = False) -> ForestOutput:
        """What the model returns for one micro-batch; `step` draws what is random in the loss."""
        if self.args.torch_compile:  # and every position goes through all layers
            inputs = inputs.untrimmed()
        return model(batch=inputs, step=step, predict_ids=predict_ids)

    def compute_loss(  # type: ignore[override]
        self,
        model: Any,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> Any:
        """``gamma * LM + lbd * JEPA`` of one micro-batch, in the scale of the whole optimizer step: a scalar.

        Times the number of processes, because DDP and FSDP average the gradients.
        """
        counts = num_items_in_batch
        if counts is None:
            counts = self._get_num_items_in_batch([inputs], self.args.device)
        output = self.forward(model, inputs, self.state.global_step)
        if model.training:
            self._meter.add(output, inputs)
        processes = self.accelerator.num_processes
        if self.args.loss_scale == "reference" and self.args.uses_pairs:
            counts, processes = self._counts([inputs]), 1
        lbd = lbd_at(self.args, self.state.global_step, self.state.max_steps)
        loss = total_loss(output.parts, dict(zip(self.part_names, counts, strict=True)), lbd) * processes
        return (loss, output) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As `Trainer.training_step`: the loss of a micro-batch, ()."""
        loss = super().training_step(*args, **kwargs)
        self._watch.add(loss)
        return loss

    def _maybe_log_save_evaluate(
        self,
        tr_loss: torch.Tensor,
        grad_norm: Any,
        model: Any,
        trial: Any,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float,
        learning_rate: float | None = None,
    ) -> None:
        """As the Trainer's, after every step and epoch; what is not finite ends the run before anything is written."""
        self._last_step, self._epoch_ended = (grad_norm, learning_rate), not self._watch.in_step
        step = self.state.global_step
        self._watch.end_step(step, grad_norm, self.accelerator.optimizer_step_was_skipped)
        waits = self.control.should_log or self.control.should_save or self.control.should_evaluate
        if waits or self._watch.broken_before():
            self._check_finite()
        super()._maybe_log_save_evaluate(
            tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time, learning_rate
        )
        if self._globalstep_last_logged == step:
            tr_loss.zero_()  # the Trainer subtracts it from itself, and NaN stays

    # Compute

    @cached_property
    def _cost(self) -> ModelCost:
        """What one token costs the model."""
        model: Any = self.accelerator.unwrap_model(self.model)
        return ModelCost.of(model, self.setup.vocabulary, autocast=self.args.bf16 or self.args.fp16)

    def floating_point_ops(self, inputs: Batch) -> float:  # type: ignore[override]
        """FLOPs of one micro-batch, which the Trainer sums up as ``total_flos``; counted with ``track_flop`` only."""
        if not self.args.track_flop:
            return 0.0
        flops = batch_flops(inputs, self._cost)
        self._meter.flops.update(flops)
        return sum(flops.values())

    @cached_property
    def equal_compute(self) -> EqualCompute:
        """The length of this run at which it costs what a regular run of the given length costs."""
        dataset: Any = self.train_dataset
        args, order = self.args, self._order(dataset)
        ratio = cost_over_regular(dataset, self.data_collator, self._cost, args.train_batch_size, order)
        return equal_compute(planned_steps(args, len(dataset), self.accelerator.num_processes), ratio)

    @property
    def requested_steps(self) -> int:
        """Optimizer steps that the options and the data ask for."""
        args, dataset = self.args, self.train_dataset
        if args.same_flop and args.uses_pairs:
            return self.equal_compute.steps
        size = 0 if isinstance(dataset, StreamedExamples) else len(dataset)  # type: ignore[arg-type]
        return planned_steps(args, size, self.accelerator.num_processes)

    # The log

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the parts of the loss, the number of pairs, the speed and the collapse signs to the training log."""
        if "loss" in logs:
            metrics = self._meter.metrics(self.setup.objective.makes_pairs, self.accelerator)
            if self.args.uses_pairs and (self.args.lbd_warmup_ratio or self.args.lbd_schedule != "constant"):
                # The step that is logged has been counted already.
                metrics["lbd"] = lbd_at(self.args, max(self.state.global_step - 1, 0), self.state.max_steps)
            metrics |= self._meter.flops_by_kind(self.accelerator) if self.args.track_flop else {}
            metrics |= self._meter.speed()
            self._meter = self.new_meter()
            logs = {"loss": logs.pop("loss"), **metrics, **logs}
        if "train_loss" in logs:  # the Trainer divides by the steps since the run went on
            steps = max(self.state.global_step, 1)
            logs["train_loss"] = math.nan if self._broken else self._total_loss_scalar / steps
        super().log(logs, start_time)

    def recent_losses(self) -> dict[str, float]:
        """The losses since the last log entry, or those of the last entry. Every process must call it."""
        entries = [entry for entry in self.state.log_history if "lm_loss" in entry]
        found = entries[-1] if entries else {}
        if self._meter.sums is not None:
            found = self._meter.metrics(self.setup.objective.makes_pairs, self.accelerator)
        return {name: found[name] for name in MEANS if name in found}

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As `Trainer.evaluate`; `eval_dataset` may be anything that the constructor takes."""
        begin = time.perf_counter()
        named = (
            isinstance(self.eval_dataset, dict) and isinstance(eval_dataset, str) and eval_dataset in self.eval_dataset
        )
        if not named:
            eval_dataset = self._reader.read_evaluation(eval_dataset)
        metrics = super().evaluate(eval_dataset, *args, **kwargs)
        self._meter.since += time.perf_counter() - begin  # evaluation is no training time
        return metrics

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Losses over a data set: ``eval_loss``, ``eval_lm_loss``, ``eval_jepa_loss``, ``eval_cosine_similarity``.

        Means over all labels and all pairs, whatever the batches and processes are; but for InfoNCE and the regularizers,
        which compare the pairs of a batch.
        """
        model: Any = self._wrap_model(self.model, training=False)  # type: ignore[arg-type]
        if not self.accelerator._models and model is self.model:
            model = self.accelerator.prepare_model(model, evaluation_mode=True)
        self.callback_handler.eval_dataloader = dataloader
        try:
            loss_only = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
            predictions = None if loss_only else Predictions()
            values = evaluated(self, model, dataloader, predictions)
        finally:
            self._view.end_evaluation()
        size, predicted, labels = self.num_examples(dataloader), np.zeros(0), None
        if predictions is not None:
            predicted, labels = predictions.rectangles(size)
        if self.compute_metrics is not None and labels is not None:
            values |= self.compute_metrics(EvalPrediction(predicted, labels))
        prefix = f"{metric_key_prefix}_"
        metrics = {f"{prefix}{name.removeprefix(prefix)}": value for name, value in values.items()}
        return EvalLoopOutput(predictions=predicted, label_ids=labels, metrics=metrics, num_samples=size)

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> PredictionOutput:
        """As `Trainer.predict`, of anything that the constructor takes as data: the most likely ids and the true ones at the
        labelled positions, (rows, most labels of a row) int64 each, filled with -100; and the losses."""
        try:
            return super().predict(self._reader.read_evaluation(test_dataset), *args, **kwargs)
        finally:
            self._view.close()

    # What is read and written

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        begin = time.perf_counter()
        super()._save_checkpoint(model, trial)
        self._meter.since += time.perf_counter() - begin
