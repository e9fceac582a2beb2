"""What ``stepjepa analyze`` takes and gives: the options of both its forms, their result, and the text of the energies'."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from stepjepa.config.option import Names, check_fields, option, options_of
from stepjepa.data.options import DataOptions
from stepjepa.errors import ConfigError
from stepjepa.evaluation.intervals import Interval
from stepjepa.evaluation.metrics import METRICS
from stepjepa.evaluation.options import AS_TRAINED
from stepjepa.objectives.base import built_in, own_options
from stepjepa.objectives.llm_jepa import LLMJEPA, LLMJEPAOptions
from stepjepa.objectives.options import PredictorOptions, TargetOptions
from stepjepa.objectives.split import SplitOptions
from stepjepa.objectives.step_jepa import StepJEPAOptions
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.text import legend, text_table

# The headings of the options: what --from_states does not read, what it reads, and what --runs alone reads too.
_MODELS, _METHOD, _MEASURED, _OUTPUT = "models", "method", "numbers and figures", "output"
_BEST, _READ = "best of N", "reading (default: as the model's run had it)"
_SEEDS: dict[str, Any] = {"at_least": 0, "at_most": 2**32 - 1}  # that NumPy and scikit-learn take
_RIGHT = [name for name in METRICS if name not in ("rouge", "bleu")]  # those that say right or wrong


@dataclass(frozen=True)
class AnalysisResult:
    """What `analyze` has measured; ``str`` of it is what the command prints.

    Attributes:
        record: all numbers, as the file of numbers holds them; empty where only loss curves were drawn.
        files: what was written.
        lines: for the terminal.
    """

    record: dict[str, Any]
    files: tuple[Path, ...]
    lines: tuple[str, ...] = field(repr=False)

    def __str__(self) -> str:
        return "\n".join(self.lines)


def _as_trained(name: str, text: str = "") -> Any:
    """An option of training that is as the model's run had it unless it is given."""
    own = options_of(JEPAOptions)[name]
    bounds = cast(Any, own.bounds)
    return option(None, text or own.help, _READ, choices=tuple(own.named), own=own.own, secret=False, **bounds)


@dataclass
class _Loading:
    """How models and files are loaded, and where their views are read."""

    dataset_split: str = option("test", "Split of a Hub data set.", _MODELS)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "float32", "Dtype of the weights; states are float32.", _MODELS
    )
    attn_implementation: str | None = option(None, "Attention kernel of transformers, such as sdpa or eager.", _MODELS)
    trust_remote_code: bool = option(False, "Run model code that comes with the weights.", _MODELS)
    batch_size: int = option(16, "Pairs, or solutions, a batch.", _MODELS, at_least=1)
    head: bool = option(
        True, "Send sources through the predictor head that was saved with a model, as training does.", _MODELS
    )
    predictors: int | None = _as_trained(
        "predictors",
        "K, predictor tokens after a source. Default: as many as the model has, 0 for a model without, whose sources are "
        "read at their last token.",
    )
    predictor_order: Literal["ascending", "descending"] | None = _as_trained(
        "predictor_order", "Order of the predictor tokens."
    )
    same_predictor: bool | None = _as_trained("same_predictor")
    readout_layer: int | None = _as_trained("readout_layer", "Layer of the predictor head's input, and of energies.")


