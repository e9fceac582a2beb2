"""Objectives that look ahead from every state, against plain loops over states, chat by chat and token by token."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from stepjepa.errors import ConfigError
from stepjepa.losses import lm
from stepjepa.training.config import JEPAConfig
from stepjepa.training.datasets import encode
from stepjepa.training.metrics import total_loss
from stepjepa.training.options import JEPAOptions
from support.objectives import (
    SEED,
    Options,
    Run,
    assert_flops,
    assert_near,
    gradient,
    layouts,
    losses,
    name_of,
    prepare,
    run_alone,
)
from support.rows import step_rows

LATENT = {"objective": "next_latent"}
TOKENS = {"objective": "multi_token"}
SUMMARY = {"objective": "future_summary"}
PARTS = ("lm_loss", "jepa_loss", "latent_kl")
Sums = tuple[list[torch.Tensor], int]  # of each part of the loss, and how many states are read


def ready(tokenizer, options: Options, rows: list | None = None) -> Run:
    """A run; the dynamics network of next_latent is not the identity any more."""
    run = prepare(tokenizer, options, rows)
    if options["objective"] == "next_latent":
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            last = run.model.jepa.objective[-1]
            last.weight += 0.3 * torch.randn(last.weight.shape, generator=generator)
            last.bias += 0.3 * torch.randn(last.bias.shape, generator=generator)
    return run


def latents_in_a_loop(run: Run, options: Options) -> Sums:
    model, horizon = run.model, options.get("latent_horizon", 1)
    distance = F.mse_loss if "jepa_loss" in options else F.smooth_l1_loss
    f, head, embedding = model.jepa.objective, model.get_output_embeddings(), model.get_input_embeddings().weight
    width = f[-1].out_features
    jepa, divergence, rollouts = torch.zeros(()), torch.zeros(()), 0
    for example in run.examples:
        ids = torch.tensor(example.trunk, dtype=torch.long)
        states = run_alone(model, example.trunk)
        for start, stop in [(1, len(ids))] if options.get("latent_positions") == "all" else example.labels:
            for first in range(start - 1, stop - 1):
                state, rollouts = states[first], rollouts + 1
                for place in range(first + 1, min(first + horizon + 1, stop)):
                    both = F.layer_norm(torch.cat([embedding[ids[place]], state]), (2 * width,), f[0].weight, f[0].bias)
                    hidden = F.gelu(f[1].weight @ both + f[1].bias)
                    hidden = F.gelu(f[3].weight @ hidden + f[3].bias)
                    state = state + f[5].weight @ hidden + f[5].bias
                    jepa = jepa + distance(state, states[place].detach())
                    wanted = (head.weight @ states[place]).softmax(0).detach()
                    found = (head.weight.detach() @ state).softmax(0)
                    divergence = divergence + (wanted * (wanted / found).log()).sum()
    return [jepa, divergence], rollouts


def through(network, state: torch.Tensor) -> torch.Tensor:
    into, _, out = network
    return out.weight @ F.gelu(into.weight @ state + into.bias) + out.bias


def reads(run: Run, options: Options) -> Iterator[tuple[torch.Tensor, list[int]]]:
    """Every state that is read, and the labelled tokens behind it, or at the same place of the next example."""
    question, shuffled = options.get("token_positions") == "question", options.get("control") == "shuffled"
    places = [
        [(first, stop) for start, stop in example.labels for first in range(start, start + 1 if question else stop)]
        for example in run.examples
    ]
    for number, example in enumerate(run.examples):
        states = run_alone(run.model, example.trunk)
        other = (number + 1) % len(places) if shuffled else number
        for place, (first, _) in enumerate(places[number]):
            start, stop = places[other][place % len(places[other])]
            yield states[first - 1], run.examples[other].trunk[start:stop].tolist()


def tokens_in_a_loop(run: Run, options: Options) -> Sums:
    total, count = torch.zeros(()), 0
    output, horizon = run.model.get_output_embeddings().weight, options.get("token_horizon", 4)
    for state, tokens in reads(run, options):
        count += 1
        for token, network in zip(tokens[1:horizon], run.model.jepa.objective, strict=False):
            total = total - (output @ through(network, state)).log_softmax(0)[token]
    return [total], count


def summaries_in_a_loop(run: Run, options: Options) -> Sums:
    total, count = torch.zeros(()), 0
    output, window = run.model.get_output_embeddings().weight, options.get("summary_window", 32)
    for state, tokens in reads(run, options):
        count += 1
        bag = set(tokens[1:window])
        logits = output @ through(run.model.jepa.objective, state) + math.log(window / len(output))
        for entry in range(len(output)) if bag else ():
            right = logits[entry] if entry in bag else -logits[entry]
            total = total - F.logsigmoid(right) / len(bag)
    return [total], count


LOOPS = {"next_latent": latents_in_a_loop, "multi_token": tokens_in_a_loop, "future_summary": summaries_in_a_loop}


@pytest.mark.parametrize(
    "options",
    [
        {**LATENT, "model": "gpt2"},  # whose head is the embedding
        {**LATENT, "model": "llama", "latent_horizon": 4},
        {**LATENT, "model": "mistral_sliding", "latent_horizon": 3, "latent_positions": "all", "labels": "all"},
        {**LATENT, "model": "llama", "latent_horizon": 2, "jepa_loss": "mse"},
        {**TOKENS, "model": "gpt2"},
        {**TOKENS, "model": "llama", "token_horizon": 2, "control": "shuffled"},
        {**TOKENS, "model": "mistral_sliding", "token_positions": "question", "token_horizon": 6},
        {**SUMMARY, "model": "gpt2", "summary_window": 3},
        {**SUMMARY, "model": "llama", "control": "shuffled"},
    ],
    ids=name_of,
)
def test_every_layout_equals_a_plain_loop(tokenizer, options, monkeypatch):
    summary = options["objective"] == "future_summary"
    run = ready(tokenizer, options, step_rows(3) if summary else None)
    expected, count = LOOPS[options["objective"]](run, options)
    wanted = [gradient(run, value) for value in expected]
    order = 1 if "control" in options else -1
    for name, batch in layouts(run, monkeypatch, order, tensors=3 if summary else 1):
        assert name != "several rows" or summary or len(batch.rows.input_ids) > 2
        assert name != "two_pass" or batch.views is None
        parts = run.model(batch=batch, step=0).parts
        assert tuple(parts) == PARTS[: 1 + len(expected)] and batch.pairs == count
        for part, value, want in zip(PARTS[1:], expected, wanted, strict=False):
            assert parts[part].count == count
            assert parts[part].sum.item() == pytest.approx(value.item(), rel=1e-4), (name, part)
            assert_near(gradient(run, parts[part].sum), want)


def test_each_term_has_a_weight_and_can_be_left_out(tokenizer):
    """The weighted loss and its gradient are those of a plain loop's two terms, by each weight."""
    for distance, kl in [(0.0, 1.0), (1.0, 0.0), (0.5, 2.0)]:
        options = {**LATENT, "latent_horizon": 2, "latent_distance": distance, "latent_kl": kl}
        run = ready(tokenizer, options)
        (jepa, divergence), rollouts = latents_in_a_loop(run, options)
        parts = run.model(batch=run.collator()(run.examples), step=0).parts
        counts = {name: torch.as_tensor(part.count) for name, part in parts.items()}
        loss = total_loss({name: part for name, part in parts.items() if name != "lm_loss"}, counts, 0.3)
        expected = 0.3 * (distance * jepa + kl * divergence) / rollouts
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
        assert_near(gradient(run, loss), gradient(run, expected))
    with pytest.raises(ConfigError, match="both 0"):
        JEPAConfig(output_dir="unused", **LATENT, latent_distance=0.0, latent_kl=0.0)


