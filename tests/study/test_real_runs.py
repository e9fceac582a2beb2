"""Studies whose runs are trained, on the built-in problems and the smallest model, for a few steps."""

from __future__ import annotations

import csv
import io
import json
import math
from statistics import fmean, stdev

import pytest
import torch
from safetensors.torch import load_file

from stepjepa.data.sources import RowSource
from stepjepa.study.reading import read_options
from stepjepa.study.records import StudyRunFolder
from stepjepa.study.results import write_results
from stepjepa.study.run import run_study
from stepjepa.study.spec import StudyOptions
from stepjepa.study.stages import score_model
from stepjepa.study.tree import recipe_files
from stepjepa.training.encoding import encode
from stepjepa.training.options import JEPAOptions
from support.answers import lines as lines_of

stats = pytest.importorskip("scipy.stats")
pytest.importorskip("statsmodels")
pytest.importorskip("matplotlib")

# Recipes whose minis are run every time; those of all others are run by `make test_all`.
QUICK = {"builtin", "evidence_nl_rx_labels", "llm_jepa_table9_pretrain"}

STUDY = """\
title: Trained
data: {builtin: {train_rows: 32, select_rows: 4, test_rows: 6, max_steps: 3}}
base: {model_name: tiny, max_steps: 3, per_device_train_batch_size: 4, learning_rate: 5.0e-3, logging_steps: 1}
arms:
  regular: {objective: regular}
  twin: {objective: regular}
  step_jepa: {objective: step_jepa, predictors: 1, lbd: 1, step_splitter: separator}
seeds: [1, 2, 3]
controls: [shuffled]
equal_compute: true
evaluate: {max_new_tokens: 4, batch_size: 4}
"""


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """One study for the whole module: its folder and what was said at its end."""
    import dataclasses

    from stepjepa.study import stages
    from stepjepa.study.reading import read_study
    from stepjepa.study.tree import parse_tree

    folder = tmp_path_factory.mktemp("study") / "out"
    study = dataclasses.replace(read_study(parse_tree(STUDY, "study.yaml"), "study"), output_dir=folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "run_process", run_here)
        outcome = run_study(study, lambda line: None)
    return folder, outcome, write_results(outcome)[1]


def run_here(log, argv, environment):
    from stepjepa.cli.main import main
    from stepjepa.study import stages as scoring

    assert not (main(argv) if argv[0] == "train" else scoring.score_splits(StudyRunFolder(log.parent), argv[2:]))


def values(folder, arm, metric="answer_nll", **wanted):
    wanted = {"control": "none", "compute": "equal examples", **wanted, "arm": arm}
    records = [r for r in lines_of(folder / "results.jsonl") if all(r[key] == value for key, value in wanted.items())]
    assert [record["seed"] for record in records] == [1, 2, 3]
    return [record["metrics"]["test"][metric] for record in records]


def test_two_identical_arms_show_no_effect(results):
    folder, _, said = results
    assert values(folder, "twin") == values(folder, "regular")
    (row,) = [line for line in table_rows(folder) if line["arm"] == "twin" and line["metric"] == "answer_nll"]
    assert [float(row[f"examples_{name}"]) for name in ("mean", "sd", "t_p", "wilcoxon_p")] == [0, 0, 1, 1]
    assert row["verdict"] == "no difference shown"
    assert "  twin: no difference shown" in said


def table_rows(folder):
    return list(csv.DictReader(io.StringIO((folder / "table.csv").read_text())))


