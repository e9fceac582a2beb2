"""The scale of the loss: the same numbers however an optimizer step is cut into micro-batches and processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from stepjepa.modeling.load import load_model, load_tokenizer
from stepjepa.training.batches import FILLER, Draw, EpochSampler
from stepjepa.training.config import JEPAConfig
from stepjepa.training.trainer import JEPATrainer
from support.rows import step_rows

ROWS = 20  # two full groups of 8 and a short last one of 4


def trained(tmp_path, batch, accumulation, **options):
    """Train one epoch and return the losses logged at every step and the final weights."""
    rows = step_rows(ROWS)
    tokenizer = load_tokenizer("tiny", (message["content"] for row in rows for message in row["messages"]))
    model = load_model("tiny", tokenizer, seed=3)
    gradients = []
    arguments = {"objective": "step_jepa", "predictors": 2, "lbd": 0.5, "step_pairs": "all", **options}
    config = JEPAConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=1,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        optim="sgd",  # Adam would turn a rounding error of a gradient near zero into a step of full size
        **arguments,
    )
    trainer = JEPATrainer(model, config, rows, processing_class=tokenizer)
    clip = trainer._clip_grad_norm

    def keep_gradients(model):
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())
        return clip(model)

    trainer._clip_grad_norm = keep_gradients
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "lm_loss" in entry]
    return logs, gradients


@pytest.mark.parametrize("forward", ["packed", "two_pass"])
def test_micro_batches_do_not_matter(tmp_path, forward):
    expected, expected_gradients = trained(tmp_path, 8, 1, forward=forward)
    assert len(expected) == 3
    assert expected[-1]["num_pairs"] < expected[0]["num_pairs"]
    for batch, accumulation in ((4, 2), (1, 8)):
        logs, gradients = trained(tmp_path, batch, accumulation, forward=forward)
        assert len(logs) == 3
        for got, want in zip(logs, expected, strict=True):
            for name in ("loss", "lm_loss", "jepa_loss", "cosine_similarity"):
                assert got[name] == pytest.approx(want[name], abs=1e-5), name
            assert got["num_pairs"] == want["num_pairs"]
        for got, want in zip(gradients, expected_gradients, strict=True):
            assert want.norm() > 0.1
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_grouping_by_length_changes_neither_losses_nor_gradients(tmp_path):
    expected, expected_gradients = trained(tmp_path, 8, 1)
    logs, gradients = trained(tmp_path, 2, 4, train_sampling_strategy="group_by_length")
    for got, want in zip(logs, expected, strict=True):
        assert got["lm_loss"] == pytest.approx(want["lm_loss"], abs=1e-5)
        assert got["jepa_loss"] == pytest.approx(want["jepa_loss"], abs=1e-5)
    for got, want in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_grouping_keeps_the_examples_of_a_step_and_sorts_them():
    lengths = np.random.default_rng(0).integers(5, 500, 50)
    plain, grouped = (EpochSampler(50, 4, 7, lengths=given, window=16) for given in (None, lengths))
    for epoch in (0, 3):
        plain.set_epoch(epoch)
        grouped.set_epoch(epoch)
        before, after = list(plain), list(grouped)
        assert len(after) == 52 and after[50:] == before[50:] == [Draw(epoch, FILLER)] * 2
        for start in range(0, 50, 16):
            window = after[start : min(start + 16, 50)]
            assert sorted(window) == sorted(before[start : min(start + 16, 50)])
            sizes = [lengths[draw.row] for draw in window]
            assert sizes == sorted(sizes, reverse=True)
        assert before != after


def test_micro_batches_matter_where_the_divisor_is_local(tmp_path):
    """The test above can fail: dividing by the micro-batch's own counts gives other gradients."""
    _, expected = trained(tmp_path, 8, 1)
    original = JEPATrainer.compute_loss

    def local(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return original(self, model, inputs, return_outputs, None) / self.args.gradient_accumulation_steps

    JEPATrainer.compute_loss = local
    try:
        _, gradients = trained(tmp_path, 1, 8)
    finally:
        JEPATrainer.compute_loss = original
    assert (gradients[0] - expected[0]).abs().max() > 1e-4


def command_line(output, batch, processes, data, more=""):
    """One epoch through the real command line, alone or with gloo processes."""
    run = [sys.executable, "-m"]
    if processes > 1:
        run += ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "-m"]
    arguments = f"--train_file {data} --eval_file {data} --model_name tiny --step_jepa --step_pairs all --lbd 0.5"
    arguments += f" --per_device_train_batch_size {batch} --per_device_eval_batch_size 3 --num_epochs 1 --optim sgd"
    arguments += f" {more} --logging_steps 1 --save_strategy no --disable_tqdm true --seed 3 --output_dir {output}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*run, "stepjepa", "train", *arguments.split()], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads((output / "metrics.json").read_text())
    logs = [entry for entry in record["log_history"] if "lm_loss" in entry]
    return logs, record["metrics"], AutoModelForCausalLM.from_pretrained(output).state_dict()


# What compares the pairs of a batch compares those of all processes.
OVER_A_BATCH = "--infonce --infonce_symmetric --regularizer vicreg --predictor_head mlp --target_encoder ema"


@pytest.mark.parametrize(
    "more", ["", OVER_A_BATCH, pytest.param("--regularizer sigreg --jepa_ratio 0.5", marks=pytest.mark.long)]
)
def test_two_processes_equal_one(tmp_path, more):
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in step_rows(ROWS)))
    one, metrics_one, weights_one = command_line(tmp_path / "one", 8, 1, data, more)
    two, metrics_two, weights_two = command_line(tmp_path / "two", 4, 2, data, more)
    assert len(one) == len(two) == 3
    for got, want in zip(two, one, strict=True):
        for name in ("loss", "lm_loss", "jepa_loss", "grad_norm"):
            assert got[name] == pytest.approx(want[name], abs=1e-5), name
        assert got["num_pairs"] == want["num_pairs"]
    # The batches of an evaluation are larger with two processes, and these losses depend on them.
    for name in ("eval_lm_loss",) if more else ("eval_loss", "eval_lm_loss", "eval_jepa_loss"):
        assert metrics_two[name] == pytest.approx(metrics_one[name], abs=1e-5)
    for name, value in weights_one.items():
        torch.testing.assert_close(weights_two[name], value, atol=1e-5, rtol=0)
