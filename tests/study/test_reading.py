"""A study's YAML file: what it comes to, and how what is wrong with it is said."""

from __future__ import annotations

import pytest
import yaml

from stepjepa.data.sources import RowSource
from stepjepa.errors import ConfigError
from stepjepa.study.folder import StudyRunFolder, write_builtin, write_plan
from stepjepa.study.reading import read_study
from stepjepa.study.spec import all_runs
from stepjepa.study.tree import parse_tree, set_value

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
    tree = parse_tree(text, "study.yaml")
    for override in overrides:
        tree = set_value(tree, override)
    return read_study(tree, "study", mini)


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
    assert "eval_strategy has no data to evaluate on; give select_file" in refused(STUDY, *asked, files)
    assert planned("data={train_file: a.jsonl, test_file: b.jsonl, select_file: c.jsonl}")[0]["eval_file"] == "c.jsonl"


def test_a_small_study():
    study = read()
    (block,) = study.blocks
    assert (study.title, str(study.output_dir), study.jobs) == ("Two arms", "runs/study", 1)
    assert [arm.name for arm in block.arms] == ["regular", "step_jepa"]
    assert block.arms[1].settings == {"objective": "step_jepa", "lbd": 0.5}  # the published spelling, taken in
    assert (block.arms[0].jepa, block.arms[1].jepa) == (False, True)
    assert (block.baseline, block.seeds, block.select) == ("regular", (3, 1), ("answer_nll", False))
    assert [metric.name for metric in block.metrics] == ["answer_nll", "gsm8k"]
    assert block.base["max_steps"] == 4 and block.base["track_flop"] is True


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


def test_a_variant_that_cannot_be_run_is_a_note():
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


def test_blocks_and_mini():
    text = STUDY + (
        "blocks:\n  a: {base: {max_steps: 7}}\n  b: {seeds: [5], arms: {step_jepa: {predictors: 0}}}\n"
        "mini: {base: {max_steps: 2}, seeds: [9], data: {builtin: {train_rows: 8}}}\n"
    )
    a, b = read(text).blocks
    assert (a.name, a.base["max_steps"], a.seeds) == ("a", 7, (3, 1))
    assert (b.base["max_steps"], b.seeds, b.arms[1].settings["predictors"]) == (4, (5,), 0)
    assert [run.folder.parts[:2] for run in all_runs(read(text))][0] == ("runs", "a")
    (mini,) = read(text, mini=True).blocks
    assert (mini.name, mini.base["max_steps"], mini.seeds) == ("", 2, (9,))
    assert mini.data.builtin["train_rows"] == 8 and mini.data.builtin["test_rows"] == 300
    assert str(read(text, mini=True).output_dir) == "runs/study-mini"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("base.learnin_rate=1", ["--set base.learnin_rate=1", "unknown key 'learnin_rate'", "'learning_rate'"]),
        ("base.seed=1", ["give seeds at the top"]),
        ("arms.step_jepa.control=shuffled", ["controls: [shuffled, random]"]),
        ("arms.step_jepa.lbd=0.1", ["sets lbd to", "keep one of them"]),
        ("arms.step_jepa.predictors=-1", ["--set arms.step_jepa.predictors=-1: ", "predictors is -1"]),
        ("arms.step jepa.objective=regular", ["the name 'step jepa'", "letters, digits"]),
        ("baseline=plain", ["the baseline 'plain' is not an arm; the arms are: regular, step_jepa"]),
        ("tune_seeds=[3]", ["seeds: expected distinct whole numbers", "and others for tune_seeds"]),
        ("seeds=[1, 1]", ["seeds: expected distinct whole numbers"]),
        ("metrics=[answer_nl]", ["metric is 'answer_nl'", "did you mean answer_nll?"]),
        ("metrics=[{gsm8k: {colunm: a}}]", ["no option 'colunm' of gsm8k"]),
        ("select=exact", ["'exact' is not one of the study's metrics (answer_nll, gsm8k)"]),
        ("select={metric: gsm8k}", ["select: expected"]),
        ("grid={lbd: [1, 2]}", ["unknown key 'grid': write out the arms", "tune: {option: [values]}"]),
        ("evaluate.batch_size=0", ["batch_size is 0; it must be at least 1"]),
        ("data={train_file: a.jsonl}", ["data: test_file is missing"]),
        ("data={train_file: a.jsonl, test_file: a.jsonl}", ["test_file and train_file are the same file"]),
        ("data={builtin: {task: a6}}", ["expected one of arithmetic, ", "a5", "got 'a6'"]),
        ("tune={learning_rate: []}", ["tune learning_rate: expected a list"]),
        ("arms.step_jepa.control_arm=other", ["control_arm of step_jepa is 'other'"]),
    ],
)
def test_what_is_wrong_is_said(override, words):
    said = refused(STUDY, override)
    for word in words:
        assert word in said, said


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_steps: 4", "max_step: 4", ["study.yaml:5: unknown key 'max_step'", "'max_steps'"]),
        ("lambda: 0.5", "lambda: much", ["study.yaml:10: lambda: expected a number, got 'much'"]),
        ("seeds: [3, 1]", "", ["study.yaml:1: seeds: expected"]),
        ("data: builtin", "", ["study.yaml:1: there is no data"]),
        ("  regular: {objective: regular}", "  - a", ["study.yaml:8", "not valid YAML"]),
        ("{objective: regular}", "[objective]", ["study.yaml:7: arm regular: expected a mapping"]),
    ],
)
def test_file_and_line_are_named(old, new, words):
    said = refused(STUDY.replace(old, new))
    for word in words:
        assert word in said, said


def test_what_is_missing():
    assert "this study has no section 'mini'" in refused(mini=True)
    text = STUDY.replace("data: builtin", "data: {train_file: a.jsonl, test_file: b.jsonl}") + "tune: {lbd: [1, 2]}\n"
    assert "tune needs select_file" in refused(text)


def test_a_built_in_task(tmp_path):
    given = "{task: a5, length: 4, train_rows: 30, select_rows: 40, test_rows: 10}"
    (block,) = read(STUDY.replace("data: builtin", f"data: {{builtin: {given}}}")).blocks
    assert [metric.name for metric in block.metrics] == ["answer_nll", "task"]
    write_builtin(block.data, tmp_path)
    asked = {
        split: [row["question"] for _, row in RowSource(file)] for split, (file,) in block.data.paths(tmp_path).items()
    }
    assert {split: len(rows) for split, rows in asked.items()} == {"train": 30, "select": 40, "test": 10}
    assert {split: {len(one.split()) for one in rows} for split, rows in asked.items()} == {
        "train": {4}, "select": {4}, "test": {4}
    }  # fmt: skip
    train, select, test = map(set, asked.values())
    assert not train & select and not (train | select) & test and len(select) == 40 and len(test) == 10
