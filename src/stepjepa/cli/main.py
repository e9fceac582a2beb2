"""The entry point `stepjepa COMMAND ...`: dispatch, options, output and exit status.

Options are imported when their command is called, so that `--help` and `--version` are answered at once. Only `train` loads
torch to read its options, unless it prints its short help.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from operator import attrgetter, methodcaller
from pkgutil import resolve_name
from typing import Any, NamedTuple

from stepjepa import api
from stepjepa.config.option import Names, options_of
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import LEFT, checked_options, published
from stepjepa.config.values import did_you_mean
from stepjepa.errors import ConfigError, RunError, StepJepaError
from stepjepa.utils.terminal import (
    ending,
    is_main_process,
    only_results,
    print_drawn,
    print_error,
    print_json,
    print_text,
    show_log,
    stdout_trouble,
)
from stepjepa.version import __version__


class Command(NamedTuple):
    """A subcommand; it calls the function of the same name in `stepjepa.api`.

    Attributes:
        summary: a line for the list of commands.
        options: module and class of its options.
        help: usage, what it does, and an example, in paragraphs.
        positional: returns, of the names of all options, those that positional words fill, in this order.
        required: whether all positional options must be given.
        kept: what is kept when the command is interrupted, for commands that resume.
        record: converts the result to plain values for ``--json``.
    """

    summary: str
    options: str
    help: str
    positional: Callable[[Names], tuple[str, ...]] = lambda option: (option.file,)
    required: bool = False
    kept: str = ""
    record: Callable[[Any], object] = asdict


COMMANDS: dict[str, Command] = {}


# The docstrings of the functions below are the commands' help texts; `run` does the work of all commands, and
# `stepjepa --help` lists them in this order.
def _command(summary: str, options: str, **attributes: Any) -> Callable[[Callable[[], None]], None]:
    """Add a command under the name of a function, whose docstring is its help."""

    def add(described: Callable[[], None]) -> None:
        COMMANDS[described.__name__] = Command(
            summary, options, described.__doc__ or "", **attributes
        )

    return add


@_command(
    "fine-tune or pre-train a model, with or without a JEPA objective",
    "training.options:RunOptions",
    positional=lambda option: (option.train_file,),
)
def train() -> None:
    """stepjepa train FILE

    Train a causal language model with gamma * LM + lbd * JEPA, or with the LM loss alone.

    example: stepjepa train data.jsonl --model_name mini --step_jepa --predictors 2 --output_dir run
    """


@_command(
    "train and compare small models on built-in data (no network, takes minutes)",
    "study.spec:DemoOptions",
    positional=lambda option: (),
)
def demo() -> None:
    """stepjepa demo

    Train a small model with and without the JEPA objective on a built-in task, and compare them: a study that ends
    with a report.

    example: stepjepa demo --output_dir runs/demo --seed 1
    """


@_command(
    "turn raw questions and answers into chat rows with steps",
    "data.options:PrepareOptions",
    required=True,
)
def prepare() -> None:
    """stepjepa prepare INPUT

    Turn raw questions and answers (GSM8K, generated responses, any columns) into chat rows with steps, which
    stepjepa train reads.

    example: stepjepa prepare gsm8k_train.jsonl --output_file train.jsonl --valid_ratio 0.05
    """


@_command(
    "read a data file and report what training would do with it",
    "inspect.check:CheckOptions",
    required=True,
    record=methodcaller("to_dict"),
)
def check() -> None:
    """stepjepa check FILE

    Check the roles, texts and steps in a data file, and list unusable rows and warnings. With --model_name, also report
    what a model will see of it: pairs, lengths, truncation.

    example: stepjepa check train.jsonl --model_name mini --step_jepa --eval_file test.jsonl
    """


@_command(
    "show one training row: tokens, views, predictors, who sees whom",
    "inspect.view:InspectOptions",
    required=True,
)
def inspect() -> None:
    """stepjepa inspect FILE

    Show one row as the model sees it in training: tokens, views, predictors, and who sees whom. Training options
    mean the same as in stepjepa train.

    example: stepjepa inspect train.jsonl --row 3 --step_jepa --step_pairs all --predictors 2
    """


@_command(
    "train and compare arms over paired seeds, with controls and at equal compute",
    "study.spec:StudyOptions",
    kept="completed stages are kept",
)
def study() -> None:
    """stepjepa study FILE

    Train the arms of a study over paired seeds, with shuffled and random targets as controls, at equal examples and at
    equal compute; choose hyper-parameters on the validation split, score the test split once, and report which
    differences are statistically supported. A study that is started again resumes where it stopped.

    example: stepjepa study study.yaml --jobs 2; docs/study.md describes the file
    """


@_command(
    "let a model solve the questions in a file, and keep the right solutions",
    "generation.options:GenerateOptions",
    kept="completed work is kept",
)
def generate() -> None:
    """stepjepa generate FILE

    Let a model solve the questions in a file, and keep the responses whose final answer is right. Unsolved
    questions are asked again, up to --attempts times in total.

    example: stepjepa generate train.jsonl --model_name Qwen/Qwen2.5-7B-Instruct --output_file solved.jsonl
    """


@_command(
    "let a model answer the questions in a file, and score the answers",
    "evaluation.options:EvaluateOptions",
    positional=lambda option: (option.model_name, option.test_file),
    kept="completed work is kept",
    record=attrgetter("record"),
)
def evaluate() -> None:
    """stepjepa evaluate RUN TEST_FILE

    Let a model answer the questions in a file, and score the answers. After an interruption, the same command resumes.
    With --analyze, analyze the predictions of one evaluation, or compare those of two.

    example: stepjepa evaluate runs/a test.jsonl --metric gsm8k; then stepjepa evaluate --analyze
    runs/a/evaluation-test/predictions.jsonl
    """


@_command(
    "measure the geometry of source and target views: numbers, figures, collapse",
    "analysis.options:AnalyzeOptions",
)
def analyze() -> None:
    """stepjepa analyze FILE --models RUN_A RUN_B

    Compare the hidden states of source and target views in one or more models, as training reads them: matched against
    shuffled pairs, retrieval and ranks by layer and step, and signs of collapse. Training options mean the same as in
    stepjepa train. docs/geometry.md explains the numbers.

    example: stepjepa analyze test.jsonl --models runs/regular runs/llm_jepa --objective llm_jepa
    """


@_command(
    "write a checkpoint as a final model: plain, LoRA merged or as an adapter",
    "modeling.options:ExportOptions",
    positional=lambda option: (option.checkpoint, option.output_dir),
    required=True,
)
def export() -> None:
    """stepjepa export CHECKPOINT OUT

    Write a checkpoint as the final model of its run: plain Hugging Face form, original vocabulary and tokenizer,
    LoRA merged or as an adapter, the predictors in predictors.safetensors next to it.

    example: stepjepa export runs/step_jepa/checkpoint-500 exported --merge_lora true
    """


@_command(
    "measure exactness, speed and memory on this machine, and suggest flags",
    "training.options:DoctorOptions",
    positional=lambda option: (),
)
def doctor() -> None:
    """stepjepa doctor

    Show what this machine can do: versions and devices, the time and memory of a training step with every attention
    implementation and dtype, and the flags to use. Run it first, and add its output to bug reports. No files are kept.

    example: stepjepa doctor --model_name mini --data train.jsonl
    """


@_command(
    "write one HTML page on runs or a study: accuracy, curves, answers, settings, cost",
    "report.run:ReportOptions",
    positional=lambda option: (option.folders,),
)
def report() -> None:
    """stepjepa report RUN_OR_STUDY [RUN ...]

    Write one HTML page that needs no network: accuracies with paired differences, the curves of both losses, signs of
    collapse, answers side by side, the settings that differ, the tables of a study. Several runs are compared side by
    side.

    example: stepjepa report runs/regular runs/step_jepa --output_file report.html
    """


QUIET = "--quiet"
# The short help of a command with more options than this shows only the first ones.
_MANY_OPTIONS = 40


def command() -> int:
    """Run `main` as the whole process, with the garbage collector tuned for the million objects that torch and transformers
    create."""
    # With Python's default threshold of 700, garbage collections take a quarter of the import time of these libraries.
    gc.set_threshold(100_000)
    # Without this, the collection at exit would take a second to visit all modules.
    atexit.register(gc.freeze)
    return main()


def main(argv: list[str] | None = None) -> int:
    """Run a command and return the exit status: 0 for success, 1 for a failed run or a system problem, 2 for a user
    mistake, 130 after an interruption, 141 if the reader of standard output has closed it."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(argv)
    except KeyboardInterrupt:
        print_error(f"{_name(argv)}: interrupted")
        status = 130
    except OSError as error:
        trouble = stdout_trouble()
        if trouble is not None:
            return _cannot_print(trouble, argv)
        # A broken pipe elsewhere, such as a data worker's, is a failure.
        if isinstance(error, BrokenPipeError):
            raise
        reason = error.strerror or str(error) or type(error).__name__
        if error.filename is not None:
            reason = f"{os.fsdecode(error.filename)}: {reason}"
        return tell(RunError(reason), _name(argv))
    # Flush standard output while its errors can still be handled; Python's flush at exit would print a traceback.
    trouble = stdout_trouble()
    return status if status or trouble is None else _cannot_print(trouble, argv)