def test_the_network_begins_as_the_identity_with_the_seed_alone(tokenizer):
    runs = []
    for before in (0, 1):
        torch.manual_seed(before)
        runs.append(prepare(tokenizer, LATENT))
    one, other = (dict(run.model.jepa.objective.named_parameters()) for run in runs)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    run = runs[0]
    output = run.model(batch=run.collator()(run.examples), step=0)
    plain = run.model(batch=run.collator()(run.examples))
    torch.testing.assert_close(output.source_states, plain.source_states)


@pytest.mark.parametrize("forward", ["packed", "two_pass"])
def test_shuffled_targets_are_the_states_at_the_same_offset_of_another_example(tokenizer, forward):
    plain, shuffled = (ready(tokenizer, {**LATENT, "control": control}) for control in ("none", "shuffled"))
    output, moved = (run.model(batch=run.collator(forward)(run.examples), step=0) for run in (plain, shuffled))
    counts = [len(example.pairs) for example in plain.examples]
    assert len(set(counts)) > 2
    targets = output.target_states.split(counts)
    for own, found in enumerate(moved.target_states.split(counts)):
        other = targets[(own + 1) % len(counts)]
        torch.testing.assert_close(found, other[torch.arange(counts[own]) % len(other)], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(moved.source_states, output.source_states)
    assert moved.parts["jepa_loss"].sum > 1.02 * output.parts["jepa_loss"].sum


def test_a_random_latent_is_one_vector_and_has_its_own_tokens(tokenizer):
    run = ready(tokenizer, {**LATENT, "control": "random", "latent_horizon": 2})
    output = run.model(batch=run.collator()(run.examples), step=0)
    vector = torch.randn(32, generator=torch.Generator().manual_seed(SEED))
    assert torch.equal(output.target_states, vector.expand(len(output.target_states), -1))
    assert output.parts["latent_kl"].sum > 0


def test_a_random_token_is_one_for_all(tokenizer):
    run = ready(tokenizer, {**TOKENS, "control": "random", "token_horizon": 2})
    batch = run.collator()(run.examples)
    logits = run.model.get_output_embeddings()(run.model.jepa.objective[0](run.model(batch=batch).source_states))
    token = torch.randint(run.setup.vocabulary, (), generator=torch.Generator().manual_seed(SEED))
    left = [place for e in run.examples for start, stop in e.labels for place in range(stop - start, 0, -1)]
    last = torch.tensor(left) == 1
    expected = -logits.log_softmax(-1)[~last, token].sum()
    assert losses(run, batch)[0].jepa.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_random_summary_is_a_bag_of_one_token_for_all(tokenizer):
    run = ready(tokenizer, {**SUMMARY, "control": "random"})
    one, other = (losses(run, run.collator()(run.examples[::order]))[0].jepa.item() for order in (1, -1))
    assert one == pytest.approx(other, rel=1e-5) and one > 0


@pytest.mark.parametrize("options", [LATENT, TOKENS, {**TOKENS, "token_positions": "question"}], ids=name_of)
def test_the_data_report_counts_the_states_that_are_read(tokenizer, options):
    method = JEPAOptions(**options)
    method.check()
    _, report = encode(step_rows(3), tokenizer, method, None)
    assert report.pairs == (3 if "token_positions" in options else report.labelled_tokens)
    assert report.labelled_tokens > 3


NO_KL = {**LATENT, "latent_kl": 0.0, "latent_horizon": 2}


@pytest.mark.parametrize("options", [LATENT, {**LATENT, "latent_horizon": 3}, NO_KL, TOKENS, SUMMARY], ids=name_of)
@pytest.mark.parametrize("chunked", [False, True])
def test_flops_are_those_that_torch_counts(tokenizer, options, chunked, monkeypatch):
    if chunked:
        monkeypatch.setattr(lm, "MAX_LOGITS_BYTES", 4 * 50 * len(tokenizer))
    # Whose LM loss has no kernel that goes uncounted.
    run = prepare(tokenizer, {"model": "granite_scaled_logits", **options})
    assert_flops(run, run.collator()(run.examples))


@pytest.mark.parametrize("options", [NO_KL, TOKENS, SUMMARY], ids=name_of)
def test_plain_text_is_looked_ahead_in_whole(tokenizer, options):
    run = prepare(tokenizer, options, [{"text": row["messages"][1]["content"]} for row in step_rows(3)])
    assert [len(example.pairs) for example in run.examples] == [len(example.trunk) - 1 for example in run.examples]
    parts, jepa_gradient, _ = losses(run, run.collator()(run.examples))
    assert parts.jepa > 0 and jepa_gradient.norm() > 0
