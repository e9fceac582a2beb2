"""`--log_gradient_cosine`: equal to two backward passes done by hand, and without effect on what is trained."""

from __future__ import annotations

import json

import pytest
import torch

from stepjepa.data.types import LM
from stepjepa.errors import ConfigError
from stepjepa.modeling.lora import lora_config
from support.rows import step_rows, write
from support.training import STEPS, batch_of, logs_of, name_of, trainer_for

MEASURED = {"log_gradient_cosine": 2, "max_steps": 4, **STEPS}


def cosines_of(trainer):
    return {log["step"]: log for log in trainer.state.log_history if "gradient_cosine" in log}


def by_hand(trainer, batches):
    """The cosine over all weights and over those of layer 0, from two plain backward passes."""
    both = []
    for kind in (True, False):
        trainer.model.zero_grad()
        for batch in batches:
            parts = trainer.model(batch=batch, step=0).parts
            sum(part.sum for name, part in parts.items() if (name == LM) == kind).backward()
        named = [(name, weight) for name, weight in trainer.model.named_parameters() if weight.requires_grad]
        both.append([(name, torch.zeros_like(w) if w.grad is None else w.grad.clone()) for name, w in named])
    trainer.model.zero_grad()
    found = []
    for part in ("", "model.layers.0."):
        a, b = (torch.cat([one.flatten() for name, one in grads if part in name]) for grads in both)
        found.append(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=0).item())
    return found


@pytest.mark.parametrize("options", [{}, {"predictor_head": "mlp", "gamma": 0.5}, {"peft": True}], ids=name_of)
def test_it_is_the_cosine_of_two_backward_passes(tmp_path, tokenizer, options):
    options = dict(options)
    peft = lora_config(4, dropout=0.0) if options.pop("peft", False) else None
    settings = {**MEASURED, "log_gradient_cosine": 1, "max_steps": 1, "gradient_accumulation_steps": 2, **options}
    trainer = trainer_for(tmp_path, tokenizer, rows=step_rows(8), peft=peft, batch=4, **settings)
    batches = [batch_of(trainer, rows) for rows in (range(4), range(4, 8))]
    trainer.model.train()
    every, first = by_hand(trainer, batches)
    trainer.train()
    (log,) = cosines_of(trainer).values()
    assert log["gradient_cosine"] == pytest.approx(every, abs=1e-4) and abs(every) > 1e-4
    assert log["gradient_cosine_layer_0"] == pytest.approx(first, abs=1e-4) and abs(first - every) > 1e-4


CHECKPOINTED = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}


@pytest.mark.parametrize(("rows", "options"), [(4, {}), (10_000, CHECKPOINTED)], ids=["chunks", "checkpointing"])
def test_logits_in_chunks_and_checkpointing_give_the_same(tmp_path, tokenizer, monkeypatch, rows, options):
    found = []
    for chunk, more in ((10_000, {}), (rows, options)):
        monkeypatch.setattr("stepjepa.losses.lm.chunk_rows", lambda *_, chunk=chunk: chunk)
        trainer = trainer_for(tmp_path, tokenizer, **MEASURED, **more)
        trainer.train()
        found.append([log["gradient_cosine"] for log in cosines_of(trainer).values()])
    assert len(found[0]) == 2 and found[0] == pytest.approx(found[1], abs=1e-4)


@pytest.mark.parametrize("logging_steps", [1, 3])
def test_it_is_logged_every_so_many_steps_and_changes_nothing(tmp_path, tokenizer, logging_steps):
    runs = []
    for every in (None, 2):
        trainer = trainer_for(tmp_path, tokenizer, **{**MEASURED, "log_gradient_cosine": every})
        trainer.args.logging_steps = logging_steps
        trainer.train()
        logs = [(log["step"], log["loss"], log["jepa_loss"]) for log in logs_of(trainer)]
        runs.append((trainer, trainer.model.state_dict(), logs))
    (plain, expected, losses), (measured, found, found_losses) = runs
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    assert found_losses == losses and len(losses) == 4 // logging_steps
    assert not cosines_of(plain) and list(cosines_of(measured)) == [2, 4]
    layers = [f"gradient_cosine_layer_{layer}" for layer in range(measured.model.config.num_hidden_layers)]
    for log in cosines_of(measured).values():
        assert [name for name in log if name.startswith("gradient")] == ["gradient_cosine", *layers]


@pytest.mark.parametrize(
    "options, why",
    [
        ({"torch_compile": True}, "torch_compile"),
        ({"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}, "use_reentrant"),
    ],
    ids=["compile", "reentrant"],
)
def test_what_has_one_backward_pass_is_refused(tmp_path, tokenizer, options, why):
    with pytest.raises(ConfigError, match=f"log_gradient_cosine: .*{why}"):
        trainer_for(tmp_path, tokenizer, **MEASURED, **options)


@pytest.mark.long
def test_processes_are_summed(tmp_path):
    from training.test_scale import command_line

    data = write(tmp_path / "rows.jsonl", step_rows(16))
    found = []
    for processes in (1, 2):
        output = tmp_path / str(processes)
        command_line(output, 8 // processes, processes, data, "--log_gradient_cosine 1")
        log = json.loads((output / "metrics.json").read_text())["log_history"]
        found.append([entry["gradient_cosine"] for entry in log if "gradient_cosine" in entry])
    assert len(found[0]) == 2 and found[1] == pytest.approx(found[0], abs=1e-4)
