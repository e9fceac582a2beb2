"""Saved states: the schema, a round trip, and files that hold none."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from stepjepa.analysis.states import States, load_states, save_states, saved_layers
from stepjepa.errors import DataError


@pytest.fixture
def states():
    generator = np.random.default_rng(0)
    source, target = generator.normal(size=(2, 3, 4, 5)).astype(np.float32)
    return States("my/model", "test.jsonl", (0, 2, -1), np.array([7, 1, 5, 2]), source, target)


def same(a, b):
    assert (a.model, a.file, a.layers) == (b.model, b.file, b.layers)
    for name in ("rows", "source", "target"):
        assert getattr(a, name).dtype == getattr(b, name).dtype
        assert np.array_equal(getattr(a, name), getattr(b, name))


def test_round_trip(states, tmp_path):
    save_states(states, tmp_path / "new" / "states.safetensors")
    same(load_states(tmp_path / "new" / "states.safetensors"), states)


def test_the_schema(states, tmp_path):
    """As the module's docstring has it, read without this library."""
    path = tmp_path / "states.safetensors"
    save_states(replace(states, source=states.source.astype(np.float64)), path)
    with safe_open(path, framework="numpy") as file:
        found = {name: (file.get_tensor(name).shape, str(file.get_tensor(name).dtype)) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    assert found == {"source": ((3, 4, 5), "float32"), "target": ((3, 4, 5), "float32"), "rows": ((4,), "int64")}
    about = {"version": 1, "model": "my/model", "file": "test.jsonl", "layers": [0, 2, -1]}
    assert list(metadata) == ["stepjepa.states"] and json.loads(metadata["stepjepa.states"]) == about


def test_some_layers_in_any_order(states, tmp_path):
    path = tmp_path / "states.safetensors"
    save_states(states, path)
    found = load_states(path, layers=[-1, 0])
    assert found.layers == (-1, 0)
    assert np.array_equal(found.source, states.source[[2, 0]]) and np.array_equal(found.target, states.target[[2, 0]])
    assert load_states(path, layers=[]).source.shape == (0, 4, 5)
    with pytest.raises(DataError, match=r"layer 1 was not saved; there are: \[0, 2, -1\]"):
        load_states(path, layers=[1])


def test_one_layer(states):
    source, target = states.layer(2)
    assert np.array_equal(source, states.source[1]) and np.array_equal(target, states.target[1])
    with pytest.raises(DataError, match="layer 1 of my/model was not saved"):
        states.layer(1)


def test_the_same_states_give_the_same_bytes(states, tmp_path):
    for name in ("a", "b"):
        save_states(states, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_failed_write_leaves_what_was_there(states, tmp_path, monkeypatch):
    path = tmp_path / "states.safetensors"
    save_states(states, path)

    def fail(tensors, file, metadata):
        file.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        save_states(replace(states, model="other"), path)
    assert load_states(path).model == "my/model"
    assert [entry.name for entry in tmp_path.iterdir()] == ["states.safetensors"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": np.zeros((3, 4, 6), np.float32)}, "must be of one shape"),
        ({"source": np.zeros((4, 5)), "target": np.zeros((4, 5))}, "must be of one shape"),
        ({"layers": (0, 1)}, "2 layers and 4 rows are named, the arrays have 3 and 4"),
        ({"rows": np.arange(9)}, "3 layers and 9 rows are named"),
        ({"layers": (0, 1, 1)}, "a layer is there twice"),
    ],
)
def test_states_that_do_not_fit(states, change, message):
    with pytest.raises(DataError, match=message):
        replace(states, **change)


def test_files_that_hold_no_states(states, tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(DataError, match="there is no such file"):
        load_states(path)
    path.write_text("hello")
    with pytest.raises(DataError, match="no safetensors file, or a damaged one"):
        load_states(path)
    save_file({"weight": np.zeros(3)}, path)
    with pytest.raises(DataError, match="holds no states"):
        load_states(path)
    save_states(states, path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match="damaged"):
        load_states(path)
    tensors = {"source": states.source, "target": states.target, "rows": states.rows}
    save_file(tensors, path, {"stepjepa.states": json.dumps({"version": 2})})
    with pytest.raises(DataError, match="is of version 2; this library reads version 1"):
        load_states(path)
    with pytest.raises(DataError):
        load_states(tmp_path)


def test_steps_of_the_targets(states, tmp_path):
    """A fourth tensor, only where there are steps."""
    path = tmp_path / "states.safetensors"
    save_states(replace(states, steps=np.array([2, 3, 2, 4])), path)
    with safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == {"source", "target", "rows", "steps"}
        assert file.get_tensor("steps").dtype == np.int64
    for layers in (None, [2], []):
        assert load_states(path, layers).steps.tolist() == [2, 3, 2, 4]
    save_states(states, path)
    assert load_states(path).steps is None
    with pytest.raises(DataError, match=r"steps are of shape \(3,\), and there are 4 rows"):
        replace(states, steps=np.array([2, 3, 2]))


def test_the_layers_of_a_file(states, tmp_path):
    save_states(states, tmp_path / "states.safetensors")
    assert saved_layers(tmp_path / "states.safetensors") == (0, 2, -1)
    with pytest.raises(DataError, match="there is no such file"):
        saved_layers(tmp_path / "other.safetensors")


def test_others_may_read_a_file_as_any_other(states, tmp_path):
    (tmp_path / "plain").write_text("")
    save_states(states, tmp_path / "states.safetensors")
    assert (tmp_path / "states.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
