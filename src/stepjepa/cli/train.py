"""``stepjepa train``: fine-tune or pre-train a model on a file of chats."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import Any

from stepjepa.config.option import unread_options
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.config.yaml_file import dump_yaml
from stepjepa.data.files import FILE_SUFFIXES
from stepjepa.errors import ConfigError, StepJepaError
from stepjepa.training.options import JEPAOptions, without_effect
from stepjepa.training.run_options import COMMON, RunOptions, TrainerOptions
from stepjepa.utils.failures import explaining
from stepjepa.utils.terminal import print_text, show_log

_LOOKED_AT = 20  # rows of a file
_LESS_MEMORY = "--per_device_train_batch_size (and raise --gradient_accumulation_steps) or --max_length"
_DESCRIPTION = "Train a causal language model with gamma * LM + lbd * JEPA, or with the LM loss alone."
_EXAMPLE = (
    "example: stepjepa train --train_file data.jsonl --model_name mini --step_jepa --predictors 2 --output_dir run"
)


def run(argv: list[str]) -> int:
    """Parse, train, say where everything is. Exit status 0."""
    if any(word in ("-h", "--help") for word in argv):
        print_text(help_text())
        return 0
    parser, (options, config) = parse(argv)
    from transformers.utils.logging import disable_progress_bar

    from stepjepa.training.announce import conclusion, is_main_process, say
    from stepjepa.training.run import AGAIN, leave_process_group, run_training

    level = logging.DEBUG if options.debug_level >= 5 else logging.INFO if options.debug_level >= 1 else logging.WARNING
    show_log(level)
    disable_progress_bar()  # of loading and writing; training has its own

    def save_options(path: Path, settled: Any) -> None:
        dump_yaml((options, settled), path)

    lines = [*notes(parser.explicit, options, config), *map(str, without_effect(config, parser.explicit))]
    if "objective" not in parser.explicit and is_main_process() and has_steps(options, config):
        lines.append(
            f"the data has steps and no objective is given: this trains {config.objective} with K = {config.predictors}, "
            "whose views are question and answer; --step_jepa trains Step-JEPA, step 1 -> step 2"
        )
    for line in [*lines, *evaluation_unread(options, parser.explicit)]:
        say(f"note   {line}")
    if options.debug_level >= 5 and "logging_steps" not in parser.explicit:
        config.logging_steps = 1
    if options.debug_level >= 7:
        show_first_row(options, config)
    scorer = answer_scorer(options, config)
    with explaining(_LESS_MEMORY, AGAIN):
        trainer, metrics = run_training(options, config, save_options, scorer)
    if trainer is not None:
        conclusion(trainer, options, metrics)
    del trainer  # the wrapped model must go before the process group
    leave_process_group()
    return 0


def evaluation_unread(options: RunOptions, explicit: set[str]) -> list[str]:
    """A line for every option of the data's splits, of the evaluation and of LoRA that the run does not read."""
    plain = RunOptions()
    changed = {name for name in explicit if hasattr(plain, name) and getattr(options, name) != getattr(plain, name)}
    lines = []
    for name, files in (("dataset_split", options.train_file or []), ("eval_split", [options.eval_file])):
        local = [one for one in files if one and Path(one).suffix.lower() in FILE_SUFFIXES and Path(one).is_file()]
        if name in changed and any(files) and len(local) == len(files):
            lines.append(f"--{name} has no effect: the files have no splits")
    return [*lines, *map(str, unread_options(options, changed))]


def notes(explicit: Collection[str], run: RunOptions, options: JEPAOptions) -> list[str]:
    """One line for everything that was given and does not mean what it meant in the published scripts."""
    lines = []
    if run.additive_mask:
        lines.append("--additive_mask: not needed; the packed forward computes the same numbers in one row")
    if options.objective == "llm_jepa" and "last_token" in explicit and "views" not in explicit and options.uses_pairs:
        lines.append("--last_token: views are read in context; the published form is --views standalone")
    if "jepa_ratio" in explicit and not run.additive_mask and options.jepa_ratio < 1:
        lines.append("--jepa_ratio: used as given; the published script ignores it without --additive_mask")
    if options.objective != "regular" and options.lbd == 0 and "lbd" in explicit:
        lines.append("--lbd 0: no pair is made, and the run trains exactly like objective regular")
    return lines


