"""Tokenised examples on disk: the same examples, memory-mapped, and never those of other data or options."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from stepjepa.data import dataset
from stepjepa.data.chat import ChatRenderer
from stepjepa.data.dataset import cache_key, load_cached, save_cached
from stepjepa.data.encode import encode_dataset
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import make_splitter
from stepjepa.errors import ConfigError
from stepjepa.objectives.base import OBJECTIVES, find_objective
from stepjepa.training.encoding import encode
from stepjepa.training.options import JEPAOptions
from support.encoding import settings_of
from support.rows import step_rows, write
from support.tokenizers import byte_bpe_tokenizer, fresh

METHOD = {"objective": "llm_jepa", "views": "standalone", "predictors": 2}
OPTIONS = settings_of(**METHOD)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, [*step_rows(30), {"messages": []}])
    return path


def test_what_is_read_is_what_was_stored(tmp_path, file):
    tokenizer = byte_bpe_tokenizer()
    source = RowSource(file)
    key = cache_key(source, tokenizer, OPTIONS)
    assert load_cached(tmp_path / "cache", key) is None
    store, report = encode_dataset(source, tokenizer, ChatRenderer(tokenizer), OPTIONS)
    save_cached(tmp_path / "cache", key, store, report)
    again, same = load_cached(tmp_path / "cache", key)
    assert same == report and same.lines() == report.lines() and report.rows_skipped == {"no_messages": 1}
    assert len(again) == len(store) == 30 and report.pairs > 0
    assert isinstance(again.arrays["ids"], np.memmap)
    for name, array in store.arrays.items():
        assert np.array_equal(array, again.arrays[name]), name
    save_cached(tmp_path / "cache", key, store, report)  # once more changes nothing
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [key]


def test_the_key_knows_data_tokenizer_and_options(file):
    tokenizer = byte_bpe_tokenizer()
    source = RowSource(file)
    keys = {cache_key(source, tokenizer, OPTIONS)}
    assert keys == {cache_key(RowSource(file), byte_bpe_tokenizer(), settings_of(**METHOD, max_row_length=64))}
    keys.add(cache_key(source, byte_bpe_tokenizer(template="gemma"), OPTIONS))
    other = fresh(tokenizer)
    other.add_tokens(["<|new|>"], special_tokens=True)
    keys.add(cache_key(source, other, OPTIONS))
    for change in ({"labels": "all"}, {"max_length": 99}, {"predictors": 3}, {"splitter": make_splitter("lines")}):
        keys.add(cache_key(source, tokenizer, settings_of(**METHOD | change)))
    os.utime(file, ns=(1, 1))
    keys.add(cache_key(RowSource(file), tokenizer, OPTIONS))
    file.write_text(file.read_text() + json.dumps(step_rows(1)[0]) + "\n")
    os.utime(file, ns=(1, 1))
    keys.add(cache_key(RowSource(file), tokenizer, OPTIONS))
    assert len(keys) == 9
    assert cache_key(RowSource(step_rows(3)), tokenizer, OPTIONS) is None


def other_values(option, kind):
    """Values of an objective's option that are not its default."""
    named = [value for one in (kind, *get_args(kind)) if get_origin(one) is Literal for value in get_args(one)]
    if named or isinstance(option.default, bool):
        return {*(named or (True, False))} - {option.default}
    return {option.default + 1} if isinstance(option.default, (int, float)) else set()


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if find_objective(name).Options])
def test_the_key_knows_what_changes_the_examples_of_an_objective(file, objective):
    """Or the report on them, with the number of pairs."""
    tokenizer, source, options = byte_bpe_tokenizer(), RowSource(file), find_objective(objective).Options

    def made(**given):
        settings = settings_of(objective, **given)
        store, report = encode_dataset(source, tokenizer, ChatRenderer(tokenizer), settings)
        arrays = {name: array.tobytes() for name, array in store.arrays.items()}
        return cache_key(source, tokenizer, settings), (report.to_dict(), arrays)

    key, examples = made()
    kinds, changed = get_type_hints(options), 0
    for option in fields(options):
        for value in other_values(option, kinds[option.name]) - {"regex", "list"}:
            other, different = made(**{option.name: value})
            assert other != key or different == examples, (option.name, value)
            changed += different != examples
    assert changed


def test_half_an_entry_is_none(tmp_path, file):
    tokenizer = byte_bpe_tokenizer()
    store, report = encode_dataset(RowSource(file), tokenizer, ChatRenderer(tokenizer), OPTIONS)
    save_cached(tmp_path / "cache", "key", store, report)
    for name in ("report.json", "ids.npy", "pairs.npy"):
        path = tmp_path / "cache" / "key" / name
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        assert load_cached(tmp_path / "cache", "key") is None, name
        path.write_bytes(whole)
    assert load_cached(tmp_path / "cache", "key") is not None


def test_an_entry_of_another_version_is_made_again_with_one_note(tmp_path, file, caplog, monkeypatch):
    tokenizer, folder = byte_bpe_tokenizer(), tmp_path / "cache"
    store, report = encode_dataset(RowSource(file), tokenizer, ChatRenderer(tokenizer), OPTIONS)
    old = folder / ("0" * 32)  # as version 0.1 has left it: other arrays, no version in the report
    old.mkdir(parents=True)
    np.save(old / "ids.npy", np.arange(3))
    (old / "report.json").write_text(json.dumps({"source": str(file), "rows_read": 31, "target_tokens": 7}))
    key = cache_key(RowSource(file), tokenizer, OPTIONS)
    monkeypatch.setattr(dataset, "_VERSION", {"format": 4, "version": "0.1"})
    assert cache_key(RowSource(file), tokenizer, OPTIONS) != key
    monkeypatch.undo()
    assert load_cached(folder, key) is None and load_cached(folder, old.name) is None
    save_cached(folder, key, store, report)
    (note,) = caplog.messages
    assert (
        note
        == f"data_cache {folder}: its examples of {file} were written by another version of stepjepa; they are made again"
    )
    assert load_cached(folder, key)[1] == report
    caplog.clear()
    save_cached(folder, "other", store, DataReport("other data"))
    assert caplog.messages == []


def test_a_run_reads_what_the_run_before_has_stored(tmp_path, file, monkeypatch):
    options = JEPAOptions(objective="step_jepa", predictors=0, data_cache=str(tmp_path / "cache"))
    store, report = encode(str(file), byte_bpe_tokenizer(), options)
    monkeypatch.setattr("stepjepa.training.encoding.encode_dataset", None)
    again, same = encode(str(file), byte_bpe_tokenizer(), options)
    assert same == report and np.array_equal(again.arrays["ids"], store.arrays["ids"])
    options.data_cache = str(file / "cache")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="--data_cache .* cannot be written"):
        encode(str(file), byte_bpe_tokenizer(), options)
