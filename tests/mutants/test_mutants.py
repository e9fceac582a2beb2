"""Every mutant still fits the code, and the runner tells one that is killed from one that survives."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace

from mutants.run import HERE, ROOT, load

MUTANTS = load()
FAST = "43"  # its test loads numpy alone


def test_every_mutant_fits_the_code_and_what_does_not_fit_is_told():
    assert [mutant.name[:3] for mutant in MUTANTS] == [f"{number:02}_" for number in range(1, 61)]
    assert {mutant.name: problem for mutant in MUTANTS if (problem := mutant.problem())} == {}
    one = MUTANTS[0]
    for changes, said in (
        ({"find": "no such text"}, f"its text occurs 0 times in {one.file}, not once"),
        ({"file": "src/gone.py"}, "its text occurs 0 times in src/gone.py, not once"),
        ({"tests": ("tests/gone.py::test_a",)}, "no such file: tests/gone.py::test_a"),
        ({"tests": ()}, "it names no test"),
        ({"replace": one.find}, "it changes nothing"),
    ):
        assert replace(one, **changes).problem() == said


def test_a_fault_is_killed_and_a_harmless_change_survives(tmp_path):
    (fault,) = (mutant for mutant in MUTANTS if mutant.name.startswith(FAST))
    harmless = replace(fault, name="99_harmless", replace=f"{fault.find} + 0")
    (tmp_path / "some.yaml").write_text(json.dumps([asdict(fault), asdict(harmless)]))
    before = (ROOT / fault.file).read_text()
    command = [sys.executable, str(HERE / "run.py"), "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    passed, killed, survived, *_, last = done.stdout.splitlines()
    assert passed.startswith("without a mutant: 1 tests")
    assert killed.split()[:2] == [fault.name, "killed"] and survived.split()[:2] == ["99_harmless", "SURVIVED"]
    assert last == "1 of 2 mutants killed" and (ROOT / fault.file).read_text() == before
