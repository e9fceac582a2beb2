"""One training run from its options to its files: the work and the output of ``stepjepa train``."""

from __future__ import annotations

import copy
import gc
import os
import platform
import re
import subprocess
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from stepjepa.config.option import Names, unread_options
from stepjepa.config.yaml_file import dump_yaml, representable
from stepjepa.data.sources import RowSource, texts_of
from stepjepa.errors import ConfigError, writing
from stepjepa.modeling.extras import PREDICTORS_FILE
from stepjepa.modeling.load import is_preset, load_model, load_tokenizer
from stepjepa.modeling.lora import lora_config, quantization, token_rows
from stepjepa.objectives.base import find_objective, objective_of
from stepjepa.training.checkpoints import last_evaluation, stop_reason
from stepjepa.training.config import JEPAConfig, usual_learning_rate
from stepjepa.training.datasets import Sources
from stepjepa.training.metrics import log_line
from stepjepa.training.options import JEPAOptions, RunOptions, method_line, without_effect
from stepjepa.training.run_folder import METRICS, RECORD, RunFolder, on_main
from stepjepa.training.trainer import JEPATrainer, ScoreAnswers
from stepjepa.utils.files import Record, read_object, write_json
from stepjepa.utils.terminal import is_main_process, say
from stepjepa.utils.text import clock, counted

_NAME = Names(RunOptions, JEPAConfig)
# A learning rate that differs from the default by more than this factor is reported as unusual.
_FAR = 5
# Width of the column of labels, in characters.
_LABELS = 7

# Advice after a failed write.
AGAIN = f"run the same command again with --{_NAME.resume_from_checkpoint} true"


@dataclass(frozen=True)
class TrainResult:
    """A finished run. ``stepjepa train`` prints its text at the end.

    Attributes:
        output_dir: folder of the model and its records.
        metrics: the final metrics, as in ``metrics.json``.
        text: a summary of the result, in lines.
        trainer: the trainer with the trained model; None if the run was already complete.
    """

    output_dir: Path
    metrics: Record
    text: str
    trainer: JEPATrainer | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.text


def run_training(
    run: RunOptions,
    config: JEPAConfig,
    score_answers: ScoreAnswers | None = None,
    command: str | None = None,
) -> TrainResult:
    """Train as the options say, and write the model and its records to `config.output_dir`.

    A run that resumes from a checkpoint at its last step only writes the model. A run that is already complete changes
    nothing.

    Args:
        run: what to read and which model to train.
        config: the training configuration, which is not changed; the trainer's `args` are a copy with all values resolved.
        score_answers: see `JEPATrainer`.
        command: the command line of this run, for its record.

    Raises:
        ConfigError, DataError: options or data cannot be used; raised before anything is written.
        RunError: the run failed: a number is not finite, or a file could not be written.
    """
    if not run.train_file:
        raise ConfigError(
            f"no training data; give --{_NAME.train_file} FILE (JSONL, Parquet, CSV or a Hub data set)"
        )
    _check_quantized(run, config)
    folder = RunFolder(config.output_dir or "")
    with folder.running():
        # A copy, because `_run` resolves options in it.
        return _run(run, copy.copy(config), folder, score_answers, command)


