"""Programs that pass the tests of their rows, and programs that must not do any harm."""

import os
import time
from pathlib import Path

import pytest

from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.compare import error_kind
from stepjepa.evaluation.metrics import make_metric
from stepjepa.evaluation.predictions import Prediction, pass_at_k

MBPP = {
    "text": "Write a function that adds one.",
    "code": "def f(x):\n    return x + 1",
    "test_setup_code": "limit = 3",
    "test_list": ["assert f(1) == 2", "assert f(limit) == 4"],
}
HUMAN_EVAL = {
    "prompt": 'from typing import List\n\n\ndef add(a: int, b: int) -> int:\n    """The sum."""\n',
    "canonical_solution": "    return a + b\n",
    "test": "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate(1, 2) == 3\n",
    "entry_point": "add",
}
CONTEST = {
    "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
    "private_tests": {"input": ["4 5\n", "1 1"], "output": ["9", "2.0 \n"]},
}
RIGHT, SUM = MBPP["code"], "print(sum(map(int, input().split())))"


@pytest.fixture(scope="module")
def metric():
    return make_metric("code_execution", allow_code_execution=True, time_limit=5)


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        (MBPP, f"Here it is:\n```\nold\n```\nBetter:\n```python\n{RIGHT}\n```\nIt adds one."),
        (MBPP, f"```python\n{RIGHT}\n\nif __name__ == '__main__':\n    input()"),  # cut off, and no main program
        ({**MBPP, "test_imports": ["import math"]}, f"{RIGHT} * math.copysign(1, 1)"),
        (HUMAN_EVAL, "    return a + b\n"),
        (HUMAN_EVAL, "```python\ndef add(a: List, b):\n    return a + b\n```"),
        ({**HUMAN_EVAL, "prompt": "Write add:\ndef add(a, b)"}, "def add(a, b):\n    return a + b"),
        (CONTEST, SUM),
        (CONTEST, f"import threading\ndef main():\n    {SUM}\nthreading.Thread(target=main).start()"),
        (CONTEST, f"import sys\nif __name__ == '__main__':\n    {SUM}\n    sys.exit()"),
    ],
)  # fmt: skip
def test_programs_that_pass(metric, row, answer):
    verdict = metric.score(answer, row)
    assert (verdict.score, verdict.note) == (1.0, "")


@pytest.mark.parametrize(
    ("row", "answer", "note"),
    [
        (MBPP, "def f(x):\n    return 2", "the program fails: AssertionError in assert f(limit) == 4"),
        (MBPP, "def f(x) return", "the program fails: SyntaxError: expected ':'"),
        (MBPP, "\ud800\0", "the program fails: "),
        (MBPP, f"{RIGHT}\nimport sys\nsys.exit(0)", "the program fails: it exits early, with status 0"),
        (MBPP, f"{RIGHT}\nimport os\nos._exit(0)", "the program fails: it exits early, with status 0"),
        (MBPP, " ", "no program found"),
        (HUMAN_EVAL, "    return a - b", "the program fails: AssertionError in assert candidate(1, 2) == 3"),
        (CONTEST, "print(9)", "the program fails: it prints '9' instead of '3' (test 1 of 3)"),
        (CONTEST, "a, b = map(int, input().split())\nprint(a + b, 0)", "prints '3 0' instead of '3' (test 1 of 3)"),
        (
            CONTEST,
            "a, b = map(int, input().split())\nprint(a + b if a < 4 else 1 / 0)",
            "division by zero (test 2 of 3)",
        ),
        (CONTEST, "import sys\nprint(3)\nsys.exit(1)", "it exits early, with status 1"),
    ],
)
def test_programs_that_fail(metric, row, answer, note):
    verdict = metric.score(answer, row)
    assert verdict.score == 0.0 and note in verdict.note and "\n" not in verdict.note
    if note.startswith("the program fails"):
        prediction = Prediction(0, "?", "", answer, verdict.gold, verdict.answer, False, "stop", note=verdict.note)
        assert error_kind(prediction) == "failed"


def test_limits_of_a_program(tmp_path, monkeypatch):
    """Time, memory, files, processes, environment, folder; what it has started ends with it."""
    metric = make_metric("code_execution", allow_code_execution=True, time_limit=1)
    monkeypatch.setenv("SECRET_KEY", "x")
    mark = tmp_path / "mark"
    limits = f"""
import os, resource, subprocess, sys
assert "SECRET_KEY" not in os.environ and "PATH" not in os.environ
assert os.listdir() == ["program.py"] and os.getcwd() != {os.getcwd()!r} and sys.flags.isolated
for name in ("CPU", "AS", "FSIZE", "NPROC"):
    assert resource.getrlimit(getattr(resource, "RLIMIT_" + name))[0] > 0, name
subprocess.Popen(["/bin/sh", "-c", "sleep 1; touch {mark}"])
open("file", "w").write(os.getcwd())
open({str(tmp_path / "where")!r}, "w").write(os.getcwd())
"""
    assert metric.score(limits + RIGHT, MBPP).note == ""
    begin = time.monotonic()
    for answer, note in {
        "import time\ntime.sleep(60)": "the program fails: not done after 1 s",
        "x = bytearray(2**36)": "the program fails: MemoryError",
        "open('a', 'wb').write(bytes(2**25))": "the program fails: OSError: [Errno 27] File too large",
    }.items():
        assert metric.score(answer, MBPP).note == note
    time.sleep(max(0.0, 1.3 - (time.monotonic() - begin)))
    assert not mark.exists() and not Path((tmp_path / "where").read_text()).exists()


def test_what_is_refused(metric, monkeypatch):
    with pytest.raises(ConfigError, match="without a security boundary; --allow_code_execution"):
        make_metric("code_execution")
    for row in ({}, {"test_list": []}, {"test": "def check(f): pass", "entry_point": "f("}, {"public_tests": "[]"}):
        with pytest.raises(DataError, match="no tests: no test_list"):
            metric.score(RIGHT, row)
    assert metric.score("x", {"test_list": ["assert 0"]}).gold is None and metric.score(RIGHT, MBPP).gold == RIGHT
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(ConfigError, match="cannot run programs here: the program fails: it exits early, with status 1"):
        make_metric("code_execution", allow_code_execution=True)
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert metric.score(RIGHT, MBPP)[0::3] == (0.0, "unknown: No such file or directory")


def test_pass_at_k_is_the_share_of_choices_with_a_right_one():
    from itertools import combinations

    for n, right, k in [(5, 2, 1), (5, 2, 3), (6, 1, 6), (4, 0, 2), (4, 4, 2), (7, 3, 5)]:
        chosen = list(combinations([True] * right + [False] * (n - right), k))
        assert pass_at_k(n, right, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))
