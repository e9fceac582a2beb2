"""What a run of `stepjepa generate` leaves behind, and how it goes on. The teacher is a function of row and seed."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from stepjepa.errors import ConfigError, DataError, StepJepaError
from stepjepa.evaluation.teachers import files
from stepjepa.evaluation.teachers.options import TeacherOptions
from stepjepa.evaluation.teachers.questions import read_questions
from stepjepa.evaluation.teachers.requests import Reply
from stepjepa.evaluation.teachers.rounds import make_attempts, open_store, summarise

COUNT = 12


class Nobody:
    def begin(self, attempt, total, done):
        pass

    def step(self, asked, solved):
        pass


class Pupil:
    """Right every third time. Answers in groups of `size` that do not depend on what is done, and breaks after `groups`."""

    def __init__(self, groups=None, size=5):
        self.groups, self.size, self.asked = groups, size, []

    def answer(self, requests, done):
        for begin in range(0, len(requests), self.size):
            group = [request for request in requests[begin : begin + self.size] if request.row not in done]
            if not group:
                continue
            if self.groups is not None and self.groups == 0:
                raise StepJepaError("broke off")
            self.groups = None if self.groups is None else self.groups - 1
            self.asked += [(request.row, request.seed) for request in group]
            yield [
                Reply(request.row, f"\\boxed{{{request.row + (request.seed % 3 > 0)}}}\u2028\u00e9", True, 3, 4)
                for request in group
            ]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: None)


@pytest.fixture
def options(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"question": f"q{n}", "answer": str(n)}) + "\n" for n in range(1, COUNT + 1)))

    def make(name="out.jsonl", **changes):
        fixed = {"file": str(data), "model_name": "t", "output_file": str(tmp_path / name)}
        return TeacherOptions(**fixed, **{"seed": 0, **changes})

    return make


def run(options, teacher=None):
    options.check()
    questions = read_questions(options)
    store = open_store(options, questions)
    try:
        store.open()
        make_attempts(questions.questions, teacher or Pupil(), store, options, Nobody())
        store.finish(summarise(questions, store, options.attempts), options.keep_attempts)
    finally:
        store.close()
    return store


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_every_question_once_and_in_order(options, tmp_path):
    store = run(options(attempts=3))
    solved, unsolved = rows(tmp_path / "out.jsonl"), rows(tmp_path / "out.unsolved.jsonl")
    assert [row["row"] for row in solved] == sorted(row["row"] for row in solved)
    assert sorted(row["row"] for row in solved + unsolved) == list(range(1, COUNT + 1))
    assert {row["attempt"] for row in solved} == {1, 2, 3} and {row["attempt"] for row in unsolved} == {3}
    summary = json.loads((tmp_path / "out.jsonl.meta.json").read_text())["summary"]
    assert summary == store.summary
    assert sum(summary["solved_at_attempt"].values()) == summary["solved"] == len(solved)
    assert summary["solved"] + summary["unsolved"] == COUNT == summary["asked_at_attempt"]["1"]
    assert summary["tokens_written"] == 4 * sum(summary["asked_at_attempt"].values())


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_torn_anywhere(groups, options, tmp_path):
    """Files cut at any place that a kill can leave them at lead to the same end, and nothing stored is asked again."""
    run(options("whole.jsonl", keep_attempts=True))
    whole = {name: (tmp_path / f"whole{name}.jsonl").read_bytes() for name in ("", ".unsolved", ".attempts")}
    with pytest.raises(StepJepaError, match="broke off"):
        run(options(keep_attempts=True), Pupil(groups))
    log, out = (tmp_path / "out.attempts.jsonl").read_bytes(), (tmp_path / "out.jsonl").read_bytes()
    assert whole[".attempts"].startswith(log) and log != whole[".attempts"]
    meta = (tmp_path / "out.jsonl.meta.json").read_text()
    lines = log.splitlines(keepends=True)
    ends = [sum(map(len, lines[: i + 1])) for i in range(len(lines))]
    for cut in sorted({0, *(end + shift for end in ends for shift in (-20, -1, 0) if end + shift >= 0)}):
        done = [json.loads(line) for line, end in zip(lines, ends, strict=True) if end <= cut]
        while done and done[-1]["left"]:
            done.pop()
        size = sum(len(line) for line in out.splitlines(True)[: sum(one["verdict"] == "right" for one in done)])
        for kept in {0, size // 2, max(0, size - 1), size}:
            (tmp_path / "out.attempts.jsonl").write_bytes(log[:cut])
            (tmp_path / "out.jsonl").write_bytes(out[:kept])
            (tmp_path / "out.jsonl.meta.json").write_text(meta)
            (tmp_path / "out.unsolved.jsonl").unlink(missing_ok=True)
            pupil = Pupil()
            run(options(keep_attempts=True), pupil)
            for name, expected in whole.items():
                assert (tmp_path / f"out{name}.jsonl").read_bytes() == expected, (cut, kept, name)
            assert len(pupil.asked) == len(set(pupil.asked)) == whole[".attempts"].count(b"\n") - len(done)


@pytest.mark.parametrize("fails_at", range(8))
def test_broken_off_while_finishing(fails_at, options, tmp_path, monkeypatch):
    run(options("whole.jsonl"))
    calls, replace = [], os.replace

    def breaking(source, target):
        calls.append(target)
        if len(calls) - 1 == fails_at:
            raise OSError(5, "Input/output error")
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "replace", breaking)
        try:
            run(options())
        except DataError as error:
            assert "Input/output error" in str(error)
        else:
            assert fails_at >= 5
    if fails_at < 5:
        run(options())
    for name in ("", ".unsolved"):
        assert (tmp_path / f"out{name}.jsonl").read_bytes() == (tmp_path / f"whole{name}.jsonl").read_bytes()
    assert not list(tmp_path.glob("*attempts*")) and not list(tmp_path.glob(".*"))


def test_zeros_at_the_end_are_no_attempts(options, tmp_path):
    """A crash of the machine may leave the length of a write without its content."""
    with pytest.raises(StepJepaError):
        run(options(), Pupil(1))
    with open(tmp_path / "out.attempts.jsonl", "ab") as file:
        file.write(b"\0" * 100 + b"\n" + b"\0" * 10)
    run(options())
    assert len(rows(tmp_path / "out.jsonl")) + len(rows(tmp_path / "out.unsolved.jsonl")) == COUNT


def test_complete_is_left_alone(options, tmp_path):
    run(options())
    questions = read_questions(options())
    store = open_store(options(), questions)
    assert store.summary is not None and store.summary["solved"] == len(rows(tmp_path / "out.jsonl"))
    with pytest.raises(ConfigError, match="completed by another process"):
        store.open()
    store.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": 0.9}, "made with temperature 0.7, not 0.9"),
        ({"temperature": 0.9, "seed": 1}, r"temperature 0.7, not 0.9 \(and 1 more\)"),
        ({"batch_size": 4}, "batch_size none, not 4"),
        ({"max_examples": 3}, "max_examples none, not 3"),
        ({"system_prompt": "x"}, r'system_prompt "Please solve the problem step by ste\.\.\., not "x"'),
        ({"resume": False}, "--no_resume forbids"),
    ],
)
@pytest.mark.parametrize("complete", [False, True])
def test_other_settings_are_refused(changes, words, complete, options, tmp_path):
    if complete:
        run(options())
    else:
        with pytest.raises(StepJepaError, match="broke off"):
            run(options(), Pupil(2))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=words) as caught:
        run(options(**changes))
    assert "--overwrite" in str(caught.value) and "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    run(options(**{**changes, "overwrite": True}))
    assert len(rows(tmp_path / "out.jsonl")) > 0


def test_settings_that_decide_nothing_may_change(options, tmp_path):
    run(options("whole.jsonl"))
    with pytest.raises(StepJepaError, match="broke off"):
        run(options(), Pupil(2))
    run(options(concurrency=99, timeout=1.0, max_retries=0))
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_what_is_refused_beside_that(options, tmp_path):
    (tmp_path / "mine.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="is not from an unfinished run"):
        run(options("mine.jsonl"))
    with pytest.raises(StepJepaError, match="broke off"):
        run(options(), Pupil(2))
    for path, text, words in [
        ("data.jsonl", '{"question": "another", "answer": "1"}\n', "other questions"),
        ("out.jsonl", '{"edited": 1}\n', "was changed since"),
        ("out.jsonl", (tmp_path / "out.jsonl").read_text() + "more\n", "holds more than"),
        ("out.jsonl.meta.json", "{", "cannot be read as the record"),
        ("out.attempts.jsonl", "{}\n{}\n", "line 1: broken"),
        ("out.attempts.jsonl", None, "is gone"),
    ]:
        shutil.copytree(tmp_path, tmp_path / "saved")
        if text is None:
            (tmp_path / path).unlink()
        else:
            (tmp_path / path).write_text(text)
        with pytest.raises(StepJepaError, match=words):
            run(options())
        shutil.copytree(tmp_path / "saved", tmp_path, dirs_exist_ok=True)
        shutil.rmtree(tmp_path / "saved")
    run(options())


def test_nothing_is_overwritten_before_there_is_something_new(options, tmp_path):
    run(options(keep_attempts=True))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StepJepaError, match="broke off"):
        run(options(overwrite=True, seed=1), Pupil(0))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(StepJepaError, match="broke off"):
        run(options(overwrite=True, seed=1), Pupil(1))
    assert not (tmp_path / "out.unsolved.jsonl").exists()
    run(options(seed=1))
    run(options("whole.jsonl", seed=1))
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_run_without_results_binds_nobody(options, tmp_path):
    with pytest.raises(StepJepaError, match="broke off"):
        run(options(), Pupil(0))
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]
    run(options(seed=9))


def test_two_processes_do_not_write_one_file(options):
    questions = read_questions(options())
    first = open_store(options(), questions)
    first.open()
    with pytest.raises(ConfigError, match="another process is writing"):
        run(options())
    first.close()
    run(options())


def test_the_input_is_not_overwritten(options, tmp_path):
    shutil.copy(tmp_path / "data.jsonl", tmp_path / "x.unsolved.jsonl")
    for name, file in (("data.jsonl", "data.jsonl"), ("x.jsonl", "x.unsolved.jsonl")):
        given = options(name, overwrite=True)
        given.file = str(tmp_path / file)
        with pytest.raises(ConfigError, match="which is its input"):
            run(given)


def test_the_unsolved_can_be_asked_again(options, tmp_path):
    run(options(attempts=1))
    left = rows(tmp_path / "out.unsolved.jsonl")
    again = options("again.jsonl", seed=7)
    again.file = str(tmp_path / "out.unsolved.jsonl")
    again.check()
    questions = read_questions(again).questions
    assert [(q.question, q.answer, q.ground_truth) for q in questions] == [
        (row["question"], row["answer"], row["ground_truth"]) for row in left
    ]
