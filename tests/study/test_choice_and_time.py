"""A choice with its own seeds, the order of arms, blocks by name, and a study whose time is up. The processes are played."""

from __future__ import annotations

import json
import shutil
import threading

import pytest

from stepjepa.errors import ConfigError
from stepjepa.study import stages
from stepjepa.study.results import study_tables
from stepjepa.study.run import study
from stepjepa.study.spec import StudyOptions
from support.rows import lines as lines_of
from support.studies import records_of

pytest.importorskip("statsmodels")
CHOICE = ["tune={learning_rate: [1e-3, 2e-3]}", "tune_seeds=[11]", "seeds=[1, 2, 3]", "keep_models=false"]


def trained(player):
    return [name for name, what in player.calls if what == "train"]


def value(options, split):
    """The second rate is the best, on both splits."""
    return 1.0 - 100 * options["learning_rate"] + 0.001 * options["seed"]


def test_the_choice_has_seeds_of_its_own(carry_out, player):
    player.value = value
    outcome = carry_out(*CHOICE, "controls=[shuffled]")
    cells = [f"learning_rate={rate}" for rate in ("0.001", "0.002")]
    tuning = [f"{arm}/{cell} seed 11" for arm in ("regular", "step_jepa") for cell in cells]
    assert trained(player)[:4] == tuning
    rows = ["regular", "step_jepa", "step_jepa+shuffled"]
    assert sorted(trained(player)[4:]) == sorted(f"{row}/{cells[1]} seed {seed}" for row in rows for seed in (1, 2, 3))
    scored = {name: what for name, what in player.calls if what != "train"}
    assert all(scored[name] == (("select",) if name in tuning else ("test",)) for name in scored)
    assert not outcome.failed and outcome.said[-1].startswith("[13/13]")
    records = records_of(outcome)
    assert [record.seed for record in records if not record.chosen] == [11] * 4
    table = study_tables(outcome.study, records)["", "answer_nll"].arms
    assert [(row.name, row.seeds) for row in table] == [(row, (1, 2, 3)) for row in rows]
    # New seeds may follow: the choice does not depend on them.
    more = [override.replace("[1, 2, 3]", "[1, 2, 3, 4]") for override in CHOICE]
    before = len(player.calls)
    assert not carry_out(*more, "controls=[shuffled]").failed
    assert sorted({name for name, _ in player.calls[before:]}) == sorted(f"{row}/{cells[1]} seed 4" for row in rows)


def test_a_run_of_a_chosen_cell_with_other_settings_is_refused(carry_out, player, tmp_path):
    """Also where the records hold none of the runs that the study knows before it has chosen."""
    player.value = value
    kept = tmp_path / "kept.jsonl"
    carry_out(*CHOICE, kept=str(kept))
    chosen = [line for line in lines_of(kept) if line["seed"] == 2]
    kept.write_text("".join(json.dumps(line | {"identity": "other"}) + "\n" for line in chosen))
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(ConfigError, match="learning_rate=0.002 seed 2 has other data"):
        carry_out(*CHOICE, kept=str(kept))


@pytest.mark.parametrize("seeds", ["tune_seeds=[1]", "tune_seeds=[-1]", "tune_seeds=[11, 11]"])
def test_seeds_of_the_choice_are_others(make_study, seeds):
    with pytest.raises(ConfigError, match="seeds: expected distinct whole numbers.*, and others for tune_seeds"):
        make_study(seeds)


def test_an_arm_may_go_without_controls(make_study):
    study = make_study("controls=[shuffled]", "arms.other={objective: step_jepa, lbd: 0.1, controls: []}")
    assert [arm.variants for arm in study.blocks[0].arms] == [(), ("shuffled",), ()]
    with pytest.raises(ConfigError, match="controls"):
        make_study("arms.other={objective: step_jepa, controls: [nothing]}")


def test_a_study_whose_time_is_up(study_file, player, tmp_path, monkeypatch):
    """What has ended is recorded, what was under way is neither failed nor recorded, and the next start goes on."""
    killed = threading.Event()

    def fails(run, stage):
        return run == "step_jepa seed 1" and stage == "score" and killed.wait(60)

    monkeypatch.setattr(stages, "kill_all", killed.set)
    player.fails = fails
    kept = tmp_path / "kept.jsonl"
    options = {"output_dir": str(tmp_path / "out"), "records": str(kept), "jobs": 1}
    lines: list[str] = []
    result = study(StudyOptions(study_file, stop_after=0.05, **options), lines.append)
    assert lines[-1] == "the time is up: 1 of 6 runs are finished; the same command resumes"
    assert not result.failed and "  step_jepa seed 1: not run" in result.lines
    assert [(line["run"], line["status"]) for line in lines_of(kept)] == [("regular seed 1", "finished")]
    assert len(trained(player)) == 2
    player.fails = lambda run, stage: stage == "train" and run == "step_jepa seed 3"
    assert study(StudyOptions(study_file, **options), lines.append).failed
    failed = [line["run"] for line in lines_of(kept) if line["status"] == "failed"]
    assert failed == ["step_jepa seed 3"]
    # Once more, with a failure and too little time: the failure counts.
    player.fails = lambda run, stage: True
    assert study(StudyOptions(study_file, stop_after=5.0, **options), lines.append).failed


def test_records_name_machine_types_and_commit(carry_out, player, tmp_path, monkeypatch):
    kept, play = tmp_path / "kept.jsonl", player.__call__
    record = {"device": "cpu", "machine": {"processor": "A processor"}, "git_commit": "abc"}
    record["settings"] = {"dtype": "float32", "bf16": True}
    entry = {"step": 2, "lm_loss": 0.5, "grad_norm": 2.0}

    def with_record(log, argv, environment):
        play(log, argv, environment)
        if argv[0] == "train":
            (log.parent / "model" / "run.json").write_text(json.dumps(record))
            written = {"steps": 4, "metrics": {}, "log_history": [{**entry, "loss": 1.0, "epoch": 1}]}
            (log.parent / "model" / "metrics.json").write_text(json.dumps(written))

    monkeypatch.setattr(stages, "run_process", with_record)
    carry_out("seeds=[1]", kept=str(kept))
    record["device"] = "NVIDIA H100"
    carry_out("seeds=[1, 2]", kept=str(kept))
    shutil.rmtree(tmp_path / "out")
    for records in (lines_of(kept), [vars(one) for one in records_of(carry_out("seeds=[1, 2]", kept=str(kept)))]):
        assert {(one["seed"], one["machine"]) for one in records} == {(1, "A processor"), (2, "NVIDIA H100")}
        assert {(one["dtype"], one["commit"]) for one in records} == {("float32 weights, bf16 autocast", "abc")}
        assert all(list(one["losses"]) == [entry] for one in records)
