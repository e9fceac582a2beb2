"""Future summaries against a plain loop over states, chat by chat, token by token and entry by entry."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from support.objectives import Run, assert_near, gradient, layouts, losses, name_of, prepare, run_alone
from support.rows import step_rows


def ready(tokenizer, rows=None, **options) -> Run:
    return prepare(tokenizer, {"objective": "future_summary", **options}, rows)


def in_a_loop(run: Run, window: int, shuffled: bool) -> tuple[torch.Tensor, int]:
    """The sum of the loss, and the number of states."""
    model, total, count = run.model, torch.zeros(()), 0
    output = model.get_output_embeddings().weight
    into, _, out = model.jepa.objective
    places = [[(t, stop) for start, stop in e.labels for t in range(start, stop)] for e in run.examples]
    for number, example in enumerate(run.examples):
        other = (number + 1) % len(places) if shuffled else number
        states = run_alone(model, example.trunk)
        for place, (first, _) in enumerate(places[number]):
            count += 1
            start, stop = places[other][place % len(places[other])]
            bag = set(run.examples[other].trunk[start + 1 : min(start + window, stop)].tolist())
            state = out.weight @ F.gelu(into.weight @ states[first - 1] + into.bias) + out.bias
            logits = output @ state + math.log(window / len(output))
            for entry in range(len(output)) if bag else ():
                right = logits[entry] if entry in bag else -logits[entry]
                total = total - F.logsigmoid(right) / len(bag)
    return total, count


@pytest.mark.parametrize(
    "options",
    [
        {"model": "gpt2", "summary_window": 3},  # whose head is the embedding
        {"model": "llama", "control": "shuffled"},
    ],
    ids=name_of,
)
def test_every_layout_equals_a_plain_loop(tokenizer, options, monkeypatch):
    run = ready(tokenizer, rows=step_rows(3), **options)
    expected, count = in_a_loop(run, options.get("summary_window", 32), options.get("control") == "shuffled")
    wanted = gradient(run, expected)
    for name, batch in layouts(run, monkeypatch, tensors=3):
        parts, found, _ = losses(run, batch)
        assert batch.pairs == count and parts.jepa.item() == pytest.approx(expected.item(), rel=1e-4), name
        assert_near(found, wanted)


def test_a_random_target_is_a_bag_of_one_token_for_all(tokenizer):
    run = ready(tokenizer, control="random")
    one, other = (losses(run, run.collator()(run.examples[::order]))[0].jepa.item() for order in (1, -1))
    assert one == pytest.approx(other, rel=1e-5) and one > 0
