"""Semantic tube against reference values of the published code: its spans, our combinations and our losses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from stepjepa.losses.distances import combine, cosine_loss, mse_loss, turning_angle
from stepjepa.objectives.semantic_tube import draws_spans
from support.tube import tube_of_spans, tube_options

# The reference's case -> our options and distance. Its "all" is not a sampler: the chat from its second token on counts
# as the user's content.
CASES = {
    "random_span default": (tube_options(), cosine_loss),
    "random_span draw_both": (tube_options(sampler="draw_both"), cosine_loss),
    "random_span times 3": (tube_options(times=3), cosine_loss),
    "random_span max_length 8": (tube_options(max_length=8), cosine_loss),
    "random_span all": (tube_options(), cosine_loss),
    "random_span cosine_like": (tube_options(length_adjustment="cosine_like"), cosine_loss),
    "random_span mse": (tube_options(), mse_loss),
    "linear e2e": (tube_options(mode="e2e"), cosine_loss),
    "curvature": (tube_options(mode="curvature"), turning_angle),
}


@pytest.fixture(scope="module")
def reference(golden):
    """The reference values and the states (T, D) of its rows after the final norm, each row run alone."""
    model = AutoModelForCausalLM.from_pretrained(golden / "llama_tiny", dtype=torch.float32).eval()
    rows = json.loads((golden / "official.json").read_text())["token_ids"]["0"]
    with torch.no_grad():
        states = [model.model(torch.tensor([row["full"]])).last_hidden_state[0] for row in rows]
    return json.loads((golden / "semantic_tube.json").read_text()), states


def contents(values, case):
    """Token spans (user, answer) of each row; the reference's bounds are [first - 1, last]."""
    bounds = zip(values["user_start_end"], values["assistant_start_end"], strict=True)
    spans = [((u0 + 1, u1 + 1), (a0 + 1, a1 + 1)) for (u0, u1), (a0, a1) in bounds]
    return [((1, user[1]), answer) for user, answer in spans] if case["case"] == "random_span all" else spans


def tubes(values, case, options):
    rows = contents(values, case)
    recorded = iter(case["spans_start_end_fulllength"])
    for user, answer in rows:
        drawn = [next(recorded) for _ in range(options.tube_times)] if draws_spans(options) else []
        assert all(n == user[1] - user[0] + answer[1] - answer[0] for _, _, n in drawn)
        yield tube_of_spans(user, answer, [(s, t) for s, t, _ in drawn], options)
    assert next(recorded, None) is None


def weighted_mean(tubes, states, distance):
    losses, weights = [], []
    for tube, states_TD in zip(tubes, states, strict=True):
        pairs = len(tube.weight)
        sides = [
            combine(states_TD, *map(torch.from_numpy, (side.position, side.coefficient, side.pair)), pairs)
            for side in (tube.source, tube.target)
        ]
        losses.append(distance(*sides))
        weights.append(torch.from_numpy(tube.weight))
    loss, weight = torch.cat(losses), torch.cat(weights)
    return ((loss * weight).sum() / weight.sum()).item()


def test_every_reference_case_is_read(reference):
    assert [case["case"] for case in reference[0]["cases"]] == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_loss_equals_the_published_code(reference, name):
    """And not where every content is read one token too early, nor with equal weights where they differ: the reference is
    told from the plain mean over all spans, and over all angles of the batch."""
    values, states = reference
    options, distance = CASES[name]
    case = next(case for case in values["cases"] if case["case"] == name)
    found, expected = list(tubes(values, case, options)), case["jepa_loss"]
    assert weighted_mean(found, states, distance) == pytest.approx(expected, rel=2e-5, abs=1e-6)
    moved = [torch.roll(states_TD, 1, dims=0) for states_TD in states]
    assert weighted_mean(found, moved, distance) != pytest.approx(expected, rel=1e-3)
    if name in ("random_span cosine_like", "curvature"):
        flat = [tube._replace(weight=np.ones_like(tube.weight)) for tube in found]
        assert weighted_mean(flat, states, distance) != pytest.approx(expected, rel=5e-5)