@dataclass
class _Analysis:
    """Which models, on which rows, and what is written where."""

    file: str | None = option(None, "The data file; usually written without --file, in front of the rest.", _MODELS)
    models: list[str] | None = option(
        None, "What stepjepa train has written (adapters and checkpoints too), local folders or Hub ids.", _MODELS
    )
    max_examples: int | None = option(1000, "Read the first so many rows only; none reads all.", _MODELS, at_least=1)
    layers: list[str] | None = option(
        None,
        "Layers whose states are saved: all (the default), or numbers: 0 the embeddings, i after layer i, -1 after the "
        "final norm.",
        _MODELS,
    )
    base_model: str | None = option(
        None, "The model that they were trained from, for comparison: variance and CKA.", _MEASURED
    )
    from_states: str | None = option(
        None, "Folder of an earlier analysis: measure and draw its saved states again, without any model.", _MEASURED
    )
    map_layers: list[int] | None = option(
        None, "Layers at which the linear map and the CKA are computed, which cost most. Default: the last.", _MEASURED
    )
    coordinates: list[Literal["pca", "tsne", "umap"]] | None = option(
        None, "Pictures of both views in one plane. Default: pca. umap needs the extra umap.", _MEASURED
    )
    prediction_horizon: int | None = option(
        None,
        "H: also predict the state behind a step from that h steps before it, h = 1 .. H, by a line, a linear map and an "
        "MLP, whatever the views are. These states are saved with the others.",
        _METHOD,
        at_least=1,
        at_most=100,
    )
    seed: int = option(0, "Seed of the shuffled pairs in the histogram, of t-SNE and UMAP.", _MEASURED, **_SEEDS)
    runs: list[str] | None = option(
        None, "Folders of runs (or checkpoints) whose loss curves are drawn into one figure.", _OUTPUT
    )
    figure_format: Literal["png", "svg"] = option("png", "Kind of the figures.", _OUTPUT)
    output_dir: str | None = option(
        None,
        "Folder for states, numbers and figures. Default: analysis-<data>; with --runs alone analysis-runs.",
        _OUTPUT,
    )
    overwrite_output_dir: bool = option(False, "Replace what an earlier analysis has written there.", _OUTPUT)
    energy: bool = option(
        False, "Energies of solutions instead of states; see stepjepa analyze --energy --help.", _OUTPUT
    )


@dataclass
class AnalyzeOptions(DataOptions, SplitOptions, LLMJEPAOptions, StepJEPAOptions, TargetOptions, _Loading, _Analysis):
    """All options of ``stepjepa analyze``; those of training mean what they mean there."""

    objective: str = option(
        LLMJEPA.name,
        "Which views: user message -> answer (llm_jepa), step -> later step (step_jepa), first part of the tokens -> the "
        "rest (split), or a class of your own.",
        _METHOD,
        choices=tuple(name for name, one in built_in().items() if PredictorOptions in one.reads),
        own=True,
        brings=("objective_options", own_options),
    )
    objective_options: dict[str, Any] | None = option(None, "Options of an objective of your own.", _METHOD)
    last_token: int | None = option(
        None, "Readout by offset from a view's end (-1, -2, ...). Default: found by name.", _METHOD, secret=False
    )
    readout: Literal["last", "mean"] = option("last", "A view's last state, or the mean over its tokens.", _METHOD)

    @property
    def runs_alone(self) -> bool:
        """Whether nothing but loss curves is asked for."""
        return bool(self.runs) and not (self.file or self.models or self.base_model or self.from_states)

    def check(self) -> None:
        """Check the values and what they are together.

        Raises:
            ConfigError: what cannot be used; the message names the option.
        """
        if self.energy:
            raise ConfigError(f"{_NAME.energy} is a form of the command with options of its own; give it as a flag")
        check_fields(self, _Analysis)
        check_fields(self, _Loading)
        if self.layers not in (None, ["all"]) and not all(
            re.fullmatch(r"-?\d+", str(word)) for word in self.layers or ()
        ):
            given = " ".join(map(str, self.layers or ()))
            raise ConfigError(f"--{_NAME.layers} {given}: give all, or numbers such as 0 4 -1")
        if self.from_states and (self.models or self.file):
            raise ConfigError(
                f"--{_NAME.from_states} loads no model and reads no rows; leave the file and --{_NAME.models} out"
            )
        if self.from_states or self.runs_alone:
            return
        example = f"write: stepjepa analyze FILE --{_NAME.models} RUN_A RUN_B"
        if not self.file:
            hint = f"; put it in front of --{_NAME.models}, which takes all that follows"
            raise ConfigError(f"no data file given; {example}{f'{hint} ({self.models[-1]})' if self.models else ''}")
        if not self.models and not self.base_model:
            raise ConfigError(f"--{_NAME.models} is missing; {example}")

    def unread(self, given: Collection[str]) -> list[str]:
        """A line for every option that is given and not read."""
        if not self.from_states and not self.runs_alone:
            return []
        form, read = f"--{_NAME.from_states}", {_MEASURED, _OUTPUT}
        if self.runs_alone:
            form, read = f"--{_NAME.runs} alone", {_OUTPUT}
        idle = [one.name for one in options_of(AnalyzeOptions).values() if one.name in given and one.group not in read]
        return [f"--{name} has no effect with {form}" for name in sorted(idle)]


