"""``stepjepa study`` from the command line, without training anything."""

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
