"""A model's numbers on the page: those that training computes, and the attention that the model gives."""

import base64
from dataclasses import replace

import numpy as np
import pytest
import torch

from stepjepa.cli.main import main
from stepjepa.data.sources import texts_of
from stepjepa.data.types import Span
from stepjepa.errors import ConfigError
from stepjepa.forest.collate import ForestCollator, TwoPassCollator
from stepjepa.inspect.html import attention_data, choose_maps, maps_note, pair_cosines
from stepjepa.modeling.extras import PredictorRows, add_extras, predictor_names
from stepjepa.modeling.forward import attach_forest_forward
from stepjepa.modeling.load import load_model, load_tokenizer
from stepjepa.modeling.parts import vocabulary_size
from stepjepa.modeling.trial import Probe, attention_fits, load_probe, row_numbers
from stepjepa.objectives.semantic_tube import draw_pairs
from support.models import VOCABULARY, Views, made_up_example, tiny_model
from support.pages import read_page
from support.records import row_record, tube_record
from support.rows import step_rows, write
from support.tube import tube_of, tube_options

EXAMPLE = made_up_example(20, [Views(8, 9, 14), Views(13, 14, 20)], 1, predictors=2)
IDS = (VOCABULARY, VOCABULARY + 1)


def probe_of(name):
    model = tiny_model(name, attention="eager")
    add_extras(model, PredictorRows.drawn(model, 2, 0))
    return Probe(model, VOCABULARY, IDS, False)


def numbers_of(probe, record):
    row = record.batch_row()
    labelled = torch.from_numpy(np.flatnonzero(record.labelled))
    return row_numbers(probe, row, labelled - 1, row.input_ids[0, labelled])


FORMS = [("llama", "packed"), ("gpt2", "two_pass"), ("gemma3_sliding", "inline"), ("granite_scaled_logits", "packed")]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_cosines_and_losses_are_those_of_training(name, form):
    probe = probe_of(name)
    record = row_record([EXAMPLE], 2, str, vocabulary=VOCABULARY, forward=form)
    found = numbers_of(probe, record)
    collator = TwoPassCollator(IDS, 0) if form == "two_pass" else ForestCollator(IDS, 0, 1, inline=form == "inline")
    batch = collator([EXAMPLE])
    attach_forest_forward(probe.model, VOCABULARY)
    with torch.no_grad():
        expected = probe.model(batch=batch)
    assert float(found.losses.sum()) == pytest.approx(float(expected.lm_loss_sum), rel=1e-5)
    cosines = torch.nn.functional.cosine_similarity(expected.source_states, expected.target_states)
    assert pair_cosines(record, found.states.numpy()) == pytest.approx(cosines.tolist(), abs=1e-5)
    assert len(cosines) == (1 if form == "inline" else 2) and len(found.losses) == len(batch.label_ids)


def test_vectors_of_the_tube_are_compared():
    pairs = draw_pairs(Span(1, 6), Span(8, 16), tube_options(mode="span"), np.random.default_rng(3))
    tube = tube_of(pairs)
    record = tube_record([EXAMPLE.plain()._replace(pairs=tuple(pairs))], str)
    states = np.random.default_rng(1).normal(size=(len(record), 5)).astype(np.float32)
    source, target = (
        sum(factor * states[at] for at, factor in zip(side.position, side.coefficient, strict=True))
        for side in (tube.source, tube.target)
    )
    expected = source @ target / np.linalg.norm(source) / np.linalg.norm(target)
    assert pair_cosines(record, states) == pytest.approx([expected], abs=1e-6)
    deeper = replace(record, pairs=(replace(record.pairs[0], layer=1),))
    assert np.isnan(pair_cosines(deeper, states)).all()  # the states at hand are those of the last layer


def test_attention_of_visible_pairs_alone():
    probe = probe_of("llama")
    record = row_record([EXAMPLE], 2, str, vocabulary=VOCABULARY)
    attention = [layer.numpy() for layer in numbers_of(probe, record).attention]
    assert [layer.shape for layer in attention] == [(4, len(record), len(record))] * 2
    assert all(np.all(layer[:, ~record.visible] == 0) for layer in attention)
    kept = [(1, 3), (2, None)]
    data = attention_data(attention, record.visible, kept)
    assert data["maps"] == [[1, 3], [2, None]]
    bytes_of = np.frombuffer(base64.b64decode(data["weights"]), np.uint8).reshape(2, -1)
    for written, weights in zip(bytes_of, (attention[0][2], attention[1].mean(0)), strict=True):
        shown = np.zeros_like(weights)
        shown[record.visible] = (written / 255.0) ** 2
        np.testing.assert_allclose(shown, weights, atol=0.004)
        assert np.abs(shown.sum(1) - 1).max() < 0.02


