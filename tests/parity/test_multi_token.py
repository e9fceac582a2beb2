"""Multi-token prediction against a plain loop over states, chat by chat and token by token."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stepjepa.data.types import Example
from stepjepa.training.datasets import encode
from stepjepa.training.options import JEPAOptions
from support.objectives import SEED, Run, assert_near, gradient, layouts, losses, name_of, prepare, run_alone
from support.rows import step_rows


def ready(tokenizer, **options) -> Run:
    return prepare(tokenizer, {"objective": "multi_token", **options})


def followed(example: Example, first: int) -> list[int]:
    """The labelled tokens from `first` on."""
    (stop,) = [stop for start, stop in example.labels if start <= first < stop]
    return example.trunk[first:stop].tolist()


def in_a_loop(run: Run, horizon: int, question: bool, shuffled: bool) -> tuple[torch.Tensor, int]:
    """The sum of the loss, and the number of states."""
    model, total, count = run.model, torch.zeros(()), 0
    output = model.get_output_embeddings().weight
    places = (lambda start, stop: [start]) if question else range
    starts = [[first for span in example.labels for first in places(*span)] for example in run.examples]
    for number, (example, own) in enumerate(zip(run.examples, starts, strict=True)):
        states = run_alone(model, example.trunk)
        other = (number + 1) % len(starts) if shuffled else number
        for place, first in enumerate(own):
            tokens, count = followed(run.examples[other], starts[other][place % len(starts[other])]), count + 1
            for token, (into, _, out) in zip(tokens[1:horizon], model.jepa.objective, strict=False):
                state = out.weight @ F.gelu(into.weight @ states[first - 1] + into.bias) + out.bias
                total = total - (output @ state).log_softmax(0)[token]
    return total, count


@pytest.mark.parametrize("objective", ["multi_token", "next_latent"])
def test_the_data_report_counts_the_states_that_are_read(tokenizer, objective):
    for options in ({}, {"token_positions": "question"}) if objective == "multi_token" else ({},):
        method = JEPAOptions(objective=objective, **options)
        method.check()
        _, report = encode(step_rows(3), tokenizer, method, None)
        assert report.pairs == (3 if options else report.labelled_tokens) and report.labelled_tokens > 3


@pytest.mark.parametrize(
    "options",
    [
        {"model": "gpt2"},  # whose head is the embedding
        {"model": "llama", "token_horizon": 2, "control": "shuffled"},
        {"model": "mistral_sliding", "token_positions": "question", "token_horizon": 6},
    ],
    ids=name_of,
)
def test_every_layout_equals_a_plain_loop(tokenizer, options, monkeypatch):
    run = ready(tokenizer, **options)
    shuffled, question = options.get("control") == "shuffled", "token_positions" in options
    expected, count = in_a_loop(run, options.get("token_horizon", 4), question, shuffled)
    wanted = gradient(run, expected)
    for name, batch in layouts(run, monkeypatch):
        parts, found, _ = losses(run, batch)
        assert batch.pairs == count and parts.jepa.item() == pytest.approx(expected.item(), rel=1e-4), name
        assert_near(found, wanted)


def test_a_random_target_is_one_token_for_all(tokenizer):
    run = ready(tokenizer, control="random", token_horizon=2)
    batch = run.collator()(run.examples)
    logits = run.model.get_output_embeddings()(run.model.jepa.objective[0](run.model(batch=batch).source_states))
    token = torch.randint(run.setup.vocabulary, (), generator=torch.Generator().manual_seed(SEED))
    left = [place for e in run.examples for start, stop in e.labels for place in range(stop - start, 0, -1)]
    last = torch.tensor(left) == 1
    expected = -logits.log_softmax(-1)[~last, token].sum()
    assert losses(run, batch)[0].jepa.item() == pytest.approx(expected.item(), rel=1e-5)
