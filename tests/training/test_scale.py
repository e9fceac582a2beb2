"""The scale of the loss does not depend on micro-batches and processes; lambda, the regularizers, equal compute."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from stepjepa.cli.main import main
from stepjepa.losses.regularizers import random_directions, sigreg_regularizer, vicreg_regularizer
from stepjepa.training.metrics import lbd_at
from stepjepa.training.options import JEPAOptions
from support.rows import step_rows, write
from support.sharding import launch
from support.training import STEPS, Options, batch_of, logs_of, name_of, trained, trainer_for

TUBE: Options = {"objective": "semantic_tube", "tube_length_adjustment": "cosine_like", "tube_times": 2}
# Two full groups of 8 rows and a short last one of 4. Adam would turn a rounding error of a gradient near zero into a
# step of full size.
EPOCH: Options = {"num_train_epochs": 1, "max_steps": -1, "optim": "sgd"}


def epoch(tmp_path, tokenizer, batch, accumulation, **options):
    options = {**EPOCH, "gradient_accumulation_steps": accumulation, **options}
    return trained(trainer_for(tmp_path, tokenizer, batch=batch, **options))


def assert_same_steps(found, expected):
    (logs, gradients), (expected_logs, expected_gradients) = found, expected
    assert len(logs) == len(expected_logs) == len(expected_gradients) == 3
    for got, want in zip(logs, expected_logs, strict=True):
        for name in ("loss", "lm_loss", "jepa_loss", "cosine_similarity"):
            assert got[name] == pytest.approx(want[name], abs=2e-5), name
        assert got["num_pairs"] == want["num_pairs"] > 0
    for got, want in zip(gradients, expected_gradients, strict=True):
        assert want.norm() > 0.1 and (got - want).norm() < 1e-4 * want.norm()


@pytest.mark.parametrize(
    "options",
    [
        {**STEPS, "predictors": 2},
        {**STEPS, "predictors": 2, "forward": "two_pass", "target_grad": False},
        TUBE,
        {"objective": "semantic_tube", "tube_mode": "curvature"},
        {"objective": "next_latent", "latent_horizon": 3, "jepa_ratio": 0.6},
        {"objective": "multi_token", "forward": "two_pass"},
        {**STEPS, "target_encoder": "ema", "predictor_head": "mlp", "jepa_ratio": 0.6},
        {"objective": "step_jepa", "step_pairs": "plan", "horizon": 2, "predictor_head": "mlp"},
        {"objective": "llm_jepa", "views": "standalone", "predictors": 1, "jepa_loss": "l2"},
        {"objective": "llm_jepa", "forward": "inline", "jepa_loss": "smooth_l1"},
    ],
    ids=name_of,
)
def test_micro_batches_do_not_matter(tmp_path, tokenizer, options):
    expected = epoch(tmp_path, tokenizer, 8, 1, **options)
    # Where a step's examples are put in order of length, it still is the same step.
    assert_same_steps(epoch(tmp_path, tokenizer, 2, 4, train_sampling_strategy="group_by_length", **options), expected)


def command_line(output, batch, processes, data, more=""):
    """One epoch through the real command line, in this process or in several of its own."""
    more = more if "--objective" in more else f"--step_jepa --step_pairs all {more}"
    arguments = f"--train_file {data} --eval_file {data} --model_name tiny --lbd 0.5"
    arguments += f" --per_device_train_batch_size {batch} --per_device_eval_batch_size 3 --num_epochs 1 --optim sgd"
    arguments += " --eval_metrics prefix exact --eval_samples 3 --eval_max_new_tokens 3"
    arguments += f" {more} --logging_steps 1 --save_strategy no --disable_tqdm true --seed 3 --output_dir {output}"
    command = ["train", *arguments.split()]
    if processes == 1:
        assert main(command) == 0
    else:
        done = launch(command, "stepjepa", processes=processes)
        assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads((output / "metrics.json").read_text())
    logs = [entry for entry in record["log_history"] if "lm_loss" in entry]
    return logs, record["metrics"], AutoModelForCausalLM.from_pretrained(output).state_dict()


# What compares the pairs of a batch compares those of all processes.
OVER_A_BATCH = (
    "--infonce --infonce_symmetric --regularizer vicreg --predictor_head mlp --target_encoder ema --multi_horizon 1 2"
)


@pytest.mark.parametrize(
    "more",
    [
        OVER_A_BATCH,
        pytest.param("", marks=pytest.mark.long),
        pytest.param("--regularizer sigreg --jepa_ratio 0.5", marks=pytest.mark.long),
        pytest.param("--objective next_latent --latent_horizon 2", marks=pytest.mark.long),
        pytest.param("--objective multi_token --token_positions question", marks=pytest.mark.long),
        pytest.param("--objective future_summary", marks=pytest.mark.long),
        pytest.param("--objective llm_jepa --mask_ratio 0.4 --predictors 1", marks=pytest.mark.long),
        pytest.param("--objective steps_to_answer --answer_layers 1 2 --predictors 2", marks=pytest.mark.long),
    ],
)
def test_two_processes_equal_one(tmp_path, more):
    data = write(tmp_path / "rows.jsonl", step_rows(20))
    one, metrics_one, weights_one = command_line(tmp_path / "one", 8, 1, data, more)
    two, metrics_two, weights_two = command_line(tmp_path / "two", 4, 2, data, more)
    assert len(one) == len(two) == 3
    for got, want in zip(two, one, strict=True):
        for name in ("loss", "lm_loss", "jepa_loss", "grad_norm"):
            assert got[name] == pytest.approx(want[name], abs=1e-5), name
        assert got["num_pairs"] == want["num_pairs"]
    # The batches of an evaluation are larger with two processes, and these losses depend on them.
    names = ("eval_lm_loss",) if more else ("eval_loss", "eval_lm_loss", "eval_jepa_loss")
    for name in (*names, "eval_prefix", "eval_exact", "eval_did_not_stop"):
        assert metrics_two[name] == pytest.approx(metrics_one[name], abs=1e-5)
    for name, value in weights_one.items():
        torch.testing.assert_close(weights_two[name], value, atol=1e-5, rtol=0)


# --loss_scale


def first_step(tmp_path, tokenizer, rows, batch, accumulation, **options):
    options = {"max_steps": 1, "optim": "sgd", "gradient_accumulation_steps": accumulation, **options}
    logs, (gradient,) = trained(trainer_for(tmp_path, tokenizer, rows, batch, **options))
    return logs[0]["loss"], gradient


def test_the_published_scale_adds_up_the_micro_batches_own_means(tmp_path, tokenizer):
    rows = step_rows(4, seed=2)[:3]
    options = {**STEPS, "loss_scale": "reference", "train_sampling_strategy": "sequential"}
    loss, gradient = first_step(tmp_path, tokenizer, rows, 1, 3, **options)
    each = [first_step(tmp_path, tokenizer, [row, *rows], 1, 1, **options) for row in rows]
    torch.testing.assert_close(gradient, sum(g for _, g in each), atol=1e-5, rtol=1e-4)
    assert loss == pytest.approx(sum(value for value, _ in each), rel=1e-5)
    mean_loss, mean = first_step(tmp_path, tokenizer, rows, 1, 3, **{**options, "loss_scale": "mean"})
    assert (gradient / 3 - mean).norm() > 1e-2 * mean.norm() and loss > 2 * mean_loss
    plain = [
        first_step(tmp_path, tokenizer, rows, 1, 3, loss_scale=scale, objective="regular")
        for scale in ("mean", "reference")
    ]
    assert plain[0][0] == plain[1][0] and torch.equal(plain[0][1], plain[1][1]), "the plain arm has one scale"


# lambda


RISING_AND_FALLING = [0.0, 0.25, 0.5, 0.75, 1.0, 0.853553, 0.5, 0.146447]  # of 8 steps, half of them warm-up


@pytest.mark.parametrize(
    ("options", "steps", "expected"),
    [
        ({"lbd": 1.0, "lbd_warmup_ratio": 0.5, "lbd_schedule": "cosine"}, 8, [*RISING_AND_FALLING, 0.0]),
        ({"lbd": 0.4, "lbd_warmup_ratio": 1.0}, 4, [0.0, 0.1, 0.2, 0.3, 0.4]),
        ({"lbd": 1.0, "lbd_schedule": "cosine"}, 4, [1.0, 0.853553, 0.5, 0.146447, 0.0]),
        ({"lbd": 0.3}, 2, [0.3, 0.3, 0.3]),
        ({"lbd": 0.3, "jepa_until": 0.5}, 4, [0.3, 0.3, 0.0, 0.0, 0.0]),
        ({"lbd": 1.0, "lbd_schedule": "cosine", "jepa_until": 0.6}, 4, [1.0, 0.853553, 0.5, 0.0, 0.0]),
    ],
)
def test_lambda_by_hand(options, steps, expected):
    settings = JEPAOptions(**options)
    settings.check()
    assert [lbd_at(settings, step, steps) for step in range(steps + 1)] == pytest.approx(expected, abs=1e-5)


def test_lambda_in_training(tmp_path, tokenizer):
    options = {"lbd": 2.0, "lbd_warmup_ratio": 0.5, "lbd_schedule": "cosine", "learning_rate": 1e-3, "max_steps": 8}
    options |= {"jepa_until": 0.8, "gradient_accumulation_steps": 2}
    trainer = trainer_for(tmp_path, tokenizer, batch=2, **options, **STEPS)
    trainer.train()
    logs, expected = logs_of(trainer), [*(2 * x for x in RISING_AND_FALLING[:7]), 0.0]
    assert [(log["loss"] - log["lm_loss"]) / log["jepa_loss"] for log in logs] == pytest.approx(expected, abs=2e-5)
    assert [log["lbd"] for log in logs] == pytest.approx(expected, abs=1e-5), "logged is that of the step"
    assert trainer.state.total_flos == 0, "not asked for"


# The regularizer


@pytest.mark.parametrize(
    ("kind", "weight", "target_grad"), [("vicreg", None, True), ("vicreg", 3.0, False), ("sigreg", None, False)]
)
def test_the_regularizer_enters_the_loss_with_its_weight(tmp_path, tokenizer, kind, weight, target_grad):
    """The directions of SIGReg are those of the step."""
    options = {**STEPS, "regularizer": kind, "regularizer_weight": weight, "sigreg_directions": 16}
    trainer = trainer_for(tmp_path, tokenizer, target_grad=target_grad, **options)
    trainer.state.global_step = 3
    used = {"vicreg": 1.0, "sigreg": 0.05}[kind] if weight is None else weight
    batch = batch_of(trainer)
    output = trainer.model(batch=batch)
    source, target = output.source_states, output.target_states
    if kind == "vicreg":
        plain = vicreg_regularizer(source, target, 0.04)
    else:
        plain = sigreg_regularizer(source, target, random_directions(32, 16, 3))
    jepa = 1 - torch.cosine_similarity(source, target)
    expected = output.lm_loss_sum / len(batch.label_ids) + 0.5 * (jepa.mean() + used * plain)
    parameters = list(trainer.model.parameters())
    expected_gradient = torch.autograd.grad(expected, parameters)
    loss = trainer.compute_loss(trainer.model, batch)
    assert plain > 1e-2 and loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for got, want in zip(torch.autograd.grad(loss, parameters), expected_gradient, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-3)


# Compute


def test_equal_compute_costs_what_a_regular_run_costs(tmp_path, tokenizer):
    """Full epochs of both: the sampled ratio covers all of the data set, so the totals agree to a step."""
    options = {**STEPS, "predictors": 2, "max_steps": -1, "num_train_epochs": 2, "track_flop": True}
    regular, plain, same = (
        trainer_for(tmp_path, tokenizer, **{**options, **more})
        for more in ({"objective": "regular", "predictors": 0}, {}, {"same_flop": True})
    )
    for trainer in (regular, plain, same):
        trainer.train()
    assert regular.state.max_steps == plain.state.max_steps == same.equal_compute[0] == 10
    assert plain.state.total_flos > 1.2 * regular.state.total_flos
    assert len(logs_of(same)) == same.state.max_steps == same.requested_steps < 9
    step = same.state.total_flos / same.state.max_steps
    assert abs(same.state.total_flos - regular.state.total_flos) < 1.5 * step
