"""Applies the mutants of this folder one by one to a copy of the repository and runs the tests that must notice each.

    python tests/mutants/run.py [--only NN ...] [--first N] [--workers W]

A mutant is a small fault that gives a wrong result. It is killed when one of its tests fails, and survives when all pass.
One line a mutant; the exit status is 1 when a mutant survives or cannot be applied, and when a test fails without any.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COPIED = ("src", "tests", "pyproject.toml")
# Loaded once, before the processes of the tests are forked. Never anything of the library itself.
PRELOADED = ("torch", "datasets", "peft", "transformers.trainer", "transformers.models.llama.modeling_llama")
FEW = 5  # mutants up to which loading them does not pay
LIMIT = 600  # seconds for one mutant's tests


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        name: two digits and a short name.
        why: the wrong result that it gives.
        file: path from the repository's root.
        find: text that occurs once in the file.
        replace: the text in its place.
        tests: pytest ids, each of which starts with a path from the repository's root.
    """

    name: str
    why: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]

    def problem(self) -> str | None:
        """Why it cannot be applied or tested; None where it can."""
        path = ROOT / self.file
        count = path.read_text(encoding="utf-8").count(self.find) if path.is_file() else 0
        if count != 1:
            return f"its text occurs {count} times in {self.file}, not once"
        if self.find == self.replace or not self.tests:
            return "it changes nothing" if self.tests else "it names no test"
        missing = [test for test in self.tests if not (ROOT / test.partition("::")[0]).exists()]
        return f"no such file: {missing[0]}" if missing else None

    def apply(self, folder: Path) -> None:
        """Put the fault into the copy in `folder`."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        (folder / self.file).write_text(text.replace(self.find, self.replace), encoding="utf-8")

    def revert(self, folder: Path) -> None:
        """Take the fault out of the copy in `folder`."""
        shutil.copyfile(ROOT / self.file, folder / self.file)


class Result(NamedTuple):
    """What the tests said: pytest's exit status, None when they ran out of time, and the end of their output."""

    status: int | None
    seconds: float
    output: str


def load(folder: Path = HERE) -> list[Mutant]:
    """All mutants of the YAML files in `folder`, by their numbers."""
    entries = [entry for path in sorted(folder.glob("*.yaml")) for entry in yaml.safe_load(path.read_text("utf-8"))]
    mutants = [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    return sorted(mutants, key=lambda mutant: mutant.name)


def copy_tree(folder: Path) -> Path:
    """A copy of what the tests need; returns `folder`."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, folder / name)
    return folder


def run_pytest(folder: Path, log: Path, tests: Sequence[str]) -> None:
    """Run tests on the copy in `folder`, in a process of their own."""
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    sys.path[0] = os.environ["PYTHONPATH"] = str(folder / "src")
    import pytest

    sys.exit(int(pytest.main(["-q", "-p", "no:cacheprovider", *tests])))


class PytestRun:
    """A run of pytest that has been started."""

    def __init__(self, folder: Path, tests: Sequence[str]):
        self.folder, self.began = folder, time.monotonic()
        self.log = folder / "pytest.log"
        self.process = multiprocessing.get_context("fork").Process(target=run_pytest, args=(folder, self.log, tests))
        self.process.start()

    def result(self, limit: float) -> Result | None:
        """What came out; None while it runs. Past `limit` seconds it is killed."""
        seconds = time.monotonic() - self.began
        if self.process.exitcode is None and seconds < limit:
            return None
        status = self.process.exitcode
        if status is None:
            self.process.kill()
        self.process.join()
        return Result(status, seconds, self.log.read_text(errors="replace")[-3000:] if self.log.exists() else "")


def finished(runs: Sequence[PytestRun], limit: float) -> Iterator[tuple[PytestRun, Result]]:
    """The runs that have ended, as soon as there is one."""
    found: list[tuple[PytestRun, Result]] = []
    while not found:
        wait([run.process.sentinel for run in runs], timeout=1)
        found = [(run, result) for run in runs if (result := run.result(limit)) is not None]
    yield from found


def results(mutants: Sequence[Mutant], folders: Sequence[Path]) -> Iterator[tuple[Mutant, Result]]:
    """What the tests say of each mutant, as they end; every folder is a copy that runs one mutant at a time."""
    waiting, free = list(mutants), list(folders)
    running: dict[PytestRun, Mutant] = {}
    while waiting or running:
        while waiting and free:
            mutant, folder = waiting.pop(0), free.pop(0)
            mutant.apply(folder)
            running[PytestRun(folder, ["-x", *mutant.tests])] = mutant
        for run, result in finished(list(running), LIMIT):
            mutant = running.pop(run)
            mutant.revert(run.folder)
            free.append(run.folder)
            yield mutant, result


def outcome(status: int | None) -> str:
    """pytest's exit status in a word or two; only failed tests kill."""
    return {0: "SURVIVED", 1: "killed", None: "OUT OF TIME"}.get(status, f"NOT RUN (pytest's exit status {status})")


def chosen(arguments: argparse.Namespace) -> list[Mutant]:
    """The mutants that are asked for."""
    mutants = load(arguments.folder)
    if arguments.only:
        numbers = {f"{number:02}" for number in arguments.only}
        mutants = [mutant for mutant in mutants if mutant.name[:2] in numbers]
    return mutants[: arguments.first]


def main(words: Sequence[str] | None = None) -> int:
    """See the top of this file; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, nargs="+", metavar="NN", help="the mutants with these numbers")
    parser.add_argument("--first", type=int, metavar="N", help="the first N mutants")
    parser.add_argument("--workers", type=int, default=1, metavar="W", help="mutants that are tested at a time")
    parser.add_argument("--folder", type=Path, default=HERE, help="where the YAML files are")
    arguments = parser.parse_args(words)
    mutants = chosen(arguments)
    problems = [f"{mutant.name}: {problem}" for mutant in mutants if (problem := mutant.problem())]
    if problems or not mutants:
        print("\n".join(problems) or "no mutant of that number")
        return 1
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    shared = os.environ.get("STEPJEPA_SHARED", str(ROOT.parent / "shared"))
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "STEPJEPA_SHARED": shared}
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    for module in PRELOADED if len(mutants) > FEW else ():
        import_module(module)
    assert "stepjepa" not in sys.modules, "each process must load its own copy"
    with tempfile.TemporaryDirectory(prefix="stepjepa-mutants-") as place:
        count = max(1, min(arguments.workers, len(mutants)))
        folders = [copy_tree(Path(place) / str(number)) for number in range(count)]
        tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
        ((_, plain),) = finished([PytestRun(folders[0], tests)], LIMIT * 3)
        if plain.status != 0:
            print(plain.output)
            print("without a mutant: the tests above do not pass")
            return 1
        print(f"without a mutant: {len(tests)} tests or groups of tests pass   {plain.seconds:.1f} s", flush=True)
        killed = 0
        for mutant, result in results(mutants, folders):
            print(f"{mutant.name:<44} {outcome(result.status)}   {result.seconds:.1f} s", flush=True)
            if result.status == 1:
                killed += 1
            else:
                print(f"{result.output}\n    {mutant.file}: {mutant.why}", flush=True)
    print(f"{killed} of {len(mutants)} mutants killed")
    return 0 if killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
