"""Studies whose runs are trained, on the built-in problems and the smallest model, for a few steps."""

import dataclasses
import json
from statistics import fmean

import pytest

from stepjepa.study import stages
from stepjepa.study.reading import read_options, read_study
from stepjepa.study.run import run_study
from stepjepa.study.spec import StudyOptions
from stepjepa.study.tree import parse_tree, recipe_files
from support.rows import lines as lines_of
from support.runs import run_here

stats = pytest.importorskip("scipy.stats")
pytest.importorskip("statsmodels")

# Recipes whose minis are run every time; those of all others are run by `make test_all`.
QUICK = {"llm_jepa_table9_pretrain"}

STUDY = """\
title: Trained
data: {builtin: {train_rows: 16, select_rows: 2, test_rows: 6, max_steps: 3}}
base: {model_name: tiny, max_steps: 2, per_device_train_batch_size: 4, learning_rate: 5.0e-3, logging_steps: 1}
arms:
  regular: {objective: regular}
  step_jepa: {objective: step_jepa, predictors: 1, lbd: 1, step_splitter: separator}
seeds: [1, 2]
controls: [shuffled]
equal_compute: true
evaluate: {max_new_tokens: 4, batch_size: 4}
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One study for all tests of the module: its folder and what was said at its end."""
    folder = tmp_path_factory.mktemp("study") / "out"
    study = dataclasses.replace(read_study(parse_tree(STUDY, "study.yaml"), "study"), output_dir=folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "run_process", run_here)
        outcome = run_study(study, StudyOptions(), lambda line: None)
    return folder, outcome, outcome.write_results()[1]


def values(folder, arm, **wanted):
    wanted = {"control": "none", "compute": "equal examples", **wanted, "arm": arm}
    records = [r for r in lines_of(folder / "results.jsonl") if all(r[key] == value for key, value in wanted.items())]
    assert [record["seed"] for record in records] == [1, 2]
    return [record["metrics"]["test"]["answer_nll"] for record in records]


def test_the_table_is_that_of_the_records(results):
    folder, outcome, said = results
    assert said[-1] == f"written to {folder}: results.jsonl, table.json" and not outcome.failed
    regular, jepa = values(folder, "regular"), values(folder, "step_jepa")
    shuffled = values(folder, "step_jepa", control="shuffled")
    shorter = values(folder, "step_jepa", compute="equal compute")
    tables = {table["metric"]: table for table in json.loads((folder / "table.json").read_text())["tables"]}
    arms = {one["name"]: one for one in tables["answer_nll"]["arms"]}
    arm = arms["step_jepa"]
    found = {kind: arm[kind]["result"]["mean"] for kind in ("examples", "compute", "control")}
    assert found == pytest.approx(
        {
            "examples": fmean(jepa) - fmean(regular),
            "compute": fmean(shorter) - fmean(regular),
            "control": fmean(jepa) - fmean(shuffled),
        }
    )
    assert arm["summary"]["estimate"] == pytest.approx(fmean(jepa))
    p_value = stats.ttest_rel(jepa, regular).pvalue
    assert arm["examples"]["result"]["t_p"] == pytest.approx(p_value) == arm["examples"]["holm_p"]  # of one arm
    record = lines_of(folder / "results.jsonl")[-1]
    assert (record["control"], record["compute"], record["seed"]) == ("none", "equal compute", 2)
    assert record["settings"]["same_flop"] is True and "seed" not in record["settings"]
    assert record["flops"] > 0 and record["train_seconds"] > 0 and record["model"].endswith("seed-2/model")


def test_arms_are_paired_by_seed(results):
    """All arms of a seed begin with the same weights and see the same examples in the same order."""
    folder, _, _ = results
    losses = {}
    for seed in (1, 2):
        for arm in ("regular", "step_jepa", "step_jepa+shuffled"):
            written = json.loads((folder / "runs" / arm / f"seed-{seed}" / "model" / "metrics.json").read_text())
            losses[arm, seed] = written["log_history"][0]["lm_loss"]  # of the first batch, before any step
        assert len({round(loss, 5) for (_, one), loss in losses.items() if one == seed}) == 1, losses
    assert losses["regular", 1] != pytest.approx(losses["regular", 2], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in sorted(recipe_files())]
)
def test_every_recipe_s_mini_runs(name, in_this_process, tmp_path, monkeypatch):
    """All of its arms and what is run beside them, for one step on a few problems."""
    monkeypatch.chdir(tmp_path)
    overrides = "base.max_steps=1 seeds=[1] evaluate.max_new_tokens=2".split()
    overrides += [f"data.builtin.{rows}" for rows in ("train_rows=24", "select_rows=2", "test_rows=2")]
    # One at a time: all of them run in this process.
    options = StudyOptions(file=name, mini=True, overrides=overrides, jobs=1)
    outcome = run_study(read_options(options), options, lambda line: None)
    assert not outcome.failed and not [item.run.name for item in outcome.items if item.todo]
    outcome.write_results()
    assert (tmp_path / "runs" / f"{name}-mini" / "table.json").is_file()


def test_a_learning_rate_that_diverges_is_not_chosen(in_this_process, tmp_path):
    text = STUDY.partition("arms:")[0].replace("learning_rate: 5.0e-3, ", "")
    text += "arms:\n  regular: {objective: regular}\ntune: {learning_rate: [1.0e+8, 5.0e-3]}\nseeds: [1]\n"
    file, said = tmp_path / "study.yaml", []
    file.write_text(text + "evaluate: {max_new_tokens: 4, batch_size: 4}\n")
    study = read_options(StudyOptions(str(file), output_dir=str(tmp_path / "out")))
    for _ in range(2):  # what diverged is done, and not tried once more
        outcome = run_study(study, StudyOptions(), said.append)
        assert not outcome.failed, said
    assert sum("diverged at step" in line and "not finite" in line for line in said) == 1
    assert any("the validation split chose learning_rate=0.005" in line for line in said)
    records = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("scored-select.json")]
    assert sorted(record["metrics"]["answer_nll"] is None for record in records) == [False, True]
    outcome.write_results()
    (choice,) = json.loads((tmp_path / "out" / "table.json").read_text())["choices"]
    assert "Validation means: learning_rate=1e_08: -, learning_rate=0.005: " in choice
