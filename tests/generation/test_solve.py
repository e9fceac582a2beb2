"""What a run of `stepjepa generate` leaves behind, and how it resumes. The generator is a function of row and seed."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from stepjepa.errors import ConfigError, DataError, StepJepaError
from stepjepa.generation import Reply, solve, store
from stepjepa.generation.options import GenerateOptions
from stepjepa.generation.solve import read_problems

COUNT = 12


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
    monkeypatch.setattr(store.os, "fsync", lambda descriptor: None)


@pytest.fixture
def options(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"question": f"q{n}", "answer": str(n)}) + "\n" for n in range(1, COUNT + 1)))

    def make(name="out.jsonl", **changes):
        fixed = {"file": str(data), "model_name": "t", "output_file": str(tmp_path / name), "seed": 0}
        return GenerateOptions(**{**fixed, **changes})

    return make


@pytest.fixture
def run(monkeypatch):
    def generate(options, pupil=None):
        monkeypatch.setattr(solve, "load_generator", lambda options, say: (pupil or Pupil(), "a pupil"))
        return solve.generate(options)

    return generate


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_every_question_once_and_in_order(options, run, tmp_path):
    result = run(options(attempts=3))
    solved, unsolved = rows(tmp_path / "out.jsonl"), rows(tmp_path / "out.unsolved.jsonl")
    assert [row["row"] for row in solved] == sorted(row["row"] for row in solved)
    assert sorted(row["row"] for row in solved + unsolved) == list(range(1, COUNT + 1))
    assert {row["attempt"] for row in solved} == {1, 2, 3} and {row["attempt"] for row in unsolved} == {3}
    summary = json.loads((tmp_path / "out.jsonl.meta.json").read_text())["summary"]
    assert summary == result.summary and not result.already
    assert sum(summary["solved_at_attempt"].values()) == summary["solved"] == len(solved)
    assert summary["solved"] + summary["unsolved"] == COUNT == summary["asked_at_attempt"]["1"]
    assert summary["tokens_written"] == 4 * sum(summary["asked_at_attempt"].values())
    again = run(options(attempts=3), Pupil(0))
    assert again.already and again.summary == summary and str(again).startswith(f"{tmp_path / 'out.jsonl'} is complete")


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_cut_anywhere(groups, options, run, tmp_path):
    """A partial file cut anywhere leads to the same end, and nothing stored is asked again."""
    run(options("whole.jsonl", keep_attempts=True))
    whole = {name: (tmp_path / f"whole{name}.jsonl").read_bytes() for name in ("", ".unsolved", ".attempts")}
    with pytest.raises(StepJepaError, match="broke off"):
        run(options(keep_attempts=True), Pupil(groups))
    log = (tmp_path / "out.partial").read_bytes()
    lines = log.splitlines(keepends=True)
    assert len(lines) == groups + 1
    ends = [sum(map(len, lines[: i + 1])) for i in range(len(lines))]
    for cut in sorted({0, *(end + shift for end in ends for shift in (-20, -1, 0))}):
        done = [
            one
            for line, end in zip(lines, ends, strict=True)
            if end <= cut
            for one in json.loads(line).get("attempts", [])
        ]
        for path in tmp_path.glob("out*"):
            path.unlink()
        (tmp_path / "out.partial").write_bytes(log[:cut])
        pupil = Pupil()
        run(options(keep_attempts=True), pupil)
        for name, expected in whole.items():
            assert (tmp_path / f"out{name}.jsonl").read_bytes() == expected, (cut, name)
        assert len(pupil.asked) == len(set(pupil.asked)) == whole[".attempts"].count(b"\n") - len(done)


@pytest.mark.parametrize("fails_at", range(3))
def test_broken_off_while_finishing(fails_at, options, run, tmp_path, monkeypatch):
    run(options("whole.jsonl"))
    calls, replace = [], os.replace

    def breaking(source, target):
        calls.append(target)
        if len(calls) - 1 == fails_at:
            raise OSError(5, "Input/output error")
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", breaking)
        with pytest.raises(DataError, match="Input/output error"):
            run(options())
    run(options(), Pupil(0))  # nothing is asked again
    for name in ("", ".unsolved"):
        assert (tmp_path / f"out{name}.jsonl").read_bytes() == (tmp_path / f"whole{name}.jsonl").read_bytes()
    assert not list(tmp_path.glob("*partial")) and not list(tmp_path.glob(".*"))


def test_other_settings_are_refused(options, run, tmp_path):
    """The store's own tests say what is compared; here, that every way in asks it."""
    for prepare in (lambda: pytest.raises(StepJepaError, run, options(), Pupil(2)), lambda: run(options())):
        prepare()
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        for changes, words in (
            ({"temperature": 0.9}, "made with temperature 0.7, not 0.9; use the same options, .* --overwrite"),
            ({"max_examples": 3}, "max_examples none, not 3"),
            ({"resume": False}, "--no_resume forbids"),
        ):
            with pytest.raises(ConfigError, match=words):
                run(options(**changes))
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    run(options(temperature=0.9, overwrite=True))
    assert len(rows(tmp_path / "out.jsonl")) > 0


def test_settings_that_decide_nothing_may_change(options, run, tmp_path):
    run(options("whole.jsonl"))
    with pytest.raises(StepJepaError, match="broke off"):
        run(options(), Pupil(2))
    run(options(concurrency=99, timeout=1.0, max_retries=0))
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_what_else_is_refused(options, run, tmp_path):
    """The record of a run that has not ended, attempts at questions that are not in the file, other questions."""
    with pytest.raises(StepJepaError, match="broke off"):
        run(options(), Pupil(2))
    meta, partial = tmp_path / "out.jsonl.meta.json", tmp_path / "out.partial"
    meta.write_text('{"state": "running", "settings": {}, "input": {}}')
    with pytest.raises(ConfigError, match="is no record of this"):
        run(options())
    meta.unlink()
    whole = partial.read_bytes()
    partial.write_bytes(whole.splitlines(True)[0] + b'{"attempts": [{"row": 99}]}\n')
    with pytest.raises(DataError, match="line 2: broken"):
        run(options())
    partial.write_bytes(whole)
    other = options(file=str(tmp_path / "other.jsonl"))
    (tmp_path / "other.jsonl").write_text('{"question": "another", "answer": "1"}\n')
    with pytest.raises(ConfigError, match="other questions"):
        run(other)
    run(options())


def test_a_complete_output_of_version_0_1_is_known(options, run, tmp_path):
    run(options())
    meta = tmp_path / "out.jsonl.meta.json"
    record = json.loads(meta.read_text())
    for name in ("dtype", "plain", "extra_body"):  # it recorded only what its backend read
        del record["settings"][name]
    meta.write_text(json.dumps(record))
    assert run(options(), Pupil(0)).already


def test_the_input_is_not_overwritten(options, run, tmp_path):
    shutil.copy(tmp_path / "data.jsonl", tmp_path / "x.unsolved.jsonl")
    for name, file in (("data.jsonl", "data.jsonl"), ("x.jsonl", "x.unsolved.jsonl")):
        with pytest.raises(ConfigError, match="would write over its input"):
            run(options(name, overwrite=True, file=str(tmp_path / file)))


def test_the_unsolved_can_be_asked_again(options, run, tmp_path):
    run(options(attempts=1))
    left = rows(tmp_path / "out.unsolved.jsonl")
    found = read_problems(options("again.jsonl", file=str(tmp_path / "out.unsolved.jsonl"))).problems
    expected = [(row["question"], row["answer"], row["ground_truth"]) for row in left]
    assert left and [(one.question, one.answer, one.ground_truth) for one in found] == expected
