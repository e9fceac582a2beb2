"""Which rows become questions, what `stepjepa generate` leaves behind, and how it resumes, with a played generator."""

import os

import pytest

from stepjepa.errors import ConfigError, DataError
from stepjepa.generation import solve
from stepjepa.generation.options import GenerateOptions
from stepjepa.generation.output import Reply, mended, seed_of
from stepjepa.generation.solve import read_problems
from support.rows import lines, write

COUNT = 12


class Pupil:
    """Right every third time, in groups of five that do not depend on what is done; a silent one must not be asked."""

    def __init__(self, silent=False):
        self.silent = silent

    def answer(self, requests, done):
        for begin in range(0, len(requests), 5):
            group = [request for request in requests[begin : begin + 5] if request.row not in done]
            if group:
                assert not self.silent
                yield [
                    Reply(one.row, f"\\boxed{{{one.row % COUNT + 1 + (one.seed % 3 > 0)}}}\u2028\u00e9", True, 3, 4)
                    for one in group
                ]


@pytest.fixture
def run(tmp_path, monkeypatch):
    data = write(tmp_path / "data.jsonl", [{"question": f"q{n}", "answer": str(n)} for n in range(1, COUNT + 1)])

    def generate(name="out.jsonl", silent=False, **changes):
        monkeypatch.setattr(solve, "load_generator", lambda options, say: (Pupil(silent), "a pupil"))
        fixed = {"file": data, "model_name": "t", "output_file": str(tmp_path / name), "seed": 0}
        return solve.generate(GenerateOptions(**{**fixed, **changes}))

    return generate


@pytest.mark.parametrize(("call", "fails_at"), [("fsync", 3), ("replace", 1), ("replace", 3)])
def test_a_full_disk(call, fails_at, run, tmp_path, monkeypatch):
    """Between two groups, and at the first and the last of the files that are written at the end."""
    run("whole.jsonl")
    calls, plain = [], getattr(os, call)

    def breaking(*arguments):
        calls.append(arguments)
        if len(calls) == fails_at:
            raise OSError(28, "No space left on device")
        plain(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, breaking)
        with pytest.raises(DataError, match="No space left on device.* is kept"):
            run()
    run(silent=call == "replace")  # nothing is asked again
    for name in ("", ".unsolved"):
        assert (tmp_path / f"out{name}.jsonl").read_bytes() == (tmp_path / f"whole{name}.jsonl").read_bytes()
    assert not list(tmp_path.glob("*partial")) and not list(tmp_path.glob(".*"))


def test_settings_that_decide_nothing_may_change(run, tmp_path):
    run()
    with pytest.raises(ConfigError, match="made with temperature 0.7, not 0.9; .* --overwrite"):
        run(temperature=0.9)
    again = run(concurrency=99, silent=True)
    assert again.already and str(again).startswith(f"{tmp_path / 'out.jsonl'} is already complete")


def test_the_unsolved_can_be_asked_again(run, read, tmp_path):
    run(temperature=0)
    left = lines(tmp_path / "out.unsolved.jsonl")
    expected = [(row["question"], row["answer"], row["ground_truth"]) for row in left]
    assert left and {row["attempt"] for row in left} == {1}
    assert [(one.question, one.answer, one.ground_truth) for one in read(*left).problems] == expected


CHAT = [{"role": role, "content": text} for role, text in (("system", "s"), ("user", "q"), ("assistant", "3"))]
NAMED = {"source_column": "problem", "target_column": "solution"}
TURNS = [{"role": role, "content": "c"} for role in ("user", "assistant") * 2]


@pytest.fixture
def read(tmp_path):
    def run(*rows, **options):
        return read_problems(GenerateOptions(file=write(tmp_path / "data.jsonl", rows), **options))

    return run


@pytest.mark.parametrize(
    ("row", "options", "expected"),
    [
        ({"question": "q", "answer": "a\n#### 3"}, {}, ("q", "a\n#### 3", "3")),
        ({"question": "q", "answer": "#### 1\nNo:\n####  7"}, {}, ("q", "#### 1\nNo:\n####  7", "1")),
        ({"question": "q", "ground_truth": 3}, {}, ("q", "", "3")),
        ({"question": "q", "answer": "#### 3", "ground_truth": "4"}, {}, ("q", "#### 3", "4")),
        ({"problem": "q", "solution": "#### 3"}, NAMED, ("q", "#### 3", "3")),
        ({"messages": CHAT}, {}, ("q", "3", "3")),
    ],
)
def test_a_row_that_can_be_asked(row, options, expected, read):
    (found,) = read(row, **options).problems
    assert found.row == 1
    assert (found.question, found.answer, found.ground_truth) == expected


@pytest.mark.parametrize(
    ("row", "reason", "words"),
    [
        ({"question": " ", "answer": "3"}, "no_question", "is empty"),
        ({"question": "q"}, "no_ground_truth", "no column ground_truth"),
        ({"question": "q", "answer": "It is 3.\n####"}, "no_ground_truth", "no final answer"),
        ({"messages": TURNS}, "several_turns", "one question"),
    ],
)
def test_a_row_that_cannot(row, reason, words, read):
    good = {"question": "q", "answer": "3"}
    found = read(good, row, good)
    assert [question.row for question in found.problems] == [1, 3]
    assert found.rows_read == 3 and dict(found.rows_skipped) == {reason: 1}
    assert "data.jsonl line 2: " in found.first_skipped[reason] and words in found.first_skipped[reason]
    with pytest.raises(DataError, match="none of 1 rows can be asked; skipped 1: .*first: .* line 1: "):
        read(row)


def test_the_first_so_many(read):
    found = read(*({"question": f"q{n}", "answer": "1" if n else None} for n in range(9)), max_examples=3)
    assert [question.question for question in found.problems] == ["q1", "q2", "q3"]
    assert found.rows_read == 4 and found.rows_skipped.total() == 1


def test_seeds_differ_and_halves_of_characters_are_replaced():
    seeds = {seed_of(seed, row, attempt) for seed in range(3) for row in range(30) for attempt in range(1, 5)}
    assert len(seeds) == 3 * 30 * 4 and all(0 <= seed < 2**31 for seed in seeds)
    assert seed_of(1, 23) != seed_of(12, 3)
    assert seed_of(42, 1, 1) == 1538944245  # a run that resumes after an update must ask with the same seeds
    assert mended(" a\ud83d\ude00 \ud83d b\n") == " a\U0001f600 \ufffd b\n"
