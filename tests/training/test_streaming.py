"""Training on streams: the same examples as the data hold, mixed, shared out, gone on with."""

import json
from collections import Counter
from itertools import islice

import datasets
import pytest

from stepjepa.data.chat import ChatRenderer
from stepjepa.data.encode import encode_dataset
from stepjepa.data.sources import RowSource
from stepjepa.errors import ConfigError, DataError
from stepjepa.modeling.load import load_model
from stepjepa.training.config import JEPAConfig
from stepjepa.training.encoding import encode_options
from stepjepa.training.reading import ExampleReader, Sources
from stepjepa.training.trainer import JEPATrainer
from support.rows import step_rows

ROWS = step_rows(20)


def config(tmp_path, **options):
    options = {"objective": "step_jepa", "streaming": True, "max_steps": 3, "shuffle_buffer": 10, **options}
    return JEPAConfig(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=4, disable_tqdm=True, logging_steps=1, **options
    )


def streamed(tmp_path, tokenizer, source, process=0, processes=1, **options):
    args = config(tmp_path, **options)
    reader = ExampleReader(tokenizer, args, None)
    args.__dict__["process_index"], args.__dict__["world_size"] = process, processes
    return reader.read_training(source)


@pytest.fixture(autouse=True)
def ranks(monkeypatch):
    """The processes that `streamed` names."""
    for name, single in (("process_index", 0), ("world_size", 1)):
        monkeypatch.setattr(JEPAConfig, name, property(lambda self, n=name, s=single: self.__dict__.get(n, s)))


def key(example):
    return tuple(example.input_ids.tolist())


def test_a_pass_holds_every_example_once_with_its_pairs(tmp_path, tokenizer):
    args = config(tmp_path)
    store, _ = encode_dataset(ROWS, tokenizer, ChatRenderer(tokenizer), encode_options(args))
    expected = Counter((key(example), example.pairs) for example in store)
    batches = list(islice(streamed(tmp_path, tokenizer, ROWS, shuffle_buffer=18).batches(4), 10))
    assert [len(batch) for batch in batches] == [4] * 10
    # A window of the 18 asked for is filled up to whole batches: 20, a pass.
    found = Counter((key(example), example.pairs) for batch in batches for example in batch)
    assert found == Counter({example: 2 * count for example, count in expected.items()})
    first = [key(example) for batch in batches[:5] for example in batch]
    plain = list(islice(streamed(tmp_path, tokenizer, ROWS).batches(4, strategy="sequential"), 5))
    assert [key(example) for batch in plain for example in batch] == [key(store[index]) for index in range(20)]
    assert first != list(map(key, store)) and sorted(first) == sorted(map(key, store))
    second = [key(example) for batch in batches[5:] for example in batch]
    assert second != first, "the order of another pass"


def test_processes_share_the_rows(tmp_path, tokenizer):
    found = Counter()
    for process in range(2):
        stream = streamed(tmp_path, tokenizer, ROWS, process, 2, shuffle_buffer=9)
        batches = islice(stream.batches(2), 5)
        found.update(key(example) for batch in batches for example in batch)
    store, _ = encode_dataset(ROWS, tokenizer, ChatRenderer(tokenizer), encode_options(config(tmp_path)))
    assert found == Counter(map(key, store))


def test_an_optimizer_step_is_in_order_of_length(tmp_path, tokenizer):
    held = []
    for strategy in ("random", "group_by_length"):
        batches = list(islice(streamed(tmp_path, tokenizer, ROWS).batches(2, 3, strategy), 12))
        steps = [[len(key(example)) for batch in batches[i : i + 3] for example in batch] for i in range(0, 12, 3)]
        ordered = [step == sorted(step, reverse=True) for step in steps]
        assert all(ordered) if strategy == "group_by_length" else not all(ordered)
        held.append([sorted(step) for step in steps])
    assert held[0] == held[1], "the same examples a step"