def test_which_maps_fit():
    size = 400 + 24  # 300 visible pairs are 400 letters
    every = [(layer, head) for layer in (1, 2) for head in (None, 1, 2)]
    assert choose_maps(2, 2, 300, 6 * size) == every
    assert choose_maps(2, 2, 300, 6 * size - 1) == [(1, None), (1, 1), (2, None), (2, 1), (2, 2)]
    assert choose_maps(2, 2, 300, 2 * size) == [(1, None), (2, None)]
    assert choose_maps(2, 2, 300, size) == [(2, None)]
    assert choose_maps(2, 2, 300, size - 1) == choose_maps(2, 2, 300, -5) == []
    assert choose_maps(9, 2, 300, 3 * size, [4]) == [(4, None), (4, 1), (4, 2)]
    some = [(2, None), (3, None), (3, 1)]
    assert maps_note(some, 3, 2).startswith("attention: 2 of 3 layers (2, 3), 1 of their 4 heads by themselves")
    assert maps_note([], 3, 2).startswith("attention: none of 3 layers x 2 heads")


def test_too_much_is_refused():
    probe = probe_of("gpt2")
    assert attention_fits(probe, 10_000) and not attention_fits(probe, 20_000)
    record = row_record([made_up_example(300, [])], 0, str, vocabulary=VOCABULARY)
    with pytest.raises(ConfigError, match="300 positions, and the model has 256"):
        numbers_of(probe, record)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A file and a model's folder whose vocabulary is larger than its tokenizer's."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = load_tokenizer("tiny", texts_of([write(folder / "data.jsonl", step_rows(6, seed=3))]))
    model = load_model("tiny", tokenizer, seed=5)
    model.resize_token_embeddings(len(tokenizer) + 11, mean_resizing=False)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder


def run(workplace, *words, model="model"):
    page = workplace / "page.html"
    name = str(workplace / model) if model == "model" else model
    command = ["inspect", str(workplace / "data.jsonl"), "--model_name", name, "--step_jepa", "--html", str(page)]
    return main([*command, "--overwrite", *words]), page


def test_a_folder_s_model_is_run(workplace):
    status, page = run(workplace)
    assert status == 0 and page.stat().st_size < 3e6
    data = read_page(page)
    assert data["model"]["name"] == str(workplace / "model")
    assert "new random embeddings" in " ".join(data["model"]["notes"])
    row = data["variants"][0]["forms"]["packed"]["rows"][0]
    tokenizer = load_tokenizer(str(workplace / "model"))
    model = load_model(str(workplace / "model"), tokenizer)
    assert vocabulary_size(model) == len(tokenizer) + 11
    trunk = [token for token, segment in zip(row["ids"], row["segments"], strict=True) if segment == 0]
    with torch.no_grad():
        output = model(torch.tensor([trunk]))
    start, stop = row["labelled"]
    losses = torch.nn.functional.cross_entropy(
        output.logits[0, start - 1 : stop - 1], torch.tensor(trunk[start:stop]), reduction="none"
    )
    assert row["losses"] == pytest.approx(losses.tolist(), abs=1e-4)
    predictors = [size + 11 for size in (len(tokenizer), len(tokenizer) + 1)]  # they follow the model's vocabulary
    assert [token for token in row["ids"] if token >= len(tokenizer)] == predictors and len(row["cosines"]) == 1
    assert row["attention"]["maps"] == [[layer, head] for layer in (1, 2, 3) for head in (None, 1, 2, 3)]


def test_layers_that_are_asked_for(workplace, capsys):
    assert run(workplace, "--attention_layers", "2")[0] == 0
    data = read_page(workplace / "page.html")
    assert data["variants"][0]["forms"]["packed"]["rows"][0]["attention"]["maps"] == [[2, None], [2, 1], [2, 2], [2, 3]]
    assert "attention: 1 of 3 layers (2), 3 of their 3 heads" in data["variants"][0]["forms"]["packed"]["notes"][-1]
    assert run(workplace, "--attention_layers", "4")[0] == 2
    assert "no attention of layer 4: this model has layers 1 to 3" in capsys.readouterr().err


def test_presets_have_random_weights_and_are_run_if_asked(workplace):
    assert run(workplace, model="tiny")[0] == 0
    assert read_page(workplace / "page.html")["model"] is None
    assert run(workplace, "--run_model", model="tiny")[0] == 0
    assert "its weights are random" in read_page(workplace / "page.html")["model"]["notes"][0]
    assert run(workplace, "--no_run_model")[0] == 0
    assert read_page(workplace / "page.html")["model"] is None


def test_predictors_that_came_with_the_model(workplace):
    tokenizer = load_tokenizer(str(workplace / "model"))
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|predictor_1|>", "<|predictor_2|>"]})
    probe = load_probe(str(workplace / "model"), tokenizer, predictor_names(2), 0)
    expected = dict(zip(predictor_names(2), (probe.vocabulary, probe.vocabulary + 1), strict=True))
    assert probe.known and probe.predictor_ids == expected
    assert vocabulary_size(probe.model) == probe.vocabulary
    own = probe.model.get_input_embeddings().weight[len(tokenizer) - 2 : len(tokenizer)]
    assert torch.equal(probe.model.jepa.predictors.weight, own)
