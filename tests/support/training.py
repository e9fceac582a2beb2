"""Trainers on tiny models and made-up rows, and what tests read off them."""

from typing import Any

import torch

from stepjepa.data.types import Batch
from stepjepa.training.config import JEPAConfig
from stepjepa.training.sampling import Draw
from stepjepa.training.trainer import JEPATrainer
from support.models import tiny_model
from support.rows import step_rows

Options = dict[str, Any]
STEPS: Options = {"objective": "step_jepa", "step_pairs": "all"}


def name_of(options: Options) -> str:
    return "-".join(str(value) if isinstance(value, str) else f"{name}={value}" for name, value in options.items())


def trainer_for(
    tmp_path, tokenizer, rows=None, batch=4, peft=None, eval_rows=None, model=None, **options
) -> JEPATrainer:
    arguments = {
        "max_steps": 2,
        "lbd": 0.5,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "logging_steps": 1,
        **options,
    }
    folder = str(tmp_path / "out")
    config = JEPAConfig(output_dir=folder, per_device_train_batch_size=batch, disable_tqdm=True, **arguments)
    model = model or tiny_model("llama", vocab_size=len(tokenizer))
    return JEPATrainer(model, config, rows or step_rows(20), eval_rows, tokenizer, peft)


def logs_of(trainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "lm_loss" in entry]


def weights(model) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


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
