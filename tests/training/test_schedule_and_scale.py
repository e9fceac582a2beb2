"""Schedules of lambda and the scale of the loss, in training."""

from __future__ import annotations

import pytest
import torch

from stepjepa.training.loss_scale import lbd_at
from stepjepa.training.options import JEPAOptions
from support.rows import step_rows
from support.training import STEPS, Options, logs_of, name_of, trained, trainer_for

# lambda


RISING_AND_FALLING = [0.0, 0.25, 0.5, 0.75, 1.0, 0.853553, 0.5, 0.146447]  # of 8 steps, half of them warm-up


def options_of(**options) -> JEPAOptions:
    settings = JEPAOptions(**options)
    settings.check()
    return settings


def test_lambda_by_hand():
    both = options_of(lbd=2.0, lbd_warmup_ratio=0.5, lbd_schedule="cosine")
    assert [lbd_at(both, step, 8) for step in range(9)] == pytest.approx(
        [2 * x for x in RISING_AND_FALLING] + [0.0], abs=1e-5
    )
    whole = options_of(lbd=0.4, lbd_warmup_ratio=1.0)
    assert [lbd_at(whole, step, 4) for step in range(5)] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    falling = options_of(lbd=1.0, lbd_schedule="cosine")
    assert [lbd_at(falling, step, 4) for step in range(5)] == pytest.approx(
        [1.0, 0.853553, 0.5, 0.146447, 0.0], abs=1e-5
    )
    assert [lbd_at(options_of(lbd=0.3), step, 4) for step in (0, 3, 4)] == [0.3, 0.3, 0.3]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_lambda_in_training(tmp_path, tokenizer, accumulation):
    options = {"lbd": 2.0, "lbd_warmup_ratio": 0.5, "lbd_schedule": "cosine", "learning_rate": 1e-3}
    trainer = trainer_for(
        tmp_path, tokenizer, max_steps=8, gradient_accumulation_steps=accumulation, batch=2, **options, **STEPS
    )
    trainer.train()
    logs = logs_of(trainer)
    used = [(log["loss"] - log["lm_loss"]) / log["jepa_loss"] for log in logs]
    assert used == pytest.approx([2 * x for x in RISING_AND_FALLING], abs=2e-5)
    assert all("lbd" in log for log in logs)


def test_logged_lambda_is_that_of_the_step(tmp_path, tokenizer):
    options = {"lbd": 2.0, "lbd_warmup_ratio": 0.5, "lbd_schedule": "cosine"}
    trainer = trainer_for(tmp_path, tokenizer, max_steps=8, **options, **STEPS)
    trainer.train()
    assert [log["lbd"] for log in logs_of(trainer)] == pytest.approx([2 * x for x in RISING_AND_FALLING], abs=1e-5)


def test_a_constant_lambda_is_not_logged(tmp_path, tokenizer):
    trainer = trainer_for(tmp_path, tokenizer, **STEPS)
    trainer.train()
    assert len(logs_of(trainer)) == 2 and not any("lbd" in log for log in logs_of(trainer))


# The scale of the loss


def first_step(tmp_path, tokenizer, rows, batch, accumulation, **options):
    options = {"max_steps": 1, "optim": "sgd", "gradient_accumulation_steps": accumulation, **options}
    logs, (gradient,) = trained(trainer_for(tmp_path, tokenizer, rows, batch, **options))
    return logs[0]["loss"], gradient


@pytest.mark.parametrize(("scale", "factor"), [("mean", 1.0), ("reference", 4.0)])
def test_the_published_scale_grows_with_accumulation(tmp_path, tokenizer, scale, factor):
    row = next(row for row in step_rows(20) if "\n\n" in row["messages"][1]["content"])
    options = {**STEPS, "loss_scale": scale}
    loss, gradient = first_step(tmp_path, tokenizer, [row] * 4, 1, 1, **options)
    loss_of_four, gradient_of_four = first_step(tmp_path, tokenizer, [row] * 4, 1, 4, **options)
    assert gradient.norm() > 1
    torch.testing.assert_close(gradient_of_four, factor * gradient, atol=1e-5, rtol=1e-4)
    assert loss_of_four == pytest.approx(factor * loss, rel=1e-5)


