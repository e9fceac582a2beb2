"""Interrupted at any moment, a run leaves whole files or none, and goes on to the same bytes."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from stepjepa.data import prepare_input, prepare_output
from stepjepa.data.prepare import prepare
from stepjepa.data.prepare_options import PrepareOptions
from stepjepa.errors import ConfigError, DataError

ROWS = 700
MANY = 5000  # for processes that are killed


class Crash(BaseException):
    """Stands for the end of the process."""


def write_rows(path, count=ROWS):
    """GSM8K-like rows; some questions come twice, some rows cannot be used."""
    with open(path, "w", encoding="utf-8") as file:
        for index in range(count):
            question = f"How many are {index % (count - 50)} and 1?"
            answer = f"We take {index} things.\nOne more makes <<{index}+1={index + 1}>>{index + 1}.\n#### {index + 1}"
            if index % 97 == 0:
                answer = answer.split("\n")[0]
            file.write(json.dumps({"question": question, "answer": answer}) + "\n")
    return path


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_input, "_BLOCK_ROWS", 100)
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("raw") / "raw.jsonl")


def options(folder, **changes):
    return PrepareOptions(
        output_file=str(folder / "out.jsonl"), **{"dedup": True, "valid_ratio": 0.2, "shards": 3, **changes}
    )


def contents(folder):
    """File -> bytes of what is visible; the report without the paths and the mark of having been gone on with."""
    found = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name[0] != "."}
    if "out.report.json" in found:
        report = json.loads(found["out.report.json"])
        for key in ("resumed_at", "job", "files"):
            del report[key]
        found["out.report.json"] = report
    return found


def hidden(folder):
    return sorted(path.name for path in folder.iterdir() if path.name[0] == ".")


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    report = prepare(source, options(folder))
    assert report.rows_read == ROWS and report.rows_dropped == {"no_final_answer": 8, "duplicate": 48}
    assert hidden(folder) == []
    return contents(folder)


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(prepare_output, "CHECKPOINT_SECONDS", 0.0)


CALLS = ("replace", "fsync", "open", "unlink")


def crash_at(monkeypatch, number):
    """Let the process end before file operation `number`, counted over all kinds; returns the count so far."""
    counted = [0]
    for name in CALLS:
        original = getattr(os, name)

        def call(*args, original=original, **kwargs):
            counted[0] += 1
            if counted[0] > number:  # nothing is done after the end, cleaning up neither
                raise Crash
            return original(*args, **kwargs)

        monkeypatch.setattr(os, name, call)
    return counted


def operations(source, folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(prepare_output, "CHECKPOINT_SECONDS", 0.0)
        counted = crash_at(patch, 10**9)
        prepare(source, options(folder))
    return counted[0]


@pytest.mark.slow
def test_an_end_at_every_file_operation(source, expected, tmp_path, monkeypatch, often):
    total = operations(source, tmp_path / "count", monkeypatch)
    assert total > 40
    for number in range(total):
        folder = tmp_path / str(number)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, number)
            prepare(source, options(folder))
        if folder.is_dir():
            seen = contents(folder)
            assert all(seen[name] == expected[name] for name in seen), number
        report = prepare(source, options(folder, resume=True))
        assert contents(folder) == expected and hidden(folder) == [], number
        assert report.rows_read == ROWS


@pytest.mark.slow
def test_an_end_while_going_on(source, expected, tmp_path, monkeypatch, often):
    rng = random.Random(3)
    for number in range(40):
        folder = tmp_path / str(number)
        for last in rng.choices(range(60), k=4):
            with monkeypatch.context() as patch:
                crash_at(patch, last)
                try:
                    prepare(source, options(folder, resume=True))
                except Crash:
                    continue
        prepare(source, options(folder, resume=True))
        assert contents(folder) == expected and hidden(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_processes(tmp_path, processes):
    source = write_rows(tmp_path / "raw.jsonl", MANY)
    prepare(source, options(tmp_path / "whole"))
    expected = contents(tmp_path / "whole")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom stepjepa.data import prepare_output\nfrom stepjepa.cli.main import main\n"
        "prepare_output.CHECKPOINT_SECONDS = 0.0\nif __name__ == '__main__':\n    sys.exit(main(sys.argv[1:]))\n"
    )
    words = f"--output_file out.jsonl --dedup --valid_ratio 0.2 --shards 3 --resume --num_proc {processes}".split()
    command = [sys.executable, str(script), "prepare", str(source), *words]
    rng, killed = random.Random(processes), 0
    folder = tmp_path / "out"
    folder.mkdir()
    for attempt in range(40):
        before = changes(folder)
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        while process.poll() is None and changes(folder) == before:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.05 * (1 + attempt))  # late enough in the end
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            killed += 1
        _, error = process.communicate(timeout=60)  # ends only when the workers have gone too: they hold the pipes
        seen = contents(folder)
        assert all(seen[name] == expected[name] for name in seen)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, error
    assert contents(folder) == expected and hidden(folder) == [] and killed


def changes(folder):
    """When the hidden files of a run were last written to."""
    found = {}
    for name in hidden(folder):
        with contextlib.suppress(FileNotFoundError):
            found[name] = (folder / name).stat().st_mtime_ns
    return found


def test_nothing_is_done_twice(source, expected, tmp_path, monkeypatch, often):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, 30)
        prepare(source, options(tmp_path))
    report = prepare(source, options(tmp_path, resume=True))
    assert 0 < report.resumed_at < ROWS and f"Gone on behind row {report.resumed_at:,}" in "\n".join(report.lines())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = prepare(source, options(tmp_path, resume=True))
    assert again.already_done and again.rows_kept == report.rows_kept
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    # Number of processes aside, other options are another run.
    assert prepare(source, options(tmp_path, resume=True, num_proc=2)).already_done
    with pytest.raises(ConfigError, match="exists already"):
        prepare(source, options(tmp_path, resume=True, min_steps=1))


def test_an_interrupted_run_of_another_kind(source, expected, tmp_path, monkeypatch, often):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, 30)
        prepare(source, options(tmp_path))
    with pytest.raises(ConfigError, match="had other options, another source or another version"):
        prepare(source, options(tmp_path, resume=True, min_steps=1))
    other = write_rows(tmp_path / "other.jsonl", 100)
    with pytest.raises(ConfigError, match="had other options, another source or another version"):
        prepare(other, options(tmp_path, resume=True))
    other.unlink()
    assert contents(tmp_path) == {} and hidden(tmp_path) != []
    prepare(source, options(tmp_path))  # without resume it starts anew
    assert contents(tmp_path) == expected and hidden(tmp_path) == []


def test_other_shards_leave_nothing_behind(source, tmp_path, monkeypatch, often):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, 30)
        prepare(source, options(tmp_path))
    assert ".out-00002-of-00003.jsonl.partial" in hidden(tmp_path)
    prepare(source, options(tmp_path, shards=1))
    assert hidden(tmp_path) == []


def test_a_lost_part_starts_anew(source, expected, tmp_path, monkeypatch, often):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, 30)
        prepare(source, options(tmp_path))
    (tmp_path / ".out-00001-of-00003.jsonl.partial").write_bytes(b"")
    assert prepare(source, options(tmp_path, resume=True)).resumed_at is None
    assert contents(tmp_path) == expected


@pytest.mark.parametrize("after", [0, 300_000])
def test_a_full_disk(source, expected, tmp_path, monkeypatch, often, after):
    limited = options(tmp_path, shards=1, valid_ratio=0.0, dedup=False)
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))
        with pytest.raises(DataError) as caught:
            prepare(source, limited)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    message = str(caught.value)
    assert "cannot be written (File too large)" in message and "\n" not in message
    assert contents(tmp_path) == {}
    if not after:
        assert hidden(tmp_path) == []  # nothing was done that could be gone on with
        return
    assert "--resume goes on from there" in message
    report = prepare(source, PrepareOptions(**{**vars(limited), "resume": True}))
    assert report.resumed_at and report.rows_read == ROWS


def test_interrupted_by_the_user(source, tmp_path, monkeypatch, often):
    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(prepare_output, "sync", interrupt)
        prepare(source, options(tmp_path))
    assert prepare(source, options(tmp_path, resume=True)).rows_read == ROWS
    assert hidden(tmp_path) == []


def test_two_runs_at_once(source, tmp_path):
    first = prepare_output.Outputs(options(tmp_path), {})
    first.begin(source)
    for changes in ({}, {"shards": 1}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(DataError, match="another run is writing these files"):
            prepare(source, options(tmp_path, **changes))
    assert hidden(tmp_path) != []  # the first one's files are not touched
    first.abort(keep=False)
    assert hidden(tmp_path) == []


def test_existing_files_are_not_replaced(source, expected, tmp_path):
    (tmp_path / "out.valid.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match=r"out\.valid\.jsonl exists already; --overwrite replaces it"):
        prepare(source, options(tmp_path))
    assert hidden(tmp_path) == [] and (tmp_path / "out.valid.jsonl").read_text() == "mine"
    prepare(source, options(tmp_path, overwrite=True))
    assert contents(tmp_path) == expected


def test_a_failed_run_leaves_the_old_files(source, tmp_path):
    prepare(source, options(tmp_path))
    before = contents(tmp_path)
    with pytest.raises(DataError, match="none of 700 rows"):
        prepare(source, options(tmp_path, overwrite=True, min_steps=9))
    assert contents(tmp_path) == before and hidden(tmp_path) == []


def test_names_that_cannot_be_written(source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        prepare(source, options(tmp_path / "file"))
    (tmp_path / "out.valid.jsonl").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        prepare(source, options(tmp_path))
    raw = write_rows(tmp_path / "raw.jsonl", 10)
    before = raw.read_bytes()
    for name in (raw, tmp_path / "link.jsonl"):
        if name != raw:
            name.symlink_to(raw)
        with pytest.raises(ConfigError, match="is the file that is read"):
            prepare(raw, PrepareOptions(output_file=str(name), overwrite=True))
    assert raw.read_bytes() == before


def test_a_link_stays_a_link(source, tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "far" / "real.jsonl")
    prepare(source, PrepareOptions(output_file=str(tmp_path / "out.jsonl")))
    assert (tmp_path / "out.jsonl").is_symlink() and (tmp_path / "far" / "real.jsonl").stat().st_size