def _run(
    run: RunOptions,
    config: JEPAConfig,
    folder: RunFolder,
    score_answers: ScoreAnswers | None,
    command: str | None,
) -> TrainResult:
    output, overwrite = folder.path, config.overwrite_output_dir
    # Checks that need no model: where the run resumes, whether it may write, and which options require each other.
    resume_from = str(config.resume_from_checkpoint or "")
    resuming, checkpoint = resume_from.lower() not in ("", "false", "none"), None
    if resuming:
        checkpoint = folder.chosen(True if resume_from.lower() == "true" else resume_from)
    if is_main_process():
        folder.check_free(overwrite, resuming, checkpoint)
        if overwrite:
            _check_not_inside(output, run)
    if config.eval_strategy != "no" and not run.eval_file:
        strategy = representable(config.eval_strategy)
        raise ConfigError(f"--{_NAME.eval_strategy} {strategy} needs --{_NAME.eval_file}")
    rules = [name for name, value in run.stop_rules.items() if value is not None]
    if rules and (config.eval_strategy == "no" or not config.metric_for_best_model):
        raise ConfigError(
            f"--{rules[0]} needs --{_NAME.eval_strategy} and --{_NAME.metric_for_best_model}"
        )
    # Only the data and the model show whether the run may resume, so nothing is written before they are loaded.
    trainer = make_trainer(run, config, checkpoint, score_answers)
    finished = on_main(lambda: folder.finished_steps) if resuming else None
    # The record of a complete run is compared too: with other settings, this would be a different run.
    if checkpoint is not None:
        trainer.check_resumable(checkpoint)
    elif finished is not None:
        trainer.args.gradient_accumulation_steps = folder.check_same(trainer.resume_record)
    if finished is not None and not overwrite:
        if finished == trainer.requested_steps or folder.stopped_by(run.stop_rules):
            return _complete(trainer, folder, finished)
        if checkpoint is None:
            raise ConfigError(
                f"--{_NAME.resume_from_checkpoint}: the run in {output} ended after {finished} steps and has no checkpoint "
                f"left; give another --{_NAME.output_dir}, or start over with --{_NAME.overwrite_output_dir}"
            )
    if resuming and checkpoint is None:
        say(f"{output}: no checkpoint to resume from; starting at step 0")
    if is_main_process():
        say(start_summary(trainer, run, checkpoint))
    record = {**trainer.run_record, **circumstances(command, config.device)}
    if trainer.args.should_save:
        if overwrite and checkpoint is None:
            folder.clear()
        with writing(output, AGAIN):
            # The first file; it marks the folder as this run's own.
            write_json(output / RECORD, record)
            dump_yaml((run, trainer.args), output / "resolved.yaml")
            _write_report(trainer, output)
    # Train, evaluate and export. `metrics.json` is written last and marks the run as complete.
    result = trainer.train_from(checkpoint)
    metrics = {**trainer.recent_losses(), **result.metrics}
    if run.eval_file:
        # The last evaluation during training counts only if it used the weights that are saved.
        evaluation = {} if trainer.args.load_best_model_at_end else last_evaluation(trainer.state)
        metrics |= evaluation or trainer.evaluate()
    trainer.save_model()
    state = trainer.state
    stopped = stop_reason(run, trainer.args, state) if state.global_step < record["steps"] else ""
    if trainer.args.should_save:
        with writing(output, AGAIN):
            # Written again, because the report of a stream counts the rows read during training.
            _write_report(trainer, output)
            if stopped:
                record |= {"steps": state.global_step, **run.stop_rules}
                write_json(output / RECORD, record)
            final = {
                "steps": state.global_step,
                "metrics": metrics,
                "log_history": state.log_history,
            }
            write_json(output / METRICS, final)
    if config.push_to_hub:
        trainer.push_to_hub(save=False)
    return TrainResult(output, metrics, conclusion(trainer, run, metrics, stopped), trainer)


def _check_quantized(run: RunOptions, config: JEPAConfig) -> None:
    """Refuse options that a base model in 4 or 8 bits does not support, before anything is loaded."""
    flags = [f"--{name}" for name in (_NAME.load_in_4bit, _NAME.load_in_8bit) if getattr(run, name)]
    reason = ""
    if len(flags) > 1:
        reason = "the base can be quantised to only one of the two; leave out the other"
    elif not run.lora:
        reason = (
            f"quantised weights cannot be trained; train an adapter on them with --{_NAME.lora}"
        )
    elif run.pretrain or is_preset(run.model_name):
        reason = f"{run.model_name} starts from random weights, and quantised weights cannot be trained; load it unquantised"
    elif config.track_flop or config.same_flop:
        reason = f"FLOPs of quantised layers are not counted; leave out --{_NAME.track_flop} and --{_NAME.same_flop}"
    if flags and reason:
        raise ConfigError(f"{' '.join(flags)}: {reason}")
    # Called only to raise an error if bitsandbytes is missing.
    quantization(vars(run))


def _complete(trainer: JEPATrainer, folder: RunFolder, steps: int) -> TrainResult:
    """The result of a run that was already complete."""
    text = (
        f"{folder.path}: complete, {steps} of {steps} steps; nothing is trained and no file is changed. To train further, "
        f"raise --{_NAME.max_steps} or --{_NAME.num_train_epochs}; to start over, give --{_NAME.overwrite_output_dir}"
    )
    if trainer.args.push_to_hub:
        text += f"\nnote   --push_to_hub: nothing is uploaded; {trainer.upload_command}"
    return TrainResult(
        folder.path, on_main(lambda: read_object(folder.path / METRICS)).get("metrics", {}), text
    )


def _check_not_inside(output: Path, run: RunOptions) -> None:
    """Refuse to overwrite a folder that the run reads from."""
    folder = output.resolve()
    for path in (run.model_name, run.eval_file, *(run.train_file or ())):
        if path and Path(path).exists() and Path(path).resolve().is_relative_to(folder):
            raise ConfigError(
                f"--{_NAME.overwrite_output_dir}: the run reads {path}, which is inside the folder to overwrite; give "
                f"another --{_NAME.output_dir}"
            )