def _cannot_print(trouble: str, argv: list[str]) -> int:
    """The exit status after a problem with standard output, which is printed unless the reader has gone (``| head``)."""
    if trouble:
        print_error(f"{_name(argv)}: error: {trouble}")
        return 1
    # The status that shells report for a process that SIGPIPE ended: 128 + 13.
    return 141


def _dispatch(argv: list[str]) -> int:
    quiet, argv = QUIET in argv, [word for word in argv if word != QUIET]
    if not argv:
        # If standard error is closed, there is no other place for a message.
        with contextlib.suppress(OSError):
            print(_help(), file=sys.stderr, flush=True)
        return 2
    command, rest = argv[0], argv[1:]
    if command in ("-h", "--help"):
        print_text(_help())
        return 0
    if command == "--version":
        print_text(f"stepjepa {__version__}")
        return 0
    removed = LEFT.get(command.removeprefix("--").replace("-", "_"))
    if removed:
        print_error(f"stepjepa: error: {command}: {removed}")
        return 2
    if command not in COMMANDS:
        hint = did_you_mean(command, [*COMMANDS, "--help", "--version"])
        print_error(f"stepjepa: error: unknown command {command!r}{hint}")
        print_error(f"Commands: {', '.join(COMMANDS)}. More: stepjepa --help")
        return 2
    try:
        with only_results(quiet):
            return run(command, rest)
    except StepJepaError as error:
        return tell(error, _name(argv))
    # Raised as `HelpShown`, and by libraries that exit the process with a message.
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print_error(str(stop.code))
        return 1