def parse(argv: list[str]) -> tuple[StrictParser, tuple[RunOptions, Any]]:
    """The parser (for what was set explicitly) and the options of a command line.

    Raises:
        ConfigError: anything that cannot be understood or used.
    """
    from stepjepa.training.config import JEPAConfig

    parser = StrictParser(
        (RunOptions, JEPAConfig),
        aliases=published(RunOptions, JEPAConfig),
        prog="stepjepa train",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
    )
    if "--help_all" in argv:
        print_text(parser.format_help().rstrip())
        raise SystemExit(0)
    options, config = parser.parse(argv)
    return parser, (options, config)


def has_steps(options: RunOptions, config: Any) -> bool:
    """Whether the first rows of the training data say that their answers have steps."""
    from stepjepa.data.sources import RowSource
    from stepjepa.data.steps import names_steps

    try:
        sources = [RowSource(name, options.dataset_split, config.streaming) for name in options.train_file or ()]
        return any(names_steps(row, config.steps_column) for rows in sources for _, row in islice(rows, _LOOKED_AT))
    except StepJepaError:  # the run will say it
        return False


def answer_scorer(options: RunOptions, config: Any) -> Any:
    """What scores answers at every evaluation, None where no metric was asked for.

    Raises:
        ConfigError: metrics without a file or a time to evaluate, or unknown ones.
    """
    if not options.eval_metrics:
        return None
    if not options.eval_file:
        raise ConfigError("--eval_metrics answers the questions of a file; give --eval_file")
    from stepjepa.data.sources import RowSource
    from stepjepa.evaluation.while_training import AnswerScorer
    from stepjepa.training.encoding import pair_columns

    return AnswerScorer(
        RowSource(options.eval_file, options.eval_split),
        options.eval_metrics,
        options.eval_samples,
        columns=pair_columns(config),
        max_new_tokens=options.eval_max_new_tokens,
        batch_size=config.per_device_eval_batch_size,
        system_prompt=config.system_prompt,
        chat_template_kwargs=config.chat_template_kwargs,
    )


def inspect_arguments(options: RunOptions, config: Any) -> list[str]:
    """The command line of ``stepjepa inspect`` that shows the first row of a run."""
    from stepjepa.cli import inspect_row

    file = (options.train_file or [""])[0]
    words = [file, "--model_name", options.model_name, "--seed", str(getattr(config, "seed", 42))]
    for field in dataclasses.fields(JEPAOptions):
        value = getattr(config, field.name)
        if field.name in inspect_row.InspectOptions.__dataclass_fields__ and value != field.default:
            several = isinstance(value, list)
            words += [f"--{field.name}", *map(str, value)] if several else [f"--{field.name}={value}"]
    return words


def show_first_row(options: RunOptions, config: Any) -> None:
    """Draw the first row, once over all processes; a row that cannot be drawn is a note."""
    from stepjepa.cli import inspect_row
    from stepjepa.training.announce import is_main_process, say

    if is_main_process():
        try:
            inspect_row.run(inspect_arguments(options, config))
        except StepJepaError as error:
            say(f"note   the first row cannot be shown: {error}")


def help_text() -> str:
    """The method's options and the Trainer's common ones, without loading torch."""
    parser = _shown_parser()
    groups = ["options", "run", "method", "loss", "views", "semantic tube", "data", "lora", "output", COMMON]
    return parser.format_help(groups).rstrip()


def _shown_parser() -> StrictParser:
    return StrictParser(
        (RunOptions, JEPAOptions, TrainerOptions),
        aliases=published(RunOptions, JEPAOptions, TrainerOptions),
        prog="stepjepa train",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
    )
