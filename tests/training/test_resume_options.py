"""Resuming and the best checkpoint, with everything that a checkpoint holds beside the model."""

from __future__ import annotations

import pytest
import torch

from stepjepa.modeling.extras import target_encoder
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import lora_config
from stepjepa.utils.files import write_manifest
from support.rows import step_rows
from support.training import STEPS, Options, logs_of, name_of, trainer_for

TUBE: Options = {"objective": "semantic_tube", "tube_length_adjustment": "cosine_like", "tube_times": 2}

# Resuming


RESUMED: tuple[Options, ...] = (
    {"objective": "step_jepa", "step_pairs": "random", "target_encoder": "ema", "jepa_ratio": 0.7},
    {**TUBE, "lbd_warmup_ratio": 0.5, "lbd_schedule": "cosine"},
)


@pytest.mark.parametrize("peft", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("options", RESUMED, ids=name_of)
def test_resumed_equals_uninterrupted(tmp_path, tokenizer, options, peft):
    options = {
        **options,
        "predictor_head": "mlp",
        "regularizer": "sigreg",
        "sigreg_directions": 16,
        "max_steps": 6,
        "gradient_accumulation_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    # Two epochs of 20 rows, 8 a step; the checkpoint lies within the second.
    whole, resumed = (
        trainer_for(tmp_path, tokenizer, peft=lora_config(4, dropout=0.1) if peft else None, **options)
        for _ in range(2)
    )
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    assert resumed.state.global_step == 6
    logs = [
        [{name: value for name, value in log.items() if "per_second" not in name} for log in logs_of(trainer)]
        for trainer in (whole, resumed)
    ]
    assert logs[0] == logs[1] and len(logs[0]) == 6
    weights = dict(resumed.model.named_parameters())
    assert any("jepa.head" in name for name in weights)
    for name, value in whole.model.named_parameters():
        assert torch.equal(weights[name], value), name
    encoders = [target_encoder(causal_lm(trainer.model)) for trainer in (whole, resumed)]
    assert (encoders[0] is not None) == ("target_encoder" in options)
    if encoders[0] is not None:
        for name, shadow in encoders[0].shadow.items():
            assert torch.equal(encoders[1].shadow[name], shadow), name


@pytest.mark.parametrize("forgotten", ["predictors.safetensors", "target_encoder.safetensors"])
def test_predictors_and_shadows_of_the_checkpoint_matter(tmp_path, tokenizer, forgotten):
    """The test above can fail: with the rows and head or the shadows of another checkpoint the run ends elsewhere."""
    options = {**STEPS, "target_encoder": "ema", "predictor_head": "mlp", "ema_momentum_end": 0.9, "ema_momentum": 0.5}
    options |= {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}
    whole, resumed = (trainer_for(tmp_path, tokenizer, peft=lora_config(4, dropout=0.0), **options) for _ in range(2))
    whole.train()
    early, late = (tmp_path / "out" / f"checkpoint-{step}" for step in (1, 3))
    (late / forgotten).write_bytes((early / forgotten).read_bytes())
    write_manifest(late)
    resumed.train(resume_from_checkpoint=str(late))
    assert logs_of(resumed)[:3] == logs_of(whole)[:3]
    assert logs_of(resumed)[3]["jepa_loss"] != logs_of(whole)[3]["jepa_loss"]


@pytest.mark.parametrize(
    ("peft", "options"),
    [
        (False, {"predictor_head": "mlp"}),
        (True, {"predictor_head": "mlp"}),
        (False, {"target_encoder": "ema", "ema_momentum": 0.5, "ema_momentum_end": 0.5}),
    ],
    ids=["full_head", "lora_head", "full_ema"],
)
def test_the_best_model_is_loaded_whole(tmp_path, tokenizer, peft, options):
    options = {**options, "max_steps": 3, "load_best_model_at_end": True, "metric_for_best_model": "eval_lm_loss"}
    options |= {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    adapter = lora_config(4, dropout=0.0) if peft else None
    # The first is taken for the best, so that the best is not the last.
    trainer = trainer_for(
        tmp_path, tokenizer, peft=adapter, eval_rows=step_rows(5), greater_is_better=True, **STEPS, **options
    )
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-1")
    first, *_, last = [log["eval_jepa_loss"] for log in trainer.state.log_history if "eval_jepa_loss" in log]
    assert abs(first - last) > 1e-2
    assert trainer.evaluate()["eval_jepa_loss"] == pytest.approx(first, rel=1e-5)
