"""A study that resumes from its records alone, and what they hold."""

import json
import shutil
from pathlib import Path

import pytest

from stepjepa.errors import ConfigError, DataError
from stepjepa.study import records as identity
from stepjepa.study.reading import read_study
from stepjepa.study.spec import possible_runs
from stepjepa.study.tree import open_study
from stepjepa.utils.files import locked
from support.rows import lines as lines_of
from support.rows import write
from support.studies import records_of

pytest.importorskip("statsmodels")
TUNED = ["seeds=[1, 2]", "tune={learning_rate: [1e-3, 2e-3]}", "controls=[shuffled]", "keep_models=false"]


def value(options, split):
    return options["learning_rate"] * (1 if options["objective"] == "regular" else 2) + 0.001 * options["seed"]


def tables(folder):
    rows = json.loads((folder / "table.json").read_text())
    assert rows["missing"] == []
    return rows["tables"], rows["verdicts"]


@pytest.mark.parametrize(("die", "more"), [(4, ["tune_seeds=[11]"]), (15, [])])
def test_the_records_alone_are_enough(carry_out, player, tmp_path, die, more):
    player.value = value
    carry_out(*TUNED, *more, folder="whole").write_results()
    calls, kept = len(player.calls), str(tmp_path / "kept.jsonl")
    player.die = calls + die
    with pytest.raises(KeyboardInterrupt):
        carry_out(*TUNED, *more, kept=kept)
    shutil.rmtree(tmp_path / "out")
    done = {line["run"] for line in lines_of(tmp_path / "kept.jsonl")}
    player.calls, player.die = [], None
    outcome = carry_out(*TUNED, *more, kept=kept)
    outcome.write_results()
    assert tables(tmp_path / "out") == tables(tmp_path / "whole")
    again = {name for name, what in player.calls if what == "train"} & done
    assert again <= {one.run for one in records_of(outcome) if one.chosen}  # whose weights are scored once more
    player.calls.clear()
    shutil.rmtree(tmp_path / "out")
    outcome = carry_out(*TUNED, *more, kept=kept)
    outcome.write_results()
    assert player.calls == [] and tables(tmp_path / "out") == tables(tmp_path / "whole")
    at = outcome.state.choice("", "regular")["at"]
    assert all(one.at["test"] > at for one in records_of(outcome) if one.arm == "regular" and one.chosen)


def test_runs_that_ended_unseen_are_added(carry_out, tmp_path):
    """Before the records were asked for, or as jobs that have outlived their study."""
    whole, kept = carry_out(), tmp_path / "kept.jsonl"
    for _ in "12":
        carry_out(kept=str(kept))
        assert [line["run"] for line in lines_of(kept)] == [record.run for record in records_of(whole)]


def test_a_diverged_run_stays_one(carry_out, player, tmp_path):
    player.diverges = lambda name: name == "step_jepa seed 2"
    kept = tmp_path / "kept.jsonl"
    before = records_of(carry_out(kept=str(kept)))
    shutil.rmtree(tmp_path / "out")
    player.calls.clear()
    after = records_of(carry_out(kept=str(kept)))
    assert player.calls == [] and [record.error for record in after] == [record.error for record in before]
    (lost,) = [record for record in after if record.diverged]
    assert (lost.run, lost.error) == ("step_jepa seed 2", "diverged: the loss is not finite")


def test_files_that_cannot_take_records(carry_out, tmp_path):
    kept = tmp_path / "kept.jsonl"
    with locked(Path(f"{kept}.lock")), pytest.raises(ConfigError, match="another stepjepa study is writing to it"):
        carry_out(kept=str(kept))
    assert not kept.exists()
    carry_out().write_results()
    results = tmp_path / "out" / "results.jsonl"
    before = results.read_bytes()
    with pytest.raises(ConfigError, match="results.jsonl: the file is in .*, which the study writes; give a file"):
        carry_out(kept=str(results), overwrite=True)
    assert results.read_bytes() == before


