"""NextLat against a plain loop over states, chat by chat, token by token and step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stepjepa.data.encode import TokenChat
from stepjepa.data.types import TRUNK, Example, Read, Span
from stepjepa.errors import ConfigError
from stepjepa.losses import lm
from stepjepa.objectives.next_latent import NextLatent
from stepjepa.training.config import JEPAConfig
from stepjepa.training.metrics import total_loss
from stepjepa.training.options import JEPAOptions
from support.objectives import SEED, assert_flops, assert_near, gradient, layouts, losses, name_of, prepare, run_alone
from support.rows import step_rows

LATENT = {"objective": "next_latent"}
PARTS = ("lm_loss", "jepa_loss", "latent_kl")


def ready(tokenizer, rows=None, **options):
    """A run whose dynamics network is not the identity any more."""
    run = prepare(tokenizer, LATENT | options, rows)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        last = run.model.jepa.objective[-1]
        last.weight += 0.3 * torch.randn(last.weight.shape, generator=generator)
        last.bias += 0.3 * torch.randn(last.bias.shape, generator=generator)
    return run


def in_a_loop(run, horizon: int, everywhere: bool, distance=F.smooth_l1_loss) -> list[torch.Tensor]:
    """Both sums of the loss, and the number of rollouts."""
    model = run.model
    f, head, embedding = model.jepa.objective, model.get_output_embeddings(), model.get_input_embeddings().weight
    width = f[-1].out_features
    jepa, divergence, rollouts = torch.zeros(()), torch.zeros(()), torch.zeros(())
    for example in run.examples:
        ids = torch.tensor(example.trunk, dtype=torch.long)
        states = run_alone(model, example.trunk)
        for start, stop in [(1, len(ids))] if everywhere else example.labels:
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
    return [jepa, divergence, rollouts]


@pytest.mark.parametrize(
    "options",
    [
        {"model": "gpt2"},  # whose head is the embedding
        {"model": "llama", "latent_horizon": 4},
        {"model": "mistral_sliding", "latent_horizon": 3, "latent_positions": "all", "labels": "all"},
        {"model": "llama", "latent_horizon": 2, "jepa_loss": "mse"},
    ],
    ids=name_of,
)
def test_every_layout_equals_a_plain_loop(tokenizer, options, monkeypatch):
    run = ready(tokenizer, **options)
    everywhere = options.get("latent_positions") == "all"
    distance = F.mse_loss if "jepa_loss" in options else F.smooth_l1_loss
    *expected, rollouts = in_a_loop(run, options.get("latent_horizon", 1), everywhere, distance)
    wanted = [gradient(run, value) for value in expected]
    for name, batch in layouts(run, monkeypatch, order=-1):
        assert name != "several rows" or len(batch.rows.input_ids) > 2
        assert name != "two_pass" or batch.views is None
        parts = run.model(batch=batch, step=0).parts
        assert tuple(parts) == PARTS and parts["jepa_loss"].count == parts["latent_kl"].count == rollouts
        for part, value, want in zip(PARTS[1:], expected, wanted, strict=True):
            assert parts[part].sum.item() == pytest.approx(value.item(), rel=1e-4), (name, part)
            assert_near(gradient(run, parts[part].sum), want)


def test_each_term_has_a_weight_and_can_be_left_out(tokenizer):
    """The weighted loss and its gradient are those of a plain loop's two terms, by each weight."""
    for distance, kl in [(0.0, 1.0), (1.0, 0.0), (0.5, 2.0)]:
        run = ready(tokenizer, latent_horizon=2, latent_distance=distance, latent_kl=kl)
        jepa, divergence, rollouts = in_a_loop(run, 2, everywhere=False)
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
        runs.append(prepare(tokenizer, dict(LATENT)))
    one, other = (dict(run.model.jepa.objective.named_parameters()) for run in runs)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    run = runs[0]
    output = run.model(batch=run.collator()(run.examples), step=0)
    plain = run.model(batch=run.collator()(run.examples))
    torch.testing.assert_close(output.source_states, plain.source_states)


def test_rollouts_begin_before_labelled_tokens():
    objective = NextLatent(JEPAOptions(objective="next_latent", latent_positions="labelled"))
    found = objective.pairs_of(TokenChat(*[()] * 7, labels=((0, 3), (6, 9))))
    assert found.view_spans == ((Span(0, 2), Span(1, 3)), (Span(5, 8), Span(6, 9)))
    example = objective.draw(Example(np.arange(9), (), view_spans=found.view_spans), np.random.default_rng())
    places = [(pair.source, pair.target) for pair in example.pairs]
    assert places == [(Read.one(TRUNK, t), Read.one(TRUNK, t + 1)) for t in (0, 1, 5, 6, 7)]


@pytest.mark.parametrize("forward", ["packed", "two_pass"])
def test_shuffled_targets_are_the_states_at_the_same_offset_of_another_example(tokenizer, forward):
    plain, shuffled = (ready(tokenizer, control=control) for control in ("none", "shuffled"))
    output, moved = (run.model(batch=run.collator(forward)(run.examples), step=0) for run in (plain, shuffled))
    counts = [len(example.pairs) for example in plain.examples]
    assert len(set(counts)) > 2
    targets = output.target_states.split(counts)
    for own, found in enumerate(moved.target_states.split(counts)):
        other = targets[(own + 1) % len(counts)]
        torch.testing.assert_close(found, other[torch.arange(counts[own]) % len(other)], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(moved.source_states, output.source_states)
    assert moved.parts["jepa_loss"].sum > 1.02 * output.parts["jepa_loss"].sum


def test_the_random_target_is_one_vector_and_has_its_own_tokens(tokenizer):
    run = ready(tokenizer, control="random", latent_horizon=2)
    output = run.model(batch=run.collator()(run.examples), step=0)
    vector = torch.randn(32, generator=torch.Generator().manual_seed(SEED))
    assert torch.equal(output.target_states, vector.expand(len(output.target_states), -1))
    assert output.parts["latent_kl"].sum > 0


NO_KL = {**LATENT, "latent_kl": 0.0, "latent_horizon": 2}


@pytest.mark.parametrize(
    "options",
    [LATENT, {**LATENT, "latent_horizon": 3}, NO_KL, {"objective": "multi_token"}, {"objective": "future_summary"}],
    ids=name_of,
)
@pytest.mark.parametrize("chunked", [False, True])
def test_flops_are_those_that_torch_counts(tokenizer, options, chunked, monkeypatch):
    if chunked:
        monkeypatch.setattr(lm.chunk_rows, "__defaults__", (4 * 50 * len(tokenizer),))
    # Whose LM loss has no kernel that goes uncounted.
    run = prepare(tokenizer, {"model": "granite_scaled_logits", **options})
    assert_flops(run, run.collator()(run.examples))


@pytest.mark.parametrize("options", [NO_KL, {"objective": "multi_token"}, {"objective": "future_summary"}], ids=name_of)
def test_plain_text_is_looked_ahead_in_whole(tokenizer, options):
    run = prepare(tokenizer, options, [{"text": row["messages"][1]["content"]} for row in step_rows(3)])
    assert [len(example.pairs) for example in run.examples] == [len(example.trunk) - 1 for example in run.examples]
    parts, jepa_gradient, _ = losses(run, run.collator()(run.examples))
    assert parts.jepa > 0 and jepa_gradient.norm() > 0
