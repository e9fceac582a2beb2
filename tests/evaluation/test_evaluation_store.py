"""The files of an evaluation: what a kill leaves, what is refused, what is replaced."""

from __future__ import annotations

import json

import pytest

from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.nll import AnswerLoss
from stepjepa.evaluation.store import Output, Paths
from stepjepa.evaluation.teachers.requests import Reply

IDENTITY = {"max_new_tokens": 8, "kwargs": {"a": [1]}, "model": "m", "data": "d"}
SCORING = {"metric": ["exact"], "metric_options": None}
REPLIES = [Reply(0, "a\u2028b", True, 3, 2), Reply(1, "c", False, 4, 8), Reply(2, "", refused="no room")]


def output(folder, identity=IDENTITY, scoring=SCORING, **more):
    return Output(Paths.in_folder(folder), identity, scoring, **more)


def stored(folder, **more):
    """An evaluation that was killed behind two batches and a likelihood."""
    one = output(folder, **more)
    with one.opened():
        one.add_losses([AnswerLoss(0, 1.5, 3)])
        one.add_replies(REPLIES[:2], 1.25)
        one.add_replies(REPLIES[2:], 0.5)
    return one


def result(**more):
    return {"identity": IDENTITY, "scoring": SCORING, "metrics": {}, **more}


def test_going_on(tmp_path):
    stored(tmp_path / "out")
    again = output(tmp_path / "out")
    assert again.complete is None and not again.replies
    with again.opened():
        assert again.replies == dict(enumerate(REPLIES)) and again.seconds == 1.75
        assert again.losses == {0: AnswerLoss(0, 1.5, 3)}
        files = again.finish([{"index": 0}], result())
    assert files == [again.paths.predictions, again.paths.metrics]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["metrics.json", "predictions.jsonl"]
    done = output(tmp_path / "out")
    assert done.complete == result()


def test_every_place_at_which_it_can_be_cut(tmp_path):
    whole = stored(tmp_path).paths.partial.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == 10]
    for cut in range(len(whole)):
        stored(tmp_path, overwrite=True).paths.partial.write_bytes(whole[:cut])
        again = output(tmp_path)
        with again.opened():
            found = sum(place <= cut for place in ends) - 1
            assert len(again.losses) == (found >= 1) and len(again.replies) == {2: 2, 3: 3}.get(found, 0)
            again.add_replies(REPLIES[:1], 0.0)
        lines = again.paths.partial.read_text(encoding="utf-8").split("\n")[:-1]
        assert [bool(json.loads(line)) for line in lines] == [True] * (max(found, 0) + 2)


@pytest.mark.parametrize("tail", [b"\0" * 100, b"\0" * 50 + b"\n\0\0", b'{"replies": [[1, "a'])
def test_what_a_crash_leaves_at_the_end(tmp_path, tail):
    with open(stored(tmp_path).paths.partial, "ab") as file:
        file.write(tail)
    again = output(tmp_path)
    with again.opened():
        assert len(again.replies) == 3


def test_a_broken_line(tmp_path):
    partial = stored(tmp_path).paths.partial
    lines = partial.read_bytes().splitlines(keepends=True)
    before = b"".join([lines[0], b'{"replies": 3}\n', *lines[2:]])
    partial.write_bytes(before)
    with pytest.raises(DataError, match="line 2: broken"), output(tmp_path).opened():
        pass
    assert partial.read_bytes() == before
    again = output(tmp_path, overwrite=True)
    with again.opened():
        assert not again.replies
        again.add_replies(REPLIES[:1], 0.0)
    assert len(partial.read_bytes().splitlines()) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_new_tokens": 9}, "max_new_tokens 8, not 9"),
        ({"kwargs": None}, 'kwargs {"a": [1]}, not none'),
        ({"model": "n"}, "another model, or they have changed"),
        ({"data": "e"}, "other questions, or they have changed"),
        ({"new": 1}, "new none, not 1"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_other_settings(tmp_path, change, words, finished):
    one = stored(tmp_path)
    if finished:
        with one.opened():
            one.finish([], result())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match="--overwrite_output_dir") as error:
        output(tmp_path, {**IDENTITY, **change})
    assert words in str(error.value) and len(str(error.value).splitlines()) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_other_metrics_on_a_finished_evaluation(tmp_path):
    with (one := stored(tmp_path)).opened():
        one.finish([], result())
    with pytest.raises(ConfigError, match=r'made with metric \["exact"\], not \["prefix"\]'):
        output(tmp_path, scoring={**SCORING, "metric": ["prefix"]})


def test_other_metrics_go_on_with_the_same_answers(tmp_path):
    stored(tmp_path)
    again = output(tmp_path, scoring={**SCORING, "metric": ["prefix"]})
    with again.opened():
        assert len(again.replies) == 3


def test_overwriting(tmp_path):
    """What is there goes when the first new batch comes; answers under the same settings are gone on with."""
    with (one := stored(tmp_path)).opened():
        one.finish([{"index": 0}], result())
    old = one.paths.predictions.read_bytes()
    other = output(tmp_path, {**IDENTITY, "max_new_tokens": 9}, overwrite=True)
    with other.opened():
        assert one.paths.predictions.read_bytes() == old and one.paths.metrics.exists()
        other.add_replies(REPLIES[:1], 0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.partial"]
    for overwrite in (False, True):
        again = output(tmp_path, {**IDENTITY, "max_new_tokens": 9}, overwrite=overwrite)
        with again.opened():
            assert len(again.replies) == 1
    back = output(tmp_path, overwrite=True)
    with back.opened():
        assert not back.replies


@pytest.mark.parametrize("name", ["predictions.jsonl", "answer_nll.jsonl", "metrics.json", "predictions.partial"])
@pytest.mark.parametrize("content", ["something\n", "[1]\n"])
def test_files_of_others(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises((ConfigError, DataError)), output(tmp_path).opened():
        pass
    assert (tmp_path / name).read_text() == content


def test_a_training_runs_metrics_are_never_overwritten(tmp_path):
    (tmp_path / "metrics.json").write_text('{"metrics": {}, "log_history": []}')
    with pytest.raises(ConfigError, match="is no evaluation's"):
        output(tmp_path, overwrite=True)


def test_the_input_is_never_overwritten(tmp_path):
    data = tmp_path / "predictions.jsonl"
    data.write_text("{}\n")
    with pytest.raises(ConfigError, match="write over its input"):
        output(tmp_path, overwrite=True, inputs=[data])


def test_two_processes(tmp_path):
    pytest.importorskip("fcntl")
    first, second = output(tmp_path), output(tmp_path)
    with first.opened():
        with pytest.raises(ConfigError, match="another process is writing it"), second.opened():
            pass
        first.add_replies(REPLIES, 0.0)


def test_nothing_is_left_where_nothing_was_done(tmp_path):
    with output(tmp_path / "new").opened():
        pass
    assert not (tmp_path / "new").exists()
    with output(tmp_path).opened():
        pass
    assert tmp_path.exists() and not list(tmp_path.iterdir())


def test_names_of_ones_own(tmp_path):
    paths = Paths.of_file(tmp_path / "mine.json")
    assert [path.name for path in paths] == ["mine.json", "mine.answer_nll.json", "mine.metrics.json", "mine.partial"]
    one = Output(paths, IDENTITY, SCORING)
    with one.opened():
        one.add_replies(REPLIES[:1], 0.0)
        one.finish([{"index": 0, "text": "\u00e9"}], result())
    assert json.loads(paths.predictions.read_text(encoding="utf-8")) == [{"index": 0, "text": "\u00e9"}]