def make_trainer(
    run: RunOptions,
    config: JEPAConfig,
    checkpoint: Path | None = None,
    score_answers: ScoreAnswers | None = None,
) -> JEPATrainer:
    """The trainer of a run, with its data, tokenizer and model."""
    # A preset's tokenizer is trained on the texts of the data; a resumed run loads it from the checkpoint.
    preset = is_preset(run.model_name)
    sources = [
        RowSource(name, run.dataset_split, config.streaming) for name in run.train_file or ()
    ]
    texts = texts_of(sources, config.columns)
    tokenizer = load_tokenizer(
        str(checkpoint) if checkpoint and preset else run.model_name, texts, run.trust_remote_code
    )
    if config.learning_rate is None:
        config.learning_rate = usual_learning_rate(preset or run.pretrain, run.lora)
    if objective_of(config).makes_pairs and (Path(run.model_name) / PREDICTORS_FILE).is_file():
        say(
            f"note   {Path(run.model_name) / PREDICTORS_FILE} is not loaded: predictor rows and head are initialised anew"
        )
    model = load_model(
        run.model_name,
        tokenizer,
        pretrain=run.pretrain,
        seed=config.seed,
        dtype=run.dtype,
        attn_implementation=run.attn_implementation,
        trust_remote_code=run.trust_remote_code,
        use_kernels=run.use_kernels,
        quantized=quantization({**vars(run), **vars(config)}),
    )
    # LoRA, and whether it is merged at the end.
    peft = None
    if run.lora:
        tokens = token_rows(model, tokenizer, run.train_tokens or [])
        peft = lora_config(
            run.lora_rank, run.lora_alpha, run.lora_dropout, run.lora_target_modules, tokens
        )
    if config.merge_lora is None:
        config.merge_lora = preset or run.pretrain
        if run.lora and config.merge_lora:
            say(
                "LoRA: the base model starts from random weights and exists nowhere else, so the adapter will be merged"
            )
    evaluation = RowSource(run.eval_file, run.eval_split) if run.eval_file else None
    trainer = JEPATrainer(
        model, config, Sources(sources), evaluation, tokenizer, peft, score_answers
    )
    trainer.run_options = run
    trainer.view.published = run.debug_level >= 1
    return trainer


def _write_report(trainer: JEPATrainer, output: Path) -> None:
    reports = {name: report.to_dict() for name, report in trainer.data_reports.items()}
    write_json(output / "data_report.json", reports)


def circumstances(command: str | None, device: torch.device) -> Record:
    """When, where and with which command a run was started, without the names of hosts and users.

    The environment variable ``STEPJEPA_COMMIT`` names the commit of code that was copied without its repository.
    """
    processor, commit = platform.processor(), os.environ.get("STEPJEPA_COMMIT", "")
    # On Linux, Python reports only the architecture.
    with suppress(OSError):
        match = re.search(
            r"model name\s*: (.*)",
            Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"),
        )
        processor = match[1] if match else processor
    if not commit:
        # Without git or a repository there is no commit to record.
        with suppress(OSError, subprocess.SubprocessError):
            words = "git describe --always --dirty --abbrev=40 --exclude=*".split()
            commit = subprocess.run(
                words, capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "machine": {
            "platform": platform.platform(),
            "processor": processor,
            "cpus": os.cpu_count(),
        },
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "git_commit": commit or None,
    }


# Notes on the options of a run


def run_notes(run: RunOptions, options: JEPAOptions, given: Collection[str]) -> list[str]:
    """Lines to print before a run; `given` are the names of the options that the user set."""
    objective = objective_of(options)
    lines: list[str] = []
    if run.additive_mask:
        lines.append(
            f"--{_NAME.additive_mask} is not needed: the packed forward computes the same numbers in one row"
        )
    if (
        find_objective(options.objective).makes_pairs
        and not objective.makes_pairs
        and _NAME.lbd in given
    ):
        lines.append(
            f"--{_NAME.lbd} 0: no pairs are made, so the run trains exactly like objective {objective.name}"
        )
    if objective.makes_pairs and not options.jepa_ratio:
        lines.append(
            f"--{_NAME.jepa_ratio} 0: no example keeps its pairs, so only the LM loss is trained"
        )
    return [*lines, *without_effect(options, given), *unread_options(run, given)]


# Output: the start-up summary and the result


