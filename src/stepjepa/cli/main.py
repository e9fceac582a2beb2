"""The entry point `stepjepa COMMAND ...`.

A command's module is imported only when the command is called, so that `--help`, `--version` and spelling
mistakes answer at once. Each module has a function `run(argv: list[str]) -> int`, which gives the exit
status.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import sys
import traceback

from stepjepa import __version__
from stepjepa.cli.values import nearest
from stepjepa.errors import StepJepaError

# name -> (module, what it does)
COMMANDS = {
    "train": ("stepjepa.cli.train", "fine-tune or pre-train a model, with or without a JEPA objective"),
    "demo": ("stepjepa.cli.demo", "train a small model on built-in data and compare (no network, minutes)"),
    "prepare": ("stepjepa.cli.prepare", "turn raw questions and answers into chat rows with steps"),
    "check": ("stepjepa.cli.check", "read a data file and report what training would do with it"),
    "inspect": (
        "stepjepa.cli.inspect_row",
        "show one training row: tokens, views, predictors, who sees whom",
    ),
    "study": ("stepjepa.cli.study", "arms over paired seeds with controls, at equal examples and compute; a table"),
    "generate": ("stepjepa.cli.generate", "solutions from a teacher model, kept where the answer is right"),
    "evaluate": ("stepjepa.cli.evaluate", "let a model answer the questions of a file, and score the answers"),
    "score": (
        "stepjepa.cli.score",
        "how well each step of a solution was predicted, and whether that chooses the right one of several",
    ),
    "analyze": (
        "stepjepa.cli.analyze",
        "where source and target views lie in a model: numbers, figures, signs of collapse",
    ),
    "export": ("stepjepa.cli.export", "write a checkpoint as a final model: plain, LoRA merged or as an adapter"),
    "report": (
        "stepjepa.cli.report",
        "one HTML page of runs or a study: settings, curves, accuracy, answers, figures, cost",
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run a command and return the process's exit status: 0 done, 1 a run that broke, 2 the user's mistake,
    130 interrupted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(argv)
        sys.stdout.flush()  # here, where a closed pipe can still be handled
        return status
    except BrokenPipeError:
        if not _stdout_closed():
            raise  # some other pipe, a data worker's for one: that is a failure
        return 141
    except KeyboardInterrupt:
        print(f"{_name(argv)}: interrupted", file=sys.stderr)
        return 130


def _dispatch(argv: list[str]) -> int:
    if not argv:
        print(_help(), file=sys.stderr)
        return 2
    command, rest = argv[0], argv[1:]
    if command in ("-h", "--help"):
        print(_help())
        return 0
    if command == "--version":
        print(f"stepjepa {__version__}")
        return 0
    if command not in COMMANDS:
        kind = "option" if command.startswith("-") else "command"
        known = [*COMMANDS, "--help", "--version"] if kind == "option" else list(COMMANDS)
        print(
            f"stepjepa: error: unknown {kind} {command!r}; did you mean {nearest(command, known)!r}?",
            file=sys.stderr,
        )
        print(f"Commands: {', '.join(COMMANDS)}. More: stepjepa --help", file=sys.stderr)
        return 2
    try:
        return importlib.import_module(COMMANDS[command][0]).run(rest)
    except StepJepaError as error:
        return tell(error, _name(argv))
    except SystemExit as stop:  # argparse leaves this way after printing a help text
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1


def tell(error: StepJepaError, name: str) -> int:
    """Print an error that is being handled, as a line of the command `name`; its exit status."""
    if os.environ.get("STEPJEPA_TRACEBACK", "0") not in ("", "0"):
        traceback.print_exc()
    print(f"{name}: error: {error}", file=sys.stderr)
    return error.status


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: stepjepa COMMAND [options]",
            "",
            "Train language models with joint-embedding predictive objectives (JEPA).",
            "",
            "commands:",
            *lines,
            "",
            "stepjepa COMMAND --help shows a command's options, stepjepa --version the version.",
            "STEPJEPA_TRACEBACK=1 in the environment shows where in the code an error arose.",
        ]
    )


def _name(argv: list[str]) -> str:
    return f"stepjepa {argv[0]}" if argv and argv[0] in COMMANDS else "stepjepa"


def _stdout_closed() -> bool:
    """Whether the reader of standard output has gone; if so, what is still buffered is thrown away."""
    try:
        sys.stdout.flush()
        closed = False
        with contextlib.suppress(OSError, ValueError, AttributeError):  # no descriptor, or a system without poll
            poll = select.poll()
            poll.register(sys.stdout.fileno(), 0)
            closed = any(event & select.POLLERR for _, event in poll.poll(0))
    except BrokenPipeError:
        closed = True
    if closed:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return closed


if __name__ == "__main__":
    sys.exit(main())
