"""The options of `stepjepa train` and `stepjepa doctor` besides the method's, without `TrainingArguments`, so that
``--help`` loads no torch."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from stepjepa.config.option import Names, check_fields, option
from stepjepa.data.options import check_split_name
from stepjepa.errors import ConfigError
from stepjepa.modeling.options import RUN, LoRAOptions, ModelOptions

COMMON = "common options of transformers.TrainingArguments (--help_all shows all of them)"


@dataclass
class SourceOptions:
    """What is read to train and to evaluate on."""

    train_file: list[str] | None = option(
        None,
        "JSONL files (or Parquet, CSV, Hub data sets) to train on; several are trained on together.",
        RUN,
        resume=True,  # the data itself is compared
    )
    eval_file: str | None = option(None, "File or data set for the evaluation losses.", RUN, resume=True)
    dataset_split: str = option(
        "train", "Split of a Hub data set given as train_file.", RUN, needs={"train_file": True}, resume=True
    )
    eval_split: str = option(
        "test", "Split of a Hub data set given as eval_file.", RUN, needs={"eval_file": True}, resume=True
    )
    eval_metrics: list[str] | None = option(
        None,
        "Metrics of answers that are generated at every evaluation (exact, gsm8k, ...): eval_exact, ... in the log, also "
        "for --metric_for_best_model.",
        RUN,
        resume=True,
    )
    eval_samples: int = option(
        100,
        "eval_metrics: questions of eval_file that are answered.",
        RUN,
        needs={"eval_metrics": True},
        resume=True,
        at_least=1,
    )
    eval_max_new_tokens: int = option(
        256, "eval_metrics: longest answer in tokens.", RUN, needs={"eval_metrics": True}, resume=True
    )
    stop_at: float | None = option(
        None, "End training once an evaluation's --metric_for_best_model has reached this value.", RUN, resume=True
    )
    early_stopping_patience: int | None = option(
        None,
        "End training after so many evaluations in a row in which --metric_for_best_model has not improved.",
        RUN,
        resume=True,
        at_least=1,
    )
    ray_workers: int | None = option(
        None, "Train in so many processes of a Ray cluster; with resume_from_checkpoint true it survives the loss of one.",
        RUN, at_least=1, resume=True, identity=False, dumped=False,
    )  # fmt: skip
    debug_level: int = option(
        0,
        "Log level: from 5 the losses of every step, from 7 also the first row as stepjepa inspect shows it.",
        RUN,
        resume=True,
        identity=False,
    )
    additive_mask: bool = option(
        False, "A flag of the published script, not needed: the packed forward replaces it.", RUN, resume=True
    )


@dataclass
class RunOptions(LoRAOptions, ModelOptions, SourceOptions):
    """What ``stepjepa train`` reads and which model it trains."""

    @property
    def stop_rules(self) -> dict[str, float | None]:
        """The options by which an evaluation may end the training, by name."""
        return {name: getattr(self, name) for name in (_RUN.stop_at, _RUN.early_stopping_patience)}

    def __post_init__(self) -> None:
        if isinstance(self.train_file, str):
            self.train_file = [self.train_file]
        check_split_name(self.eval_split, _RUN.eval_split)
        check_fields(self)
        if self.eval_metrics and not self.eval_file:
            raise ConfigError(f"--{_RUN.eval_metrics} answers the questions of a file; give --{_RUN.eval_file}")


_RUN = Names(RunOptions)


@dataclass
class TrainerOptions:
    """The options of `transformers.TrainingArguments` that ``stepjepa train --help`` shows, with the defaults of a run."""

    output_dir: str | None = option(None, "Folder for the model, its records and checkpoints.", COMMON, resume=True)
    num_train_epochs: float = option(3.0, "Epochs.", COMMON, resume=True, at_least=0)
    max_steps: int = option(-1, "Optimizer steps instead of epochs, where above 0.", COMMON, resume=True, at_least=-1)
    learning_rate: float | None = option(
        None,
        "Peak learning rate. Default: 2e-5, 2e-4 for LoRA, and 1e-3 for a model that starts from random weights.",
        COMMON,
        at_least=0,
    )
    # The last batch of an epoch is filled up to its size, so an absurd one would take hours.
    per_device_train_batch_size: int = option(
        8, "Examples of a micro-batch on each device.", COMMON, resume=True, at_least=1, at_most=2**20
    )
    gradient_accumulation_steps: int = option(1, "Micro-batches of an optimizer step.", COMMON, resume=True, at_least=1)
    lr_scheduler_type: str = option("linear", "Course of the learning rate (linear, cosine, constant, ...).", COMMON)
    warmup_steps: float = option(
        0, "Steps (or, below 1, the share of them) of learning-rate warm-up.", COMMON, at_least=0
    )
    max_grad_norm: float = option(1.0, "Gradient clipping.", COMMON, at_least=0)
    weight_decay: float = option(0.0, "Weight decay of AdamW.", COMMON, at_least=0)
    seed: int = option(42, "Seed of initialisation, order and dropout.", COMMON, at_least=0)
    bf16: bool = option(False, "Autocast to bfloat16; weights and losses stay float32.", COMMON)
    gradient_checkpointing: bool | None = option(
        None, "Recompute activations in the backward pass to save memory.", COMMON
    )
    logging_steps: float = option(10, "Log every so many steps.", COMMON, resume=True, identity=False, at_least=0)
    save_strategy: Literal["no", "steps", "epoch", "best"] = option(
        "steps", "When a checkpoint is written.", COMMON, resume=True, identity=False
    )
    save_steps: float = option(500, "Steps between checkpoints.", COMMON, resume=True, identity=False, at_least=0)
    save_total_limit: int | None = option(
        None, "Checkpoints kept. Default: all.", COMMON, resume=True, identity=False, at_least=0
    )
    eval_strategy: Literal["no", "steps", "epoch"] = option("no", "When eval_file is evaluated.", COMMON, resume=True)
    resume_from_checkpoint: str | None = option(
        None,
        "true, or the flag alone, resumes from the newest complete checkpoint in output_dir; or a checkpoint's folder.",
        COMMON,
        resume=True,
        dumped=False,
        bare="true",
    )
    dataloader_num_workers: int = option(
        0, "Worker processes that lay out the batches.", COMMON, resume=True, identity=False, at_least=0
    )
    report_to: None | str | list[str] = option(
        "none", "Where logs go too: none, tensorboard, wandb, trackio.", COMMON, resume=True, identity=False
    )


def inherited_names() -> set[str]:
    """The fields of `transformers.TrainingArguments`, from its source: to import it takes seconds."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return set()
    source = Path(spec.origin).with_name("training_args.py").read_text(encoding="utf-8")
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    (fields,) = [node.body for node in classes if node.name == "TrainingArguments"]
    return {node.target.id for node in fields if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}


@dataclass
class DoctorOptions:
    """Options of ``stepjepa doctor``."""

    model_name: str = option("tiny", "Hub id, local folder, or a built-in preset (tiny, mini).", "doctor")
    train_file: str | None = option(
        None, "File or Hub data set with rows to train on. Default: built-in ones.", "doctor", aliases=("data",)
    )
    json: bool = option(False, "Print the result as one JSON object.", "doctor")