def test_the_trainer_streams_a_hub_data_set(tmp_path, tokenizer):
    source = datasets.Dataset.from_list(ROWS).to_iterable_dataset()
    trainer = JEPATrainer(load_model("tiny", tokenizer, seed=1), config(tmp_path), source, None, tokenizer)
    trainer.train()
    losses = [entry["lm_loss"] for entry in trainer.state.log_history if "lm_loss" in entry]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert trainer.data_reports["train"].rows_read == 12 and trainer.data_reports["train"].pairs


def test_several_data_sets(tmp_path, tokenizer):
    short = [{"question": f"{i} and 1?", "answer": f"It is\n\n{i + 1}."} for i in range(5)]
    sources = Sources([RowSource(ROWS), RowSource(short)])
    stream = streamed(tmp_path, tokenizer, sources, mixing_weights=[1, 3])
    drawn = [len(key(example)) for batch in islice(stream.batches(4), 10) for example in batch]
    assert set(stream.stream.reports[1].rows_skipped) == set() and len(drawn) == 40
    assert stream.stream.reports[1].rows_read == 3 * stream.stream.reports[0].rows_read
    args = config(tmp_path, streaming=False, mixing_weights=[1, 3])
    reader = ExampleReader(tokenizer, args, None)
    mixed = reader.read_training(sources)
    assert mixed.mixture == ((20, 5), (20, 60)) and set(reader.reports) == {"train_1", "train_2"}
    assert key(mixed.store[20]) == key(mixed.store.stores[1][0]) and key(mixed.store[-1]) == key(mixed.store[24])
    with pytest.raises(IndexError):
        mixed.store[25]
    joined = ExampleReader(tokenizer, config(tmp_path, streaming=False), None).read_training(sources)
    assert joined.mixture == ((25,), (25,)) and len(joined) == 25


def test_what_cannot_be_streamed(tmp_path, tokenizer):
    with pytest.raises(ConfigError, match="streaming reads no data before it trains.*give max_steps"):
        config(tmp_path, max_steps=-1)
    with pytest.raises(ConfigError, match="same_flop looks at batches before training"):
        config(tmp_path, same_flop=True)
    with pytest.raises(ConfigError, match="mixing_weights has 1 numbers for 2 data sets"):
        streamed(tmp_path, tokenizer, Sources([RowSource(ROWS)] * 2), mixing_weights=[1.0])
    with pytest.raises(ConfigError, match="mixing_weights is 0.0; it must be above 0"):
        config(tmp_path, mixing_weights=[1.0, 0.0])
    endless = datasets.Dataset.from_list(ROWS).to_iterable_dataset()
    with pytest.raises(ConfigError, match="set streaming=True and max_steps"):
        streamed(tmp_path, tokenizer, endless, streaming=False)
    single = [{"question": "a", "answer": "one step"}] * 4
    with pytest.raises(
        DataError, match="none of the first 12 examples has a pair for step_jepa .*fewer than two steps"
    ):
        next(streamed(tmp_path, tokenizer, single).batches(4))


def test_going_on_needs_the_same_run(tmp_path, tokenizer):
    stream = streamed(tmp_path, tokenizer, ROWS)
    taken = list(islice(stream.batches(4), 5))
    stream.save(tmp_path, 4)
    again = streamed(tmp_path, tokenizer, ROWS)
    again.go_on(tmp_path, 4)
    batches = list(islice(again.batches(4), 5))
    assert batches[:4] == [None] * 4 and list(map(key, batches[4])) == list(map(key, taken[4]))
    assert json.loads((tmp_path / "stream_0.json").read_text())["first_batch"] == 3
    with pytest.raises(ConfigError, match="written by 1 processes, not 2"):
        streamed(tmp_path, tokenizer, ROWS, 0, 2).go_on(tmp_path, 4)
    with pytest.raises(ConfigError, match="does not say where process 1 stood"):
        streamed(tmp_path, tokenizer, ROWS, 1, 2).go_on(tmp_path, 4)
