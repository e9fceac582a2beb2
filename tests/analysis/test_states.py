"""States of both views, compared with separate forward passes of the texts with plain transformers; and their file."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from stepjepa.analysis import states as module
from stepjepa.analysis.options import AnalyzeOptions
from stepjepa.analysis.run import load_analyzed
from stepjepa.analysis.states import FINAL, States, check_alike, layers_of, read_pairs, read_states, save_states
from stepjepa.data.sources import RowSource
from stepjepa.data.template import ChatRenderer
from stepjepa.errors import ConfigError, DataError
from stepjepa.generation.place import find_model
from stepjepa.modeling import forward
from stepjepa.modeling.extras import PREDICTORS_FILE, load_extras, predictor_names
from stepjepa.training.options import JEPAOptions
from support.encoding import settings_of
from support.models import add_to_vocabulary, tiny_model
from support.tokenizers import fresh, ids_of
from support.training import trainer_for

QUESTIONS = [("How many?", "Three."), ("And what is two plus two?", "Four, I think."), ("Why?", "Because.")]
CHATS = [{"question": question, "answer": answer} for question, answer in QUESTIONS]
STEPS = [
    {"question": "Sum?", "answer": "One.\n\nTwo.\n\nThree.\n\nFour."},
    {"messages": []},
    {"question": "One step?", "answer": "Yes."},
    {"question": "Two?", "answer": "First.\n\nSecond."},
]


def read(tokenizer, rows, objective="llm_jepa", max_rows=None, **options):
    settings = settings_of(objective, **options)
    return read_pairs(RowSource(rows), tokenizer, ChatRenderer(tokenizer), settings, max_rows)


def collected(model, pairs, layers=None, **options):
    chosen = layers_of(model, layers)
    return States("m", pairs.file, chosen, pairs.rows, *read_states(model, "m", pairs.examples, chosen, **options))


def by_hand(model, ids, first):
    """Every hidden state of transformers at the last token of one text alone, the last after the final norm."""
    positions = torch.arange(first, first + len(ids))[None]
    with torch.no_grad():
        output = model(input_ids=torch.tensor([ids]), position_ids=positions, output_hidden_states=True)
    return [states[0, -1].numpy() for states in output.hidden_states]


def final_norm(model):
    return model.model.norm if hasattr(model, "model") else model.transformer.ln_f


def check(model, states, number, side, expected):
    """The states of one pair: all layers that transformers gives, and the last layer's own output through its final norm."""
    found = getattr(states, side)[:, number]  # (L, D)
    assert states.layers == (0, 1, 2, FINAL)
    assert np.abs(expected[-1]).max() > 0.01
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5)
    np.testing.assert_allclose(found[3], expected[2], atol=1e-4)
    with torch.no_grad():
        normed = final_norm(model)(torch.from_numpy(found[2]))
    np.testing.assert_allclose(normed.numpy(), expected[2], atol=1e-4)
    assert np.abs(found[2] - found[3]).max() > 1e-3


@pytest.fixture(params=["llama", "gpt2"])
def model(request, bpe_tokenizer):
    return tiny_model(request.param, vocab_size=len(bpe_tokenizer), initializer_range=0.2)


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("views", ["in_context", "standalone"])
def test_views_of_both_kinds(model, bpe_tokenizer, views, count):
    """The source is read at the last predictor, or at its own last token; a target in context is K positions further on."""
    tokenizer, predictors = fresh(bpe_tokenizer), []
    if count:
        tokenizer.add_tokens(predictor_names(count), special_tokens=True)
        predictors = add_to_vocabulary(model, count, seed=3)[::-1]
    pairs = read(tokenizer, CHATS, views=views, predictors=count)
    states = collected(model, pairs, predictor_ids=predictors, batch_size=2)
    assert states.rows.tolist() == [0, 1, 2]
    for number, (question, answer) in enumerate(QUESTIONS):
        start = ids_of(tokenizer, f"<|im_start|>user\n{question}")
        check(model, states, number, "source", by_hand(model, [*start, *predictors], 0))
        first, text = 0, f"<|im_start|>assistant\n{answer}"
        if views == "in_context":
            chat = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            first, text = count + len(ids_of(tokenizer, chat)), answer
        check(model, states, number, "target", by_hand(model, ids_of(tokenizer, text), first))


def test_the_rows_of_pairs(bpe_tokenizer, monkeypatch):
    for chunk in (1000, 1):
        monkeypatch.setattr(module, "CHUNK_ROWS", chunk)
        pairs = read(bpe_tokenizer, STEPS, "step_jepa", step_pairs="all", multi_horizon=[3, 1])
        assert pairs.rows.tolist() == [0, 0, 0, 0, 3]
        assert (pairs.report.rows_read, pairs.report.rows_kept) == (4, 3)
    few = read(bpe_tokenizer, CHATS, max_rows=2)
    assert few.rows.tolist() == [0, 1] and few.report.rows_read == 2


