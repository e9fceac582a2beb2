"""Every file is complete or not there: a full disk, a kill, an interruption, files that must not be replaced."""

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest

from stepjepa.data.prepare import Converter, PrepareOptions, prepare
from stepjepa.errors import ConfigError, DataError

ROWS = 700


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


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("raw") / "raw.jsonl")


def options(folder, source, **changes):
    return PrepareOptions(
        str(source), output_file=str(folder / "out.jsonl"), **{"dedup": True, "valid_ratio": 0.2, **changes}
    )


def contents(folder):
    """File -> bytes of what is visible; of the report the counts, without the paths."""
    found = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name[0] != "."}
    if "out.report.json" in found:
        report = json.loads(found["out.report.json"])
        found["out.report.json"] = {key: report[key] for key in report if key not in ("job", "files")}
    return found


def hidden(folder):
    return sorted(path.name for path in folder.iterdir() if path.name[0] == ".")


def written(folder):
    """When the hidden files of a run were last written to."""
    found = {}
    for name in hidden(folder):
        with contextlib.suppress(FileNotFoundError):
            found[name] = (folder / name).stat().st_mtime_ns
    return found


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("complete")
    report = prepare(options(folder, source))
    assert report.rows_read == ROWS and report.rows_dropped == {"no_final_answer": 8, "duplicate": 48}
    assert hidden(folder) == []
    return contents(folder)


@pytest.mark.slow
def test_killed_processes(tmp_path):
    source = write_rows(tmp_path / "raw.jsonl", 5000)
    for name in ("complete", "out"):
        (tmp_path / name).mkdir()
    prepare(options(tmp_path / "complete", source))
    expected, folder = contents(tmp_path / "complete"), tmp_path / "out"
    words = "--output_file out.jsonl --dedup --valid_ratio 0.2 --overwrite --num_proc 2".split()
    command = [sys.executable, "-m", "stepjepa", "prepare", str(source), *words]
    rng, killed = random.Random(2), 0
    for attempt in range(40):
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        before = written(folder)
        while process.poll() is None and written(folder) == before:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.3 * (1 + attempt))  # late enough in the end
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


@pytest.mark.parametrize("after", [0, 100_000])
def test_a_full_disk(source, tmp_path, after):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))
        with pytest.raises(DataError) as caught:
            prepare(options(tmp_path, source))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    message = str(caught.value)
    assert message.startswith(str(tmp_path)) and "cannot be written (File too large)" in message and "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_interrupted_by_the_user(source, expected, tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr("stepjepa.data.prepare._next_command", interrupt)
        patch.setattr(Converter, "_prepared", interrupt)
        prepare(options(tmp_path, source))
    assert list(tmp_path.iterdir()) == []
    prepare(options(tmp_path, source))
    assert contents(tmp_path) == expected


def test_existing_files_are_not_replaced(source, expected, tmp_path):
    (tmp_path / "out.valid.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match=r"out\.valid\.jsonl exists already; --overwrite replaces it"):
        prepare(options(tmp_path, source))
    assert hidden(tmp_path) == [] and (tmp_path / "out.valid.jsonl").read_text() == "mine"
    prepare(options(tmp_path, source, overwrite=True))
    assert contents(tmp_path) == expected


def test_a_failed_run_leaves_the_old_files(source, tmp_path):
    prepare(options(tmp_path, source))
    before = contents(tmp_path)
    with pytest.raises(DataError, match="none of 700 rows"):
        prepare(options(tmp_path, source, overwrite=True, min_steps=9))
    assert contents(tmp_path) == before and hidden(tmp_path) == []


def test_names_that_cannot_be_written(source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        prepare(options(tmp_path / "file", source))
    (tmp_path / "out.valid.jsonl").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        prepare(options(tmp_path, source))
    raw = write_rows(tmp_path / "raw.jsonl", 10)
    before = raw.read_bytes()
    for name in (raw, tmp_path / "link.jsonl"):
        if name != raw:
            name.symlink_to(raw)
        with pytest.raises(ConfigError, match="is the file that is read"):
            prepare(PrepareOptions(str(raw), output_file=str(name), overwrite=True))
    assert raw.read_bytes() == before


def test_a_link_stays_a_link(source, tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "far" / "real.jsonl")
    prepare(PrepareOptions(str(source), output_file=str(tmp_path / "out.jsonl")))
    assert (tmp_path / "out.jsonl").is_symlink() and (tmp_path / "far" / "real.jsonl").stat().st_size
