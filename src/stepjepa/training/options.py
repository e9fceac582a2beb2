"""The method's options, one small dataclass per topic, without `TrainingArguments`, so that ``--help`` loads no torch.

Which objective reads which of them follows from `OBJECTIVES`; everything else that is known of an option is in its field.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

from stepjepa.config.option import Unread, check_fields, option, options_of, unread_options
from stepjepa.data.steps import STEPS_COLUMN
from stepjepa.errors import ConfigError

_METHOD, _LOSS, _VIEWS, _TUBE, _DATA, _OUTPUT = "method", "loss", "views", "semantic tube", "data", "output"


class Topic:
    """Base of the dataclasses of one topic."""

    def check(self) -> None:
        """Check the options of the topic together.

        Raises:
            ConfigError: values that cannot be used; the message names the options.
        """


@dataclass
class MethodOptions(Topic):
    """Which objective, computed how."""

    objective: Literal["regular", "llm_jepa", "step_jepa", "split", "semantic_tube"] = option(
        "llm_jepa",
        "Which pairs are made: none (regular), user message -> answer (llm_jepa), step -> later step (step_jepa), first "
        "part of the tokens -> the rest (split), displacements of the chat's own states (semantic_tube).",
        _METHOD,
    )
    forward: Literal["auto", "packed", "two_pass", "inline"] = option(
        "auto",
        "How the views are computed; auto is packed where the model takes the mask, else two_pass. inline puts predictors "
        "and isolated view into the chat itself, which changes the LM loss.",
        _METHOD,
    )


@dataclass
class PairOptions(Topic):
    """Which pairs count, and what they train."""

    target_grad: bool | None = option(
        None, "Gradient into the target views too. Default: true; false for split and with an EMA encoder.", _METHOD
    )
    jepa_ratio: float = option(
        1.0,
        "Share of examples whose pairs are kept, sampled by seed, epoch and row; the others train as plain LM.",
        _METHOD,
        at_most=1,
    )


@dataclass
class PredictorOptions(Topic):
    """Predictor tokens and readouts."""

    predictors: int | None = option(
        None,
        "K, learned predictor tokens after a source view. Default: 2 for step_jepa, 1 for split, else 0.",
        _METHOD,
        at_least=0,
        at_most=100,
    )
    predictor_order: Literal["ascending", "descending"] | None = option(
        None,
        "Order of the predictor tokens. Default: descending for llm_jepa, which reads <|predictor_1|> last as the published "
        "code does; else ascending.",
        _METHOD,
        needs={"predictors": True},
    )
    same_predictor: bool = option(
        False,
        "One learned predictor token, repeated K times (the nanoGPT form), instead of K different ones.",
        _METHOD,
        needs={"predictors": True},
    )
    target_encoder: Literal["self", "ema"] = option(
        "self",
        "What encodes the targets: the model itself, or a moving average of its trained weights.",
        _METHOD,
    )
    last_token: int | None = option(
        None,
        "Readout by offset from a view's end (-1, -2, ...), as the published code does. Default: found by name.",
        _VIEWS,
        secret=False,
        at_most=-1,
    )


@dataclass
class EMAOptions(Topic):
    """The moving average of `target_encoder=ema`."""

    ema_momentum: float = option(
        0.99,
        "Momentum of target_encoder=ema at the start.",
        _METHOD,
        needs={"target_encoder": ("ema",)},
        at_least=0,
        at_most=1,
    )
    ema_momentum_end: float = option(
        1.0,
        "Momentum at the end; half a cosine leads there.",
        _METHOD,
        needs={"target_encoder": ("ema",)},
        at_least=0,
        at_most=1,
    )


@dataclass
class LossOptions(Topic):
    """The JEPA loss, and what it is compared with."""

    predictor_head: Literal["none", "linear", "mlp"] = option(
        "none", "A network on the source's state, trained with the model and saved next to it.", _METHOD
    )
    control: Literal["none", "shuffled", "random"] = option(
        "none",
        "Control arm: each source gets the target of another example of the batch (shuffled), or one fixed random vector "
        "(random).",
        _METHOD,
    )
    lbd: float = option(0.1, "lambda, weight of the JEPA loss. 0 trains exactly like 'regular'.", _LOSS, at_least=0)
    lbd_warmup_ratio: float = option(
        0.0, "Share of the run in which lambda rises from 0 to lbd.", _LOSS, at_least=0, at_most=1
    )
    lbd_schedule: Literal["constant", "cosine"] = option(
        "constant", "lambda after its warm-up: constant, or half a cosine down to 0.", _LOSS
    )
    jepa_loss: Literal["cosine", "l2", "mse", "smooth_l1", "infonce"] = option(
        "cosine", "Distance between the predicted and the target view.", _LOSS
    )
    infonce_temperature: float = option(
        0.07, "Temperature of jepa_loss=infonce.", _LOSS, needs={"jepa_loss": ("infonce",)}, above=0
    )
    infonce_symmetric: bool = option(
        False,
        "InfoNCE both ways: targets must find their sources as well.",
        _LOSS,
        needs={"jepa_loss": ("infonce",)},
    )
    regularizer: Literal["none", "vicreg", "sigreg"] = option(
        "none", "Added to the JEPA loss against collapse: variance and covariance (vicreg), or SIGReg.", _LOSS
    )
    regularizer_weight: float | None = option(
        None,
        "Weight of the regularizer relative to the distance. Default: 1 for vicreg, 0.05 for sigreg.",
        _LOSS,
        needs={"regularizer": ("vicreg", "sigreg")},
        at_least=0,
    )
    vicreg_covariance: float = option(
        0.04,
        "Weight of VICReg's covariance term relative to its variance term (1 to 25 in the paper).",
        _LOSS,
        needs={"regularizer": ("vicreg",)},
        at_least=0,
    )
    sigreg_directions: int = option(
        256,
        "Random directions of SIGReg, sampled again every step.",
        _LOSS,
        needs={"regularizer": ("sigreg",)},
        at_least=1,
    )
    loss_scale: Literal["mean", "reference"] = option(
        "mean",
        "mean: over the whole optimizer step. reference: over each micro-batch and not divided by their number, the "
        "published code's mistake, for comparison only.",
        _LOSS,
    )
    same_flop: bool = option(
        False, "Take fewer steps, so that the run costs the operations of a regular one of the given length.", _OUTPUT
    )

    def check(self) -> None:
        """See `Topic.check`.

        Raises:
            ConfigError: see there.
        """
        if self.control == "random" and self.jepa_loss == "infonce" and self.lbd:
            raise ConfigError(
                "control=random gives every source the same target, so infonce has nothing to distinguish; use "
                "control=shuffled"
            )


@dataclass
class StepJEPAOptions(Topic):
    """Options of objective `step_jepa`."""

    step_pairs: Literal["first", "all", "random"] = option(
        "first",
        "step_jepa: the first step only, every step, or one sampled again for every example and epoch.",
        _VIEWS,
    )
    horizon: int = option(1, "step_jepa: step i predicts step i + horizon.", _VIEWS, at_least=1)
    multi_horizon: list[int] | None = option(
        None, "step_jepa: several horizons at once, as in 1 2 3.", _VIEWS, at_least=1
    )
    step_splitter: Literal[
        "auto", "separator", "lines", "numbered", "connectives", "headings", "sentence", "regex", "list"
    ] = option(
        "auto",
        "How steps are found in an answer; auto takes the steps that a row holds, and for other rows the one of separator, "
        "numbered, lines that serves most of them, or what serves each answer where none does. list: every row holds its "
        "steps.",
        _VIEWS,
    )
    step_separator: str = option(
        "\\n\\n",
        "The string between steps for step_splitter=separator; the pattern that opens a step for regex.",
        _VIEWS,
        needs={"step_splitter": ("auto", "separator", "regex")},
    )
    steps_column: str = option(
        STEPS_COLUMN,
        "Column with the list of steps of the (last) answer, for auto and list.",
        _VIEWS,
        needs={"step_splitter": ("list", "auto")},
    )

    @property
    def horizons(self) -> tuple[int, ...]:
        """All values of h in step i -> step i + h."""
        return tuple(self.multi_horizon) if self.multi_horizon else (self.horizon,)

    def check(self) -> None:
        """See `Topic.check`.

        Raises:
            ConfigError: see there.
        """
        if self.horizon != 1 and self.multi_horizon:
            raise ConfigError("horizon and multi_horizon are both set; give one of them")
        if len(set(self.horizons)) < len(self.horizons):
            raise ConfigError(f"horizons are {list(self.horizons)}; give different numbers of steps from 1 on")


@dataclass
class LLMJEPAOptions(Topic):
    """Options of objective `llm_jepa`."""

    views: Literal["in_context", "standalone"] | None = option(
        None,
        "llm_jepa: the source on the chat and a copy of the answer (in_context, the default), or each message rendered "
        "alone by the template, as published (standalone; the default with front_pred or reverse_pred).",
        _VIEWS,
    )
    front_pred: bool = option(False, "standalone: predictors in front of the source's content.", _VIEWS)
    reverse_pred: bool = option(False, "standalone: the answer predicts the question.", _VIEWS)

    def check(self) -> None:
        """See `Topic.check`.

        Raises:
            ConfigError: see there.
        """
        for name, given in (("front_pred", self.front_pred), ("reverse_pred", self.reverse_pred)):
            if given and self.views == "in_context":
                raise ConfigError(f"{name} needs views=standalone: on the chat itself the answer follows the question")


@dataclass
class SplitOptions(Topic):
    """Options of objective `split`."""

    split_ratio: float = option(0.5, "split: share of the tokens that is the source.", _VIEWS, above=0, below=1)


@dataclass
class TubeOptions(Topic):
    """Options of objective `semantic_tube`."""

    tube_mode: Literal["span", "three_index", "e2e", "mean", "curvature"] = option(
        "span", "span is the published code's form, three_index the paper's formula.", _TUBE
    )
    tube_sampler: Literal["default", "draw_both", "uniform", "zero"] = option(
        "default", "How spans are sampled.", _TUBE
    )
    tube_max_length: int | None = option(None, "Longest span in content tokens.", _TUBE)
    tube_times: int = option(1, "Spans sampled for an example.", _TUBE, at_most=1000)
    tube_length_adjustment: Literal["none", "cosine_like", "jaccard_like"] = option(
        "none", "Weight of a span by its length and that of the rest.", _TUBE
    )
    tube_content: Literal["messages", "with_markup", "whole"] = option(
        "messages", "Where spans lie: question and answer, both and the markup between, or the whole chat.", _TUBE
    )
    tube_layer: int | None = option(
        None, "Hidden states after this layer (0: embeddings). Default: the last.", _TUBE, at_least=0
    )


@dataclass
class DataOptions(Topic):
    """How rows become chats and tokens."""

    source_column: str | None = option(None, "Column with the source text, for data sets of pairs.", _VIEWS)
    target_column: str | None = option(None, "Column with the target text.", _VIEWS)
    choice_column: str | None = option(
        None, "Column with the index of the right text, where target_column holds a list (multiple choice).", _VIEWS
    )
    labels: Literal["assistant", "all", "reference"] | None = option(
        None,
        "Tokens of the LM loss: answers and their end of turn (assistant, the default), all (default of split and plain "
        "text), or what the published code really trains on (reference).",
        _DATA,
    )
    plain: bool = option(False, "No chat template: the messages' contents, a line break between them.", _DATA)
    max_length: int = option(
        1024, "Longest chat in tokens; longer ones are cut on the right and counted.", _DATA, at_least=2
    )
    max_row_length: int | None = option(
        None, "Longest packed row in tokens. Default: chosen for every batch.", _DATA, resume=True, at_least=1
    )
    system_prompt: str | None = option(None, "System message for chats that have none.", _DATA)
    chat_template: str | None = option(
        None, "File with a Jinja chat template to use instead of the tokenizer's.", _DATA
    )
    chat_template_kwargs: dict[str, Any] | None = option(
        None, "What the chat template takes besides the messages, as in '{\"enable_thinking\": false}'.", _DATA
    )
    strict_data: bool = option(
        False, "Stop at the first row that cannot be used, instead of counting it.", _DATA, resume=True
    )

    def check(self) -> None:
        """See `Topic.check`.

        Raises:
            ConfigError: see there.
        """
        if (self.source_column is None) != (self.target_column is None):
            raise ConfigError("source_column and target_column go together; give both")
        if self.choice_column is not None and self.target_column is None:
            raise ConfigError("choice_column picks a text of target_column; give source_column and target_column too")
        if self.plain and self.chat_template:
            raise ConfigError("plain means no chat template, and chat_template gives one; leave one of them out")
        if self.plain and self.chat_template_kwargs:
            raise ConfigError(
                "plain means no chat template, and chat_template_kwargs are for one; leave one of them out"
            )


@dataclass
class ReadingOptions(Topic):
    """How the training data is read: mixing, streaming, tokenising."""

    mixing_weights: list[float] | None = option(
        None,
        "One weight for every train_file: examples are sampled in this proportion. Default: each file once.",
        _DATA,
        above=0,
    )
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] = option(
        "all_exhausted",
        "mixing_weights: an epoch ends when all of the first file was used, or of the last one (the others are used again "
        "meanwhile).",
        _DATA,
        needs={"mixing_weights": True, "streaming": False},
    )
    streaming: bool = option(
        False, "Read the training data as it is needed instead of once before; needs max_steps.", _DATA
    )
    shuffle_buffer: int = option(
        10_000,
        "streaming: examples that are read ahead and shuffled together.",
        _DATA,
        needs={"streaming": True},
        at_least=1,
    )
    dataset_num_proc: int = option(
        1,
        "Processes that tokenise. More than one pay off from some 50,000 rows on.",
        _DATA,
        resume=True,
        identity=False,
        at_least=1,
    )
    data_cache: str | None = option(
        None,
        "Folder that keeps the tokenised examples of files, for the next run with the same data and options.",
        _DATA,
        needs={"streaming": False},
        resume=True,
        identity=False,
    )


@dataclass
class OutputOptions(Topic):
    """What is counted and written."""

    track_flop: bool = option(
        False, "Count the floating point operations of every step, by kind.", _OUTPUT, resume=True
    )
    merge_lora: bool | None = option(
        None,
        "Write LoRA merged into the model (true) or as an adapter (false). Default: an adapter, but merged where the "
        "base model was initialised in this run and exists nowhere else.",
        _OUTPUT,
        resume=True,
    )
    terminate_on_nan: bool = option(
        True,
        "Stop at the first step whose loss or gradient norm is NaN or infinite. false trains on.",
        _OUTPUT,
        resume=True,
    )
    keep_predictors: bool = option(
        False,
        "Write the predictor tokens into the final vocabulary and tokenizer.",
        _OUTPUT,
        needs={"predictors": True},
        resume=True,
    )
    overwrite_output_dir: bool = option(
        False, "Remove what an earlier run left in output_dir and start over.", _OUTPUT, resume=True, dumped=False
    )


@dataclass
class ExampleOptions(
    DataOptions,
    TubeOptions,
    SplitOptions,
    LLMJEPAOptions,
    StepJEPAOptions,
    PredictorOptions,
    PairOptions,
    MethodOptions,
):
    """What decides how rows become examples, and how a model sees them."""


@dataclass
class JEPAOptions(OutputOptions, ReadingOptions, LossOptions, EMAOptions, ExampleOptions):
    """All options of the method. Checked when a `JEPAConfig` is made."""

    gamma: float = option(1.0, "Weight of the LM loss.", _LOSS, at_least=0)

    @property
    def uses_pairs(self) -> bool:
        """Whether training computes a JEPA loss at all."""
        return self.objective != "regular" and self.lbd > 0

    @property
    def separate_targets(self) -> bool:
        """Whether the targets go through a forward pass of their own, without a graph."""
        return self.uses_pairs and self.objective != "semantic_tube" and not self.target_grad

    def check(self) -> None:
        """Check the values and fill in defaults that depend on others.

        Raises:
            ConfigError: a value that cannot be used; the message names the option.
        """
        if self.jepa_ratio < 0 and self.jepa_ratio >= -1:
            self.jepa_ratio = 1.0  # the published scripts write -1 for "off"
        self._fill_in()
        check_fields(self, JEPAOptions)
        for topic in JEPAOptions.__mro__:
            if topic not in (JEPAOptions, Topic) and "check" in vars(topic):
                topic.check(self)  # type: ignore[attr-defined]
        self._check_views()
        if self.streaming and self.same_flop:
            raise ConfigError(
                "same_flop looks at batches before training, and streaming reads none; leave one of them out"
            )
        if self.objective == "semantic_tube" and self.uses_pairs:
            self._check_tube()

    def _fill_in(self) -> None:
        if self.predictors is None:
            self.predictors = {"step_jepa": 2, "split": 1}.get(self.objective, 0)
        if self.predictor_order is None:
            self.predictor_order = "descending" if self.objective == "llm_jepa" else "ascending"
        if self.views is None:
            self.views = "standalone" if self.front_pred or self.reverse_pred else "in_context"
        if self.labels is None:
            self.labels = "all" if self.objective == "split" else "assistant"
        if self.step_splitter == "auto" and self.step_separator != options_of(JEPAOptions)["step_separator"].default:
            self.step_splitter = "separator"  # who names a separator wants to split there
        if self.target_grad is None:
            self.target_grad = self.objective != "split" and self.target_encoder == "self"
        if self.regularizer_weight is None:
            self.regularizer_weight = 0.05 if self.regularizer == "sigreg" else 1.0

    def _check_views(self) -> None:
        if self.views == "standalone" and self.objective != "llm_jepa":
            raise ConfigError(
                f"views=standalone renders whole messages alone, and {self.objective} has no such views; use it with "
                "objective llm_jepa"
            )
        if self.front_pred and not self.predictors:
            raise ConfigError(
                "front_pred puts predictors in front of the content, and predictors is 0; give --predictors 1"
            )
        if self.target_encoder == "ema" and self.target_grad:
            raise ConfigError("target_encoder=ema takes no gradient; leave target_grad out or set it to false")
        if self.forward == "inline" and self.uses_pairs:
            if self.objective not in ("step_jepa", "llm_jepa") or self.views == "standalone":
                raise ConfigError(
                    "forward=inline isolates a view inside the chat: objective step_jepa or llm_jepa in context"
                )
            if self.objective == "step_jepa" and (self.step_pairs == "all" or len(self.horizons) > 1):
                raise ConfigError(
                    "forward=inline holds one pair an example (a second one would see the first one's predictors); use "
                    "step_pairs first or random and one horizon, or forward packed"
                )

    def _check_tube(self) -> None:
        if self.jepa_loss == "infonce":
            raise ConfigError(
                "jepa_loss=infonce compares views of different examples; semantic_tube compares spans of one"
            )
        if self.tube_mode == "curvature" and self.jepa_loss != "cosine":
            raise ConfigError("tube_mode=curvature has a loss of its own, the turning angle; leave jepa_loss out")
        if self.target_encoder == "ema":
            raise ConfigError("semantic_tube compares states of one pass; target_encoder=ema has no place in it")
        if self.predictors:
            raise ConfigError("semantic_tube has no predictor tokens; leave predictors out")
        from stepjepa.objectives.semantic_tube import check_tube  # numpy, which --help does not need

        check_tube(self)


# The topics that runs of an objective read, besides those that all read.
OBJECTIVES: dict[str, tuple[type[Topic], ...]] = {
    "regular": (),
    "llm_jepa": (PairOptions, LossOptions, PredictorOptions, EMAOptions, LLMJEPAOptions),
    "step_jepa": (PairOptions, LossOptions, PredictorOptions, EMAOptions, StepJEPAOptions),
    "split": (PairOptions, LossOptions, PredictorOptions, EMAOptions, SplitOptions),
    "semantic_tube": (PairOptions, LossOptions, TubeOptions),
}


def not_read(objective: str) -> frozenset[str]:
    """The options that runs of an objective do not read, whatever their values."""
    own = OBJECTIVES.get(objective, ())
    others = {topic for topics in OBJECTIVES.values() for topic in topics if topic not in own}
    return frozenset(field.name for topic in others for field in fields(topic))  # type: ignore[arg-type]


def without_effect(options: JEPAOptions, given: Iterable[str]) -> list[Unread]:
    """Those of the options `given` that have a value of their own and that the run does not read."""
    plain = JEPAOptions(objective=options.objective)
    plain.check()
    changed = {name for name in given if hasattr(plain, name) and getattr(options, name) != getattr(plain, name)}
    idle = not_read(options.objective)
    found = [Unread(name, f"with objective {options.objective}") for name in options_of(JEPAOptions) if name in idle]
    unread = [one for one in found if one.name in changed]
    unread += unread_options(options, changed - idle)
    if options.control == "random" and options.target_encoder == "ema" and options.uses_pairs:
        unread.append(Unread("target_encoder", "with --control random: no target is used"))
    return unread


def method_of(options: Any) -> JEPAOptions:
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
    if not method.uses_pairs:
        return method.objective
    if method.objective == "semantic_tube":
        return f"{method.objective}, {method.tube_mode}"
    views = f", {method.views}" if method.objective == "llm_jepa" else ""
    form = "packed" if method.forward == "auto" else method.forward
    return f"{method.objective}{views}, K = {method.predictors}, {form}"
