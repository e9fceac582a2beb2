"""Nothing is removed through a link, and no folder that a run of this library has not begun."""

import shutil

import pytest

from stepjepa.errors import RunError
from stepjepa.study.folder import StudyRunFolder, clear_folder
from stepjepa.training.run_folder import ResumeRecord, RunFolder, begin_checkpoint, remove_checkpoint
from stepjepa.utils.files import listed_files
from support.runs import CONSTANT, copy_of, files_of, one_line, result_of, resume, train


def precious(folder):
    """A folder that is dear to somebody, with a file in it."""
    folder.mkdir()
    (folder / "thesis.txt").write_text("three years of work")
    return folder


@pytest.fixture
def elsewhere(tmp_path, ended):
    """What a link may lead to: a folder, a checkpoint of another run, a file, nothing."""
    places = [tmp_path / name for name in ("folder", "checkpoint", "file", "nothing")]
    precious(places[0])
    shutil.copytree(ended / "checkpoint-2", places[1])
    places[2].write_text("dear")
    return places


def content(path):
    return files_of(path) if path.is_dir() else path.read_bytes() if path.exists() else None


@pytest.mark.parametrize("flags", [(), ("--overwrite_output_dir",)], ids=["new", "overwrite"])
def test_a_link_in_place_of_a_checkpoint_stops_a_run_before_anything_is_written(
    ended, elsewhere, tmp_path, capsys, flags
):
    out = copy_of(ended, tmp_path) if flags else tmp_path / "out"
    out.mkdir(exist_ok=True)
    link = out / "checkpoint-8"
    for place in elsewhere:
        link.symlink_to(place)
        before = files_of(out), content(place)
        assert train(out, *CONSTANT, *flags, "--save_total_limit", 1) == 2
        assert "checkpoint-8 is a symbolic link" in one_line(capsys.readouterr().err)
        assert (files_of(out), content(place)) == before and link.is_symlink()
        link.unlink()


@pytest.mark.parametrize("flags", ["--overwrite_output_dir", "--resume_from_checkpoint true"])
def test_a_folder_that_no_run_has_begun_stays(ended, tmp_path, capsys, flags):
    out = copy_of(ended, tmp_path, killed_after=2)
    precious(out / "checkpoint-1")
    before = files_of(out)
    assert train(out, *CONSTANT, "--save_total_limit", 1, *flags.split()) == 2
    assert "checkpoint-1 has no resume_record.json" in one_line(capsys.readouterr().err)
    assert files_of(out) == before


@pytest.mark.parametrize("inside", [".", "checkpoint-2"])
def test_a_model_that_no_run_has_written_is_not_overwritten(ended, tmp_path, capsys, inside):
    out = copy_of(ended, tmp_path) / inside
    (out / "run.json").unlink(missing_ok=True)
    before = files_of(out)
    assert train(out, *CONSTANT, "--overwrite_output_dir") == 2
    assert "has a model but no run.json" in one_line(capsys.readouterr().err) and files_of(out) == before


def test_an_output_folder_that_is_a_link_is_the_folder_itself(ended, tmp_path):
    real = copy_of(ended, tmp_path / "disk", killed_after=4)
    shutil.copy(ended.parent / "rows.jsonl", tmp_path)
    out = tmp_path / "out"
    out.symlink_to(real)
    assert resume(out, *CONSTANT, "--save_total_limit", 1) == 0 and result_of(out) == result_of(ended)
    assert [path.name for path in real.glob("checkpoint-*")] == ["checkpoint-6"]
    assert train(out, *CONSTANT, "--overwrite_output_dir") == 0 and result_of(real) == result_of(ended)
    assert out.is_symlink()


def test_what_appears_while_a_run_trains_stays(tmp_path):
    elsewhere = precious(tmp_path / "elsewhere")
    (tmp_path / "checkpoint-2").symlink_to(elsewhere)
    precious(tmp_path / "checkpoint-4")
    for name in ("checkpoint-2", "checkpoint-4"):
        with pytest.raises(RunError, match="was not written by this run"):
            begin_checkpoint(tmp_path / name, ResumeRecord({}))
        remove_checkpoint(tmp_path / name)
        assert (tmp_path / name / "thesis.txt").exists()
    RunFolder(tmp_path).clear()
    assert (elsewhere / "thesis.txt").exists() and (tmp_path / "checkpoint-4" / "thesis.txt").exists()


def test_a_study_removes_nothing_through_a_link(tmp_path):
    elsewhere, runs = precious(tmp_path / "elsewhere"), precious(tmp_path / "disk")
    run = StudyRunFolder(tmp_path / "run")
    run.path.mkdir()
    run.model.symlink_to(elsewhere)
    run.tidy(keep_weights=False)
    run.model.unlink()
    run.model.mkdir()
    (run.model / "checkpoint-2").symlink_to(elsewhere)
    run.tidy(keep_weights=False)
    study = tmp_path / "study"
    study.mkdir()
    (study / "runs").symlink_to(runs)
    clear_folder(study)
    assert (elsewhere / "thesis.txt").exists() and (runs / "thesis.txt").exists()
    assert not list(run.model.iterdir()) and not list(study.iterdir())


def test_a_manifest_names_no_file_outside_its_folder(tmp_path):
    for name in ("../thesis.txt", "/thesis.txt", "a/../../thesis.txt"):
        (tmp_path / "manifest.json").write_text(f'{{"files": {{"{name}": {{"bytes": 1, "sha256": "0"}}}}}}')
        assert listed_files(tmp_path) is None
