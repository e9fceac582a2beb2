"""What a report finds in folders: runs, studies, old and broken ones."""

import json

import pytest

from stepjepa.errors import ConfigError
from stepjepa.report.reading import read_folders
from stepjepa.report.run import report_page
from support.reports import log, study_record, write, write_run, write_study


def test_an_unfinished_run_is_read_from_its_newest_checkpoint(tmp_path):
    for step in (90, 100):
        write(tmp_path / "run" / f"checkpoint-{step}" / "trainer_state.json", {"log_history": log(steps=step // 10)})
    (read,) = read_folders([tmp_path / "run"]).runs
    assert read.unfinished and read.history[-1]["step"] == 100


def test_runs_of_one_name_get_their_parents(tmp_path):
    runs = [write_run(tmp_path / place / "model") for place in ("a", "b")]
    assert [run.label for run in read_folders(runs).runs] == ["a/model", "b/model"]


def test_a_run_that_was_restored_from_its_record_has_its_curves(tmp_path):
    study = write_study(tmp_path / "study")
    run = study / "runs" / "step_jepa" / "seed-2"
    losses, history = [{"step": 5, "lm_loss": 1.0}], [{"step": 9, "eval_task": 0.5}]
    write(run / "trained.json", {"steps": 9, "losses": losses, "history": history})
    assert read_folders([study]).runs[3].history == [*losses, *history]


def test_what_is_no_run(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    run, study = write_run(tmp_path / "run"), write_study(tmp_path / "study")
    for names, words in (
        (["empty"], "empty: is not the folder of a run or a study"),
        (["file"], "file: is a file; give the folder of a run"),
        (["nothing"], "nothing: no such folder"),
        (["run", "empty"], "empty: is not the folder of a run"),
        (["study", "run"], "study: is a study, which needs a report of its own"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_folders([tmp_path / name for name in names])
    assert run.is_dir() and study.is_dir()


def test_broken_files_are_told_and_left_out(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "data_report.json").write_text("[1, 2")
    (run / "run.json").write_text("[1]")
    found = read_folders([run])
    assert found.runs[0].record == found.runs[0].settings == {} and found.runs[0].data == [] and found.runs[0].history
    assert [problem.split(": ")[0] for problem in found.reader.problems] == [
        str(run / name) for name in ("run.json", "data_report.json")
    ]


@pytest.mark.parametrize("key", ["tables", "missing"])
def test_a_table_of_another_form_is_told_and_left_out(tmp_path, key):
    study = write_study(tmp_path / "study")
    table = study / "table.json"
    write(table, {**study_record(), key: [{}]})
    found = read_folders([study])
    assert found.study.title == "" and not found.study.tables and not found.study.verdicts
    assert [problem.split(": ")[0] for problem in found.reader.problems] == [str(table)]
    assert str(table) in report_page(found)[0]


def test_records_of_another_form_do_not_cost_the_page(tmp_path):
    study = write_study(tmp_path / "study", answers=True)
    write(study / "state.json", {"identity": {"blocks": {"": {"arms": {"regular": None}}}}})
    metrics = study / "runs" / "regular" / "seed-1" / "evaluation-test" / "metrics.json"
    record = json.loads(metrics.read_text())
    write(metrics, {**record, "generation": {"did_not_stop": {"n": 4}}, "rows": {"skipped": {"no_answer": None}}})
    assert "None of 4" in report_page(read_folders([study]))[0]
