"""The row that is shown is the row that training lays out: same ids, positions, mask, readouts, labels and draws."""

from functools import cache

import numpy as np
import pytest

from stepjepa.data.sources import RowSource, texts_of
from stepjepa.forest.visibility import dense_mask
from stepjepa.inspect.record import FIELDS
from stepjepa.inspect.view import encoder_for, shown_row
from stepjepa.modeling.load import load_tokenizer
from stepjepa.objectives.base import objective_of
from stepjepa.training.datasets import encode
from stepjepa.training.options import JEPAOptions
from stepjepa.training.sampling import Draw, DrawnExamples
from stepjepa.training.setup import ModelSetup, make_collator
from support.rows import step_rows, write

SEED = 7
TURNS = [
    {"role": "system", "content": "Count."},
    {"role": "user", "content": "How many are two and three?"},
    {"role": "assistant", "content": "Two.\n\nThree more.\n\nSo five."},
    {"role": "user", "content": "And with four?"},
    {"role": "assistant", "content": "Five.\n\nFour more.\n\nThat makes nine.\n\nThe answer is 9."},
]
ROWS = [step_rows(1)[0], {"messages": []}, *step_rows(4, seed=3)[1:], {"messages": TURNS}]
TEXTS = [{"text": "Three and four are seven, " * 5}, {"text": " "}, {"text": "Five more make twelve."}]
CHAT, TEXT = len(ROWS) - 1, len(TEXTS) - 1  # the rows that are looked at

INLINE = {"forward": "inline"}
OPTIONS = [
    {"objective": "regular", "labels": "all"},
    {"objective": "llm_jepa", "predictors": 2, "last_token": -2, "same_predictor": True, "labels": "reference"},
    {"objective": "llm_jepa", "views": "standalone", "predictors": 2, "plain": True},
    {"objective": "llm_jepa", "front_pred": True, "predictors": 2},
    {"objective": "llm_jepa", "reverse_pred": True, "predictors": 1, "last_token": -2},
    {"objective": "llm_jepa", "predictors": 2, "same_predictor": True, "mask_ratio": 0.5},
    {"objective": "step_jepa", "step_pairs": "all", "predictors": 0},
    {"objective": "step_jepa", "step_pairs": "all", "predictors": 1, "multi_horizon": [1, 2, 3]},
    {"objective": "step_jepa", "step_pairs": "all", "horizon": 2, "predictor_order": "descending"},
    {"objective": "step_jepa", "step_pairs": "plan", "horizon": 3},
    {"objective": "step_jepa", "step_pairs": "random"},
    {"objective": "step_jepa", "step_pairs": "random", "jepa_ratio": 1e-6, "max_length": 70},
    {"objective": "split", "target_grad": True, "predictors": 3, "split_ratio": 0.2, "same_predictor": True},
    {"objective": "semantic_tube", "tube_times": 3},
    {"objective": "semantic_tube", "tube_mode": "three_index", "tube_content": "with_markup"},
    {"objective": "semantic_tube", "tube_mode": "curvature"},
    {"objective": "next_latent"},
    {"objective": "multi_token", "token_positions": "question"},
    {"objective": "future_summary"},
    {"objective": "steps_to_answer", "predictors": 1},
    {**INLINE, "objective": "llm_jepa", "predictors": 2},
    {**INLINE, "objective": "llm_jepa", "predictors": 0, "last_token": -1, "labels": "all"},
    {**INLINE, "objective": "step_jepa", "step_pairs": "random", "horizon": 2, "predictors": 1, "same_predictor": True},
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {name: write(folder / f"{name}.jsonl", rows) for name, rows in (("chats", ROWS), ("texts", TEXTS))}


@cache
def tokenizer_for(file):
    return load_tokenizer("tiny", texts_of([file]))


def both(file, row, index, **options):
    """The record, training's batch of the same row, and training's example; `index` is the row's among the kept ones."""
    shown, method = JEPAOptions(**options), JEPAOptions(**options)
    shown.check()
    method.check()
    tokenizer = tokenizer_for(file)
    record, _ = shown_row(RowSource(file), row, encoder_for(RowSource(file), tokenizer, shown), shown, SEED)
    store, _ = encode(file, tokenizer, method)
    assert shown == method  # the splitter is settled alike
    objective = objective_of(method)
    example = DrawnExamples(store, objective, SEED, method.jepa_ratio)[Draw(0, index)]
    size, count = len(tokenizer), 1 if method.same_predictor else method.predictors or 0
    count += method.mask_ratio > 0
    ids = list(range(size, size + len(objective.groups) * count)) if objective.makes_pairs else []
    form = "packed" if method.forward == "auto" else method.forward
    collator = make_collator(ModelSetup(size, ids, form, objective), method, tokenizer.pad_token_id, "sdpa", "cpu")
    return record, collator([example]), example


def assert_same_row(record, batch):
    for name, own in FIELDS.items():
        given = getattr(batch.rows, name)
        expected = [0] * len(record) if given is None else given[0].tolist()
        assert getattr(record, own).tolist() == expected, name
    np.testing.assert_array_equal(dense_mask(batch.rows)[0, 0].numpy(), record.visible)
    labels = np.flatnonzero(record.labelled)
    assert (batch.label_positions + 1).tolist() == labels.tolist()
    assert batch.label_ids.tolist() == record.ids[labels].tolist()
    assert batch.pairs == len(record.pairs)
    if all(pair.arrow for pair in record.pairs):
        assert batch.sources.positions.tolist() == [pair.arrow[0] for pair in record.pairs]
        assert batch.targets.positions.tolist() == [pair.arrow[1] for pair in record.pairs]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_chat(files, options):
    record, batch, example = both(files["chats"], CHAT, CHAT - 1, **options)
    assert_same_row(record, batch)
    assert len(record.pairs) == len(example.pairs)
    assert record.floors.any() == ("forward" in options)
    dropped = options.get("jepa_ratio", 1) < 1
    assert bool(record.pairs) == (options["objective"] != "regular" and not dropped)
    if record.pairs and not record.pairs[0].arrow:
        drawn = [(term.token, term.coefficient) for pair in record.pairs for term in pair.target]
        positions, coefficients = batch.targets.positions, batch.targets.coefficients
        assert sorted(drawn) == sorted(zip(positions.tolist(), coefficients.tolist(), strict=True))
        weights = [1.0] * batch.pairs if batch.weights is None else batch.weights.tolist()
        assert weights == [np.float32(pair.weight) for pair in record.pairs]


@pytest.mark.parametrize(
    "options",
    [{"objective": "regular"}, {"objective": "split", "target_grad": True, "predictors": 2, "last_token": -2}],
    ids=str,
)
def test_texts(files, options):
    record, batch, _ = both(files["texts"], TEXT, TEXT - 1, **options)
    assert_same_row(record, batch)
    assert set(record.names[: record.names.count("trunk: text")]) == {"trunk: text"}
