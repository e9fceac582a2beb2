"""Applies the mutants of this folder one by one to a copy of the repository and runs the tests that must notice each.

    python tests/mutants/run.py [--only NN ...] [--workers W]

A mutant is a small fault that gives a wrong result. It is killed when one of its tests fails, and survives when all pass.
One line a mutant; the exit status is 1 when a mutant survives or cannot be applied, and when a test fails without any.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMIT = 600  # seconds for one mutant's tests


@dataclass(frozen=True)
class Mutant:
    """One fault; README.md says what the fields mean."""

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


def load() -> list[Mutant]:
    """All mutants of the YAML files of this folder, by their numbers."""
    entries = [entry for path in sorted(HERE.glob("*.yaml")) for entry in yaml.safe_load(path.read_text("utf-8"))]
    mutants = [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    return sorted(mutants, key=lambda mutant: mutant.name)


def run_pytest(tests: Sequence[str], limit: float, mutant: Mutant | None = None) -> tuple[str, str]:
    """Run tests on a copy of the repository: what came out and how long it took, and the end of what they printed."""
    with tempfile.TemporaryDirectory(prefix="stepjepa-mutants-") as temporary:
        folder = Path(temporary)
        shutil.copy(ROOT / "pyproject.toml", folder)
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            text = (ROOT / mutant.file).read_text(encoding="utf-8")
            (folder / mutant.file).write_text(text.replace(mutant.find, mutant.replace), encoding="utf-8")
        return run_in(folder, tests, limit)


def run_in(folder: Path, tests: Sequence[str], limit: float) -> tuple[str, str]:
    """Run tests in a folder; only failed tests kill a mutant."""
    begin = time.monotonic()
    shared = os.environ.get("STEPJEPA_SHARED", str(ROOT.parent / "shared"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "STEPJEPA_SHARED": shared}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(folder / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, timeout=limit, **streams)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        return "OUT OF TIME", ""
    other = f"NOT RUN (pytest's exit status {done.returncode})"
    outcome = {0: "SURVIVED", 1: "killed"}.get(done.returncode, other)
    return f"{outcome}   {time.monotonic() - begin:.1f} s", done.stdout[-3000:]


def try_mutant(mutant: Mutant) -> bool:
    """Run a mutant's tests and print a line; whether it was killed."""
    outcome, output = run_pytest(["-x", *mutant.tests], LIMIT, mutant)
    killed = outcome.startswith("killed")
    more = "" if killed else f"\n{output}\n    {mutant.file}: {mutant.why}"
    print(f"{mutant.name:<44} {outcome}{more}", flush=True)
    return killed


def main(words: Sequence[str] | None = None) -> int:
    """See the top of this file; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, nargs="+", metavar="NN", help="the mutants with these numbers")
    parser.add_argument("--workers", type=int, default=1, metavar="W", help="mutants that are tested at a time")
    arguments = parser.parse_args(words)
    numbers = {f"{number:02}" for number in arguments.only or ()}
    mutants = [mutant for mutant in load() if not numbers or mutant.name[:2] in numbers]
    problems = [f"{mutant.name}: {problem}" for mutant in mutants if (problem := mutant.problem())]
    if problems or not mutants:
        print("\n".join(problems) or "no mutant of that number")
        return 1
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    outcome, output = run_pytest(tests, LIMIT * 3)
    if not outcome.startswith("SURVIVED"):
        print(f"{output}\nwithout a mutant: the tests above do not pass")
        return 1
    said = f"{len(tests)} tests or groups of tests pass{outcome.removeprefix('SURVIVED')}"
    print(f"without a mutant: {said}", flush=True)
    with ThreadPoolExecutor(arguments.workers) as pool:
        killed = sum(pool.map(try_mutant, mutants))
    print(f"{killed} of {len(mutants)} mutants killed")
    return 0 if killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
