"""From the options of a run and a data set to examples, without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from stepjepa.data.chat import ChatRenderer, with_template
from stepjepa.data.dataset import ExampleStore, cache_key, load_cached, save_cached
from stepjepa.data.encode import EncodeOptions, encode_dataset
from stepjepa.data.report import DataReport
from stepjepa.data.sources import PairColumns, RowSource
from stepjepa.data.steps import StepRules, StepSplitter, make_splitter, rules_for
from stepjepa.errors import DataError
from stepjepa.objectives.base import find_objective, objective_of
from stepjepa.training.options import JEPAOptions


def encode_options(options: JEPAOptions, positions: int | None = None, rules: StepRules | None = None) -> EncodeOptions:
    """How rows become examples under `options`.

    Args:
        positions: positions that the model has, None for rotary ones.
        rules: how steps are found, where that was settled on a data set; without them ``auto`` takes a row's own steps and
            decides for every other answer by itself.
    """
    objective = objective_of(options)
    return EncodeOptions.of(
        options,
        objective=objective if objective.makes_pairs else None,
        rules=rules or _step_rules((), options, make_splitter("auto", options.step_separator)),
        max_positions=positions,
    )


def settings_for(
    rows: RowSource, options: JEPAOptions, positions: int | None = None, splitter: StepSplitter | None = None
) -> EncodeOptions:
    """How the rows of one data set become examples; with ``step_splitter=auto`` its first rows settle the splitter.

    Args:
        positions: positions that the model has, None for rotary ones.
        splitter: the one that ``auto`` was settled on before, on the data set that this one is read like.
    """
    settings = encode_options(options, positions, _step_rules(rows, options, splitter))
    if positions is None:
        return settings
    inserted = options.predictors or 0 if options.forward == "inline" and options.uses_pairs else 0
    return replace(settings, max_length=min(settings.max_length, positions - inserted))


def _step_rules(
    rows: Iterable[tuple[int, Any]], options: JEPAOptions, splitter: StepSplitter | None = None
) -> StepRules:
    if not find_objective(options.objective).needs_steps:
        splitter = splitter or make_splitter("separator")  # nobody asks for steps
    return rules_for(
        rows, options.step_splitter, options.step_separator, options.steps_column, pair_columns(options), splitter
    )


def pair_columns(options: JEPAOptions) -> PairColumns | None:
    """The columns that hold the views, where the options name them."""
    return options.columns


def chat_tokenizer(tokenizer: Any, options: JEPAOptions) -> Any:
    """The tokenizer with the template that the options ask for, see `data.chat.with_template`."""
    return with_template(tokenizer, options.chat_template, options.plain)


def make_renderer(tokenizer: Any, options: JEPAOptions) -> ChatRenderer | None:
    """The renderer of a run, with the `chat_tokenizer`; None for a tokenizer without a chat template."""
    tokenizer = chat_tokenizer(tokenizer, options)
    if not getattr(tokenizer, "chat_template", None):
        return None
    return ChatRenderer(tokenizer, template_kwargs=options.chat_template_kwargs)


def encode(
    source: Any,
    tokenizer: Any,
    options: JEPAOptions,
    positions: int | None = None,
    split: str = "train",
    splitter: StepSplitter | None = None,
) -> tuple[ExampleStore, DataReport]:
    """Examples of a data set under the options of a run.

    Args:
        positions, splitter: see `settings_for`.

    Raises:
        DataError: nothing that can be trained on, or no pair at all for a JEPA objective.
    """
    rows = source if isinstance(source, RowSource) else RowSource(source, split)
    settings = settings_for(rows, options, positions, splitter)
    tokenizer = chat_tokenizer(tokenizer, options)
    key = cache_key(rows, tokenizer, settings) if options.data_cache else None
    cached = load_cached(options.data_cache or "", key) if key else None
    if cached is not None:
        return cached  # only what has pairs was stored
    renderer = make_renderer(tokenizer, options)
    store, report = encode_dataset(rows, tokenizer, renderer, settings, processes=options.dataset_num_proc)
    if options.uses_pairs and not report.pairs:
        raise without_pairs(options, report, "no example has")
    if key:
        save_cached(options.data_cache or "", key, store, report)
    return store, report


def without_pairs(options: JEPAOptions, report: DataReport, what: str) -> DataError:
    """The error for data of which `what` (``no example has``) a pair."""
    reasons = "; ".join(line.strip() for line in report.lines() if "without a pair" in line)
    if "horizon_beyond_answer" in report.examples_without_pairs:
        horizons = ", ".join(map(str, options.horizons))
        advice = f"no answer has a step that far on: lower the horizon (now {horizons})"
    elif "view_refused" in report.examples_without_pairs:
        advice = "use --views in_context, or a chat template that can write a message alone"
    elif find_objective(options.objective).needs_steps:
        advice = "check --step_splitter and --step_separator, or train with --objective regular"
    else:
        advice = "raise --max_length, or train with --objective regular"
    return DataError(f"{report.source}: {what} a pair for {options.objective} ({reasons}); {advice}")
