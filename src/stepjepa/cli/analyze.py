"""``stepjepa analyze``: the geometry of both views in one or more models, in numbers and figures."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, make_dataclass
from importlib.util import find_spec
from typing import Any, Literal

from stepjepa.config.option import check_at_least, option, options_of
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.errors import ConfigError
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.failures import explaining

# The options of training that decide which views there are and where they are read.
FED = (
    "objective predictors predictor_order same_predictor step_pairs horizon multi_horizon step_splitter step_separator "
    "steps_column views front_pred reverse_pred last_token split_ratio source_column target_column choice_column plain "
    "max_length system_prompt chat_template chat_template_kwargs strict_data"
).split()
OBJECTIVES: Any = Literal["llm_jepa", "step_jepa", "split"]
_MODELS, _STATES, _OUTPUT = "models", "states", "output"
_DRAWN = {"scipy": "analysis", "sklearn": "analysis", "matplotlib": "analysis"}
# What is read with --from_states, and what with --runs alone; the rest has no effect then.
_WITH_STATES = {"from_states", "base_model", "map_layers", "coordinates", "seed"}
_WITH_RUNS = {"runs", "output_dir", "overwrite_output_dir", "figure_format"}


@dataclass
class AnalysisOptions:
    """Which models, on which rows, and what is written where."""

    file: str | None = option(None, "The data file; usually written without --file, in front of the rest.", _MODELS)
    models: list[str] | None = option(
        None, "What stepjepa train has written (adapters and checkpoints too), local folders or Hub ids.", _MODELS
    )
    base_model: str | None = option(
        None, "The model that they were trained from, to hold them against: variance and CKA.", _MODELS
    )
    from_states: str | None = option(
        None, "Folder of an earlier analysis: measure and draw its saved states anew, without any model.", _MODELS
    )
    runs: list[str] | None = option(
        None, "Folders of runs (or checkpoints) whose loss curves are drawn into one figure.", _MODELS
    )
    dataset_split: str = option("test", "Split of a Hub data set.", _MODELS)
    max_examples: int | None = option(1000, "Read the first so many rows only; none reads all.", _MODELS)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "float32", "Dtype of the weights; states are saved in float32.", _MODELS
    )
    attn_implementation: str | None = option(None, "Attention kernel of transformers, such as sdpa or eager.", _MODELS)
    trust_remote_code: bool = option(False, "Run model code that comes with the weights.", _MODELS)
    batch_size: int = option(16, "Pairs a batch.", _MODELS)
    layers: list[str] | None = option(
        None,
        "Layers whose states are saved: all (the default), or numbers: 0 the embeddings, i behind layer i, -1 behind the "
        "final norm.",
        _STATES,
    )
    map_layers: list[int] | None = option(
        None, "Layers at which the linear map and the CKA are computed, which cost most. Default: the last.", _STATES
    )
    head: bool = option(
        True, "Send sources through the predictor head that was saved beside a model, as training does.", _STATES
    )
    coordinates: list[Literal["pca", "tsne", "umap"]] | None = option(
        None, "Pictures of both views in one plane. Default: pca. umap needs the extra umap.", _OUTPUT
    )
    seed: int = option(0, "Seed of the shuffled pairs in the histogram, and of t-SNE and UMAP.", _OUTPUT)
    figure_format: Literal["png", "svg"] = option("png", "Kind of the figures.", _OUTPUT)
    output_dir: str | None = option(
        None,
        "Folder for states, numbers and figures. Default: analysis-<data>; with --runs alone analysis-runs.",
        _OUTPUT,
    )
    overwrite_output_dir: bool = option(False, "Replace what an earlier analysis has written there.", _OUTPUT)

    @property
    def layer_numbers(self) -> list[int] | None:
        """The layers that are asked for; None for all.

        Raises:
            ConfigError: something else than numbers, or all.
        """
        if self.layers is None or self.layers == ["all"]:
            return None
        try:
            return [int(word) for word in self.layers]
        except ValueError:
            raise ConfigError(f"--layers {' '.join(self.layers)}: give all, or numbers such as 0 4 -1") from None

    def check(self) -> None:
        """Check the values and what they are together.

        Raises:
            ConfigError: what cannot be used; the message names the option.
        """
        check_at_least(self, {"batch_size": 1, "max_examples": 1})
        layers = self.layer_numbers
        for layer in self.map_layers or ():
            if layers is not None and layer not in layers and not self.from_states:
                raise ConfigError(f"--map_layers {layer}: is none of --layers {' '.join(map(str, layers))}")
        for layer in [*(layers or ()), *(self.map_layers or ())]:
            if layer < -1:
                raise ConfigError(f"layer {layer}: layers are 0 (embeddings), 1, 2, ... and -1 (behind the final norm)")
        for name in ("models", "runs"):
            given = getattr(self, name) or []
            twice = next((word for number, word in enumerate(given) if word in given[:number]), None)
            if twice is not None:
                raise ConfigError(f"--{name} {twice}: is given twice")
        if self.from_states and (self.models or self.file):
            raise ConfigError("--from_states loads no model and reads no rows; leave the file and --models out")
        if not self.from_states and not self.runs_alone:
            if not self.file:
                hint = (
                    f"; put it in front of --models, which takes all that follows ({self.models[-1]})"
                    if self.models
                    else ""
                )
                raise ConfigError(f"no data file given; write: stepjepa analyze FILE --models RUN_A RUN_B{hint}")
            if not self.models and not self.base_model:
                raise ConfigError("--models is missing; write: stepjepa analyze FILE --models RUN_A RUN_B")

    @property
    def runs_alone(self) -> bool:
        """Whether nothing but loss curves is asked for."""
        return bool(self.runs) and not (self.file or self.models or self.base_model or self.from_states)


def _fields() -> list[tuple[str, Any, Any]]:
    """Those of training, with its defaults and help texts, but for objectives that have no views and for predictors."""
    own = {
        "objective": (
            OBJECTIVES,
            "Which views: user message -> answer (llm_jepa), step -> later step (step_jepa), first part of the tokens -> "
            "the rest (split).",
        ),
        "predictors": (
            int | None,
            "K, predictor tokens behind a source. Default: as many as a model's folder holds (predictors.safetensors), 0 "
            "for the others, whose sources are read at their last token.",
        ),
    }
    fields = []
    for name in FED:
        hint, field = options_of(JEPAOptions)[name].hint, JEPAOptions.__dataclass_fields__[name]
        if name in own:
            hint, text = own[name]
            field = option(field.default, text, field.metadata["group"])
        fields.append((name, hint, field))
    return fields


AnalyzeOptions: Any = make_dataclass("AnalyzeOptions", _fields(), bases=(AnalysisOptions,))


def run(argv: list[str]) -> int:
    """Analyse; exit status 0, also where there is collapse."""
    parser = StrictParser(
        (AnalyzeOptions,),
        aliases=published(AnalyzeOptions),
        positional=("file",),
        prog="stepjepa analyze FILE --models RUN_A RUN_B",
        description="Where do source and target views lie? Hidden states of both views in one or more models, as training "
        "reads them; matched against shuffled pairs, retrieval, ranks, linear map, by layer and step; signs of collapse. "
        "The options of training mean what they mean for stepjepa train. docs/geometry.md explains the numbers.",
        epilog="example: stepjepa analyze test.jsonl --models runs/regular runs/llm_jepa --objective llm_jepa; "
        "stepjepa analyze --runs runs/regular runs/llm_jepa",
    )
    (options,) = parser.parse(argv)
    options.check()
    for name, extra in _libraries(options).items():
        if find_spec(name) is None:
            raise ConfigError(
                f"this needs {name}, which is not installed; install it with: pip install 'stepjepa[{extra}]'"
            )
    from stepjepa.cli.analyze_work import work

    with explaining("--batch_size or --max_length", "start the same command again"):
        return work(options, parser.explicit, notes(options, parser.explicit))


def notes(options: Any, explicit: Collection[str]) -> list[str]:
    """A line for every option that is given and not read."""
    if options.from_states:
        unread = sorted(set(explicit) - _WITH_STATES - _WITH_RUNS)
        return [f"--{name} has no effect with --from_states" for name in unread]
    if options.runs_alone:
        return [f"--{name} has no effect with --runs alone" for name in sorted(set(explicit) - _WITH_RUNS)]
    return []


def _libraries(options: Any) -> dict[str, str]:
    """Libraries that will be needed, with their extras, so that none is missed after the work."""
    if options.runs_alone:
        return {"matplotlib": "analysis"}
    return {**_DRAWN, **({"umap": "umap"} if "umap" in (options.coordinates or ()) else {})}