def test_the_published_scale_adds_up_the_micro_batches_own_means(tmp_path, tokenizer):
    rows = step_rows(4, seed=2)
    options = {**STEPS, "loss_scale": "reference", "train_sampling_strategy": "sequential"}
    loss, gradient = first_step(tmp_path, tokenizer, rows, 1, 4, **options)
    each = [first_step(tmp_path, tokenizer, [row, *rows], 1, 1, **options) for row in rows]
    torch.testing.assert_close(gradient, sum(g for _, g in each), atol=1e-5, rtol=1e-4)
    assert loss == pytest.approx(sum(value for value, _ in each), rel=1e-5)
    mean_loss, mean = first_step(tmp_path, tokenizer, rows, 1, 4, **{**options, "loss_scale": "mean"})
    assert (gradient / 4 - mean).norm() > 1e-2 * mean.norm() and loss > 3 * mean_loss


def test_the_published_scale_leaves_the_plain_arm_alone(tmp_path, tokenizer):
    found = [
        first_step(tmp_path, tokenizer, step_rows(4), 1, 4, loss_scale=scale, objective="regular")
        for scale in ("mean", "reference")
    ]
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])


TUBE: Options = {"objective": "semantic_tube", "tube_length_adjustment": "cosine_like", "tube_times": 2}


@pytest.mark.parametrize(
    "options",
    [
        TUBE,
        {**TUBE, "tube_mode": "three_index", "tube_length_adjustment": "jaccard_like", "target_grad": False},
        {"objective": "semantic_tube", "tube_mode": "curvature"},
        {**STEPS, "target_grad": False},
        {**STEPS, "target_encoder": "ema", "predictor_head": "mlp", "jepa_ratio": 0.6},
        {"objective": "step_jepa", "step_pairs": "random", "jepa_loss": "l2", "predictors": 0},
        {"objective": "llm_jepa", "views": "standalone", "target_grad": False, "predictors": 1},
        {"objective": "llm_jepa", "forward": "inline", "jepa_loss": "smooth_l1"},
        {"objective": "split"},
    ],
    ids=name_of,
)
def test_micro_batches_do_not_matter(tmp_path, tokenizer, options):
    options = {"num_train_epochs": 1, "max_steps": -1, "optim": "sgd", **options}
    runs = []
    for batch, accumulation in ((8, 1), (4, 2), (1, 8)):
        trainer = trainer_for(tmp_path, tokenizer, batch=batch, gradient_accumulation_steps=accumulation, **options)
        runs.append(trained(trainer))
    (expected, expected_gradients), *others = runs
    assert len(expected) == len(expected_gradients) == 3 and all(log["num_pairs"] for log in expected)
    for logs, gradients in others:
        for got, want in zip(logs, expected, strict=True):
            for name in ("loss", "lm_loss", "jepa_loss", "cosine_similarity"):
                assert got[name] == pytest.approx(want[name], abs=2e-5), name
            assert got["num_pairs"] == want["num_pairs"]
        for got, want in zip(gradients, expected_gradients, strict=True):
            assert (got - want).norm() < 1e-4 * want.norm()


def test_the_weights_of_spans_matter(tmp_path, tokenizer):
    """The comparison above can fail: counted by pairs instead of by weight, the same runs differ."""
    losses = [
        trained(trainer_for(tmp_path, tokenizer, **{**TUBE, "tube_length_adjustment": adjustment}))[0][0]["jepa_loss"]
        for adjustment in ("cosine_like", "none")
    ]
    assert abs(losses[0] - losses[1]) > 1e-4
