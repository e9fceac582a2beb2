"""The options of the method, without `TrainingArguments`, so that ``--help`` loads no torch.

Those that objectives read are in `stepjepa.objectives`, those of data in `stepjepa.data.options`, those of the model in
`stepjepa.modeling.options`. Which an objective reads, its class says; the rest is in the field itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from stepjepa.config.option import Names, Topic, Unread, check_fields, option, options_of, unread_options
from stepjepa.config.values import given_name
from stepjepa.data.options import DATA, DataOptions, ReadingOptions
from stepjepa.errors import ConfigError
from stepjepa.objectives.base import (
    OBJECTIVES,
    Objective,
    find_distance,
    find_objective,
    idle_options,
    is_built_in,
    objective_of,
    own_options,
)
from stepjepa.objectives.llm_jepa import LLMJEPAOptions
from stepjepa.objectives.multi_token import MultiTokenOptions
from stepjepa.objectives.next_latent import NextLatentOptions
from stepjepa.objectives.options import (
    LOSS,
    LOSSES,
    METHOD,
    OUTPUT,
    EMAOptions,
    LossOptions,
    PairOptions,
    PredictorOptions,
    TargetOptions,
)
from stepjepa.objectives.semantic_tube import TubeOptions
from stepjepa.objectives.split import SplitOptions
from stepjepa.objectives.step_jepa import StepJEPAOptions

# Names in the log of `log_gradient_cosine`: over all trained weights; and, with its number, over those of a layer.
GRADIENT_COSINE = "gradient_cosine"
LAYER_COSINE = f"{GRADIENT_COSINE}_layer_"


@dataclass
class MethodOptions(Topic):
    """Which objective, computed how."""

    objective: str | Objective = option(
        OBJECTIVES[1],
        "Which pairs are made: none (regular), user message -> answer (llm_jepa), step -> later step (step_jepa), first "
        "part of the tokens -> the rest (split), displacements of the chat's own states (semantic_tube), state and token -> "
        "next state (next_latent), state -> tokens further ahead (multi_token); or a class of your own, as file.py:Class or "
        "package.module:Class, whose code is run.",
        METHOD,
        choices=OBJECTIVES,
        own=True,
        brings=("objective_options", own_options),
    )
    objective_options: dict[str, Any] | None = option(
        None, "Options of an objective of your own, which are also flags and keys themselves.", METHOD
    )
    forward: Literal["auto", "packed", "two_pass", "inline"] = option(
        "auto",
        "How the views are computed; auto is packed where the model takes the mask, else two_pass. inline puts predictors "
        "and isolated view into the chat itself, which changes the LM loss.",
        METHOD,
    )


@dataclass
class OutputOptions(Topic):
    """What is counted and written."""

    track_flop: bool = option(False, "Count the floating point operations of every step, by kind.", OUTPUT, resume=True)
    merge_lora: bool | None = option(
        None,
        "Write LoRA merged into the model (true) or as an adapter (false). Default: an adapter, but merged where the "
        "base model was initialised in this run and exists nowhere else.",
        OUTPUT,
        resume=True,
    )
    keep_losses: bool = option(
        False,
        "On a terminal, keep the losses of every log entry as a line above the progress bar.",
        OUTPUT,
        resume=True,
        identity=False,
    )
    terminate_on_nan: bool = option(
        True,
        "Stop where the loss, a logged gradient norm or the weights to be saved are NaN or infinite. false trains on.",
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
        False, "Remove what an earlier run left in output_dir and start over.", OUTPUT, resume=True, dumped=False
    )


@dataclass
class ExampleOptions(
    DataOptions,
    NextLatentOptions,
    MultiTokenOptions,
    TubeOptions,
    SplitOptions,
    LLMJEPAOptions,
    StepJEPAOptions,
    PredictorOptions,
    TargetOptions,
    PairOptions,
    MethodOptions,
):
    """What decides how rows become examples, and how a model sees them."""

    max_row_length: int | None = option(
        None, "Longest packed row in tokens. Default: chosen for every batch.", DATA, resume=True, at_least=1
    )


@dataclass
class JEPAOptions(OutputOptions, ReadingOptions, LossOptions, EMAOptions, ExampleOptions):
    """All options of the method. Checked when a `JEPAConfig` is made."""

    gamma: float = option(1.0, "Weight of the LM loss.", LOSS, at_least=0)

    def check(self) -> None:
        """Check the values and fill in defaults that depend on others.

        Raises:
            ConfigError: a value that cannot be used; the message names the option.
        """
        self._name_own()
        if -1 <= self.jepa_ratio < 0:
            self.jepa_ratio = 1.0  # the published scripts write -1 for "off"
        topics: list[Any] = [one for one in JEPAOptions.__mro__[1:] if issubclass(one, Topic) and one is not Topic]
        chosen = find_objective(self.objective)
        for topic in topics:
            if "fill_in" in vars(topic):
                topic.fill_in(self)
        if self.target_encoder == "ema" and self.target_grad is None:
            self.target_grad = False
        for name, value in vars(chosen.defaults).items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        check_fields(self, JEPAOptions)
        if self.jepa_loss and self.jepa_loss not in LOSSES:
            find_distance(self.jepa_loss)
        for topic in topics:
            if "check" in vars(topic):
                topic.check(self)
        if self.target_encoder == "ema" and self.target_grad:
            raise ConfigError(
                f"{_NAME.target_encoder}=ema takes no gradient; leave {_NAME.target_grad} out or set it to false"
            )
        if self.streaming and self.same_flop:
            raise ConfigError(
                f"{_NAME.same_flop} looks at batches before training, and streaming reads none; leave one of them out"
            )
        if self.objective_options and is_built_in(chosen):
            raise ConfigError(
                f"{_NAME.objective_options} are for an objective of your own; {self.objective} has options by name"
            )
        objective = objective_of(self)
        objective.check()
        if not (self.gamma or (objective.makes_pairs and self.jepa_ratio)):
            raise ConfigError(
                f"{_NAME.gamma} is 0 and no JEPA loss is left, so nothing would be trained; raise one of them"
            )

    def _name_own(self) -> None:
        """Put the name of an objective or a loss in the place of one that Python code gave, and its options next to it."""
        given, distance = self.objective, self.jepa_loss
        if isinstance(given, Objective):
            self.objective = given.name if is_built_in(type(given)) else given_name(type(given))
            if given.own is not None and is_built_in(type(given)):
                for name, value in vars(given.own).items():
                    setattr(self, name, value)
            elif given.own is not None:
                self.objective_options = dict(vars(given.own))
        if callable(distance):
            self.jepa_loss = given_name(distance)


_NAME = Names(JEPAOptions)


def without_effect(options: JEPAOptions, given: Iterable[str]) -> list[Unread]:
    """Those of the options `given` that have a value of their own and that the run does not read."""
    plain = JEPAOptions(objective=options.objective, objective_options=options.objective_options)
    plain.check()
    changed = {name for name in given if hasattr(plain, name) and getattr(options, name) != getattr(plain, name)}
    objective = find_objective(options.objective)(options)
    idle = idle_options(objective)
    unread = [
        Unread(name, f"with objective {options.objective}")
        for name in options_of(JEPAOptions)
        if name in idle and name in changed
    ]
    unread += unread_options(options, changed - idle)
    if options.control == "random" and options.target_encoder == "ema" and objective_of(options).makes_pairs:
        unread.append(Unread(_NAME.target_encoder, f"with --{_NAME.control} random: no target is used"))
    return unread


def method_of(options: object) -> JEPAOptions:
    """The method's options, checked, out of those that a command's options share with it.

    Raises:
        ConfigError: a value that cannot be used.
    """
    shared = [name for name in options_of(JEPAOptions) if hasattr(options, name)]
    method = JEPAOptions(**{name: getattr(options, name) for name in shared})
    method.check()
    return method


def summary(method: JEPAOptions) -> str:
    """The method in a few words: ``step_jepa, K = 2, packed``."""
    objective = objective_of(method)
    if not objective.makes_pairs:
        return str(method.objective)
    parts = [str(method.objective), objective.brief]
    if objective.takes_predictors:
        forward = "packed" if method.forward == "auto" else method.forward
        parts += [f"K = {method.predictors}", *objective.readout, forward]
    return ", ".join(part for part in parts if part)


def loss_line(args: JEPAOptions) -> str:
    """The loss of a run: ``1 * LM + 0.1 * cosine, K = 2, first pairs``."""
    objective = objective_of(args)
    parts = [f"{args.gamma:g} * LM + {args.lbd:g} * {objective.distance_name}"]
    if args.lbd_warmup_ratio:
        parts.append(f"lambda warmed up over {args.lbd_warmup_ratio:.0%} of the steps")
    if args.lbd_schedule != "constant":
        parts.append(f"lambda's schedule {args.lbd_schedule}")
    if args.jepa_until < 1:
        parts.append(f"lambda 0 after {args.jepa_until:.0%} of the steps")
    if args.jepa_ratio < 1:
        parts.append(f"pairs in {args.jepa_ratio:.0%} of the examples")
    if objective.takes_predictors:
        parts.append(f"K = {args.predictors}")
    parts += [*objective.readout, *objective.about]
    if args.predictor_head != "none":
        parts.append(f"{args.predictor_head} head")
    if not args.target_grad:
        parts.append("EMA target" if args.target_encoder == "ema" else "no gradient into the target")
    if args.regularizer != "none":
        parts.append(f"{args.regularizer} ({args.regularizer_weight:g})")
    if args.control != "none":
        parts.append(f"CONTROL: {args.control} targets")
    return ", ".join(parts)