def test_the_table_is_that_of_the_records(results):
    folder, _, _ = results
    regular, jepa = values(folder, "regular"), values(folder, "step_jepa")
    shuffled = values(folder, "step_jepa", control="shuffled")
    shorter = values(folder, "step_jepa", compute="equal compute")
    (row,) = [line for line in table_rows(folder) if line["arm"] == "step_jepa" and line["metric"] == "answer_nll"]
    half = stats.t.ppf(0.975, 2) * stdev(jepa) / math.sqrt(3)
    expected = {
        "mean": fmean(jepa),
        "sd": stdev(jepa),
        "low": fmean(jepa) - half,
        "examples_mean": fmean(jepa) - fmean(regular),
        "examples_t_p": stats.ttest_rel(jepa, regular).pvalue,
        "examples_wilcoxon_p": stats.wilcoxon(jepa, regular).pvalue,
        "compute_mean": fmean(shorter) - fmean(regular),
        "compute_t_p": stats.ttest_rel(shorter, regular).pvalue,
        "control_mean": fmean(jepa) - fmean(shuffled),
        "control_t_p": stats.ttest_rel(jepa, shuffled).pvalue,
        "flops": fmean(r["flops"] for r in lines_of(folder / "results.jsonl") if r["settings"].get("lbd") == 1 and
                       r["control"] == "none" and r["compute"] == "equal examples"),
    }  # fmt: skip
    assert {name: float(row[name]) for name in expected} == pytest.approx(expected, rel=1e-6)
    assert float(row["examples_holm_p"]) == pytest.approx(min(1, 2 * expected["examples_t_p"]), rel=1e-6)  # of two arms
    markdown = (folder / "table.md").read_text()
    assert (
        "| difference at equal examples [95 %] |" in markdown and "| difference at equal compute [95 %] |" in markdown
    )
    assert "| step_jepa+same_flop | 3 |" in markdown and "missing" not in markdown


def test_what_is_written(results):
    folder, outcome, said = results
    names = "results.jsonl state.json study.png study.svg study_gsm8k.png table.csv table.json table.md".split()
    assert all((folder / name).stat().st_size > 0 for name in names)
    whole = json.loads((folder / "table.json").read_text())
    assert [table["metric"] for table in whole["tables"]] == ["answer_nll", "gsm8k"] and whole["missing"] == []
    assert said[-1].startswith(f"written to {folder}: results.jsonl, table.md") and not outcome.failed
    record = lines_of(folder / "results.jsonl")[-1]
    assert (record["control"], record["compute"], record["seed"]) == ("none", "equal compute", 3)
    assert record["settings"]["same_flop"] is True and "seed" not in record["settings"]
    assert record["flops"] > 0 and record["train_seconds"] > 0 and record["model"].endswith("seed-3/model")


def test_arms_are_paired_by_seed(results):
    """All arms of a seed begin with the same weights and see the same examples in the same order."""
    folder, _, _ = results
    losses = {}
    for arm in ("regular", "twin", "step_jepa", "step_jepa+shuffled"):
        for seed in (1, 2):
            written = json.loads((folder / "runs" / arm / f"seed-{seed}" / "model" / "metrics.json").read_text())
            losses[arm, seed] = written["log_history"][0]["lm_loss"]  # of the first batch, before any step
    for seed in (1, 2):
        first = {round(losses[arm, seed], 5) for arm, s in losses if s == seed}
        assert len(first) == 1, losses
    assert losses["regular", 1] != pytest.approx(losses["regular", 2], abs=1e-3)


def test_arms_begin_alike_in_weights_and_batches(results):
    from stepjepa.data.sources import RowSource, texts_of
    from stepjepa.modeling.load import load_model, load_tokenizer
    from stepjepa.training.config import JEPAConfig
    from stepjepa.training.trainer import JEPATrainer

    folder, outcome, _ = results
    rows = str(next((folder / "data").rglob("train.jsonl")))
    weights, batches = [], []
    for item in outcome.items:
        if item.run.seed != 1 or item.run.variant == "same_flop":
            continue
        options = {k: v for k, v in item.run.settings.items() if k in JEPAConfig.__dataclass_fields__}
        tokenizer = load_tokenizer("tiny", texts_of([RowSource(rows)]))
        model = load_model("tiny", tokenizer, seed=1)
        weights.append({name: value.clone() for name, value in model.state_dict().items()})
        config = JEPAConfig(output_dir=str(folder), **options)
        trainer = JEPATrainer(model, config, RowSource(rows), None, tokenizer)
        order = list(trainer._get_train_sampler())[:8]
        batches.append([trainer.train_dataset[draw].input_ids.tolist() for draw in order])
    assert len(weights) == 4
    assert all(torch.equal(weights[0][name], other[name]) for other in weights for name in weights[0])
    assert all(batch == batches[0] for batch in batches)


