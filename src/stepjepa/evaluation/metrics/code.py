"""`code_execution`: the generated program passes the tests of its row.

A model's programs run on this machine, so the metric is off until it is allowed. Limits of time, memory, files and processes
stop one that never ends or grows; they are no security boundary.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from stepjepa.config.option import Names, option
from stepjepa.data.options import CODE, CodeOptions, listed_columns
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.metrics import FAILED, OPTIONS, Metric, Verdict
from stepjepa.evaluation.predictions import quoted
from stepjepa.generation import text_of
from stepjepa.utils.text import one_line

_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_MEMORY, _FILE = 4 * 2**30, 16 * 2**20  # bytes: address space, and each file that is written
_PROCESSES = 256  # processes and threads besides those that the machine runs
_DONE = 101  # exit status of a program that came to its end; one that calls exit() has another
_DRIVER = f"""
import contextlib, json, resource, runpy, sys
_, limits, name = sys.argv
for limit, value in json.loads(limits).items():
    with contextlib.suppress(OSError, ValueError):  # no such limit here, or a lower one already
        resource.setrlimit(getattr(resource, limit), (value, value))
sys.argv = ["program.py"]
runpy.run_path("program.py", run_name=name)
sys.exit({_DONE})
"""
Run = tuple[str, "str | None"]  # standard input, and the output that is expected; None where the program tests itself


@dataclass(kw_only=True)
class CodeExecution(CodeOptions, Metric):
    """Runs the program in the answer's last fenced block (or the answer) with the row's tests, in a process of its own."""

    time_limit: float = option(10.0, "Seconds for each run of a program.", OPTIONS, above=0)

    name: ClassVar[str] = CODE

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.allow_code_execution:
            raise ConfigError(
                f"the metric {CODE} runs the programs that a model writes on this machine, without a security boundary; "
                f"--{_NAME.allow_code_execution}, or the metric's option of that name, allows it"
            )
        trouble = execute("", "", self.time_limit, True)[0] if os.name == "posix" else "it needs Linux or macOS"
        if trouble:
            raise ConfigError(f"the metric {CODE} cannot run programs here: {trouble}")

    def score(self, generated: str, row: Mapping[str, Any]) -> Verdict:
        """1 where the program passes every test.

        Raises:
            DataError: the row has no tests.
        """
        code, gold = code_of(generated), None
        program, runs = tested_program(code, row)
        with contextlib.suppress(DataError):  # a reference is shown, the tests decide
            gold = code_of(self.reference(row))
        if not code.strip():
            return Verdict(0.0, gold, None, "no program found")
        try:
            note = self._trouble(program, runs)
        except OSError as error:  # no room for a file or a process
            note = f"unknown: {error.strerror}"
        return Verdict(float(not note), gold, code, one_line(note))

    def _trouble(self, program: str, runs: list[Run]) -> str:
        """Why a program is not right; empty where it is."""
        for number, (given, expected) in enumerate(runs, 1):
            trouble, printed = execute(program, given, self.time_limit, tests_itself=expected is None)
            if not trouble and expected is not None and not same_output(printed, expected):
                trouble = f"{FAILED}: it prints {quoted(printed)} instead of {quoted(expected)}"
            if trouble:
                return trouble if expected is None else f"{trouble} (test {number} of {len(runs)})"
        return ""


_NAME = Names(CodeExecution)


def code_of(text: str) -> str:
    """The code in a text: its last fenced block, else all of it."""
    blocks = _FENCE.findall(text)
    return blocks[-1] if blocks else text


def tested_program(code: str, row: Mapping[str, Any]) -> tuple[str, list[Run]]:
    """The code with the tests of its row, and the runs that test it. Raises DataError: the row has no tests."""
    entry, tests = text_of(row.get("entry_point")), _texts(row, "test_list")
    if tests:  # MBPP
        setup = [*_texts(row, "test_imports"), text_of(row.get("test_setup_code"))]
        return "\n".join([*setup, code, *tests]), [("", None)]
    if text_of(row.get("test")).strip() and entry.isidentifier():  # HumanEval
        return "\n".join([_head(row, entry), code, row["test"], f"check({entry})"]), [("", None)]
    groups = [row[name] for name in ("public_tests", "private_tests") if isinstance(row.get(name), Mapping)]
    runs: list[Run] = [run for one in groups for run in zip(_texts(one, "input"), _texts(one, "output"), strict=False)]
    if runs:  # CodeContests
        return code, runs
    needed = "no test_list, test and entry_point, or public_tests"
    raise DataError(f"no tests: {needed} (columns found: {listed_columns(row)})")


def _texts(row: Mapping[str, Any], name: str) -> list[str]:
    values = row.get(name)
    return [one for one in values if isinstance(one, str)] if isinstance(values, (list, tuple)) else []


def _head(row: Mapping[str, Any], entry: str) -> str:
    """The prompt where it is the head of the function: it has the imports, and what an answer of the body alone lacks."""
    prompt = text_of(row.get("prompt"))
    try:
        defined = [node.name for node in ast.parse(prompt).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return prompt if entry in defined else ""


def same_output(printed: str, expected: str) -> bool:
    """Whether two outputs are the same words; one that is expected as a decimal number is compared to 1e-6."""
    words, wanted = printed.split(), expected.split()
    try:
        return len(words) == len(wanted) and all(
            one == other or ("." in other and math.isclose(float(one), float(other), rel_tol=1e-6, abs_tol=1e-6))
            for one, other in zip(words, wanted, strict=True)
        )
    except ValueError:  # no numbers
        return False


def execute(program: str, given: str, seconds: float, tests_itself: bool) -> tuple[str, str]:
    """Run a program on standard input: what went wrong, empty for nothing, and what it has printed. One that tests itself
    is no ``__main__``, and must come to its end."""
    limits = {"RLIMIT_CPU": math.ceil(seconds) + 1, "RLIMIT_AS": _MEMORY, "RLIMIT_FSIZE": _FILE}
    with contextlib.suppress(OSError):  # no Linux; this counts every thread of the machine, the limit those of the user
        limits["RLIMIT_NPROC"] = int(Path("/proc/loadavg").read_text().split("/")[1].split()[0]) + _PROCESSES
    words = ["-I", "-X", "utf8", "-c", _DRIVER, json.dumps(limits), "program" if tests_itself else "__main__"]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        source, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        Path(folder, "program.py").write_bytes(program.encode("utf-8", "replace"))
        source.write(given.encode("utf-8", "replace"))
        source.seek(0)
        process = subprocess.Popen(
            [sys.executable, *words], stdin=source, stdout=out, stderr=err, cwd=folder, env={}, start_new_session=True
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"{FAILED}: not done after {seconds:g} s", ""
        finally:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has started ends with it
            process.wait()
        printed, said = (os.pread(file.fileno(), _FILE, 0).decode("utf-8", "replace") for file in (out, err))
    if status == _DONE or (status == 0 and not tests_itself):
        return "", printed
    lines = said.strip().splitlines() or [f"it exits early, with status {status}"]
    test = next((f" in {line.strip()}" for line in reversed(lines) if line.strip().startswith("assert ")), "")
    return f"{FAILED}: {lines[-1]}{test}", printed