def run(name: str, argv: list[str]) -> int:
    """Run a command with the words after its name; returns the exit status."""
    # Training has two dataclasses of options, one of which loads torch.
    if name == "train":
        return _train(argv)
    command = COMMANDS[name]
    options = resolve_name(f"stepjepa.{command.options}")
    parser = _parser(name, _first_options(name, options), options)
    values = parser.values(argv)
    # --json concerns only printing; the functions in `api` have no such option.
    as_json = values.pop("json", False)
    if command.required and not all(values.get(option) for option in parser.positional):
        raise ConfigError(f"an argument is missing; write: {parser.prog}")
    if name == "evaluate" and "analyze" in values:
        return _compare(options, values, as_json)

    with ending(name, command.kept) if command.kept else contextlib.nullcontext():
        result = _result(name, options, values)
    if as_json:
        print_json(command.record(result))
    else:
        print_drawn(str(result)) if name in ("check", "inspect") else print_text(str(result))
    # A study continues after a failed arm and has a result, but the exit status must show the failure.
    return 1 if name == "study" and result.failed else 0


def _compare(options: Any, values: dict[str, Any], as_json: bool) -> int:
    """Analyze or compare predictions: ``evaluate --analyze``."""
    checked = checked_options(options, values)
    metric = checked.metric[0] if checked.metric else None
    comparison = api.compare(*checked.analyze, show=checked.show, metric=metric)
    if as_json:
        print_json(comparison.record())
    else:
        print_text("\n".join([*checked.notes(), str(comparison)]))
    return 0