def start_summary(trainer: JEPATrainer, run: RunOptions, checkpoint: Path | None) -> str:
    """The start-up summary: data, model, loss, steps and output folder."""
    args = trainer.args
    width = max(_LABELS, *(len(name) + 1 for name in trainer.data_reports))
    parts: list[tuple[str, Sequence[str]]] = []
    for name, report in trainer.data_reports.items():
        lines = report.lines()
        if args.streaming and name.startswith("train"):
            lines = [
                f"{report.source}: streamed, up to {args.shuffle_buffer:,} examples shuffled together"
            ]
            lines += report.steps.lines()
        parts.append((name, lines))
    # The model and its loss.
    model = trainer.model
    trained, total = model.num_parameters(only_trainable=True), model.num_parameters()
    kind = ", LoRA" if run.lora else ""
    size = f"{run.model_name}: {total:,} parameters, {trained:,} trained ({100 * trained / total:.3g} %{kind})"
    parts += [("model", [size]), ("loss", [method_line(args)])]
    # The length of the run, and the output folder.
    if trainer.at_equal_compute:
        regular, ratio = trainer.equal_compute
        count = f"{trainer.requested_steps} steps instead of {regular}"
        parts.append(
            ("flop", [f"a step costs {ratio:.2f} times as much as a regular one: {count}"])
        )
    resumed = f" (resumed from {checkpoint.name})" if checkpoint else ""
    steps = f"{steps_line(trainer)}; forward {trainer.setup.forward}; {rate_line(args, run)}"
    parts += [("steps", [steps]), ("output", [f"{args.output_dir}{resumed}"])]
    return "\n".join(labelled(parts, width))


def conclusion(
    trainer: JEPATrainer, run: RunOptions, metrics: dict[str, float], stopped: str = ""
) -> str:
    """The summary at the end of a run: its result, and where its files are.

    Args:
        trainer: the trainer, after training.
        run: the options of the run.
        metrics: the final metrics, as in ``metrics.json``.
        stopped: why an evaluation ended the run before its last step; empty if none did.
    """
    output = str(trainer.args.output_dir)
    parts: list[tuple[str, Sequence[str]]] = []
    for name, report in trainer.data_reports.items():
        # The rows of a stream were counted during training.
        if trainer.args.streaming and name.startswith("train"):
            parts.append((name, report.lines()))
    done = [counted(trainer.state.global_step, "step")]
    # A resumed run knows only the time since its resume.
    if "train_runtime" in metrics:
        done[0] += f" in {clock(metrics['train_runtime'])}"
    if stopped:
        done.append(stopped)
    records = "metrics.json, run.json, data_report.json, resolved.yaml"
    parts += [
        ("done", done),
        ("final", [log_line(metrics, [*(run.eval_metrics or ()), "did_not_stop"])]),
        ("output", [f"{output}: model and records ({records})"]),
        ("load", [f"AutoModelForCausalLM.from_pretrained({output!r})"]),
    ]
    return "\n".join(["", *labelled(parts)])


def labelled(parts: Sequence[tuple[str, Sequence[str]]], width: int = _LABELS) -> list[str]:
    """Lines with a column of labels before them."""
    texts = []
    for label, lines in parts:
        for number, line in enumerate(lines):
            texts.append(f"{'' if number else label:<{width}}{line}")
    return texts


def rate_line(args: JEPAConfig, run: RunOptions) -> str:
    """``learning rate 2e-05 (the default is 0.0002)``; the part in parentheses appears only far from the default."""
    usual = usual_learning_rate(is_preset(run.model_name) or run.pretrain, run.lora)
    rate: Any = args.learning_rate
    line = f"learning rate {rate:g}"
    if usual / _FAR <= rate <= usual * _FAR:
        return line
    return f"{line} (the default is {usual:g})"


def steps_line(trainer: JEPATrainer) -> str:
    """``1,000 of 32 examples (8 x 2 accumulated x 2 processes), 4.3 epochs``."""
    args, cut = trainer.args, trainer.cut
    size = f"{cut.batch:,} examples"
    if cut.batch > cut.size:
        size += f" ({cut})"
    if args.streaming:
        return f"{args.max_steps:,} of {size}"
    steps = trainer.requested_steps
    epochs = f"{steps * cut.batch / len(trainer.train_dataset):.3g}"
    return f"{steps:,} of {size}, {epochs} {'epoch' if epochs == '1' else 'epochs'}"


def leave_process_group() -> None:
    """Close the process group of a distributed run once nothing uses it any more.

    If the group's threads outlive the interpreter, the process aborts. If DDP's reducer is the last owner of the group, the
    process hangs: the reducer waits for a thread that waits for the interpreter's lock.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # Trainers and models refer to each other, so only a garbage collection frees the reducer.
        gc.collect()
        torch.distributed.destroy_process_group()