def test_records_of_another_study_are_refused(carry_out, player, tmp_path):
    kept = tmp_path / "kept.jsonl"
    carry_out("seeds=[1]", kept=str(kept))
    with pytest.raises(ConfigError, match="kept.jsonl: regular seed 1 has other data, scoring or settings"):
        carry_out("seeds=[1]", "base.max_steps=5", kept=str(kept), folder="other")
    lines = lines_of(kept)
    lines[0]["code"]["torch"] = "1.0"
    write(kept, lines)
    outcome = carry_out("seeds=[1]", kept=str(kept), folder="other")
    different = "1 of its runs were made with different code or package versions"
    assert outcome.said[0] == f"note   {kept}: {different}" and len(player.calls) == 4
    kept.write_text('{"arm": "regular"}\n')
    with pytest.raises(DataError, match=r"kept.jsonl:1: not a record of a run"):
        carry_out(kept=str(kept), folder="third")


def test_records_name_machine_types_commit_and_losses(carry_out, player, tmp_path):
    kept = tmp_path / "kept.jsonl"
    player.record = {"device": "cpu", "machine": {"processor": "A processor"}, "git_commit": "abc"}
    player.record["settings"] = {"dtype": "float32", "bf16": True}
    entry = {"step": 2, "lm_loss": 0.5, "grad_norm": 2.0}
    evaluation = {"step": 4, "eval_loss": 0.75, "eval_lm_loss": 0.5, "examples": 16, "total_flos": 100.0}
    player.log = [{**entry, "loss": 1.0, "epoch": 1}, {**evaluation, "eval_runtime": 1.5}]
    carry_out("seeds=[1]", kept=str(kept))
    player.record["device"] = "NVIDIA H100"
    carry_out("seeds=[1, 2]", kept=str(kept))
    shutil.rmtree(tmp_path / "out")
    for records in (lines_of(kept), [vars(one) for one in records_of(carry_out("seeds=[1, 2]", kept=str(kept)))]):
        assert {(one["seed"], one["machine"]) for one in records} == {(1, "A processor"), (2, "NVIDIA H100")}
        assert {(one["dtype"], one["commit"]) for one in records} == {("float32 weights, bf16 autocast", "abc")}
        assert all((list(one["losses"]), list(one["history"])) == ([entry], [evaluation]) for one in records)


# Records of version 0.2 stay valid, whatever options the library gains.

EVIDENCE = Path(__file__).resolve().parents[2] / "docs" / "evidence"
# Digests of the data files of the studies, by a part of their paths: train, select, test.
DATA = {
    "path_star": ("d2d2a5dc17450e1f", "536866965a67782e", "6b92fd00d6550db1"),
    "task=a5": ("4dbcbe4ac3b5ed4c", "4bd9e08aee815310", "f5308d5296b2fa8a"),
    "labels_or_jepa_data": ("11d3e4271aeeddaf", "52e508f4b26042bb", "acfce67c9284bb97"),
}


def digest_of(name, split):
    """That of a file which is not there: the problems take a while to generate, and NL-RX is not shipped."""
    (digests,) = [digests for part, digests in DATA.items() if part in name]
    return digests[("train", "select", "test").index(Path(name).stem.removesuffix("_small"))]


@pytest.mark.parametrize(
    ("recipe", "records", "runs"), [("planning", "planning/test", 153), ("labels_or_jepa", "labels_or_jepa/full", 10)]
)
def test_records_of_an_earlier_version_are_of_the_study(recipe, records, runs, monkeypatch):
    monkeypatch.setattr(identity, "_data_digest", digest_of)
    name, tree = open_study(recipe)
    study = read_study(tree, name)
    whole = identity.study_identity(study)
    identities = {run.name: identity.run_identity(run, whole) for run in possible_runs(study)}
    lines = [json.loads(line) for line in (EVIDENCE / f"{records}.jsonl").read_text().splitlines()]
    recorded = {line["run"]: line["identity"] for line in lines if line["at"]}
    assert len(recorded) >= runs
    assert recorded == {run: identities[run] for run in recorded}
