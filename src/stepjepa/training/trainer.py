"""`JEPATrainer`: `transformers.Trainer` with ``gamma * LM + lbd * JEPA`` in one forward pass.

The trainer coordinates the other packages: `data` finds the pairs, `forest` lays them out, the model returns states, and the
losses are plain functions. The trainer itself adds the scale of the loss (counts of the optimizer step), the order of
examples, and the log.
"""

from __future__ import annotations

import copy
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import transformers
from accelerate.utils import parse_flag_from_env
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput

from stepjepa.config.option import Names
from stepjepa.data.types import LM, Batch, ForestOutput
from stepjepa.errors import ConfigError, said
from stepjepa.modeling.export import check_keeps_predictors
from stepjepa.modeling.extras import begin_targets, move_targets, trained_extras
from stepjepa.modeling.flops import ModelCost, batch_flops
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import check_vocabulary, is_preset, load_model, max_positions
from stepjepa.modeling.parts import gathered, has_experts, is_sharded, vocabulary_size
from stepjepa.objectives.base import objective_of
from stepjepa.training.checkpoints import CheckpointedTrainer, StepEvents
from stepjepa.training.config import (
    JEPAConfig,
    check_arguments,
    check_optimizer,
    usual_learning_rate,
)
from stepjepa.training.datasets import ExampleReader, StreamedExamples, chat_tokenizer
from stepjepa.training.metrics import (
    MEANS,
    TOKEN_MEANS,
    Bars,
    LossMeter,
    RunDisplay,
    by_example,
    evaluation_names,
    lbd_at,
    over_processes,
    total_loss,
    window_counts,
)
from stepjepa.training.options import RunOptions
from stepjepa.training.sampling import DrawnExamples, EpochSampler
from stepjepa.training.setup import (
    epoch_batches,
    make_collator,
    planned_steps,
    set_up_model,
    setup_of,
    tokenizer_for,
    warn_beyond_positions,
)
from stepjepa.utils.terminal import is_quiet

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel

_NAME = Names(JEPAConfig)
SAMPLED_BATCHES = 64  # over which the cost of a step is counted
# Model, tokenizer, number of this process, number of processes -> sum and number of the scores, by name.
ScoreAnswers = Callable[[Any, Any, int, int], Mapping[str, tuple[float, int]]]


class TargetEncoderCallback(TrainerCallback):
    """Starts the target encoder, and updates an EMA target encoder after every optimizer step."""

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """See `TrainerCallback`."""
        begin_targets(model, args.target_encoder)

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        """See `TrainerCallback`."""
        done = (state.global_step + 1) / max(state.max_steps, 1)
        move_targets(model, args, done)


