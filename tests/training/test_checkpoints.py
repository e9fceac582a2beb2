"""A run that is resumed ends with the weights and the log of a run that was not interrupted, bit for bit; what is written.

A kill at every file operation of the command is in tests/faults/kill.py."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepjepa.errors import ConfigError
from stepjepa.modeling.extras import target_encoder
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.lora import lora_config
from support.rows import step_rows
from support.training import STEPS, Options, assert_same_weights, logs_of, trainer_for

TUBE: Options = {"objective": "semantic_tube", "tube_length_adjustment": "cosine_like", "tube_times": 2}
SAVED: Options = {"save_strategy": "steps", "save_steps": 2}
EMA: Options = {"objective": "step_jepa", "step_pairs": "random", "target_encoder": "ema", "jepa_ratio": 0.7}
NO_HEAD: Options = {"predictor_head": "none"}
STREAM: Options = {**STEPS, "streaming": True, "shuffle_buffer": 12, "train_sampling_strategy": "group_by_length"}


@pytest.mark.parametrize(
    ("options", "peft"),
    [
        pytest.param({"objective": "multi_token", **NO_HEAD, "regularizer": "none"}, False, id="multi_token"),
        pytest.param({"objective": "future_summary", **NO_HEAD, "regularizer": "none"}, False, id="future_summary"),
        pytest.param(EMA, False, id="step_jepa-random-ema-jepa_ratio=0.7-full"),
        pytest.param({**TUBE, "lbd_warmup_ratio": 0.5, "lbd_schedule": "cosine"}, True, id="tube-lora"),
        pytest.param(STREAM, False, id="streamed"),
        pytest.param({"objective": "next_latent", "latent_horizon": 2, **NO_HEAD}, True, id="latent-lora"),
    ],
)
def test_resumed_equals_uninterrupted(tmp_path, tokenizer, options, peft):
    options = {"predictor_head": "mlp", "regularizer": "sigreg", "sigreg_directions": 16, **options, **SAVED}
    options |= {"max_steps": 6, "gradient_accumulation_steps": 2}
    # Two epochs of 20 rows, 8 a step; the checkpoint is within the second.
    whole, resumed = (
        trainer_for(tmp_path, tokenizer, peft=lora_config(4, dropout=0.1) if peft else None, **options)
        for _ in range(2)
    )
    whole.train()
    with pytest.raises(ConfigError, match="no checkpoint to resume from"):
        trainer_for(tmp_path / "empty", tokenizer).train(resume_from_checkpoint=True)
    shutil.rmtree(tmp_path / "out" / "checkpoint-6")
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 6
    logs = [
        [{name: value for name, value in log.items() if "per_second" not in name} for log in logs_of(trainer)]
        for trainer in (whole, resumed)
    ]
    assert logs[0] == logs[1] and len(logs[0]) == 6
    assert any("jepa.head" in name or "jepa.objective" in name for name, _ in resumed.model.named_parameters())
    assert_same_weights(resumed.model, whole.model)
    encoders = [target_encoder(causal_lm(trainer.model)) for trainer in (whole, resumed)]
    assert (encoders[0] is not None) == ("target_encoder" in options)
    if encoders[0] is not None:
        for name, shadow in encoders[0].shadow.items():
            assert torch.equal(encoders[1].shadow[name], shadow), name


@pytest.mark.parametrize("peft", [False, True], ids=["full_ema", "lora"])
def test_the_best_model_is_loaded_with_all_that_belongs_to_it(tmp_path, tokenizer, peft):
    ema = {"target_encoder": "ema", "ema_momentum": 0.5, "ema_momentum_end": 0.5}
    options = {"predictor_head": "mlp"} if peft else ema
    options |= {"max_steps": 3, "load_best_model_at_end": True, "metric_for_best_model": "eval_lm_loss"}
    options |= {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    # The first is taken for the best, so that the best is not the last.
    options |= {"peft": lora_config(4, dropout=0.0) if peft else None, "greater_is_better": True}
    trainer = trainer_for(tmp_path, tokenizer, eval_rows=step_rows(5), **STEPS, **options)
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-1")
    first, *_, last = [log["eval_jepa_loss"] for log in trainer.state.log_history if "eval_jepa_loss" in log]
    assert abs(first - last) > 1e-2
    assert trainer.evaluate()["eval_jepa_loss"] == pytest.approx(first, rel=1e-5)


# The final model


@pytest.mark.parametrize("kind", ["full", "merged", "adapter"])
def test_the_final_model_is_plain_and_the_predictors_are_next_to_it(tmp_path, tokenizer, kind):
    peft = None if kind == "full" else lora_config(4, dropout=0.0)
    options = {"predictor_head": "mlp", "target_encoder": "ema", "predictors": 2, "merge_lora": kind == "merged"}
    trainer = trainer_for(tmp_path, tokenizer, peft=peft, max_steps=1, **STEPS, **options)
    trainer.train()
    final = tmp_path / "final"
    trainer.save_model(str(final))
    saved = load_file(final / "predictors.safetensors")
    own = dict(causal_lm(trainer.model).jepa.named_parameters())
    assert saved.keys() == own.keys() and all(torch.equal(saved[name], own[name]) for name in saved)
    assert {name.partition(".")[0] for name in saved} == {"predictors", "head"}
    (weights,) = [path for path in final.glob("*.safetensors") if path.name != "predictors.safetensors"]
    names = load_file(weights).keys()
    assert weights.name == ("adapter_model.safetensors" if kind == "adapter" else "model.safetensors")
    assert names and not [name for name in names if "jepa" in name or "embed" in name and kind == "adapter"]
    assert not (final / "target_encoder.safetensors").exists()
    index = final / "model.safetensors.index.json"  # loaders that take every .safetensors take those that it names
    assert index.exists() == (kind != "adapter")
    assert not index.exists() or json.loads(index.read_text())["weight_map"] == dict.fromkeys(names, weights.name)
    assert AutoTokenizer.from_pretrained(final).get_vocab() == tokenizer.get_vocab()
    if kind == "adapter":
        return
    model, loading = AutoModelForCausalLM.from_pretrained(final, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    assert model.config.vocab_size == len(tokenizer) == model.get_input_embeddings().weight.shape[0]
    ids = torch.tensor([[7, 8, 9, 10]])
    expected = trainer.model.eval()(input_ids=ids).logits[..., : len(tokenizer)]
    torch.testing.assert_close(model(ids).logits, expected, atol=1e-5, rtol=1e-5)