def test_layers_batches_and_hooks(model, bpe_tokenizer, monkeypatch):
    """Some layers are those of all; the batch size changes nothing; the model is left as it was."""
    pairs, done = read(bpe_tokenizer, CHATS), []
    model.train()
    every = collected(model, pairs)
    some = collected(model, pairs, layers=[FINAL, 1, 1])
    assert some.layers == (FINAL, 1)
    assert np.array_equal(some.source, every.source[[3, 1]]) and np.array_equal(some.target, every.target[[3, 1]])
    one = collected(model, pairs, batch_size=1, advance=done.append)
    assert done == [1, 1, 1]
    np.testing.assert_allclose(one.source, every.source, atol=1e-5)
    np.testing.assert_allclose(one.target, every.target, atol=1e-5)
    assert model.training
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert layers_of(model) == (0, 1, 2, FINAL)
    with pytest.raises(ConfigError, match="--layers: no states can be read after layer 3: the model has layers 0 to 2"):
        layers_of(model, [1, 3])
    monkeypatch.setattr(forward, "decoder_layers", lambda model: None)  # of a kind that is not known
    with pytest.raises(ConfigError, match="--layers: .* the model's layers cannot be found; use the last layer"):
        layers_of(model)
    assert layers_of(model, [FINAL]) == (FINAL,)


def test_states_that_are_not_finite_and_too_few_pairs(model, bpe_tokenizer):
    with torch.no_grad():
        final_norm(model).weight[0] = float("nan")
    with pytest.raises(DataError, match="m: some states are not finite; the weights are broken"):
        collected(model, read(bpe_tokenizer, CHATS))
    with pytest.raises(DataError, match="1 pair for llm_jepa; at least two are needed"):
        read(bpe_tokenizer, CHATS[:1])
    with pytest.raises(DataError, match="none of 2 rows can be used"):
        read(bpe_tokenizer, [{"messages": []}, {"messages": []}])


@pytest.fixture
def states():
    source, target = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    return States("my/model", "test.jsonl", (0, 2, -1), np.array([7, 1, 5, 2]), source, target)


def test_the_schema(states, tmp_path):
    """As the module's docstring has it, read without this library; the same states give the same bytes."""
    path = tmp_path / "states.safetensors"
    save_states(states, path)
    tensors = {name: tensor.numpy() for name, tensor in load_file(path).items()}
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {"source": "f4", "target": "f4", "rows": "i8"}
    for name, tensor in tensors.items():
        assert np.array_equal(getattr(states, name), tensor)
    with safe_open(path, framework="numpy") as file:
        about = {name: json.loads(text) for name, text in file.metadata().items()}
    expected = {"version": 1, "model": "my/model", "file": "test.jsonl", "layers": [0, 2, -1]}
    assert about == {"stepjepa.states": expected}
    save_states(states, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_states_of_other_layers_or_rows(states):
    assert np.array_equal(states.layer(2)[1], states.target[1])
    check_alike({"a": states, "b": replace(states, model="other")})
    with pytest.raises(DataError, match="pairs of a and b are of different rows"):
        check_alike({"a": states, "b": replace(states, rows=states.rows[::-1].copy())})


def test_each_horizon_is_read_with_its_own_predictors_and_head(tmp_path, bpe_tokenizer):
    """Of a run of several horizons in any order; and where one group serves all, as in runs of version 0.2."""
    options = {"objective": "step_jepa", "step_pairs": "all", "multi_horizon": [3, 1], "predictor_head": "linear"}
    trainer = trainer_for(tmp_path, bpe_tokenizer, predictors=2, max_steps=1, **options)
    trainer.train()
    trainer.save_model()
    saved = load_file(tmp_path / "out" / PREDICTORS_FILE)
    rows_GKD = saved["predictors.weight"].unflatten(0, (2, 2))
    place = find_model(str(tmp_path / "out"))

    def loaded(step_pairs="all", **horizons):
        method = JEPAOptions(objective="step_jepa", step_pairs=step_pairs, **horizons)
        return load_analyzed(place, method, AnalyzeOptions(models=[place.name]))

    found = loaded(multi_horizon=[3, 1])
    assert found.head == "linear" and len(found.predictor_ids) == 4
    assert torch.equal(found.model.jepa.predictors.weight, saved["predictors.weight"])
    for group, network in enumerate(found.model.jepa.head.layers):
        assert torch.equal(network[0].weight, saved[f"head.layers.{group}.0.weight"])
    with pytest.raises(ConfigError, match="separate predictors for its horizons; give --multi_horizon 3 1"):
        loaded(step_pairs="plan", horizon=2)

    shared = {"predictors.weight": rows_GKD[0], "head.layers.0.weight": saved["head.layers.0.0.weight"]}
    save_file(shared, tmp_path / "out" / PREDICTORS_FILE)
    found = loaded(step_pairs="plan", horizon=2)
    vocabulary = len(bpe_tokenizer)
    assert found.head == "linear" and found.predictor_ids == (vocabulary, vocabulary + 1) * 2
    with pytest.raises(ConfigError, match="holds other predictors than this run's"):
        load_extras(trainer.model, tmp_path / "out")
