"""Every mutant still fits the code, and the runner tells one that is killed from one that survives."""

import json
from dataclasses import asdict, replace

from mutants import run
from mutants.run import Mutant, load

MUTANTS = load()


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


def test_a_fault_is_killed_and_a_harmless_change_survives(tmp_path, monkeypatch, capsys):
    source, tests = tmp_path / "src" / "one.py", tmp_path / "tests" / "test_one.py"
    for file, text in (
        (source, "ONE = 1\n"),
        (tests, "from one import ONE\n\n\ndef test_one():\n    assert ONE == 1\n"),
    ):
        file.parent.mkdir()
        file.write_text(text)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "COPIED", ("src", "tests"))
    fault = Mutant("01_fault", "counts wrongly", "src/one.py", "= 1", "= 2", ("tests/test_one.py::test_one",))
    harmless = replace(fault, name="02_harmless", replace="= 1 + 0")
    (tmp_path / "some.yaml").write_text(json.dumps([asdict(fault), asdict(harmless)]))
    assert run.main(["--folder", str(tmp_path)]) == 1
    passed, killed, survived, *_, last = capsys.readouterr().out.splitlines()
    assert passed.startswith("without a mutant: 1 tests")
    assert killed.split()[:2] == [fault.name, "killed"] and survived.split()[:2] == [harmless.name, "SURVIVED"]
    assert last == "1 of 2 mutants killed" and source.read_text() == "ONE = 1\n"
