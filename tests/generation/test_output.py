"""The files of work that can be killed: what a kill leaves, what is refused, what is replaced."""

import json
from contextlib import contextmanager

import pytest

from stepjepa.errors import ConfigError, DataError
from stepjepa.generation.output import Output, Paths, json_line

IDENTITY = {"max_new_tokens": 8, "kwargs": {"a": [1]}, "model": "m", "data": "d"}
BATCHES = [{"replies": [["a\u2028b", 1]]}, {"replies": [["c", 2], ["d", 3]]}]


def output(folder, identity=IDENTITY, **more):
    paths = Paths(
        (folder / "predictions.jsonl", folder / "answer_nll.jsonl"), folder / "metrics.json", folder / "partial"
    )
    return Output(paths, identity, **more)


@contextmanager
def opened(one):
    """The batches that are stored; more can be in the context."""
    batches = []
    with one.opened(lambda line: batches.append(line["replies"])):
        yield batches


def stored(folder):
    """Work that was killed after two batches."""
    one = output(folder)
    with opened(one):
        for batch in BATCHES:
            one.append(batch)
    return one


def finished(folder):
    with opened(one := stored(folder)):
        one.finish({one.paths.results[0]: [json_line({"index": 0})]}, {"identity": IDENTITY, "metrics": {}})
    return one


def test_every_position_at_which_it_can_be_cut(tmp_path):
    complete = stored(tmp_path).paths.partial.read_bytes()
    ends = [position + 1 for position, byte in enumerate(complete) if byte == 10]
    for cut in range(len(complete)):
        (tmp_path / "partial").write_bytes(complete[:cut])
        again = output(tmp_path)
        with opened(again) as batches:
            found = max(sum(end <= cut for end in ends) - 1, 0)
            assert len(batches) == found
            again.append(BATCHES[0])
        lines = again.paths.partial.read_text(encoding="utf-8").split("\n")[:-1]
        assert [bool(json.loads(line)) for line in lines] == [True] * (found + 2)


@pytest.mark.parametrize("tail", [b"\0" * 100, b"\0" * 50 + b"\n\0\0", b'{"replies": [[1, "a'])
def test_what_a_crash_leaves_at_the_end(tmp_path, tail):
    partial = stored(tmp_path).paths.partial
    whole = partial.read_bytes()
    partial.write_bytes(whole + tail)
    with opened(output(tmp_path)) as batches:
        assert len(batches) == 2 and partial.read_bytes() == whole
    lines = whole.splitlines(keepends=True)
    partial.write_bytes(before := b"".join([lines[0], b'{"answers": 3}\n', *lines[2:]]))
    with pytest.raises(DataError, match="line 2: broken"), opened(output(tmp_path)):
        pass
    assert partial.read_bytes() == before


def test_other_settings(tmp_path):
    for made in (stored, finished):
        made(tmp_path)
        for name, value, words in (
            ("kwargs", None, 'kwargs {"a": [1]}, not none'),
            ("model", "n", "another model, or they have changed"),
            ("data", "e", "other questions, or they have changed"),
        ):
            with pytest.raises(ConfigError, match="--overwrite_output_dir") as error:
                output(tmp_path, {**IDENTITY, name: value})
            assert words in str(error.value) and len(str(error.value).splitlines()) == 1


def test_overwriting(tmp_path):
    """What is there goes when the first new batch comes; answers under the same settings are resumed."""
    one = finished(tmp_path)
    old, other = one.paths.results[0].read_bytes(), {**IDENTITY, "max_new_tokens": 9}
    first = output(tmp_path, other, overwrite=True)
    with opened(first):
        assert one.paths.results[0].read_bytes() == old and one.paths.record.exists()
        first.append(BATCHES[0])
    assert [path.name for path in tmp_path.iterdir()] == ["partial"]
    for identity, overwrite, kept in ((other, False, 1), (other, True, 1), (IDENTITY, True, 0)):
        with opened(output(tmp_path, identity, overwrite=overwrite)) as batches:
            assert len(batches) == kept


@pytest.mark.parametrize("name", ["predictions.jsonl", "answer_nll.jsonl", "metrics.json", "partial"])
def test_files_of_others(tmp_path, name):
    """Not even overwriting replaces the metrics of a training run, and the input."""
    for content in ("something\n", "[1]\n"):
        (tmp_path / name).write_text(content)
        with pytest.raises((ConfigError, DataError)), opened(output(tmp_path)):
            pass
        assert (tmp_path / name).read_text() == content
    (tmp_path / "metrics.json").write_text('{"metrics": {}, "log_history": []}')
    with pytest.raises(ConfigError, match="is not a record of this command"):
        output(tmp_path, overwrite=True)
    (tmp_path / "predictions.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="overwrite its input"):
        output(tmp_path, overwrite=True, inputs=[tmp_path / "predictions.jsonl"])


def test_two_processes_and_nothing_done(tmp_path):
    with opened(output(tmp_path)):
        pass
    assert not list(tmp_path.iterdir()), "nothing is left"
    pytest.importorskip("fcntl")
    first, second = output(tmp_path), output(tmp_path)
    with opened(first), pytest.raises(ConfigError, match="another process is writing it"), opened(second):
        pass