@dataclass
class EnergyOptions(_Loading):
    """All options of ``stepjepa analyze --energy``."""

    solutions: str | None = option(
        None,
        "The solutions: chats, or predictions of stepjepa evaluate (JSONL, Parquet, CSV or a Hub data set); usually written "
        "without --solutions, in front of the rest.",
        _MODELS,
    )
    model_name: str | None = option(
        None,
        "The model: what stepjepa train has written (checkpoints and adapters too), any local folder, or a Hub id.",
        _MODELS,
    )
    max_examples: int | None = option(None, "Read the first so many rows only.", _MODELS, at_least=1)
    system_prompt: str | None = option(
        AS_TRAINED,
        "System message of every chat; none leaves it out. as_trained is the one that the model was trained with, as its "
        "folder records it, else the file's own.",
        _MODELS,
    )
    attn_implementation: Literal["sdpa", "eager", "flex_attention"] | None = option(
        None, "Attention kernel. Default: the model's own.", _MODELS
    )
    shuffled_targets: int = option(
        256, "Steps of other questions, sampled once, that every prediction is also compared with.", _MODELS, at_least=1
    )
    seed: int = option(42, "Seed of these, and of the sampling.", _MODELS, **_SEEDS)

    best_of: int | None = option(
        None,
        "N: choose one of the first N solutions of each question, by each rule, and report accuracies.",
        _BEST,
        at_least=1,
    )
    questions: str | None = option(
        None, "File of questions whose solutions the model samples first, in place of given solutions.", _BEST
    )
    metric: str | None = option(
        None, f"What is right: one of {', '.join(_RIGHT)}, or module:function.", _BEST, needs={"best_of": True}
    )
    metric_options: dict[str, Any] | None = option(
        None, 'Options of the metric, as in \'{"reference_column": "gold"}\'.', _BEST, needs={"best_of": True}
    )
    temperature: float = option(0.7, "Temperature of the sampling.", _BEST, needs={"questions": True}, above=0)
    top_p: float = option(
        1.0, "Share of the probability mass to sample from.", _BEST, needs={"questions": True}, above=0, at_most=1
    )
    max_new_tokens: int = option(
        512, "Longest sampled solution in tokens.", _BEST, needs={"questions": True}, at_least=1
    )

    jepa_loss: str | None = _as_trained(
        "jepa_loss", "Distance that is the energy. infonce compares cosines, so its energy is that of cosine."
    )
    horizon: int | None = _as_trained("horizon", "Step i predicts step i + horizon.")
    step_splitter: str | None = _as_trained("step_splitter", "How steps are found in a solution.")
    step_separator: str | None = _as_trained("step_separator")
    steps_column: str | None = _as_trained("steps_column")
    last_token: int | None = _as_trained("last_token")
    readout: Literal["last", "mean"] | None = _as_trained("readout")
    max_length: int | None = _as_trained(
        "max_length", "Longest chat in tokens; longer ones are cut on the right and counted."
    )
    source_column: str | None = _as_trained("source_column")
    target_column: str | None = _as_trained("target_column")
    choice_column: str | None = _as_trained("choice_column")
    plain: bool | None = _as_trained("plain")
    chat_template: str | None = _as_trained("chat_template")
    chat_template_kwargs: dict[str, Any] | None = _as_trained("chat_template_kwargs")

    output_file: str | None = option(
        None,
        "File for the energies (.jsonl); <name>.metrics.json and sampled solutions, <name>.samples.jsonl, go next to it. "
        "Default: energies-<data>.jsonl.",
        _OUTPUT,
    )
    overwrite_output_dir: bool = option(False, "Replace what an earlier command has written there.", _OUTPUT)
    json: bool = option(False, "Print the result as one JSON object.", _OUTPUT)

    def check(self) -> None:
        """Check the values and what they are together.

        Raises:
            ConfigError: a value that cannot be used; the message names the option.
        """
        example = f"write: stepjepa analyze --{_NAME.energy} solutions.jsonl --{_NAME.model_name} RUN"
        if not self.solutions and not self.questions:
            raise ConfigError(f"no solutions given; {example}")
        if self.solutions and self.questions:
            raise ConfigError(
                f"--{_NAME.questions} has solutions sampled, and --{_NAME.solutions} gives them; keep one of them"
            )
        if not self.model_name:
            raise ConfigError(f"--{_NAME.model_name} is missing; {example}")
        check_fields(self)
        if self.questions and not self.best_of:
            raise ConfigError(
                f"--{_NAME.questions} needs --{_NAME.best_of} N, the number of solutions to sample of each"
            )
        if self.best_of and not self.metric:
            raise ConfigError(
                f"--{_NAME.best_of} needs --{_NAME.metric}, one of {', '.join(_RIGHT)}, or module:function"
            )
        if self.output_file is not None and Path(self.output_file).suffix != ".jsonl":
            raise ConfigError(f"--{_NAME.output_file} {self.output_file}: the name must end in .jsonl")


