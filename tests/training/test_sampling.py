"""What training draws: orders, mixtures, kept and random pairs, streams."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import datasets
import numpy as np
import pytest

from stepjepa.data.encode import encode_dataset
from stepjepa.data.sources import RowSource
from stepjepa.data.template import ChatRenderer
from stepjepa.errors import ConfigError, DataError
from stepjepa.objectives.base import objective_of
from stepjepa.training.config import JEPAConfig
from stepjepa.training.datasets import ExampleReader, Sources, encode, settings_for
from stepjepa.training.options import JEPAOptions
from stepjepa.training.sampling import FILLER, Draw, DrawnExamples, EpochSampler, Mixture, keeps_pairs
from support.rows import step_rows
from support.training import logs_of, trainer_for

ROWS = step_rows(20)


def epochs_of(sampler: EpochSampler, *epochs: int) -> list[list[Draw]]:
    found = []
    for sampler.epoch in epochs:
        found.append(list(sampler))
    return found


# The order of examples


def test_grouping_keeps_the_examples_of_a_step_and_sorts_them():
    lengths = np.random.default_rng(0).integers(5, 500, 50)
    plain, grouped = (EpochSampler(Mixture((50,), (50,)), 4, 7, lengths=given, window=16) for given in (None, lengths))
    for epoch, before, after in zip((0, 3), epochs_of(plain, 0, 3), epochs_of(grouped, 0, 3), strict=True):
        assert len(after) == 52 and after[50:] == before[50:] == [Draw(epoch, FILLER)] * 2
        for start in range(0, 50, 16):
            window = after[start : min(start + 16, 50)]
            assert sorted(window) == sorted(before[start : min(start + 16, 50)])
            sizes = [lengths[draw.row] for draw in window]
            assert sizes == sorted(sizes, reverse=True)
        assert before != after


@pytest.mark.parametrize(
    ("sizes", "weights", "until", "counts"),
    [
        ([100, 30], [1, 1], "all_exhausted", (100, 100)),
        ([100, 30], [1, 1], "first_exhausted", (30, 30)),
        ([100, 30], [0.75, 0.25], "all_exhausted", (100, 33)),
        ([100, 30], [10, 1], "first_exhausted", (100, 10)),
    ],
)
def test_weights_decide_how_much_of_each_data_set_is_drawn(sizes, weights, until, counts):
    assert Mixture.weighted(sizes, weights, until).counts == counts


def test_every_row_of_a_mixture_is_drawn_equally_often():
    sampler = EpochSampler(Mixture((10, 4), (5, 6)), 1, seed=3)
    epochs = epochs_of(sampler, 0, 1, 2, 3)
    assert all(sum(draw.row < 10 for draw in epoch) == 5 and len(epoch) == 11 for epoch in epochs)
    every = [draw for epoch in epochs for draw in epoch]
    # 20 draws of the first ten rows are two passes, 24 of the last four are six; a pass holds each row once.
    assert sorted(draw for draw in every if draw.row < 10) == [Draw(p, row) for p in range(2) for row in range(10)]
    assert sorted(draw for draw in every if draw.row >= 10) == [Draw(p, row) for p in range(6) for row in range(10, 14)]
    assert {draw.row for draw in epochs[0] if draw.row < 10} != set(range(5)), "shuffled over all of the data set"
    assert epochs == epochs_of(sampler, 0, 1, 2, 3), "a function of seed and epoch alone"
    (epoch,) = epochs_of(EpochSampler(Mixture((8, 4), (8, 4)), 1, seed=3, shuffle=False), 0)
    assert [draw.row for draw in epoch] == [0, 8, 1, 2, 9, 3, 4, 10, 5, 6, 11, 7], "evenly mixed"


# Kept pairs, random pairs, spans


def test_jepa_ratio_depends_on_seed_epoch_and_row_alone(tokenizer):
    options = JEPAOptions(objective="llm_jepa")
    store, _ = encode(step_rows(200), tokenizer, options)

    def kept(draws: list[Draw]) -> dict[int, bool]:
        dataset = DrawnExamples(store, objective_of(options), 5, 0.3)
        return {draw.row: bool(dataset[draw].pairs) for draw in draws}

    patterns = []
    for epoch, draws in enumerate(epochs_of(EpochSampler(Mixture((200,), (200,)), 8, seed=5), 0, 1)):
        every, resumed = kept(draws), kept(draws[100:])
        assert kept(draws[::2][::-1]) | kept(draws[1::2]) == every and len(every) == 200
        assert all(every[row] == pairs for row, pairs in resumed.items())
        assert every == {row: keeps_pairs(5, epoch, row, 0.3) for row in range(200)}
        assert 40 <= sum(every.values()) <= 80
        patterns.append([every[row] for row in range(200)])
    assert patterns[0] != patterns[1] and patterns[0] != [keeps_pairs(6, 0, row, 0.3) for row in range(200)]


def test_jepa_ratio_in_training(tmp_path, tokenizer):
    options = {"objective": "llm_jepa", "jepa_ratio": 0.5, "num_train_epochs": 2, "max_steps": -1, "seed": 7}
    trainer = trainer_for(tmp_path, tokenizer, batch=20, eval_rows=step_rows(6, seed=1), **options)
    trainer.train()
    expected = [sum(keeps_pairs(7, epoch, row, 0.5) for row in range(20)) for epoch in range(2)]
    assert [log["num_pairs"] for log in logs_of(trainer)] == expected and len(set(expected)) > 1
    assert trainer.evaluate()["eval_num_pairs"] == 6


def test_random_pairs_differ_over_epochs_and_are_reproducible(tokenizer):
    options = JEPAOptions(objective="step_jepa", step_pairs="random", multi_horizon=[1, 2])
    store, _ = encode(step_rows(30), tokenizer, options)
    row = max(range(len(store)), key=lambda number: len(store[number].pairs))

    def views(example) -> list[tuple]:
        return [(example.sees(pair.source), example.view_on_trunk(pair.target)) for pair in example.pairs]

    def drawn(seed: int) -> list[list[tuple]]:
        dataset = DrawnExamples(store, objective_of(options), seed)
        return [views(dataset[Draw(epoch, row)]) for epoch in range(60)]

    pairs = drawn(1)
    assert pairs == drawn(1) != drawn(2) and all(len(found) == 1 for found in pairs)
    counts = [pairs.count([pair]) for pair in views(store[row])]
    assert len(counts) == 5 and sum(counts) == 60 and min(counts) >= 4


# Streams


def config(tmp_path, **options):
    options = {"objective": "step_jepa", "streaming": True, "max_steps": 3, "shuffle_buffer": 10, **options}
    return JEPAConfig(output_dir=str(tmp_path / "out"), per_device_train_batch_size=4, disable_tqdm=True, **options)


@pytest.fixture
def streamed(tmp_path, tokenizer, monkeypatch):
    for name, single in (("process_index", 0), ("world_size", 1)):
        monkeypatch.setattr(JEPAConfig, name, property(lambda self, n=name, s=single: self.__dict__.get(n, s)))

    def read(source=ROWS, process=0, processes=1, **options):
        args = config(tmp_path, **options)
        args.__dict__["process_index"], args.__dict__["world_size"] = process, processes
        return ExampleReader(tokenizer, args, None).read_training(source)

    return read


def key(example):
    return tuple(example.trunk.tolist())


def keys(batches):
    return [key(example) for batch in batches for example in batch]


def test_a_pass_holds_every_example_once_with_its_pairs(tmp_path, tokenizer, streamed):
    store, _ = encode_dataset(ROWS, tokenizer, ChatRenderer(tokenizer), settings_for((), config(tmp_path)))
    # A window of the 18 asked for is filled up to complete batches: 20, a pass.
    batches = list(islice(streamed(shuffle_buffer=18).batches(4), 10))
    assert [len(batch) for batch in batches] == [4] * 10
    found = Counter((key(example), example.pairs) for batch in batches for example in batch)
    assert found == Counter({(key(example), example.pairs): 2 for example in store})
    plain = islice(streamed(train_sampling_strategy="sequential").batches(4), 5)
    assert keys(plain) == list(map(key, store))
    first, second = keys(batches[:5]), keys(batches[5:])
    assert first != list(map(key, store)) and sorted(first) == sorted(map(key, store))
    assert second != first, "the order of another pass"
    parts = [islice(streamed(ROWS, process, 2, shuffle_buffer=9).batches(2), 5) for process in range(2)]
    assert Counter(keys(parts[0]) + keys(parts[1])) == Counter(map(key, store)), "processes share the rows"


def test_several_data_sets(tmp_path, tokenizer, streamed):
    short = [{"question": f"{i} and 1?", "answer": f"It is\n\n{i + 1}."} for i in range(5)]
    sources = Sources([RowSource(ROWS), RowSource(short)])
    stream = streamed(sources, mixing_weights=[1, 3])
    assert len(keys(islice(stream.batches(4), 10))) == 40
    first, second = stream.stream.reports
    assert second.rows_read == 3 * first.rows_read and not second.rows_skipped
    reader = ExampleReader(tokenizer, config(tmp_path, streaming=False, mixing_weights=[1, 3]), None)
    mixed = reader.read_training(sources)
    assert mixed.mixture == ((20, 5), (20, 60)) and set(reader.reports) == {"train_1", "train_2"}
    assert key(mixed.store[20]) == key(mixed.store.datasets[1][0])
    joined = ExampleReader(tokenizer, config(tmp_path, streaming=False), None).read_training(sources)
    assert joined.mixture == ((25,), (25,)) and len(joined) == 25


def test_lists_are_mixed_in_training(tmp_path, tokenizer):
    sources = Sources([RowSource(ROWS), RowSource(step_rows(10, seed=1))])
    options = {"mixing_weights": [1, 2], "max_steps": -1, "num_train_epochs": 1, "objective": "llm_jepa"}
    trainer = trainer_for(tmp_path, tokenizer, sources, train_sampling_strategy="group_by_length", **options)
    trainer.train()
    assert sum(log["num_pairs"] for log in logs_of(trainer)) == 60 and trainer.state.global_step == 15


def test_what_cannot_be_streamed(tmp_path, streamed):
    for options, words in (
        ({"max_steps": -1}, "streaming does not know the length of an epoch before training; give max_steps"),
        ({"same_flop": True}, "same_flop needs batches before training"),
    ):
        with pytest.raises(ConfigError, match=words):
            config(tmp_path, **options)
    with pytest.raises(ConfigError, match="mixing_weights has 1 numbers for 2 data sets"):
        streamed(Sources([RowSource(ROWS)] * 2), mixing_weights=[1.0])
    with pytest.raises(ConfigError, match="set streaming=True and max_steps"):
        streamed(datasets.Dataset.from_list(ROWS).to_iterable_dataset(), streaming=False)
    single = [{"question": "a", "answer": "one step"}] * 4
    words = "none of the first 4 examples has a pair for step_jepa .*fewer than two steps"
    with pytest.raises(DataError, match=words):
        next(streamed(single).batches(4))


def test_a_stream_resumes_after_the_batches_that_were_trained_on(tmp_path, streamed):
    stream, again = streamed(), streamed()
    taken = list(islice(stream.batches(4), 5))
    stream.save(tmp_path)
    again.resume(tmp_path, 4)
    batches = list(islice(again.batches(4), 5))
    assert batches[:4] == [None] * 4 and keys(batches[4:]) == keys(taken[4:])
    assert json.loads((tmp_path / "stream_0.json").read_text())["first_step"] == 3
    again.resume(None)
    assert keys(islice(again.batches(4), 5)) == keys(taken), "from the start"
    record = json.loads((tmp_path / "stream_0.json").read_text())
    (tmp_path / "stream_0.json").write_text(json.dumps({**record, "shares": 2}))
    with pytest.raises(ConfigError, match="is divided among 2 processes; resume with the same number"):
        again.resume(tmp_path, 4)