def _result(name: str, options: Any, values: dict[str, Any]) -> Any:
    """Call the command's function."""
    function = getattr(api, name)
    # These two functions also accept the data and the tokenizer as objects, so both are positional arguments.
    if name in ("check", "inspect"):
        option = Names(options)
        data, tokenizer = values.pop(option.file), values.pop(option.model_name, options.model_name)
        return function(data, tokenizer, **values)
    if name == "export":
        from transformers.utils.logging import disable_progress_bar

        from stepjepa.analysis.run import quiet

        disable_progress_bar()
        with quiet():
            return function(**values)
    return function(**values)


def _train(argv: list[str]) -> int:
    from stepjepa.training.options import FIRST, JEPAOptions, RunOptions, TrainerOptions

    if {"-h", "--help"} & set(argv) and "--help_all" not in argv:
        # This prints the help and exits, before torch is loaded, which takes seconds.
        _parser("train", FIRST, RunOptions, JEPAOptions, TrainerOptions).values(argv)
    from stepjepa.training.config import JEPAConfig

    options = _parser("train", FIRST, RunOptions, JEPAConfig).values(argv)
    from transformers.utils.logging import disable_progress_bar

    from stepjepa.training.run import leave_process_group

    # The loaded modules live until the end, so no garbage collection during training needs to visit them.
    if not gc.get_freeze_count():
        gc.freeze()
    debug = options.get(Names(RunOptions).debug_level, 0)
    show_log(logging.DEBUG if debug >= 5 else logging.INFO if debug >= 1 else logging.WARNING)
    # The progress bars for loading and writing weights; training shows its own.
    disable_progress_bar()
    result = api.train(**options)
    if is_main_process():
        print_text(str(result))
    # DDP's reducer must not be the last owner of the process group, or the exit hangs; see `leave_process_group`.
    del result
    leave_process_group()
    return 0


def _parser(name: str, first: dict[str, tuple[str, ...]], *options: type) -> StrictParser:
    """The parser of a command with the options of some dataclasses; `first` is what its short help shows."""
    command = COMMANDS[name]
    return StrictParser(
        options,
        command.help,
        aliases=published(*options),
        positional=command.positional(Names(*options)),
        first=first,
    )


def _first_options(name: str, options: type) -> dict[str, tuple[str, ...]]:
    """The options in the short help of a command with many: its own, and the most used ones of training; else {}."""
    known = options_of(options)
    if len(known) <= _MANY_OPTIONS:
        return {}
    from stepjepa.training.options import FIRST, JEPAOptions

    of_training = options_of(JEPAOptions)
    return {name: tuple(option for option in known if option not in of_training), **FIRST}


def tell(error: StepJepaError, name: str) -> int:
    """Print the error as one line that begins with `name`, after the traceback if that is wanted; return its status."""
    if os.environ.get("STEPJEPA_TRACEBACK", "0") not in ("", "0"):
        traceback.print_exc()
    print_error(f"{name}: error: {error}")
    return error.status


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: stepjepa COMMAND [options]",
            "",
            "Train language models with joint-embedding predictive objectives (JEPA).",
            "",
            "commands:",
            *lines,
            "",
            "stepjepa COMMAND --help shows a command's options; stepjepa --version shows the version.",
            f"With {QUIET}, a command prints only errors and its result.",
            "Set STEPJEPA_TRACEBACK=1 in the environment to see the traceback of an error.",
        ]
    )


def _name(argv: list[str]) -> str:
    return f"stepjepa {argv[0]}" if argv and argv[0] in COMMANDS else "stepjepa"


if __name__ == "__main__":
    sys.exit(main())
