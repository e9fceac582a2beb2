"""A run whose loss is not finite stops at that step, and keeps the last good checkpoint."""

from __future__ import annotations

import json
import math

import pytest
import torch

from stepjepa.modeling.load import load_tokenizer
from stepjepa.training.trainer import JEPATrainer
from support.rows import step_rows
from support.runs import one_line, result_of, resume, train
from support.training import trainer_for


@pytest.fixture
def breaks_at(monkeypatch):
    """Makes the loss (with its gradient, or without) what it is told to be, from a step on."""
    real = JEPATrainer.compute_loss

    def prepare(step, value, with_gradient=True):
        def compute_loss(self, model, inputs, *args, **kwargs):
            loss = real(self, model, inputs, *args, **kwargs)
            if self.state.global_step + 1 != step:
                return loss
            return loss * value if with_gradient else loss + (value - loss.detach())

        monkeypatch.setattr(JEPATrainer, "compute_loss", compute_loss)

    return prepare


def strict_json(path):
    def refuse(word):
        raise AssertionError(f"{path.name} holds {word}, which is no JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


# The last step, one that is not logged, one at a checkpoint; infinite with finite gradients, too.
BREAKS = [
    (6, math.nan, True, 100),
    (5, math.nan, True, 1),
    (4, math.nan, True, 100),
    (5, math.inf, False, 100),
    (6, -math.inf, False, 3),
]


@pytest.mark.parametrize(("step", "value", "with_gradient", "logged"), BREAKS)
def test_a_run_that_breaks_keeps_its_last_good_checkpoint(
    tmp_path, capsys, breaks_at, step, value, with_gradient, logged
):
    breaks_at(step, value, with_gradient)
    out = tmp_path / "out"
    assert train(out, "--save_total_limit", 1, "--logging_steps", logged) == 1
    line = one_line(capsys.readouterr().err)
    kept = 2 if step <= 4 else 4
    assert (
        f"step {step}: the loss is not finite" in line
        and f"the last good checkpoint is {out}/checkpoint-{kept}" in line
    )
    assert [path.name for path in out.glob("checkpoint-*")] == [f"checkpoint-{kept}"]
    assert not (out / "model.safetensors").exists() and not (out / "metrics.json").exists()
    breaks_at(0, 1.0)  # nothing breaks
    assert resume(out, "--save_total_limit", 1, "--logging_steps", logged) == 0


def test_a_learning_rate_far_too_high(tmp_path, capsys):
    assert train(tmp_path / "out", "--learning_rate", "1e8", "--logging_steps", 100, "--save_steps", 1) == 1
    assert "is not finite" in one_line(capsys.readouterr().err)
    for state in (tmp_path / "out").glob("checkpoint-*/trainer_state.json"):
        strict_json(state)


def test_weights_that_break_in_the_last_step(tmp_path, capsys, monkeypatch):
    real = torch.optim.AdamW.step

    def step(self, *args, **kwargs):
        result = real(self, *args, **kwargs)
        self.broken = getattr(self, "broken", 0) + 1
        if self.broken == 6:
            self.param_groups[0]["params"][0].data[0] = math.nan
        return result

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    assert train(tmp_path / "out", "--save_strategy", "no") == 1
    assert "step 6: the weights are not finite" in one_line(capsys.readouterr().err)
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_run_may_go_on_and_its_records_say_null(tmp_path, capsys, caplog, breaks_at):
    breaks_at(3, math.inf, with_gradient=False)
    out = tmp_path / "out"
    assert train(out, "--terminate_on_nan", "false") == 0
    assert "step 3: the loss is not finite" in caplog.text and capsys.readouterr().out.count("done   6 steps") == 1
    record = strict_json(out / "metrics.json")
    losses = {entry["step"]: entry["loss"] for entry in record["log_history"] if "loss" in entry}
    assert losses[3] is None and all(losses[step] is not None for step in (1, 2, 4, 5, 6))
    assert record["metrics"]["train_loss"] is None
    strict_json(out / "checkpoint-4" / "trainer_state.json")
    expected = result_of(out)
    (out / "metrics.json").unlink()
    assert resume(out, "--terminate_on_nan", "false") == 0 and result_of(out)["weights"] == expected["weights"]


def test_weights_that_are_not_finite_are_never_a_checkpoint(tmp_path, caplog, breaks_at):
    breaks_at(3, math.nan)
    assert train(tmp_path / "out", "--terminate_on_nan", "false", "--save_total_limit", 1) == 0
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-2"]
    assert "checkpoint-4 is not written" in caplog.text


def test_the_python_trainer_stops_too(tmp_path, breaks_at):
    from stepjepa.errors import RunError

    breaks_at(2, math.nan)
    tokenizer = load_tokenizer("tiny", (m["content"] for row in step_rows(20) for m in row["messages"]))
    with pytest.raises(RunError, match="step 2: the loss is not finite"):
        trainer_for(tmp_path, tokenizer).train()
