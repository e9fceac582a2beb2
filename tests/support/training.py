"""Trainers on tiny models and made-up rows, and what tests read off them."""

import shutil
from typing import Any

import torch

from stepjepa.data.types import Batch
from stepjepa.modeling.lora import lora_config
from stepjepa.training.config import JEPAConfig
from stepjepa.training.sampling import Draw
from stepjepa.training.trainer import JEPATrainer
from support.models import tiny_model
from support.rows import step_rows

Options = dict[str, Any]
STEPS: Options = {"objective": "step_jepa", "step_pairs": "all"}
JEPA: Options = {**STEPS, "predictors": 2}
SAVED: Options = {
    "max_steps": 4, "save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant",
}  # fmt: skip
# One run of every kind that asks the device for something else.
METHODS: dict[str, Options] = {
    "step": JEPA,
    "two_pass": {**JEPA, "forward": "two_pass"},
    "sdpa": {**JEPA, "attention": "sdpa"},
    "inline": {"objective": "llm_jepa", "predictors": 1, "forward": "inline"},
    "standalone": {"objective": "llm_jepa", "views": "standalone"},
    "split": {"objective": "split"},
    "tube": {"objective": "semantic_tube"},
    "next_latent": {"objective": "next_latent", "latent_kl": 1.0},
    "multi_token": {"objective": "multi_token", "token_horizon": 3},
    "future_summary": {"objective": "future_summary"},
    "plan": {"objective": "step_jepa", "step_pairs": "plan", "horizon": 2, "predictors": 1, "predictor_head": "mlp"},
    "infonce": {**JEPA, "jepa_loss": "infonce", "regularizer": "vicreg", "predictor_head": "linear"},
    "sigreg": {**JEPA, "regularizer": "sigreg"},
    "mean": {**JEPA, "readout": "mean", "readout_layer": -2},
    "noise": {**JEPA, "neftune_noise_alpha": 5.0},
    "ema": {**JEPA, "target_encoder": "ema", "ema_momentum": 0.5},
    "checkpointing": {**JEPA, "gradient_checkpointing": True},
    "accumulation": {**JEPA, "gradient_accumulation_steps": 2},
    "lora": {**JEPA, "peft": lora_config(rank=4, dropout=0.0)},
    "regular": {"objective": "regular"},
}


def name_of(options: Options) -> str:
    return "-".join(str(value) if isinstance(value, str) else f"{name}={value}" for name, value in options.items())


def trainer_for(
    tmp_path, tokenizer, rows=None, batch=4, peft=None, eval_rows=None, model=None, **options
) -> JEPATrainer:
    arguments = {"max_steps": 2, "lbd": 0.5, "learning_rate": 1e-2, "save_strategy": "no", "logging_steps": 1}
    arguments |= {"disable_tqdm": True, **options}
    folder = str(tmp_path / "out")
    config = JEPAConfig(output_dir=folder, per_device_train_batch_size=batch, **arguments)
    model = model or tiny_model("llama", vocab_size=len(tokenizer))
    return JEPATrainer(model, config, rows or step_rows(20), eval_rows, tokenizer, peft)


def logs_of(trainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "lm_loss" in entry]


def weights(model) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def assert_same_weights(found, expected) -> None:
    found, expected = weights(found), weights(expected)
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def assert_resumes_alike(make, folder) -> tuple[JEPATrainer, JEPATrainer]:
    """A run of four steps that is resumed after two has the weights of an uninterrupted one; both trainers."""
    whole = make(folder / "whole")
    whole.train()
    shutil.copytree(folder / "whole", folder / "cut")
    shutil.rmtree(folder / "cut" / "out" / "checkpoint-4")
    resumed = make(folder / "cut")
    resumed.train(resume_from_checkpoint=True)
    assert_same_weights(resumed.model, whole.model)
    return whole, resumed


def assert_train_alike(folder, tokenizer, rows, *ways) -> None:
    trainers = [trainer_for(folder / f"{number}", tokenizer, rows, **way) for number, way in enumerate(ways)]
    for trainer in trainers:
        trainer.train()
    assert_same_weights(*(trainer.model for trainer in trainers))


def trained(trainer) -> tuple[list[dict[str, float]], list[torch.Tensor]]:
    """Train; what every step logged, and all gradients of every step before clipping."""
    found, clip = [], trainer._clip_grad_norm

    def keep_gradients(model):
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone())
        return clip(model)

    trainer._clip_grad_norm = keep_gradients
    trainer.train()
    return logs_of(trainer), found


def batch_of(trainer, rows=None) -> Batch:
    dataset = trainer.train_dataset
    return trainer.data_collator([dataset[Draw(0, row)] for row in (range(len(dataset)) if rows is None else rows)])
