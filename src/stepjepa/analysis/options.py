"""The options and the result of ``stepjepa analyze``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stepjepa.config.option import Names, check_fields, option
from stepjepa.data.options import DataOptions
from stepjepa.errors import ConfigError
from stepjepa.objectives.base import built_in, own_options
from stepjepa.objectives.llm_jepa import LLMJEPA, LLMJEPAOptions
from stepjepa.objectives.options import PredictorOptions, TargetOptions
from stepjepa.objectives.split import SplitOptions
from stepjepa.objectives.step_jepa import StepJEPAOptions

# The headings of the options.
_MODELS, _METHOD, _OUTPUT = "models", "method", "output"


@dataclass(frozen=True)
class AnalysisResult:
    """The result of `analyze`; its ``str`` is the output of the command.

    Attributes:
        record: all numbers, as in the file of numbers.
        files: the figures.
        lines: for the terminal.
    """

    record: dict[str, Any]
    files: tuple[Path, ...]
    lines: tuple[str, ...] = field(repr=False)

    def __str__(self) -> str:
        return "\n".join(self.lines)


@dataclass
class _Analysis:
    """The models, the rows, and the output folder."""

    file: str | None = option(
        None, "The data file; usually written without --file, before the other options.", _MODELS
    )
    models: list[str] | None = option(
        None,
        "Folders of runs, adapters, checkpoints or other models, or Hub ids.",
        _MODELS,
    )
    max_examples: int | None = option(
        1000, "Read only the first N rows; none: all rows.", _MODELS, at_least=1
    )
    layers: list[int] | None = option(
        None,
        "Layers whose states are measured (0: the embeddings, i: after layer i, -1: after the final norm). Default: all.",
        _MODELS,
        at_least=-1,
    )
    dataset_split: str = option("test", "Split of a Hub data set.", _MODELS)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "float32", "Dtype of the weights; states are saved in float32.", _MODELS
    )
    attn_implementation: str | None = option(
        None, "Attention kernel of transformers, such as sdpa or eager.", _MODELS
    )
    trust_remote_code: bool = option(False, "Run model code that comes with the weights.", _MODELS)
    batch_size: int = option(16, "Pairs per batch.", _MODELS, at_least=1)
    predictors: int | None = option(
        None,
        "K, the number of predictor tokens after a source; 0 reads sources at their last token. Default: as many as the "
        "model has.",
        _MODELS,
        at_least=0,
        at_most=100,
    )
    prediction_horizon: int | None = option(
        None,
        "H: also predict the state after a step from the state h steps earlier, for h = 1 .. H, with a line, a linear map "
        "and an MLP. The views do not matter for this.",
        _METHOD,
        at_least=1,
        at_most=100,
    )
    output_dir: str | None = option(
        None, "Folder for states, numbers and figures. Default: analysis-<data>.", _OUTPUT
    )
    overwrite_output_dir: bool = option(
        False, "Replace an earlier analysis in output_dir.", _OUTPUT
    )


@dataclass
class AnalyzeOptions(
    DataOptions, SplitOptions, LLMJEPAOptions, StepJEPAOptions, TargetOptions, _Analysis
):
    """All options of ``stepjepa analyze``. Options of training have the same meaning as in training, and default
    to the values of the models' run."""

    objective: str = option(
        LLMJEPA.name,
        "The views: user message -> answer (llm_jepa), step -> later step (step_jepa), first part of the tokens -> the "
        "rest (split), state before the answer without the steps -> with them (steps_to_answer), or a class of your own. "
        "If not given, the views of the first model that was trained on pairs.",
        _METHOD,
        choices=tuple(
            name for name, objective in built_in().items() if PredictorOptions in objective.reads
        ),
        own=True,
        brings=("objective_options", own_options),
    )
    objective_options: dict[str, Any] | None = option(
        None, "Options of your own objective.", _METHOD
    )
    last_token: int | None = option(
        None,
        "Read a view at this offset from its end (-1: its last token). Default: see stepjepa train.",
        _METHOD,
        secret=False,
    )
    readout: Literal["last", "mean"] = option(
        "last",
        "What represents a view: its last state, or the mean of its tokens' states.",
        _METHOD,
    )

    def check(self) -> None:
        """Check the values, each by itself and in combination.

        Raises:
            ConfigError: a value is invalid; the message names the option.
        """
        check_fields(self, _Analysis)
        if not self.file or not self.models:
            raise ConfigError(
                f"a file and models are needed: stepjepa analyze FILE --{_NAME.models} RUN_A RUN_B; put the file before "
                f"--{_NAME.models}, which takes everything after it"
            )


_NAME = Names(AnalyzeOptions)
