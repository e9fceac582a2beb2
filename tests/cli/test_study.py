"""``stepjepa study`` from the command line, without training anything."""

from __future__ import annotations

import sys

import pytest

from stepjepa.study.run import StudyRun
from support.runs import printed

STUDY = """\
data: builtin
base: {model_name: tiny, max_steps: 4}
arms: {regular: {objective: regular}, step_jepa: {objective: step_jepa}}
seeds: [1, 2]
mini: {base: {max_steps: 2}}
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY)

    def run(*flags, status=0):
        return printed(capsys, ["study", *flags], status)

    return run


def test_a_dry_run_lists_and_writes_nothing(run, tmp_path):
    changes = ["--seeds", "5", "6", "7", "--jobs", "3", "--set", "base.max_steps=9", "equal_compute=true"]
    said = run("study.yaml", "--dry_run", *changes, "tune={lbd: [0.1, 0.5]}")
    assert "12 runs in runs/study, 0 of them finished; 3 at a time" in said
    assert "max_steps=9" in said and "seeds      5 6 7" in said
    assert "  step_jepa: 6 runs, objective=step_jepa; one of lbd=0.1, lbd=0.5" in said
    assert "  step_jepa+same_flop: 3 runs, same_flop=True" in said
    assert "choice     the lowest answer_nll of the validation split, over seeds 5 6 7" in said
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["study.yaml"]


def test_overrides_stand_above_mini(run):
    said = run("study.yaml", "--mini", "--dry_run", "--seeds", "4", "--set", "base.learning_rate=0.5")
    assert "max_steps=2" in said and "learning_rate=0.5" in said and "seeds      4\n" in said
    assert "2 runs in runs/study-mini" in said


def test_recipes_are_listed_without_a_study(run):
    said = run("--list")
    assert "llm_jepa_table13" in said and "Spider 47.52 50.55" in said
    assert max(map(len, said.splitlines())) <= 120


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["no study given"]),
        (["stduy.yaml"], ["no such file or recipe", "study.yaml"]),
        (["study.yaml", "--job", "2"], ["unknown flag --job", "--jobs"]),
        (["study.yaml", "--set", "max_steps"], ["--set max_steps: expected key.key=value"]),
        (["study.yaml", "--output_dir", "study.yaml"], ["is a file; give a folder"]),
    ],
)
def test_mistakes_are_one_line(run, flags, words):
    said = run(*flags, status=2)
    assert len(said.strip().splitlines()) == 1 and said.startswith("stepjepa study: error: ")
    for word in words:
        assert word in said, said


def test_before_anything_is_trained_and_when_it_is_interrupted(run, tmp_path, monkeypatch):
    def interrupted(self, executor, deadline):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StudyRun, "carry_out", interrupted)
        said = run("study.yaml", "--output_dir", str(tmp_path / "other"), status=130)
        assert "the same command resumes from there" in said
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    said = run("study.yaml", status=2)
    assert "needs statsmodels" in said and "pip install 'stepjepa[study]'" in said
    assert not (tmp_path / "runs").exists()
