"""A study's YAML file: what it comes to, and how what is wrong with it is said."""

import pytest
import yaml

from stepjepa.data.sources import RowSource
from stepjepa.errors import ConfigError
from stepjepa.study.folder import StudyRunFolder, write_builtin, write_plan
from stepjepa.study.reading import read_study
from stepjepa.study.spec import all_runs
from stepjepa.study.tree import parse_tree

STUDY = """\
title: Two arms
data: builtin
base:
  model_name: tiny
  max_steps: 4
arms:
  regular: {objective: regular}
  step_jepa:
    objective: step_jepa
    lambda: 0.5
seeds: [3, 1]
"""


def read(text=STUDY, *overrides, mini=False):
    return read_study(parse_tree(text, "study.yaml"), "study", mini, overrides)


def refused(text=STUDY, *overrides, mini=False):
    with pytest.raises(ConfigError) as caught:
        read(text, *overrides, mini=mini)
    return str(caught.value)


def test_runs_evaluate_on_the_validation_split(tmp_path):
    asked = "base.eval_strategy=steps", "base.eval_metrics=[gsm8k]", f"output_dir={tmp_path / 'out'}"

    def planned(*overrides):
        study = read(STUDY, *asked, *overrides)
        run = next(iter(all_runs(study)))
        folder = StudyRunFolder(tmp_path / "run")
        write_plan(folder, run, study)
        return yaml.safe_load(folder.train_config.read_text()), run.block.data.paths(study.output_dir)

    options, paths = planned()
    assert options["eval_file"] == paths["select"][0] != paths["test"][0]
    options, _ = planned("base.eval_file=other.jsonl")
    assert options["eval_file"] == "other.jsonl"
    files = "data={train_file: a.jsonl, test_file: b.jsonl}"
    for needs_it in (asked, ["tune={lbd: [1, 2]}"]):
        assert "tune and eval_strategy need select_file" in refused(STUDY, *needs_it, files)
    assert planned("data={train_file: a.jsonl, test_file: b.jsonl, select_file: c.jsonl}")[0]["eval_file"] == "c.jsonl"


def test_controls_and_equal_compute_are_one_line_each():
    study = read(STUDY + "controls: [shuffled, random]\nequal_compute: true\n")
    runs = list(all_runs(study))
    found = {(run.row, run.seed): run.changes for run in runs}
    assert len(runs) == len(found) == 2 * (1 + 4)
    assert found["regular", 3] == {"objective": "regular"}
    jepa = {"objective": "step_jepa", "lbd": 0.5}
    assert found["step_jepa+shuffled", 1] == {**jepa, "control": "shuffled"}
    assert found["step_jepa+random", 3] == {**jepa, "control": "random"}
    assert found["step_jepa+same_flop", 3] == {**jepa, "same_flop": True}
    assert len({run.folder for run in runs}) == 10 and {run.settings["seed"] for run in runs} == {1, 3}


def test_arms_without_a_control():
    study = read(STUDY + "controls: [shuffled, random]\n", "arms.step_jepa.controls=[]")
    assert study.blocks[0].arms[1].variants == () and not study.notes
    study = read(STUDY + "controls: [shuffled, random]\n", "arms.step_jepa.jepa_loss=infonce")
    assert study.blocks[0].arms[1].variants == ("shuffled",)
    (note,) = study.notes
    assert "without random: control=random gives every source the same target" in note


def test_tuned_values_are_cells_and_arms_that_do_not_read_them_have_none():
    text = STUDY + "tune: {learning_rate: [1e-3, 2e-3], predictors: [1, 2]}\n"
    regular, jepa = read(text).blocks[0].arms
    assert list(regular.cells) == [{"learning_rate": 0.001}, {"learning_rate": 0.002}]
    assert len(jepa.cells) == 4 and {"learning_rate": 0.001, "predictors": 2} in jepa.cells
    own = read(STUDY + "tune: {learning_rate: [1e-3, 2e-3]}\n", "arms.step_jepa.tune={learning_rate: [5e-4]}")
    assert own.blocks[0].arms[1].cells == ({"learning_rate": 0.0005},)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("base.learnin_rate=1", ["--set base.learnin_rate=1", "unknown key 'learnin_rate'", "'learning_rate'"]),
        ("base.seed=1", ["give output_dir, seeds, controls and equal_compute at its top, files under data"]),
        ("arms.step_jepa.control=shuffled", ["control: the study sets this option"]),
        ("arms.step_jepa.lbd=0.1", ["sets lbd to", "keep one of them"]),
        ("arms.step_jepa.predictors=-1", ["--set arms.step_jepa.predictors=-1: ", "predictors is -1"]),
        ("arms.step jepa.objective=regular", ["the name 'step jepa'", "letters, digits"]),
        ("tune={lbd: [0.1, 0.10000001]}", ["tune, arm step_jepa: two combinations have the same name, lbd=0.1;"]),
        ("baseline=plain", ["the baseline 'plain' is not an arm; the arms are: regular, step_jepa"]),
        ("tune_seeds=[3]", ["seeds and tune_seeds: expected distinct whole numbers"]),
        ("metrics=[answer_nl]", ["metric is 'answer_nl'", "did you mean answer_nll?"]),
        ("metrics=[target_rank]", ["name the views that the metric compares"]),
        ("metrics=[{target_rank: {objective: step_jepa, step_spliter: lines}}]", ["unknown key 'step_spliter'"]),
        ("select=exact", ["'exact' is not one of the study's metrics (answer_nll, gsm8k)"]),
        ("grid={lbd: [1, 2]}", ["unknown key 'grid': write out the arms", "tune: {option: [values]}"]),
        ("data={train_file: a.jsonl}", ["data: test_file is missing"]),
        ("data={train_file: a.jsonl, test_file: a.jsonl}", ["test_file and train_file are the same file"]),
        ("arms.step_jepa.control_arm=other", ["control_arm of step_jepa is 'other'"]),
    ],
)
def test_what_is_wrong_is_said(override, words):
    said = refused(STUDY, override)
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_steps: 4", "max_step: 4", ["study.yaml:5: unknown key 'max_step'", "'max_steps'"]),
        ("seeds: [3, 1]", "", ["study.yaml:1: seeds and tune_seeds: expected"]),
        ("  regular: {objective: regular}", "  - a", ["study.yaml:8", "not valid YAML"]),
        ("{objective: regular}", "[objective]", ["study.yaml:7: arm regular: expected a mapping"]),
    ],
)
def test_file_and_line_are_named(old, new, words):
    said = refused(STUDY.replace(old, new))
    assert all(word in said for word in words), said


def test_a_study_without_a_small_version():
    assert "this study has no section 'mini'" in refused(mini=True)


def test_the_splits_of_a_built_in_task_share_no_problem(tmp_path):
    given = "{task: a5, length: 4, train_rows: 30, select_rows: 40, test_rows: 10}"
    (block,) = read(STUDY.replace("data: builtin", f"data: {{builtin: {given}}}")).blocks
    assert [metric.name for metric in block.metrics] == ["answer_nll", "task"]
    write_builtin(block.data, tmp_path)
    files = block.data.paths(tmp_path)
    train, select, test = ({row["question"] for _, row in RowSource(files[split][0])} for split in files)
    assert not train & select and not (train | select) & test and len(select) == 40 and len(test) == 10
    assert {len(question.split()) for question in train} == {4}
