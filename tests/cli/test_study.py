"""``stepjepa study`` from the command line, without training anything."""

from support.runs import printed

STUDY = """\
data: builtin
base: {model_name: tiny, max_steps: 4}
arms: {regular: {objective: regular}, step_jepa: {objective: step_jepa}}
seeds: [1, 2]
"""


def test_a_dry_run_lists_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY)
    changes = ["--seeds", "5", "6", "7", "--jobs", "3", "--set", "base.max_steps=9", "equal_compute=true"]
    said = printed(capsys, ["study", "study.yaml", "--dry_run", *changes, "tune={lbd: [0.1, 0.5]}"])
    assert "12 runs in runs/study, 0 of them finished; 3 at a time" in said
    assert "max_steps=9" in said and "seeds      5 6 7" in said
    assert "  step_jepa: 6 runs, objective=step_jepa; one of lbd=0.1, lbd=0.5" in said
    assert "  step_jepa+same_flop: 3 runs, same_flop=True" in said
    assert "choice     the lowest answer_nll of the validation split, over seeds 5 6 7" in said
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["study.yaml"]
