"""The options of the method and of a run, separate from `TrainingArguments`, so that ``--help`` does not load torch.

Options of objectives are in `stepjepa.objectives`, options of data in `stepjepa.data.options`, options of the model in
`stepjepa.modeling.options`. The class of an objective defines which options it reads; everything else about an option is in
its field.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from stepjepa.config.option import (
    Names,
    Topic,
    check_fields,
    option,
    options_of,
    unread_options,
)
from stepjepa.config.values import given_name
from stepjepa.data.options import DATA, DataOptions, ReadingOptions
from stepjepa.errors import ConfigError
from stepjepa.modeling.options import RUN, LoRAOptions, ModelOptions
from stepjepa.objectives.base import (
    OBJECTIVES,
    Objective,
    check_distance,
    find_objective,
    idle_options,
    is_built_in,
    objective_of,
    own_options,
)
from stepjepa.objectives.future_summary import FutureSummaryOptions
from stepjepa.objectives.llm_jepa import LLMJEPA, LLMJEPAOptions
from stepjepa.objectives.multi_token import MultiTokenOptions
from stepjepa.objectives.next_latent import NextLatentOptions
from stepjepa.objectives.options import (
    EMA,
    FROZEN,
    LOSS,
    LOSSES,
    METHOD,
    OUTPUT,
    SELF,
    EMAOptions,
    LossOptions,
    MaskOptions,
    PairOptions,
    PredictorOptions,
    ReplayOptions,
    TargetOptions,
)
from stepjepa.objectives.semantic_tube import TubeOptions
from stepjepa.objectives.split import SplitOptions
from stepjepa.objectives.step_jepa import StepJEPAOptions
from stepjepa.objectives.steps_to_answer import StepsToAnswerOptions

COMMON = "common options of transformers.TrainingArguments"


@dataclass
class MethodOptions(Topic):
    """Which objective to train, and how to compute it."""

    objective: str | Objective = option(
        LLMJEPA.name,
        "Which pairs are made: none (regular), user message -> answer (llm_jepa), step -> later step (step_jepa), first "
        "part of the tokens -> the rest (split), displacements of the chat's own states (semantic_tube), state and token -> "
        "next state (next_latent), state -> tokens further ahead (multi_token) or their bag (future_summary), "
        "state before the answer without the steps -> with them (steps_to_answer); or your own class, as file.py:Class or "
        "package.module:Class, whose code is run.",
        METHOD,
        choices=OBJECTIVES,
        own=True,
        brings=("objective_options", own_options),
    )
    objective_options: dict[str, Any] | None = option(
        None,
        "Options of your own objective, by name. Each can also be given as a flag or as a YAML key.",
        METHOD,
    )
    forward: Literal["auto", "packed", "two_pass", "inline"] = option(
        "auto",
        "How the views are computed; auto is packed if the model takes the mask, else two_pass. inline puts the predictors "
        "and the isolated view into the chat itself, which changes the LM loss.",
        METHOD,
    )


@dataclass
class OutputOptions(Topic):
    """Metrics to compute, and files to write."""

    track_flop: bool = option(
        False, "Count the floating-point operations of every step.", OUTPUT, resume=True
    )
    token_metrics: bool = option(
        False,
        "Log mean_token_accuracy and entropy (nats) of the labelled tokens.",
        OUTPUT,
        resume=True,
    )
    merge_lora: bool | None = option(
        None,
        "Write LoRA merged into the model (true) or as an adapter (false). Default: an adapter, but merged if the "
        "base model was initialised in this run and exists nowhere else.",
        OUTPUT,
        resume=True,
    )
    terminate_on_nan: bool = option(
        True,
        "Stop if the loss, a logged gradient norm or the weights to be saved are NaN or infinite; false continues training.",
        OUTPUT,
        resume=True,
    )
    keep_predictors: bool = option(
        False,
        "Write the predictor tokens into the final vocabulary and tokenizer.",
        OUTPUT,
        needs={"predictors": True},
        resume=True,
    )
    overwrite_output_dir: bool = option(
        False,
        "Remove what an earlier run left in output_dir and start over.",
        OUTPUT,
        resume=True,
        dumped=False,
    )


@dataclass
class ExampleOptions(
    DataOptions,
    NextLatentOptions,
    MultiTokenOptions,
    FutureSummaryOptions,
    TubeOptions,
    SplitOptions,
    LLMJEPAOptions,
    StepJEPAOptions,
    StepsToAnswerOptions,
    PredictorOptions,
    TargetOptions,
    MaskOptions,
    PairOptions,
    MethodOptions,
):
    """All options that determine how rows become examples, and how a model sees them."""

    max_row_length: int | None = option(
        None,
        "Longest packed row in tokens. Default: chosen for each batch.",
        DATA,
        resume=True,
        at_least=1,
    )


@dataclass
class JEPAOptions(
    OutputOptions, ReadingOptions, LossOptions, EMAOptions, ReplayOptions, ExampleOptions
):
    """All options of the method, checked when a `JEPAConfig` is created."""

    gamma: float = option(1.0, "Weight of the LM loss.", LOSS, at_least=0)

    def check(self) -> None:
        """Check the values and fill in defaults that depend on others.

        Raises:
            ConfigError: a value cannot be used; the message names the option.
        """
        self._replace_objects()
        # The published scripts write -1 for "off".
        if -1 <= self.jepa_ratio < 0:
            self.jepa_ratio = 1.0
        # First the defaults that depend on other options, then those of the objective, then the bounds of single options,
        # then the rules that combine options.
        topics: Any = JEPAOptions.__mro__[1:]
        chosen = find_objective(self.objective)
        # `vars` has only a topic's own methods, so a method that several topics inherit does not run twice.
        for topic in topics:
            if "fill_in" in vars(topic):
                topic.fill_in(self)
        # Before the objective's defaults: a separate target encoder receives no gradient, whatever the objective prefers.
        if self.target_encoder != SELF and self.target_grad is None:
            self.target_grad = False
        for name, value in vars(chosen.defaults).items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        check_fields(self, JEPAOptions)
        if self.jepa_loss and self.jepa_loss not in LOSSES:
            check_distance(self.jepa_loss)
        for topic in topics:
            if "check" in vars(topic):
                topic.check(self)
        if self.target_encoder != SELF and self.target_grad:
            raise ConfigError(
                f"{_NAME.target_encoder}={self.target_encoder} receives no gradient; leave out {_NAME.target_grad}, or set "
                "it to false"
            )
        if self.streaming and self.same_flop:
            raise ConfigError(
                f"{_NAME.same_flop} needs batches before training, and streaming reads none by then; leave one out"
            )
        if self.streaming and self.replay_ratio:
            raise ConfigError(
                f"{_NAME.replay_ratio} needs rows of earlier steps, and streaming keeps none; leave one out"
            )
        if self.objective_options and is_built_in(chosen):
            raise ConfigError(
                f"{_NAME.objective_options} is only for your own objective; give the options of {self.objective} by name"
            )
        objective = objective_of(self)
        objective.check()
        if not (self.gamma or (objective.makes_pairs and self.jepa_ratio)):
            raise ConfigError(
                f"{_NAME.gamma} is 0 and there is no JEPA loss, so nothing would be trained; raise it or use a JEPA loss"
            )

    def _replace_objects(self) -> None:
        """Replace an objective or a loss that was passed as a Python object with its name and its options."""
        objective, distance = self.objective, self.jepa_loss
        if isinstance(objective, Objective):
            built_in = is_built_in(type(objective))
            self.objective = objective.name if built_in else given_name(type(objective))
            # The options of a built-in objective are fields of this class; those of a user's objective are not.
            if objective.own is not None and built_in:
                for name, value in vars(objective.own).items():
                    setattr(self, name, value)
            elif objective.own is not None:
                self.objective_options = dict(vars(objective.own))
        if callable(distance):
            self.jepa_loss = given_name(distance)


_NAME = Names(JEPAOptions)


def without_effect(options: JEPAOptions, given: Iterable[str]) -> list[str]:
    """Notes on the options among `given` that differ from their defaults and that the run does not read."""
    # The defaults depend on the objective.
    plain = JEPAOptions(objective=options.objective, objective_options=options.objective_options)
    plain.check()
    changed = {
        name
        for name in given
        if hasattr(plain, name) and getattr(options, name) != getattr(plain, name)
    }
    objective = find_objective(options.objective)(options)
    idle = idle_options(objective)
    unread = [
        f"--{name} has no effect with objective {options.objective}"
        for name in options_of(JEPAOptions)
        if name in idle and name in changed
    ]
    # Of the options that the objective reads, those whose `needs` are not met.
    unread += unread_options(options, changed - idle)
    return unread


def method_of(options: object) -> JEPAOptions:
    """The checked options of the method, with their values taken from a command's options of the same names.

    Raises:
        ConfigError: a value cannot be used.
    """
    shared = [name for name in options_of(JEPAOptions) if hasattr(options, name)]
    method = JEPAOptions(**{name: getattr(options, name) for name in shared})
    method.check()
    return method


# How the loss line describes the encoder of the targets.
_ENCODED = {
    SELF: "no gradient into the target",
    EMA: "EMA target",
    FROZEN: "target from the initial model",
}


def method_line(args: JEPAOptions) -> str:
    """The objective of a run and its loss: ``step_jepa: 1 * LM + 0.1 * cosine, K = 2``."""
    return f"{args.objective}: {loss_line(args)}"


def loss_line(args: JEPAOptions) -> str:
    """The loss of a run: ``1 * LM + 0.1 * cosine, K = 2, step_pairs all``; ``LM`` if it makes no pairs."""
    objective = objective_of(args)
    if not objective.makes_pairs:
        return "LM"
    # The weights first, then when and where they apply, then the views, then what is not the default.
    parts = [f"{args.gamma:g} * LM + {args.lbd:g} * {objective.distance_name}"]
    if args.lbd_warmup_ratio:
        parts.append(f"lambda warmed up over {args.lbd_warmup_ratio:.0%} of the steps")
    if args.lbd_schedule != "constant":
        parts.append(f"{args.lbd_schedule} schedule of lambda")
    if args.jepa_until < 1:
        parts.append(f"lambda 0 after {args.jepa_until:.0%} of the steps")
    if args.jepa_ratio < 1:
        parts.append(f"pairs in {args.jepa_ratio:.0%} of the examples")
    if objective.replay_ratio:
        replayed = f"{args.replay_weight:g} * pairs of {args.replay_from} examples"
        parts.append(f"{replayed} replayed with {args.replay_ratio:.0%} of the examples")
    if objective.takes_predictors:
        parts.append(f"K = {args.predictors}")
    parts += objective.about
    if args.predictor_head != "none":
        parts.append(f"{args.predictor_head} head")
    if not args.target_grad:
        parts.append(_ENCODED.get(args.target_encoder, f"target from {args.target_encoder}"))
    if args.regularizer != "none":
        parts.append(f"{args.regularizer} ({args.regularizer_weight:g})")
    if args.control != "none":
        parts.append(f"CONTROL: {args.control} targets")
    return ", ".join(parts)


# The options of a run


@dataclass
class SourceOptions:
    """The data to train and to evaluate on."""

    train_file: list[str] | None = option(
        None,
        "Data to train on: JSONL, Parquet or CSV files, or Hub data sets; several are combined.",
        RUN,
        resume=True,  # the data itself is compared
    )
    eval_file: str | None = option(
        None, "File or data set for the evaluation losses.", RUN, resume=True
    )
    dataset_split: str = option(
        "train",
        "Split of a Hub data set given as train_file.",
        RUN,
        needs={"train_file": True},
        resume=True,
    )
    eval_split: str = option(
        "test",
        "Split of a Hub data set given as eval_file.",
        RUN,
        needs={"eval_file": True},
        resume=True,
    )
    eval_metrics: list[str] | None = option(
        None,
        "Metrics for answers generated at every evaluation (exact, gsm8k, ...); logged as eval_exact, ..., and accepted by "
        "--metric_for_best_model.",
        RUN,
        resume=True,
    )
    eval_samples: int = option(
        100,
        "eval_metrics: number of questions from eval_file to answer.",
        RUN,
        needs={"eval_metrics": True},
        resume=True,
        at_least=1,
    )
    eval_max_new_tokens: int = option(
        256,
        "eval_metrics: longest answer in tokens.",
        RUN,
        needs={"eval_metrics": True},
        resume=True,
    )
    stop_at: float | None = option(
        None,
        "End training once --metric_for_best_model reaches this value in an evaluation.",
        RUN,
        resume=True,
    )
    early_stopping_patience: int | None = option(
        None,
        "End training after this many evaluations in a row without an improvement of --metric_for_best_model.",
        RUN,
        resume=True,
        at_least=1,
    )
    ray_workers: int | None = option(
        None, "Train in this many Ray processes; with resume_from_checkpoint true, the run survives the loss of a process.",
        RUN, at_least=1, resume=True, identity=False, dumped=False,
    )  # fmt: skip
    debug_level: int = option(
        0,
        "Log level: from 1, every step's losses and their total; from 7, also the first row as stepjepa inspect shows it.",
        RUN,
        resume=True,
        identity=False,
    )
    additive_mask: bool = option(
        False,
        "A flag of the published script; not needed, because the packed forward replaces it.",
        RUN,
        resume=True,
    )


@dataclass
class RunOptions(LoRAOptions, ModelOptions, SourceOptions):
    """The data and the model of ``stepjepa train``."""

    @property
    def stop_rules(self) -> dict[str, float | None]:
        """The options by which an evaluation may end the training, by name."""
        return {name: getattr(self, name) for name in (_RUN.stop_at, _RUN.early_stopping_patience)}

    def __post_init__(self) -> None:
        if isinstance(self.train_file, str):
            self.train_file = [self.train_file]
        check_fields(self)
        if self.eval_metrics and not self.eval_file:
            raise ConfigError(
                f"--{_RUN.eval_metrics} needs questions to answer; give --{_RUN.eval_file}"
            )


_RUN = Names(RunOptions)


@dataclass
class TrainerOptions:
    """The options of `transformers.TrainingArguments` that this library declares, with its own defaults."""

    output_dir: str | None = option(
        None, "Folder for the model, its records and checkpoints.", COMMON, resume=True
    )
    num_train_epochs: float = option(3.0, "Number of epochs.", COMMON, resume=True, at_least=0)
    max_steps: int = option(
        -1,
        "Number of optimizer steps; above 0, it replaces num_train_epochs.",
        COMMON,
        resume=True,
        at_least=-1,
    )
    learning_rate: float | None = option(
        None,
        "Peak learning rate. Default: 2e-5, 2e-4 for LoRA, and 1e-3 for a model that starts from random weights.",
        COMMON,
        at_least=0,
    )
    # The last batch of an epoch is filled up to its size, so an absurd size would take hours.
    per_device_train_batch_size: int = option(
        8,
        "Examples per micro-batch on each device.",
        COMMON,
        resume=True,
        at_least=1,
        at_most=2**20,
    )
    gradient_accumulation_steps: int = option(
        1, "Micro-batches per optimizer step.", COMMON, resume=True, at_least=1
    )
    lr_scheduler_type: str = option(
        "linear", "Learning-rate schedule (linear, cosine, constant, ...).", COMMON
    )
    warmup_steps: float = option(
        0, "Steps of learning-rate warm-up; below 1, their share of all steps.", COMMON, at_least=0
    )
    max_grad_norm: float = option(
        1.0, "Gradient norm above which gradients are clipped.", COMMON, at_least=0
    )
    weight_decay: float = option(0.0, "Weight decay of AdamW.", COMMON, at_least=0)
    seed: int = option(42, "Seed for initialisation, order and dropout.", COMMON, at_least=0)
    bf16: bool = option(False, "Autocast to bfloat16; weights and losses stay float32.", COMMON)
    gradient_checkpointing: bool | None = option(
        None, "Recompute activations in the backward pass to save memory.", COMMON
    )
    logging_steps: float = option(
        10, "Log every N steps.", COMMON, resume=True, identity=False, at_least=0
    )
    save_strategy: Literal["no", "steps", "epoch", "best"] = option(
        "steps", "When to write a checkpoint.", COMMON, resume=True, identity=False
    )
    save_steps: float = option(
        500, "Steps between checkpoints.", COMMON, resume=True, identity=False, at_least=0
    )
    save_total_limit: int | None = option(
        None,
        "Number of checkpoints to keep. Default: all.",
        COMMON,
        resume=True,
        identity=False,
        at_least=0,
    )
    eval_strategy: Literal["no", "steps", "epoch"] = option(
        "no", "When to evaluate on eval_file.", COMMON, resume=True
    )
    resume_from_checkpoint: str | None = option(
        None,
        "true, or the flag without a value: resume from the newest complete checkpoint in output_dir; or the folder of a "
        "checkpoint.",
        COMMON,
        resume=True,
        dumped=False,
        bare="true",
    )
    dataloader_num_workers: int = option(
        0,
        "Number of worker processes that prepare the batches.",
        COMMON,
        resume=True,
        identity=False,
        at_least=0,
    )
    report_to: None | str | list[str] = option(
        "none",
        "Where else to send the logs: none, tensorboard, wandb, trackio.",
        COMMON,
        resume=True,
        identity=False,
    )


_FIRST = Names(RunOptions, TrainerOptions, JEPAOptions)
# The options of training that the short help shows, under their headings, in the order in which users need them.
FIRST = {
    "files and model": (_FIRST.train_file, _FIRST.model_name, _FIRST.output_dir, _FIRST.eval_file),
    METHOD: (
        _FIRST.objective,
        _FIRST.predictors,
        _FIRST.lbd,
        _FIRST.jepa_loss,
        _FIRST.step_pairs,
        _FIRST.step_splitter,
        _FIRST.labels,
        _FIRST.max_length,
    ),
    "training": (
        _FIRST.num_train_epochs,
        _FIRST.max_steps,
        _FIRST.learning_rate,
        _FIRST.per_device_train_batch_size,
        _FIRST.gradient_accumulation_steps,
        _FIRST.lora,
        _FIRST.bf16,
        _FIRST.seed,
    ),
    "log and checkpoints": (
        _FIRST.logging_steps,
        _FIRST.eval_strategy,
        _FIRST.save_steps,
        _FIRST.resume_from_checkpoint,
        _FIRST.overwrite_output_dir,
    ),
}


@dataclass
class LoopOptions(JEPAOptions, TrainerOptions):
    """The options of the method in a training loop without a Trainer; of the Trainer's options, only the seed is read."""


@dataclass
class DoctorOptions:
    """Options of ``stepjepa doctor``."""

    model_name: str = option(
        "tiny", "Hub id, local folder, or a built-in preset (tiny, mini).", "doctor"
    )
    train_file: str | None = option(
        None,
        "File or Hub data set with rows to train on. Default: built-in rows.",
        "doctor",
        aliases=("data",),
    )
    json: bool = option(False, "Print the result as one JSON object.", "doctor")