class JEPATrainer(CheckpointedTrainer):
    """Trains a causal language model with a JEPA objective.

    Args:
        model: a causal LM, the Hub id or folder of a causal LM, or a preset (``micro``, ``tiny``, ``mini``), which is
            initialised here. The weights of a model object are trained, and its configuration is replaced by an equal copy,
            to which the Trainer writes. Its `forward` also takes batches, and it gets a submodule `jepa` (predictor rows and
            head), which its state dict leaves out; otherwise it behaves as before. Another trainer starts with new predictor
            rows and a new head. With `peft_config`, the object is not changed: the trainer's `model` is PEFT's, around the
            same frozen weights.
        args: the configuration, which is not changed; the trainer's `args` are a copy.
        train_dataset, eval_dataset: rows with ``messages``, ``question``/``answer`` or ``prompt``/``completion``: a
            `datasets.Dataset`, a list of dicts, a path or a Hub data set; or an `ExampleStore`. `Sources` holds several data
            sets to train on.
        processing_class: the tokenizer (fast, with a chat template). By default it is loaded with the model if `model` is a
            name, and trained on the training data if `model` is a preset.
        peft_config: a PEFT configuration, which is not changed. The predictor rows are trained along with the adapter.
        score_answers: a function that is called at every evaluation with the model, the tokenizer, the number of this
            process and the number of processes. It returns the sum and the number of scores by name (see
            `stepjepa.evaluation.run.AnswerScorer`), whose means become metrics like the losses.

    Raises:
        ConfigError, DataError: options or data cannot be used; raised before anything is trained.

    Examples:
        >>> trainer = JEPATrainer(
        ...     "meta-llama/Llama-3.2-1B-Instruct",
        ...     JEPAConfig(output_dir="run", objective="step_jepa", predictors=2, lbd=0.1),
        ...     train_dataset="train.jsonl",
        ... )
        >>> trainer.train()
        >>> trainer.save_model("run/final")
    """

    # The loss is divided by the counts of the entire accumulation window, so the Trainer must not divide again.
    loss_is_scaled_for_ga = True
    # The sums of the evaluation in progress.
    _evaluated: LossMeter

    def __init__(
        self,
        model: str | os.PathLike[str] | PreTrainedModel | PeftModel,
        args: transformers.TrainingArguments | None = None,
        train_dataset: object = None,
        eval_dataset: object = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        peft_config: LoraConfig | None = None,
        score_answers: ScoreAnswers | None = None,
        **kwargs: Any,
    ):
        check_arguments(kwargs)
        if args is not None and not isinstance(args, JEPAConfig):
            raise ConfigError(
                f"args is a {type(args).__name__}; pass a JEPAConfig, which takes the same arguments"
            )
        args = JEPAConfig() if args is None else copy.copy(args)  # some options are resolved below
        if args.eval_on_start and eval_dataset is None:
            raise ConfigError(
                f"{_NAME.eval_on_start} needs data to evaluate on; give eval_dataset (--{Names(RunOptions).eval_file})"
            )
        if args.n_gpu > 1:
            raise ConfigError(
                "one process cannot use several GPUs; start with 'torchrun --nproc_per_node N -m stepjepa train'"
            )
        # The model and, if it is given by name, its tokenizer.
        name = str(model) if isinstance(model, (str, os.PathLike)) else None
        trained: Any = model
        adapter = peft_config is not None or hasattr(model, "get_base_model")
        if args.learning_rate is None:
            args.learning_rate = usual_learning_rate(is_preset(name or ""), adapter)
        if name is not None:
            if processing_class is None:
                processing_class, train_dataset = tokenizer_for(name, train_dataset, args)
            trained = load_model(name, processing_class, seed=args.seed)
        if processing_class is None:
            raise ConfigError("processing_class (the tokenizer) is missing; pass it with the model")
        processing_class = chat_tokenizer(processing_class, args)
        if args.keep_predictors and peft_config is not None and not args.merge_lora:
            raise ConfigError(
                f"{_NAME.keep_predictors} needs {_NAME.merge_lora}: an adapter cannot change the vocabulary"
            )
        if args.merge_lora and getattr(trained, "is_quantized", False):
            raise ConfigError(
                f"{_NAME.merge_lora}: an adapter cannot be merged into quantised weights; leave it out"
            )
        if args.ddp_find_unused_parameters is None:
            # Every parameter takes part in every batch, except for experts to which no token is routed.
            args.ddp_find_unused_parameters = has_experts(trained)
        # The data, which decides which metrics may choose the best model.
        vocabulary = vocabulary_size(causal_lm(trained))
        check_vocabulary(processing_class, vocabulary, name or "the model")
        self._samplers: list[EpochSampler] = []
        reader = self._reader = ExampleReader(
            processing_class, args, max_positions(trained), vocabulary
        )
        self.data_reports, self.score_answers = reader.reports, score_answers
        if score_answers is not None and hasattr(score_answers, "data_reports"):
            score_answers.data_reports = reader.reports
        train = reader.read_training(train_dataset)
        evaluation = reader.read_evaluation(eval_dataset)
        if kwargs.get("compute_metrics") is None:  # otherwise the names of the metrics are unknown
            self._check_best_metric(args, evaluation)
        warn_beyond_positions(causal_lm(trained), reader.reports, args)
        # What training adds to the model, tried out on the training device.
        device = args.device.type
        launched = parse_flag_from_env("ACCELERATE_USE_FSDP")
        if device == "cuda" and not (launched or args.fsdp or hasattr(trained, "hf_device_map")):
            trained.to(args.device)  # as the Trainer will
        trained, self.setup = set_up_model(
            trained, args, args.seed, device, peft_config, processing_class
        )
        if args.keep_predictors:
            check_keeps_predictors(trained, processing_class)
        attention = trained.config._attn_implementation
        use_cache = getattr(trained.config, "use_cache", None)
        check_optimizer(args, trained)
        # The collator returns a `Batch`.
        collator: Any = make_collator(self.setup, args, reader.pad_id, attention, device)
        try:
            super().__init__(
                model=trained,
                args=args,
                data_collator=collator,
                train_dataset=train,
                eval_dataset=evaluation,
                processing_class=processing_class,
                **kwargs,
            )
        except (ValueError, ImportError, RuntimeError) as error:
            raise ConfigError(said(error)) from error
        self._check_own_optimizer()
        # The Trainer turns off the cache, which a forward of batches does not use anyway.
        if use_cache is not None:
            trained.config.use_cache = use_cache
        self.model_accepts_loss_kwargs = True
        # A batch in pinned memory is copied while the device computes.
        self.accelerator.dataloader_config.non_blocking = (
            device == "cuda" and args.dataloader_pin_memory
        )
        self.neftune_noise_alpha = None  # the model's forward adds the noise
        sharded = bool(args.fsdp) or (launched and args.world_size > 1)
        if sharded:
            self._set_up_sharding(trained)
        if self.setup.objective.makes_pairs:
            self.add_callback(TargetEncoderCallback())
        # `self.view` and `self.bars` replace both; in a notebook, the first would show a table.
        self.remove_callback(DEFAULT_PROGRESS_CALLBACK)
        self.remove_callback(PrinterCallback)
        metrics = getattr(score_answers, "metrics", ())
        self.view, self.bars = RunDisplay(metrics), Bars()
        self.add_callback(self.view)
        if sys.stderr.isatty() and not args.disable_tqdm and not is_quiet():
            self.add_callback(self.bars)
        self.add_callback(StepEvents(self))
        self._meter = LossMeter((LM, *self.setup.objective.part_names))
        self._broken_step = torch.zeros((), device=args.device)

    def _check_own_optimizer(self) -> None:
        """Refuse a given optimizer that lacks trained weights: the setup adds some, such as predictor rows, to the model.

        Raises:
            ConfigError: see above.
        """
        if self.optimizer is None:
            return
        held = {id(weight) for group in self.optimizer.param_groups for weight in group["params"]}
        missing = [
            name
            for name, weight in self.model.named_parameters()
            if weight.requires_grad and id(weight) not in held
        ]
        if missing:
            raise ConfigError(
                f"optimizers: the optimizer lacks {len(missing)} trained tensors, such as {missing[0]}, which would stay "
                "untrained; pass optimizer_cls_and_kwargs instead"
            )

    def _check_best_metric(self, args: JEPAConfig, evaluation: object) -> None:
        """Refuse a metric for the best model that the evaluation of a single data set does not compute.

        Raises:
            ConfigError: see above.
        """
        scored = () if self.score_answers is None else getattr(self.score_answers, "metrics", None)
        evaluates = args.eval_strategy != "no" and isinstance(evaluation, DrawnExamples)
        if args.metric_for_best_model is None or not evaluates or scored is None:
            return
        objective = objective_of(args)
        parts = objective.part_names if objective.makes_pairs else ()
        known = evaluation_names(parts, scored, TOKEN_MEANS if args.token_metrics else ())
        name = str(args.metric_for_best_model).removeprefix("eval_")
        if name not in known:
            raise ConfigError(
                f"{_NAME.metric_for_best_model} is {name}; an evaluation has {', '.join(known)}"
            )

    def _set_up_sharding(self, model: Any) -> None:
        """Adapt the run to weights that are sharded over the processes (FSDP2).

        Raises:
            ConfigError: the weights would not be sharded, or FSDP is set up in a way that is not supported.
        """
        if not self.is_fsdp_enabled:
            raise ConfigError(
                f"--{_NAME.fsdp}: accelerate does not shard weights on {self.args.device.type}, so each process would hold "
                "all of them (DDP); leave it out"
            )
        if not self.accelerator.is_fsdp2:
            raise ConfigError(
                f"FSDP1 is not supported; give version 2 in --{_NAME.fsdp_config}, or --fsdp_version 2"
            )
        plugin, inner = self.accelerator.state.fsdp_plugin, causal_lm(model)
        # With activation checkpointing, PEFT does not find the LoRA layers.
        if plugin.activation_checkpointing and inner is not model:
            raise ConfigError(
                f"--{_NAME.fsdp_config}: activation_checkpointing cannot be used with LoRA, whose weights would not be "
                f"saved; leave it out and give --{_NAME.gradient_checkpointing} true"
            )
        if plugin.mixed_precision_policy is not None:  # the parts of the loss stay in float32
            plugin.mixed_precision_policy = replace(
                plugin.mixed_precision_policy, output_dtype=None
            )
        trained_extras(inner).in_state_dict = True
        self.data_collator = replace(self.data_collator, every_pass=True)

    # Order of examples

    def get_train_dataloader(self) -> DataLoader:
        """As `Trainer.get_train_dataloader`; a stream is already this process's share, and is not divided again."""
        if not isinstance(self.train_dataset, StreamedExamples):
            return super().get_train_dataloader()
        return self.train_dataset.loader(self._train_batch_size, self.data_collator)

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler:  # type: ignore[override]
        dataset = self.train_dataset if train_dataset is None else train_dataset
        sampler = self.order_of(dataset)
        # One per loader: `get_train_dataloader` may also be called by a callback.
        self._samplers.append(sampler)
        return sampler

    def order_of(self, dataset: DrawnExamples) -> EpochSampler:
        """The order of training examples; `begin_epoch` sets its epoch, whatever loaders are wrapped around it."""
        args = self.args
        examples = self._train_batch_size * self.accelerator.num_processes
        by_length = args.train_sampling_strategy == "group_by_length"
        return EpochSampler(
            dataset.mixture,
            multiple=1 if args.dataloader_drop_last else examples,
            seed=args.seed if args.data_seed is None else args.data_seed,
            shuffle=args.train_sampling_strategy != "sequential",
            lengths=dataset.lengths if by_length else None,
            window=examples * args.gradient_accumulation_steps,
            replay_ratio=self.setup.objective.replay_ratio,
            replay_current=args.replay_from == "current",
        )

    def _get_eval_sampler(self, eval_dataset: Any) -> EpochSampler:  # type: ignore[override]
        multiple = self.args.eval_batch_size * self.accelerator.num_processes
        return EpochSampler(eval_dataset.mixture, multiple, self.args.seed, shuffle=False)

    def begin_epoch(self, epoch: int) -> None:
        """Draw the examples of this epoch."""
        for sampler in self._samplers:
            sampler.epoch = epoch

    def get_batch_samples(  # type: ignore[override]
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], dict[str, Tensor] | None]:
        """The micro-batches of one optimizer step, and the divisors of the parts of their loss, () by name. There are none
        if the training is to stop, as in a run that is resumed at its last step: the Trainer checks this only after a
        step."""
        if self.control.should_training_stop:
            return [], None
        batches = list(islice(epoch_iterator, num_batches))
        return batches, self._step_counts(batches)

    # The loss

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs.to(self.args.device)

    def _track_num_input_tokens(self, inputs: Any) -> None:
        super()._track_num_input_tokens({"input_ids": inputs.rows.input_ids})

    def _step_counts(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """`window_counts` of all micro-batches of one optimizer step on all processes."""
        counts = window_counts(self.setup.objective, batches, self.args.device)
        # One vector, so that the processes communicate once a step.
        sums = self.accelerator.reduce(torch.stack(list(counts.values())))
        return dict(zip(counts, sums, strict=True))

    def forward(
        self, model: nn.Module, inputs: Batch, step: int, predict_ids: bool = False
    ) -> ForestOutput:
        """The model's output for one micro-batch; `step` seeds the randomness in the loss.

        Raises:
            ConfigError: another trainer has set the model up since.
        """
        if setup_of(self.model) is not self.setup:
            raise ConfigError(
                "another trainer, or parts.attach, has set this model up since; make a new trainer for it, or give each "
                "trainer its own model"
            )
        if self.args.torch_compile:  # a compiled model computes every position in all layers
            inputs = inputs.untrimmed()
        return model(
            batch=inputs, step=step, predict_ids=predict_ids, token_sums=self.args.token_metrics
        )

    def compute_loss(  # type: ignore[override]
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: dict[str, Tensor] | None = None,
    ) -> Tensor | tuple[Tensor, ForestOutput]:
        """``gamma * LM + lbd * JEPA`` of one micro-batch, scaled to the optimizer step: a scalar.

        It is multiplied by the number of processes, because DDP and FSDP average the gradients.
        """
        args, step = self.args, self.state.global_step
        makes_pairs = self.setup.objective.makes_pairs
        counts = num_items_in_batch
        if counts is None:
            counts = self._step_counts([inputs])
        output = self.forward(model, inputs, step)
        if model.training:
            self._meter.add(output, inputs)
        processes = self.accelerator.num_processes
        if args.loss_scale == "reference" and makes_pairs:
            counts = window_counts(self.setup.objective, [inputs], args.device)
            processes = 1
        lbd = lbd_at(args, step, self.state.max_steps)
        loss = total_loss(output.parts, counts, lbd) * processes
        return (loss, output) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """As `Trainer.training_step`, a scalar; the first step at which the loss is not finite is kept on the device."""
        loss = super().training_step(*args, **kwargs)
        breaks = ~loss.isfinite() & (self._broken_step == 0)
        self._broken_step += breaks * (self.state.global_step + 1)
        return loss

    # Compute

    @cached_property
    def _cost(self) -> ModelCost:
        """The cost of the model, per token."""
        model: Any = self.accelerator.unwrap_model(self.model)
        autocast = self.args.bf16 or self.args.fp16
        return ModelCost.of(
            model, self.setup.vocabulary, autocast=autocast, objective=self.setup.objective
        )

    def floating_point_ops(self, inputs: Batch) -> float:  # type: ignore[override]
        """FLOPs of one micro-batch, which the Trainer sums up as ``total_flos``; counted only with ``track_flop``."""
        if not self.args.track_flop:
            return 0.0
        return batch_flops(inputs, self._cost)

    @cached_property
    def equal_compute(self) -> tuple[int, float]:
        """The number of optimizer steps of a regular run of the requested length, and the FLOPs of a step of this run
        divided by those of a regular run. Both are counted over the first batches, with and without their pairs, padding
        included."""
        dataset, collate = self.train_dataset, self.data_collator
        draws = iter(self.order_of(dataset))
        own = regular = 0.0
        for _ in range(SAMPLED_BATCHES):
            examples = [dataset[draw] for draw in islice(draws, self.args.train_batch_size)]
            if not examples:
                break
            own += batch_flops(collate(examples), self._cost)
            plain = [example.plain() for example in examples]
            regular += batch_flops(collate(plain), self._cost)
        return planned_steps(self.args, len(dataset), self.accelerator.num_processes), own / regular

    @property
    def requested_steps(self) -> int:
        """Number of optimizer steps that the options and the data ask for; at equal compute, the number that costs the
        same."""
        dataset = self.train_dataset
        if self.at_equal_compute:
            steps, ratio = self.equal_compute
            return max(1, round(steps / ratio))
        size = None if isinstance(dataset, StreamedExamples) else len(dataset)
        return planned_steps(self.args, size, self.accelerator.num_processes)

    # The log

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the parts of the loss, the number of pairs, the speed and the collapse numbers to the training log."""
        args, state = self.args, self.state
        if "loss" in logs:
            pairs = self.setup.objective.makes_pairs
            metrics = self._meter.metrics(pairs, self.accelerator)
            if pairs and (
                args.lbd_warmup_ratio or args.lbd_schedule != "constant" or args.jepa_until < 1
            ):
                # `global_step` already counts the logged step.
                last_step = max(state.global_step - 1, 0)
                metrics["lbd"] = lbd_at(args, last_step, state.max_steps)
            logs = {"loss": logs.pop("loss"), **metrics, **self._meter.speed(), **logs}
            self._meter = LossMeter(self._meter.names)
        if any(name.startswith("eval_") for name in logs):  # adds the compute up to this evaluation
            self.store_flos()
            logs = {**logs, "examples": self._examples_done(), "total_flos": state.total_flos}
        norm = logs.get("grad_norm", 0.0)
        skipped = self.accelerator.optimizer_step_was_skipped
        if args.terminate_on_nan and not math.isfinite(norm) and not skipped:
            self._stop_or_warn(
                state.global_step, "the gradient norm is not finite (NaN or infinite)"
            )
        super().log(logs, start_time)

    def _examples_done(self) -> int:
        """The number of examples that the run has trained on."""
        state, cut = self.state, self.cut
        if not state.global_step:
            return 0
        if isinstance(self.train_dataset, StreamedExamples):
            return state.global_step * cut.batch
        size, micro = len(self.train_dataset), cut.size * cut.processes
        batches = epoch_batches(self.args, size, cut.processes)
        # The last micro-batch of an epoch, and so its last step, may have fewer examples.
        epochs, rest = divmod(round((state.epoch or 0.0) * batches), batches)
        return epochs * min(size, batches * micro) + rest * micro

    def recent_losses(self) -> dict[str, float]:
        """The losses since the last log entry, or those of the last entry. Every process must call this method."""
        entries = [entry for entry in self.state.log_history if LM in entry]
        losses = entries[-1] if entries else {}
        if self._meter.sums is not None:
            losses = self._meter.metrics(self.setup.objective.makes_pairs, self.accelerator)
        return {
            name: losses[name]
            for name in (*self._meter.names, *TOKEN_MEANS, *MEANS)
            if name in losses
        }

    # Evaluation

    def evaluate(self, eval_dataset: object = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As `Trainer.evaluate`; `eval_dataset` may be anything that the constructor accepts."""
        begin = time.perf_counter()
        known = self.eval_dataset
        named = isinstance(known, dict) and isinstance(eval_dataset, str) and eval_dataset in known
        examples: Any = eval_dataset if named else self._reader.read_apart(eval_dataset)
        with self._keeping_last_batch():
            metrics = super().evaluate(examples, *args, **kwargs)
        # The logged speed is that of training, without evaluations.
        self._meter.since += time.perf_counter() - begin
        return metrics

    def predict(self, test_dataset: object, *args: Any, **kwargs: Any) -> PredictionOutput:
        """As `Trainer.predict`, on anything that the constructor accepts as data: the most likely and the true ids at the
        labelled positions, (rows, largest number of labels in a row) int64 each, padded with -100; and the losses."""
        examples: Any = self._reader.read_apart(test_dataset)
        with self._keeping_last_batch():
            return super().predict(examples, *args, **kwargs)

    @contextmanager
    def _keeping_last_batch(self) -> Iterator[None]:
        """Within this context, loaders do not drop the last batch, which the sampler fills up. Only then does accelerate cut
        the fillers off the predictions."""
        args = self.args
        drop_last, args.dataloader_drop_last = args.dataloader_drop_last, False
        try:
            yield
        finally:
            args.dataloader_drop_last = drop_last

    def prediction_step(  # type: ignore[override]
        self,
        model: nn.Module,
        inputs: Batch,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, Tensor | None, Tensor | None]:
        """Count one batch of an evaluation, and return the most likely and the true ids at the labelled positions of its
        examples, (B, L) int64 each; None if nobody requests them."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.accelerator.autocast():
            output = self.forward(model, inputs, 0, predict_ids=not prediction_loss_only)
            self._evaluated.add(output, inputs)
        if output.predicted_ids is None:
            return None, None, None
        ids_N2 = torch.stack([output.predicted_ids, inputs.label_ids], dim=1)
        ids_BL2 = by_example(ids_N2, inputs, self.args.eval_batch_size)
        return None, ids_BL2[..., 0], ids_BL2[..., 1]

    def evaluation_loop(  # type: ignore[override]
        self,
        dataloader: DataLoader,
        description: str,
        metric_key_prefix: str = "eval",
        **kwargs: Any,
    ) -> EvalLoopOutput:
        """As `Trainer.evaluation_loop`, with ``eval_loss``, ``eval_lm_loss``, ``eval_jepa_loss``, ``eval_cosine_similarity``
        and the means of the scores of answers.

        The means are over all labels and all pairs, independent of batches and processes, except for InfoNCE and the
        regularizers, which compare the pairs of a batch.
        """
        if self.is_fsdp_enabled and not any(map(is_sharded, self.model.parameters())):
            raise ConfigError(
                f"--{_NAME.fsdp} shards the weights only when training begins; evaluate without it"
            )
        meter = self._evaluated = LossMeter(self._meter.names)
        output = super().evaluation_loop(
            dataloader, description, metric_key_prefix=metric_key_prefix, **kwargs
        )
        means = meter.metrics(self.setup.objective.makes_pairs, self.accelerator)
        loss = self.args.gamma * means[LM]
        for name in meter.names:
            if name != LM:
                loss += self.args.lbd * meter.weights.get(name, 1.0) * means.get(name, 0.0)
        values = {"loss": loss, **means, **self._answer_scores()}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in values.items()}
        return output._replace(metrics={**metrics, **(output.metrics or {})})

    def _answer_scores(self) -> dict[str, float]:
        """Means of the scores of answers over all processes; a metric without a score is left out."""
        if self.score_answers is None:
            return {}
        args = self.args
        model = self.accelerator.unwrap_model(self.model)
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        reshard = bool(plugin and plugin.reshard_after_forward)
        with self.accelerator.autocast(), gathered(model, reshard):
            scores = self.score_answers(
                model, self.processing_class, args.process_index, args.world_size
            )
        sums = over_processes(list(scores.values()), self.accelerator)
        means = {}
        for name, (total, number) in zip(scores, sums, strict=True):
            if number:
                means[name] = total / number
        return means
