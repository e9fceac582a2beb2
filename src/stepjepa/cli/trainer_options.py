"""The options of `transformers.TrainingArguments` that ``stepjepa train --help`` shows, so that it need not load torch.

They are there to be shown: a run is parsed into `JEPAConfig`, and a test holds names and defaults of this list to it.
"""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stepjepa.data.fields import option

GROUP = "common options of transformers.TrainingArguments (--help_all shows all of them)"


@dataclass
class CommonTrainerOptions:
    """Names, defaults and a word on each."""

    output_dir: str | None = option(None, "Folder for the model, its records and checkpoints.", GROUP)
    num_train_epochs: float = option(3.0, "Epochs.", GROUP)
    max_steps: int = option(-1, "Optimizer steps instead of epochs, where above 0.", GROUP)
    learning_rate: float = option(
        2e-5, "Peak learning rate. Left out, 1e-3 for a model that starts from random weights.", GROUP
    )
    per_device_train_batch_size: int = option(8, "Examples a micro-batch on each device.", GROUP)
    gradient_accumulation_steps: int = option(1, "Micro-batches an optimizer step.", GROUP)
    lr_scheduler_type: str = option("linear", "Course of the learning rate (linear, cosine, constant, ...).", GROUP)
    warmup_steps: float = option(0, "Steps (or, below 1, the share of them) of learning-rate warm-up.", GROUP)
    max_grad_norm: float = option(1.0, "Gradient clipping.", GROUP)
    weight_decay: float = option(0.0, "Weight decay of AdamW.", GROUP)
    seed: int = option(42, "Seed of initialisation, order and dropout.", GROUP)
    bf16: bool = option(False, "Autocast to bfloat16; weights and losses stay float32.", GROUP)
    gradient_checkpointing: bool = option(False, "Recompute activations in the backward pass to save memory.", GROUP)
    logging_steps: float = option(10, "Log every so many steps.", GROUP)
    save_strategy: Literal["no", "steps", "epoch", "best"] = option("steps", "When a checkpoint is written.", GROUP)
    save_steps: float = option(500, "Steps between checkpoints.", GROUP)
    save_total_limit: int | None = option(None, "Checkpoints kept. Default: all.", GROUP)
    eval_strategy: Literal["no", "steps", "epoch"] = option("no", "When eval_file is evaluated.", GROUP)
    resume_from_checkpoint: str | None = option(
        None, "true goes on from the newest whole checkpoint in output_dir; or a folder.", GROUP
    )
    dataloader_num_workers: int = option(0, "Worker processes that lay out the batches.", GROUP)
    report_to: str = option("none", "Where logs go too: none, tensorboard, wandb, trackio.", GROUP)


def trainer_option_names() -> frozenset[str]:
    """The names of all options of `TrainingArguments`, read from its source: to import it takes seconds. Empty where
    the source cannot be read."""
    found = importlib.util.find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        return frozenset()
    try:
        source = (Path(found.submodule_search_locations[0]) / "training_args.py").read_text(encoding="utf-8")
        (made,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == "TrainingArguments")
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    if not isinstance(made, ast.ClassDef) or made.bases:  # a base class would have options too
        return frozenset()
    return frozenset(
        line.target.id for line in made.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    )