def test_answer_nll_is_the_trainer_s_lm_loss(results):
    """Two ways to the same number: rows padded one by one in the evaluation, packed forests in the trainer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from stepjepa.training.setup import make_collator, set_up_model

    folder, _, _ = results
    model_folder, test = folder / "runs" / "step_jepa" / "seed-1" / "model", next((folder / "data").rglob("test.jsonl"))
    found = score_model(model_folder, RowSource(test), {"answer_nll": {}, "exact": {}}, batch_size=4, max_new_tokens=4)
    assert list(found) == ["answer_nll", "exact"] and found["exact"] == 0.0
    options = JEPAOptions(objective="regular")
    options.check()
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model, setup = set_up_model(AutoModelForCausalLM.from_pretrained(model_folder), options, 0, "cpu")
    store, _ = encode(str(test), tokenizer, options)
    collator = make_collator(setup, options, 0, model.config._attn_implementation, "cpu")
    batch = collator([store[i] for i in range(len(store))])
    with torch.no_grad():
        loss = float(model.eval()(batch=batch).lm_loss_sum) / batch.label_ids.numel()
    assert found["answer_nll"] == pytest.approx(loss, rel=1e-4)
    assert found["answer_nll"] == pytest.approx(values(folder, "step_jepa")[0], rel=1e-6)
    metrics = {"prefix": {"reference_column": "ground_truth"}, "answer_nll": {}}
    few = score_model(model_folder, RowSource(test), metrics, max_examples=2, max_new_tokens=2)
    assert list(few) == ["prefix", "answer_nll"] and few["answer_nll"] != found["answer_nll"]


def test_shuffled_targets_train_another_model(results):
    folder, _, _ = results
    models = [
        load_file(folder / "runs" / arm / "seed-1" / "model" / "model.safetensors")
        for arm in ("step_jepa", "step_jepa+shuffled")
    ]
    assert any(not torch.equal(models[0][name], models[1][name]) for name in models[0])


@pytest.mark.long
def test_a_mini_that_chooses(in_this_process, tmp_path, capsys):
    overrides = "base.max_steps=2 seeds=[1,2] evaluate.max_new_tokens=2 controls=[] equal_compute=false".split()
    options = StudyOptions(file="step_jepa_sweep", mini=True, output_dir=str(tmp_path / "out"), overrides=overrides)
    study = read_options(options)
    outcome = run_study(study, print)
    said = "\n".join(write_results(outcome)[1])
    assert not outcome.failed and "step_jepa: not established: n=2 seeds in common with regular" in said
    assert "the validation split chose learning_rate=0.002,predictors=2,lbd=" in capsys.readouterr().out
    table = (tmp_path / "out" / "table.md").read_text()
    assert (
        "Validation means: learning_rate=0.002,predictors=2,lbd=0.1:" in table
        and "before its test split was scored" in table
    )
    assert not list((tmp_path / "out").rglob("*.safetensors"))  # the recipe keeps no models


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in sorted(recipe_files())]
)
def test_every_recipe_s_mini_runs(name, in_this_process, tmp_path, monkeypatch):
    """All of its arms and what is run beside them, for one step on a few problems."""
    monkeypatch.chdir(tmp_path)
    overrides = "base.max_steps=1 seeds=[1] evaluate.max_new_tokens=2".split()
    overrides += [f"data.builtin.{rows}" for rows in ("train_rows=24", "select_rows=2", "test_rows=2")]
    outcome = run_study(read_options(StudyOptions(file=name, mini=True, overrides=overrides)), lambda line: None)
    assert not outcome.failed and not [item.run.name for item in outcome.items if item.todo]
    write_results(outcome)
    assert (tmp_path / "runs" / f"{name}-mini" / "table.md").is_file()


def test_a_learning_rate_that_diverges_is_not_chosen(in_this_process, tmp_path):
    text = STUDY.partition("arms:")[0].replace("learning_rate: 5.0e-3, ", "")
    text += "arms:\n  regular: {objective: regular}\ntune: {learning_rate: [1.0e+8, 5.0e-3]}\nseeds: [1]\n"
    file, said = tmp_path / "study.yaml", []
    file.write_text(text + "evaluate: {max_new_tokens: 4, batch_size: 4}\n")
    study = read_options(StudyOptions(str(file), output_dir=str(tmp_path / "out")))
    for _ in range(2):  # what diverged is done, and not tried once more
        assert not run_study(study, said.append).failed, said
    assert sum("diverged at step" in line and "not finite" in line for line in said) == 1
    assert any("the validation split chose learning_rate=0.005" in line for line in said)
    records = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("scored-select.json")]
    assert sorted(record["metrics"]["answer_nll"] is None for record in records) == [False, True]
