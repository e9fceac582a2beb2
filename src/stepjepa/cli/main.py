"""The entry point `stepjepa COMMAND ...`.

The commands (`stepjepa.cli.commands`) are imported only when one is called, so that `--help`, `--version` and spelling
mistakes answer at once.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import sys
import traceback
from collections.abc import Callable

from stepjepa.config.spellings import LEFT
from stepjepa.config.values import did_you_mean
from stepjepa.errors import ConfigError, StepJepaError
from stepjepa.utils.terminal import only_results, print_error, print_text, stdout_trouble
from stepjepa.version import __version__

# What each command does; its function has its name.
COMMANDS = {
    "train": "fine-tune or pre-train a model, with or without a JEPA objective",
    "demo": "train a small model on built-in data and compare (no network, minutes)",
    "prepare": "turn raw questions and answers into chat rows with steps",
    "check": "read a data file and report what training would do with it",
    "inspect": "show one training row: tokens, views, predictors, who sees whom",
    "study": "arms over paired seeds with controls, at equal examples and compute; a table",
    "generate": "solutions from a stronger model, kept where the answer is right",
    "evaluate": "let a model answer the questions of a file, and score the answers",
    "analyze": "where source and target views are in a model: numbers, figures, collapse",
    "export": "write a checkpoint as a final model: plain, LoRA merged or as an adapter",
    "doctor": "what is exact on this machine, its speed and memory, and the flags to take",
    "report": "one HTML page of runs or a study: settings, curves, accuracy, answers, figures, cost",
}

# What other programs call the same.
WORDS_FOR = {"sft": "train", "finetune": "train", "fine-tune": "train", "pretrain": "train"}

QUIET = "--quiet"

# Of these the user's command is not the cause; the same command may work later.
_SYSTEM_TROUBLES = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


def command() -> int:
    """`main` in a process of its own, whose garbage collector is set for torch and transformers, a million objects."""
    gc.set_threshold(100_000)  # at 700, a quarter of the time in which they start goes into it
    atexit.register(gc.freeze)  # Python's last collection would look through them for a second
    return main()


def main(argv: list[str] | None = None) -> int:
    """Run a command and return the process's exit status: 0 done, 1 a run that broke or the system's trouble, 2 the user's
    mistake, 130 interrupted, 141 where the reader of standard output has gone."""
    argv = list(sys.argv[1:] if argv is None else argv)
    status = 0
    try:
        status = _dispatch(argv)
    except KeyboardInterrupt:
        print_error(f"{_name(argv)}: interrupted")
        status = 130
    except OSError as error:
        trouble = stdout_trouble()
        if trouble is not None:
            return _cannot_print(trouble, argv)
        if isinstance(error, BrokenPipeError):
            raise  # some other pipe, a data worker's for one: that is a failure
        return tell(StepJepaError(_reason(error)), _name(argv), 1 if error.errno in _SYSTEM_TROUBLES else 2)
    trouble = stdout_trouble()  # what is buffered is written here, where it can still be handled
    return status if status or trouble is None else _cannot_print(trouble, argv)


def _reason(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{os.fsdecode(error.filename)}: {reason}"


def _cannot_print(trouble: str, argv: list[str]) -> int:
    if trouble:
        print_error(f"{_name(argv)}: error: {trouble}")
        return 1
    return 141


def _dispatch(argv: list[str]) -> int:
    quiet, argv = QUIET in argv, [word for word in argv if word != QUIET]
    if not argv:
        with contextlib.suppress(OSError):
            print(_help(), file=sys.stderr, flush=True)
        return 2
    command, rest = argv[0], argv[1:]
    if command == "help" and rest:
        command, rest = rest[0], [*rest[1:], "--help"]
    if command in ("-h", "--help", "help"):
        print_text(_help())
        return 0
    if command in ("--version", "version"):
        print_text(f"stepjepa {__version__}")
        return 0
    left = LEFT.get(command.removeprefix("--").replace("-", "_"))
    if left:
        print_error(f"stepjepa: error: {command}: {left}")
        return 2
    if command not in COMMANDS:
        kind = "option" if command.startswith("-") else "command"
        known = [*COMMANDS, "--help", "--version"] if kind == "option" else list(COMMANDS)
        meant = WORDS_FOR.get(command)
        hint = f"; did you mean {meant!r}?" if meant else did_you_mean(command, known)
        print_error(f"stepjepa: error: unknown {kind} {command!r}{hint}")
        print_error(f"Commands: {', '.join(COMMANDS)}. More: stepjepa --help")
        return 2
    try:
        if any(word.startswith(f"{QUIET}=") for word in rest):
            raise ConfigError(f"{QUIET} takes no value")
        from stepjepa.cli import commands

        with only_results(quiet):
            run: Callable[[list[str]], int] = getattr(commands, command)
            return run(rest)
    except StepJepaError as error:
        return tell(error, _name(argv))
    except SystemExit as stop:  # argparse leaves this way after printing a help text
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print_error(str(stop.code))
        return 1


def tell(error: Exception, name: str, status: int | None = None) -> int:
    """Print an error that is being handled, as one line of the command `name`; the exit status, by default its own."""
    if os.environ.get("STEPJEPA_TRACEBACK", "0") not in ("", "0"):
        traceback.print_exc()
    print_error(f"{name}: error: {error}")
    return getattr(error, "status", 2) if status is None else status


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: stepjepa COMMAND [options]",
            "",
            "Train language models with joint-embedding predictive objectives (JEPA).",
            "",
            "commands:",
            *lines,
            "",
            "stepjepa COMMAND --help, or stepjepa help COMMAND, shows a command's options, stepjepa --version the version.",
            f"With {QUIET} a command prints errors and its result only.",
            "STEPJEPA_TRACEBACK=1 in the environment shows where in the code an error arose.",
        ]
    )


def _name(argv: list[str]) -> str:
    return f"stepjepa {argv[0]}" if argv and argv[0] in COMMANDS else "stepjepa"


if __name__ == "__main__":
    sys.exit(main())
