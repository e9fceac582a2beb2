"""One training run from its options to its files: what ``stepjepa train`` does."""

from __future__ import annotations

import gc
import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

import stepjepa
from stepjepa.data.sources import RowSource
from stepjepa.data.texts import texts_of
from stepjepa.errors import ConfigError
from stepjepa.modeling.load import is_preset, load_model, load_tokenizer, lora_config
from stepjepa.training.announce import announce, is_main_process, say
from stepjepa.training.checkpoints import cut_short, is_complete, last_complete_checkpoint
from stepjepa.training.config import JEPAConfig
from stepjepa.training.encoding import pair_columns
from stepjepa.training.evaluating import ScoreAnswers
from stepjepa.training.options import JEPAOptions, RunOptions
from stepjepa.training.reading import Sources
from stepjepa.training.trainer import JEPATrainer
from stepjepa.utils.files import check_writable, read_json, write_json

# A run can go on with other values of these, and of none of the method's other options: its checkpoints would mean something
# else.
_FREE_OPTIONS = set(
    "merge_lora keep_predictors overwrite_output_dir track_flop max_row_length strict_data data_cache "
    "dataset_num_proc".split()
)
FIXED_ON_RESUME = [
    *"model_name pretrain dtype lora lora_rank lora_alpha lora_dropout lora_target_modules seed data_seed".split(),
    *"per_device_train_batch_size gradient_accumulation_steps train_sampling_strategy".split(),
    *(name for name in JEPAOptions.__dataclass_fields__ if name not in _FREE_OPTIONS),
]
_OWN_FILES = set(
    "resolved.yaml run.json metrics.json data_report.json config.json generation_config.json model.safetensors "
    "model.safetensors.index.json adapter_model.safetensors adapter_config.json jepa_head.safetensors".split()
)


def run_training(
    run: RunOptions,
    config: JEPAConfig,
    save_options: Callable[[Path], None] | None = None,
    scratch_lr: float | None = None,
    score_answers: ScoreAnswers | None = None,
) -> tuple[JEPATrainer, dict[str, Any]]:
    """Train as the options say and leave the model and its records in `config.output_dir`.

    Args:
        run: what to read and which model to train.
        config: the training configuration.
        save_options: writes the options to a path (``resolved.yaml``).
        scratch_lr: learning rate for a model that starts from random weights; None keeps the configuration's.
        score_answers: see `JEPATrainer`.

    Returns:
        The trainer, and the final metrics as in ``metrics.json``.

    Raises:
        ConfigError, DataError: before anything is written.
    """
    if not run.train_file:
        raise ConfigError("train_file is missing; give --train_file FILE (JSONL, Parquet, CSV or a Hub data set)")
    output = Path(config.output_dir or "")
    checkpoint = find_checkpoint(config, output)
    if is_main_process():
        check_output_dir(output, config.overwrite_output_dir, wants_resume(config), checkpoint)
        if config.overwrite_output_dir:
            check_not_inside(output, run)
    if config.eval_strategy != "no" and not run.eval_file:
        raise ConfigError(
            f"--eval_strategy {getattr(config.eval_strategy, 'value', config.eval_strategy)} needs --eval_file"
        )
    tokenizer_name = str(checkpoint) if checkpoint and is_preset(run.model_name) else run.model_name
    sources = [RowSource(name, run.dataset_split, config.streaming) for name in run.train_file]
    texts = texts_of(sources, pair_columns(config))
    tokenizer = load_tokenizer(tokenizer_name, texts, run.trust_remote_code)
    from_scratch = is_preset(run.model_name) or run.pretrain
    if from_scratch and scratch_lr is not None:
        config.learning_rate = scratch_lr
    model = load_model(
        run.model_name,
        tokenizer,
        pretrain=run.pretrain,
        seed=config.seed,
        dtype=run.dtype,
        attn_implementation=run.attn_implementation,
        trust_remote_code=run.trust_remote_code,
    )
    peft = None
    if run.lora:
        peft = lora_config(run.lora_rank, run.lora_alpha, run.lora_dropout, run.lora_target_modules)
    if config.merge_lora is None:
        config.merge_lora = from_scratch
        if run.lora and from_scratch:
            say(
                "LoRA: the base model starts from random weights and exists nowhere else, so the adapter will be merged"
            )
    trainer = JEPATrainer(
        model,
        config,
        Sources(sources),
        RowSource(run.eval_file, run.eval_split) if run.eval_file else None,
        tokenizer,
        peft,
        score_answers,
    )
    record = run_record(run, config, trainer)
    if checkpoint is not None:
        check_same_run(output, record)
    announce(trainer, run, checkpoint)
    if trainer.args.should_save:
        if config.overwrite_output_dir and checkpoint is None:
            clear(output)
        output.mkdir(parents=True, exist_ok=True)
        if save_options is not None:
            save_options(output / "resolved.yaml")
        write_json(output / "run.json", record)
        write_json(output / "data_report.json", {name: r.to_dict() for name, r in trainer.data_reports.items()})
    result = trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    metrics = {**trainer.recent_losses(), **result.metrics}
    if run.eval_file:
        metrics |= last_evaluation(trainer) or trainer.evaluate()
    trainer.save_model()
    if trainer.args.should_save:
        if config.streaming:  # only now is known what was read
            write_json(output / "data_report.json", {name: r.to_dict() for name, r in trainer.data_reports.items()})
        write_json(output / "metrics.json", {"metrics": metrics, "log_history": trainer.state.log_history})
    return trainer, metrics


