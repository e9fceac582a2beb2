"""``stepjepa score``: the JEPA energy of each step of solutions, and whether it chooses the right one of several."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, Literal

from stepjepa.config.option import check_at_least, option, options_of
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics.registry import METRICS
from stepjepa.evaluation.options import AS_TRAINED
from stepjepa.training.options import JEPAOptions

# Options of training that say how steps and views are read. Those that are not given are as the run had them.
TAKEN = (
    "predictors predictor_order same_predictor jepa_loss horizon step_splitter step_separator steps_column last_token "
    "max_length source_column target_column choice_column plain chat_template chat_template_kwargs"
).split()
_SCORE, _BEST, _READ, _OUTPUT = "score", "best of N", "reading (default: as the model's run had it)", "output"
_HELP = {
    "predictors": "K, predictor tokens behind a source. Default: as many as the run had, 0 for a model from elsewhere.",
    "predictor_order": "Order of the predictor tokens.",
    "horizon": "Step i predicts step i + horizon.",
    "jepa_loss": "Distance that is the energy. infonce compares cosines, so its energy is that of cosine.",
    "step_splitter": "How steps are found in a solution.",
    "max_length": "Longest chat in tokens; longer ones are cut on the right and counted.",
}
_RIGHT = [name for name in METRICS if name not in ("rouge", "bleu")]  # those that say right or wrong
_SAMPLING = ("temperature", "top_p", "max_new_tokens")


@dataclass
class Scoring:
    """Which solutions are scored with which model, and where the energies go."""

    solutions: str | None = option(
        None,
        "The solutions: chats, or predictions of stepjepa evaluate (JSONL, Parquet, CSV or a Hub data set); usually written "
        "without --solutions, in front of the rest.",
        _SCORE,
    )
    model_name: str | None = option(
        None,
        "The model: what stepjepa train has written (checkpoints and adapters too), any local folder, or a Hub id.",
        _SCORE,
    )
    dataset_split: str = option("test", "Split of a Hub data set.", _SCORE)
    max_examples: int | None = option(None, "Read the first so many rows only.", _SCORE)
    system_prompt: str | None = option(
        AS_TRAINED,
        "System message of every chat; none leaves it out. as_trained is the one that the model was trained with, as its "
        "folder records it, else the file's own.",
        _SCORE,
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("float32", "Dtype of the weights.", _SCORE)
    attn_implementation: Literal["sdpa", "eager", "flex_attention"] | None = option(
        None, "Attention kernel. Default: the model's own.", _SCORE
    )
    trust_remote_code: bool = option(False, "Run model code that comes with the weights.", _SCORE)
    batch_size: int = option(16, "Solutions a batch.", _SCORE)
    head: bool = option(
        True, "Send sources through the predictor head that was saved beside a model, as training does.", _SCORE
    )
    shuffled_targets: int = option(
        256, "Steps of other questions, drawn once, that every prediction is also compared with.", _SCORE
    )
    seed: int = option(42, "Seed of these, and of the sampling.", _SCORE)

    best_of: int | None = option(
        None, "N: choose one of the first N solutions of each question, by each rule, and report accuracies.", _BEST
    )
    questions: str | None = option(
        None, "File of questions whose solutions the model samples first, in place of given solutions.", _BEST
    )
    metric: str | None = option(None, f"What is right: one of {', '.join(_RIGHT)}, or module:function.", _BEST)
    metric_options: dict[str, Any] | None = option(
        None, 'Options of the metric, as in \'{"reference_column": "gold"}\'.', _BEST
    )
    temperature: float = option(0.7, "Temperature of the sampling.", _BEST)
    top_p: float = option(1.0, "Share of the probability mass to sample from.", _BEST)
    max_new_tokens: int = option(512, "Longest sampled solution in tokens.", _BEST)

    output_file: str | None = option(
        None,
        "File for the energies (.jsonl); <name>.metrics.json and sampled solutions, <name>.samples.jsonl, go beside it. "
        "Default: energies-<data>.jsonl.",
        _OUTPUT,
    )
    overwrite_output_dir: bool = option(False, "Replace what an earlier scoring has written there.", _OUTPUT)
    json: bool = option(False, "Print the result as one JSON object.", _OUTPUT)

    @property
    def file(self) -> str:
        """The file that is read."""
        return str(self.solutions or self.questions)

    def check(self) -> None:
        """Check the values and what they are together.

        Raises:
            ConfigError: a value that cannot be used; the message names the option.
        """
        example = "stepjepa score solutions.jsonl --model_name RUN"
        if not self.solutions and not self.questions:
            raise ConfigError(f"no solutions given; write: {example}")
        if self.solutions and self.questions:
            raise ConfigError("--questions has solutions sampled, and --solutions gives them; keep one of them")
        if not self.model_name:
            raise ConfigError(f"--model_name is missing; write: {example}")
        least = {"batch_size": 1, "max_examples": 1, "shuffled_targets": 1, "best_of": 1, "max_new_tokens": 1}
        check_at_least(self, {**least, "temperature": 0})
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.questions and not self.best_of:
            raise ConfigError("--questions needs --best_of N, the number of solutions to sample of each")
        if self.questions and self.temperature == 0:
            raise ConfigError("--temperature 0 gives N times the same solution; sampling needs one above 0")
        if self.best_of and not self.metric:
            raise ConfigError(f"--best_of needs --metric, one of {', '.join(_RIGHT)}, or module:function")
        if self.output_file is not None and Path(self.output_file).suffix != ".jsonl":
            raise ConfigError(f"--output_file {self.output_file}: the name must end in .jsonl")


def _fields() -> list[tuple[str, Any, Any]]:
    """Options of training with its types and help texts; None where the run decides."""
    own = options_of(JEPAOptions)
    text = {name: _HELP.get(name, own[name].help) for name in TAKEN}
    return [
        (name, own[name].hint | None, field(default=None, metadata={"help": text[name], "group": _READ}))
        for name in TAKEN
    ]


ScoreOptions: Any = make_dataclass("ScoreOptions", _fields(), bases=(Scoring,))


def run(argv: list[str]) -> int:
    """Score; exit status 0."""
    parser = StrictParser(
        (ScoreOptions,),
        aliases=published(ScoreOptions, but={"model_path": "model_name"}),
        positional=("solutions",),
        prog="stepjepa score SOLUTIONS --model_name RUN",
        description="The JEPA energy of each step of given solutions: how badly the prediction at step i fits step i + 1, "
        "beside the same for steps of other questions; a JSON line for each solution. With --best_of N, choose one of N "
        "solutions by energy, by likelihood and by majority, and report the accuracy of each. docs/score.md says what came "
        "of that.",
        epilog="example: stepjepa score solutions.jsonl --model_name runs/a --output_file energies.jsonl; "
        "stepjepa score --questions test.jsonl --model_name runs/a --best_of 8 --metric gsm8k",
    )
    (options,) = parser.parse(argv)
    options.check()
    from stepjepa.cli.score_work import work

    return work(options, [f"--{name} has no effect {why}" for name, why in _unread(options, parser.explicit)])


def _unread(options: Any, explicit: Any) -> list[tuple[str, str]]:
    unread = [(name, "without --questions") for name in _SAMPLING if name in explicit and not options.questions]
    scored = ("metric", "metric_options")
    return unread + [(name, "without --best_of") for name in scored if name in explicit and not options.best_of]
