"""What a report finds in folders: runs, studies, old and broken ones."""

import pytest

from stepjepa.errors import ConfigError
from stepjepa.report.reading import Reader, read_folders
from stepjepa.report.run import report
from support.reports import log, write, write_run, write_study


def test_an_unfinished_run_is_read_from_its_newest_checkpoint(tmp_path):
    for step in (90, 100):
        write(tmp_path / "run" / f"checkpoint-{step}" / "trainer_state.json", {"log_history": log(steps=step // 10)})
    (read,), _ = read_folders([tmp_path / "run"], Reader())
    assert read.unfinished and read.history[-1]["step"] == 100


def test_runs_of_one_name_get_their_parents(tmp_path):
    runs = [write_run(tmp_path / place / "model") for place in ("a", "b")]
    assert [run.label for run in read_folders(runs, Reader())[0]] == ["a/model", "b/model"]


def test_a_run_that_was_restored_from_its_record_has_its_curves(tmp_path):
    study = write_study(tmp_path / "study")
    run = study / "runs" / "step_jepa" / "seed-2"
    losses, history = [{"step": 5, "lm_loss": 1.0}], [{"step": 9, "eval_task": 0.5}]
    write(run / "trained.json", {"steps": 9, "losses": losses, "history": history})
    assert read_folders([study], Reader())[0][3].history == [*losses, *history]


def test_what_is_no_run(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    write_run(tmp_path / "run")
    write_study(tmp_path / "study")
    for names, words in (
        (["empty"], "empty: is not the folder of a run or a study"),
        (["file"], "file: no such folder"),
        (["nothing"], "nothing: no such folder"),
        (["run", "empty"], "empty: is not the folder of a run"),
        (["study", "run"], "study: is a study, which needs a report of its own"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_folders([tmp_path / name for name in names], Reader())


def test_broken_files_are_told_and_left_out(tmp_path):
    run, study = write_run(tmp_path / "run"), write_study(tmp_path / "study")
    broken = [run / "run.json", run / "data_report.json", study / "table.json"]
    for file, text in zip(broken, ("[1]", "[1, 2", ""), strict=True):
        file.write_text(text)
    reader = Reader()
    ((read,), _), (_, read_study) = (read_folders([folder], reader) for folder in (run, study))
    assert read.record == read.settings == {} and read.data == [] and read.history
    assert read_study is not None and read_study.title == "" and not read_study.tables and not read_study.verdicts
    assert [problem.split(": ")[0] for problem in reader.problems] == list(map(str, broken))


def test_a_file_of_another_form_is_an_error_of_one_sentence(tmp_path):
    study = write_study(tmp_path / "study")
    write(study / "table.json", {"tables": [{}]})
    with pytest.raises(ConfigError, match="study: a JSON file of these folders has another form than stepjepa writes"):
        report(folders=[str(study)])
    assert not (study / "report.html").exists()
