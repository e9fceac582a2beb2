"""Multi-step latent prediction: which states are compared, and that the errors are those of known dynamics."""

import re

import numpy as np
import pytest
import torch

from stepjepa.analysis.prediction import prediction_errors, walks_of
from stepjepa.analysis.states import Walks, every_step, read_pairs, read_states
from stepjepa.data.sources import RowSource
from stepjepa.training.datasets import make_renderer, settings_for
from stepjepa.training.options import JEPAOptions
from support.models import tiny_model
from support.rows import step_rows


def made_walks(step, rows=120, length=5, width=6):
    """Walks of which each state is `step` of the two before it."""
    rng = np.random.default_rng(0)
    states, places = [], []
    for row in range(rows):
        before, now = rng.normal(size=(2, width))
        for _ in range(length):
            states.append(now)
            places.append((row, 0))
            before, now = now, step(before, now)
    return Walks(np.array(states, np.float32), np.array(places))


def test_a_straight_walk_is_a_line():
    errors = prediction_errors(made_walks(lambda before, now: 2 * now - before, length=4), 4)
    assert list(errors) == [1, 2]  # of 4 states, and each needs the one before it
    assert errors[1].test_pairs == 24 * 2 and errors[1].train_pairs == 96 * 2 and errors[2].test_pairs == 24
    for one in errors.values():
        assert one.line < 1e-10 and 1e-3 < one.linear < 1 and one.mlp > 1e-3  # which do not see the state before


def test_a_linear_walk_is_a_linear_map():
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]
    errors = prediction_errors(made_walks(lambda before, now: turn @ now), 2)
    for one in errors.values():
        assert one.linear < 1e-3 < 0.5 < one.line and one.linear < one.mlp < 0.7
    assert prediction_errors(made_walks(lambda before, now: turn @ now), 2) == errors


def test_a_bend_is_seen_by_the_mlp_alone():
    walks = made_walks(lambda before, now: np.cos(2 * now), rows=600, length=6, width=4)
    one = prediction_errors(walks, 1)[1]
    assert one.mlp < 0.5 * one.linear


@pytest.mark.parametrize("objective", ["llm_jepa", "step_jepa"])
def test_walks_are_the_trunks_own_states(tokenizer, objective):
    """Against a plain forward pass of every chat, read at the last token of every step."""
    rows = RowSource(step_rows(6))
    method = every_step(JEPAOptions(objective=objective, predictors=2, readout="mean", step_splitter="separator"))
    settings = settings_for(rows, method)
    examples, places = walks_of(read_pairs(rows, tokenizer, make_renderer(tokenizer, method), settings))
    model = tiny_model("llama", vocab_size=len(tokenizer))
    walks = Walks(read_states(model, "m", examples)[0, 0], places)
    expected, numbers = [], []
    for number, row in enumerate(step_rows(6)):
        text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        answer = row["messages"][-1]["content"]
        ends = [text.index(answer) + step.end() for step in re.finditer(r"\n\n|\Z", answer)]
        tokens = [next(i for i, (_, stop) in enumerate(ids["offset_mapping"]) if stop >= end) for end in ends]
        if len(tokens) < 2:
            continue
        with torch.no_grad():
            states = model.model(torch.tensor([ids["input_ids"]])).last_hidden_state[0]
        expected.append(states[tokens].numpy())
        numbers += [number] * len(tokens)
    assert len(expected) > 2 and walks.places[:, 0].tolist() == numbers
    assert np.abs(walks.states - np.concatenate(expected)).max() < 1e-5


def test_pairs_never_leave_their_walk():
    places = np.array([(0, 0)] * 3 + [(0, 1)] * 2 + [(2, 0)] * 4)
    walks = Walks(np.arange(9, dtype=np.float32)[:, None], places)
    rows, before, now, later = walks.pairs(1)
    assert rows.tolist() == [0, 2, 2]
    assert (before[:, 0].tolist(), now[:, 0].tolist(), later[:, 0].tolist()) == ([0, 5, 6], [1, 6, 7], [2, 7, 8])
    assert walks.pairs(2)[2][:, 0].tolist() == [6] and len(walks.pairs(9)[0]) == 0
