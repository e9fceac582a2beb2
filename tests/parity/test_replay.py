"""Replayed pairs (ER-JEPA, arXiv:2609.36952): which are drawn, and JEPA + weight * replayed against separate losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stepjepa.errors import ConfigError
from stepjepa.modeling.flops import ModelCost, batch_flops
from stepjepa.training.config import JEPAConfig
from stepjepa.training.metrics import total_loss
from stepjepa.training.sampling import EpochSampler, Mixture
from support.objectives import Run, assert_near, gradient, in_one_row, name_of, prepare
from support.rows import step_rows
from support.training import SAVED, assert_resumes_alike, assert_train_alike, trainer_for, weights

RATIO = 0.5


def epochs_of(sampler, count):
    epochs = []
    for sampler.epoch in range(count):
        epochs.append(list(sampler))
    return epochs


@pytest.mark.parametrize("mixture", [Mixture((40,), (40,)), Mixture((30, 8), (15, 12))], ids=["rows", "mixture"])
@pytest.mark.parametrize("current", [False, True])
def test_examples_of_earlier_steps_are_replayed(mixture, current):
    window = 8
    options = {"seed": 3, "window": window, "replay_ratio": RATIO, "replay_current": current}
    epochs = epochs_of(EpochSampler(mixture, 8, **options), 4)
    plain = epochs_of(EpochSampler(mixture, 8, seed=3), 4)
    drawn = [draw for epoch in epochs for draw in epoch if draw.row >= 0]
    assert [draw._replace(replayed=None) for draw in drawn] == [draw for e in plain for draw in e if draw.row >= 0]
    size = len(drawn) // 4
    with_replay = 0
    for number, draw in enumerate(drawn):
        epoch, place = divmod(number, size)
        begin = epoch * size + place // window * window
        end = min(begin + window, (epoch + 1) * size)
        allowed = drawn[begin:end] if current else drawn[:begin]
        if draw.replayed is not None:
            with_replay += 1
            assert draw.replayed in [one._replace(replayed=None) for one in allowed]
    assert all(draw.replayed is None for draw in drawn[:window]), "there is no earlier step"
    assert with_replay / (len(drawn) - window) == pytest.approx(RATIO, abs=0.1)
    # A fresh sampler, another micro-batch or an order by length draws the same for the same step.
    sampler = EpochSampler(mixture, 2, lengths=np.arange(60), **options)
    again = epochs_of(sampler, 4)[3]
    steps = [
        [
            sorted(draw.replayed for draw in epoch[start : start + window] if draw.replayed)
            for start in range(0, size, window)
        ]
        for epoch in (again, epochs[3])
    ]
    assert steps[0] == steps[1]


def with_replayed(run: Run) -> list:
    """Every second example replays the pairs of the one before it."""
    examples = list(run.examples)
    for number in range(1, len(examples), 2):
        if examples[number - 1].pairs:
            examples[number] = examples[number]._replace(replayed=examples[number - 1])
    return examples


@pytest.mark.parametrize(
    "case",
    [
        {"objective": "llm_jepa", "predictors": 1},
        {"objective": "llm_jepa", "views": "standalone", "predictors": 2, "model": "gpt2"},
        {"objective": "llm_jepa", "forward": "inline", "predictors": 1},
        {"objective": "step_jepa", "step_pairs": "all", "target_grad": False, "jepa_loss": "mse"},
        {"objective": "step_jepa", "target_encoder": "ema", "predictor_head": "linear"},
        {"objective": "step_jepa", "step_pairs": "random", "regularizer": "vicreg", "jepa_loss": "infonce"},
        {"objective": "llm_jepa", "control": "shuffled"},
    ],
    ids=name_of,
)
def test_the_loss_is_that_of_both_kinds_of_pairs(tokenizer, case):
    run = prepare(tokenizer, {**case, "replay_ratio": RATIO, "replay_weight": 0.7})
    examples = with_replayed(run)
    replayed = [example.replayed for example in examples if example.replayed]
    # Plain batches of either kind, and of these the JEPA loss; both are divided by their own pairs.
    collate = run.collator()
    now = run.model(batch=collate(run.examples), step=5)
    earlier = run.model(batch=collate(replayed), step=5)
    counts = {"lm_loss": 100.0, "jepa_loss": 7.0, "regularizer": 7.0, "replay_loss": 3.0}
    counts = {name: torch.tensor(count) for name, count in counts.items()}
    parts = {name: part for name, part in now.parts.items() if name != "replay_loss"}
    expected = total_loss(parts, counts, 0.3) + 0.3 * 0.7 * earlier.parts["jepa_loss"].sum / 3.0
    wanted = gradient(run, expected)
    inline = case.get("forward") == "inline"
    batches = {"packed": collate(examples)}
    if not inline:
        batches["segments"] = in_one_row(collate)(examples)
        batches["two_pass"] = run.collator("two_pass")(examples)
    for name, batch in batches.items():
        output = run.model(batch=batch, step=5)
        loss = total_loss(output.parts, counts, 0.3)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5), name
        assert_near(gradient(run, loss), wanted)
        assert run.setup.objective.counts(batch)["replay_loss"] == earlier.parts["jepa_loss"].count
        assert output.parts["jepa_loss"].count == now.parts["jepa_loss"].count


def test_only_what_the_pairs_have_seen_is_computed_again(tokenizer):
    run = prepare(tokenizer, {"objective": "step_jepa", "replay_ratio": RATIO})
    collate, cost = run.collator(), ModelCost.of(run.model, run.setup.vocabulary)
    plain, replaying = (collate(examples) for examples in (run.examples, with_replayed(run)))
    assert torch.equal(plain.label_ids, replaying.label_ids) and replaying.replayed > 0
    alone = collate([example.replayed.without_labels() for example in with_replayed(run) if example.replayed])
    tokens = [int(batch.rows.filled.sum()) for batch in (plain, replaying, alone)]
    assert tokens[1] == tokens[0] + tokens[2] < 2 * tokens[0]
    flops = [batch_flops(batch, cost) for batch in (plain, replaying)]
    assert flops[1] > 1.1 * flops[0]


REPLAY = {"objective": "step_jepa", "replay_ratio": 0.6}


def test_a_resumed_run_replays_the_same(tmp_path, tokenizer):
    def trainer(folder, **more):
        return trainer_for(folder, tokenizer, step_rows(16), **{**SAVED, **REPLAY, **more})

    whole, _ = assert_resumes_alike(trainer, tmp_path)
    assert {"replay_loss", "jepa_loss"} <= {name for entry in whole.state.log_history for name in entry}
    plain, expected = trainer(tmp_path / "plain", replay_ratio=0.0), weights(whole.model)
    plain.train()
    assert any(not torch.equal(value, expected[name]) for name, value in weights(plain.model).items())


def test_without_a_weight_nothing_is_replayed(tmp_path, tokenizer):
    ways = {**REPLAY, "lbd": 0.0}, {"objective": "regular"}
    assert_train_alike(tmp_path, tokenizer, step_rows(16), *ways)


def test_a_stream_has_no_earlier_rows(tmp_path):
    with pytest.raises(ConfigError, match="replay_ratio needs rows of earlier steps, and streaming keeps none"):
        JEPAConfig(output_dir=str(tmp_path), replay_ratio=0.5, streaming=True, max_steps=3)