def last_evaluation(trainer: JEPATrainer) -> dict[str, float]:
    """What the last step's evaluation came to; empty where there was none, or its weights are not those that are saved."""
    if trainer.args.load_best_model_at_end:
        return {}
    last = [entry for entry in trainer.state.log_history if "eval_loss" in entry][-1:]
    if not last or last[0]["step"] != trainer.state.global_step:
        return {}
    return {name: value for name, value in last[0].items() if name != "step"}


def leave_process_group() -> None:
    """Close the process group of a distributed run, once nothing that uses it is left.

    Its threads must not outlive the interpreter, which aborts then; and DDP's reducer must not be its last owner: that one
    waits for a thread which waits for the interpreter's lock, for ever.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        gc.collect()  # trainers and models refer to each other
        torch.distributed.destroy_process_group()


def wants_resume(config: JEPAConfig) -> bool:
    """Whether the run is to go on from a checkpoint, if there is one."""
    return str(config.resume_from_checkpoint or "").lower() not in ("", "false", "none")


def find_checkpoint(config: JEPAConfig, output: Path) -> Path | None:
    """The checkpoint to go on from, None to start anew.

    Raises:
        ConfigError: a checkpoint was named that is none.
    """
    if not wants_resume(config):
        return None
    wanted = str(config.resume_from_checkpoint)
    if wanted.lower() == "true":
        found = last_complete_checkpoint(output)
        for entry in cut_short(output, found):
            say(f"{entry}: not whole, as a kill while it was written leaves it; passed over")
        if found is None:
            say(f"{output}: no whole checkpoint to go on from; starting at step 0")
        return found
    if not is_complete(wanted):
        raise ConfigError(f"--resume_from_checkpoint {wanted}: no whole checkpoint there")
    return Path(wanted)


def check_output_dir(output: Path, overwrite: bool, resuming: bool = False, checkpoint: Path | None = None) -> None:
    """Refuse to write over anything.

    A run that was killed before its first whole checkpoint may start again in its folder, as long as that holds nothing
    but what such a run leaves.

    Raises:
        ConfigError: the folder holds something and neither overwriting nor resuming was asked for.
    """
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output_dir {output}: is a file; give a folder")
    check_writable(output)
    if not output.is_dir() or overwrite or checkpoint is not None:
        return
    entries = [entry for entry in output.iterdir() if not (resuming and _left_by_a_killed_run(entry))]
    if entries:
        raise ConfigError(
            f"--output_dir {output}: the folder is not empty ({entries[0].name}); give another one, go on from a checkpoint "
            "with --resume_from_checkpoint true, or start over with --overwrite_output_dir"
        )


def _left_by_a_killed_run(entry: Path) -> bool:
    begun = ("resolved.yaml", "run.json", "data_report.json", "runs")
    return entry.name in begun or (entry.name.startswith("checkpoint-") and not is_complete(entry))


def check_not_inside(output: Path, run: RunOptions) -> None:
    """Refuse to overwrite a folder that the run reads from.

    Raises:
        ConfigError: the model or the data lies in the output folder.
    """
    names = [("model_name", run.model_name), ("eval_file", run.eval_file)]
    for name, path in [*names, *(("train_file", path) for path in run.train_file or ())]:
        if path and Path(path).exists() and output.resolve() in (Path(path).resolve(), *Path(path).resolve().parents):
            raise ConfigError(
                f"--overwrite_output_dir: --{name} {path} lies in {output}, which would be cleared; write elsewhere"
            )


def clear(output: Path) -> None:
    """Remove what a run writes (checkpoints, model, records) and nothing else."""
    if not output.is_dir():
        return
    for entry in output.iterdir():
        if entry.is_dir() and entry.name.startswith("checkpoint-"):
            shutil.rmtree(entry)
        elif entry.name in _OWN_FILES or (entry.name.startswith("model-") and entry.suffix == ".safetensors"):
            entry.unlink()


def run_record(run: RunOptions, config: JEPAConfig, trainer: JEPATrainer) -> dict[str, Any]:
    """What is needed to tell one run from another: versions, settings, seed, data."""
    options = {name: getattr(config, name) for name in JEPAOptions.__dataclass_fields__}
    training = (
        "seed",
        "data_seed",
        "learning_rate",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "train_sampling_strategy",
        "bf16",
    )
    return {
        "stepjepa": stepjepa.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "processes": trainer.accelerator.num_processes,
        "settings": {**asdict(run), **options, **{name: getattr(config, name) for name in training}},
        "forward": trainer.setup.forward,
        "data": {name: report.fingerprint for name, report in trainer.data_reports.items()},
    }


def check_same_run(output: Path, record: dict[str, Any]) -> None:
    """Refuse to go on with other data or with settings that change what the checkpoint means.

    Raises:
        ConfigError: what differs.
    """
    try:
        before = read_json(output / "run.json")
    except (OSError, ValueError):
        return
    for name in FIXED_ON_RESUME:
        old, new = before.get("settings", {}).get(name), record["settings"].get(name)
        if name in before.get("settings", {}) and old != new:
            raise ConfigError(
                f"--resume_from_checkpoint: the run in {output} has {name}={old}, not {new}; resume with the same "
                "settings, or give another --output_dir"
            )
    if before.get("processes", record["processes"]) != record["processes"]:
        raise ConfigError(
            f"--resume_from_checkpoint: the run in {output} has {before['processes']} processes, not {record['processes']}; "
            "resume with as many, or give another --output_dir"
        )
    data = [
        {name: digest for name, digest in one.get("data", {}).items() if not name.startswith("eval")}
        for one in (before, record)
    ]
    if data[0] != data[1]:
        raise ConfigError(
            f"--resume_from_checkpoint: the training data is not that of the run in {output}; resume with the same file, "
            "or give another --output_dir"
        )