_NAME = Names(AnalyzeOptions, EnergyOptions)
# Options of training that say how steps and views are read.
READING = [name for name, one in options_of(EnergyOptions).items() if one.group == _READ]

# The result of the energies

# What each energy is: the mean over the pairs of steps, or over the tokens.
MEANINGS = {
    "energy": "distance of a step's prediction from its own next step, so lower is nearer",
    "shuffled": "the same from steps of other questions",
    "relative": "energy less shuffled, below 0 where the own step is nearer",
    "log_likelihood_mean": "of the solution's tokens, in nats a token",
}
# Rules of best of N, and their names.
RULES = {
    "random": "random (expected)",
    "first": "the first sample",
    "majority": "majority of answers",
    "relative": "lowest relative energy",
    "energy": "lowest energy",
    "shuffled": "lowest shuffled energy (control)",
    "likelihood_mean": "highest likelihood a token",
    "likelihood_sum": "highest likelihood in all",
    "oracle": "oracle (pass@N)",
}
_BEST_WORDS = {"random": "any of the samples", "oracle": "right where one is", "less": "the difference from that rule"}


def best_of_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The result of `energy.best_of` as two tables."""
    mixed = f"{result['mixed']} have right and wrong solutions"
    yield f"best of {result['samples']} on {result['questions']} questions; {mixed}; 95 % intervals, %"
    rules = result["rules"]
    rows = [
        [text, _ends(rules[name]), *(_ends(rules[name].get(f"against_{base}"), "+") for base in ("random", "majority"))]
        for name, text in RULES.items()
    ]
    yield from text_table(["", "accuracy", "less random", "less majority"], rows)
    yield from legend(_BEST_WORDS)
    yield from ("", "right against wrong solutions of the same question: area under the ROC curve (0.5 is chance)")
    rows = [
        [RULES[name], _ends(one, scale=1, digits=3), f"{one['questions']} questions", f"{one['pairs']} pairs"]
        for name, one in result["auroc"].items()
    ]
    yield from text_table(["", "area", "", ""], rows)


def _ends(found: Mapping[str, Any] | None, sign: str = "", scale: int = 100, digits: int = 1) -> str:
    """``61.0 (57.9 to 64.0)``, "-" without a value, nothing where there is no such number."""
    if found is None or found["value"] is None:
        return "" if found is None else "-"
    value, *ends = [
        None if found[end] is None else f"{scale * found[end]:{sign}.{digits}f}" for end in Interval._fields
    ]
    return f"{value} ({ends[0]} to {ends[1]})" if all(ends) else str(value)


def energy_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """What all energies come to, as text."""
    without = f"; {result['without_energy']} without an energy" if result["without_energy"] else ""
    yield f"{'solutions':<14} {result['solutions']}, {result['pairs']} pairs of steps{without}"
    labels = {name: name.removesuffix("_mean").replace("_", "-") for name in MEANINGS}
    shown = {name: one for name, one in result["means"].items() if one["value"] is not None}
    for name, one in shown.items():
        ends = "" if one["low"] is None else f", 95 % interval {one['low']:.5g} to {one['high']:.5g}"
        yield f"{labels[name]:<14} {one['value']:.5g}{ends}"
    if result["nearer_than_shuffled"] is not None:
        nearer = 100 * result["nearer_than_shuffled"]
        yield f"{'':<14} {nearer:.1f} % of predictions nearer to their own next step than to those"
    yield from legend({labels[name]: MEANINGS[name] for name in shown})
    if result["truncated"]:
        yield f"{'cut':<14} {result['truncated']} solutions at {_NAME.max_length}; the rest of them is not scored"
    if "best_of" in result:
        yield from ("", *best_of_lines(result["best_of"]))
        if fewer := result["best_of"]["questions_with_fewer"]:
            yield f"{fewer} questions have fewer solutions and are left out"
        yield ""
