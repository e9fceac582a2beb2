"""One training run from its options to its files: what ``stepjepa train`` does."""

from __future__ import annotations

import copy
import gc
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from stepjepa.config.option import options_of
from stepjepa.config.yaml_file import dump_yaml
from stepjepa.data.sources import RowSource, texts_of
from stepjepa.errors import ConfigError
from stepjepa.modeling.extras import PREDICTORS_FILE
from stepjepa.modeling.load import is_preset, load_model, load_tokenizer, lora_config
from stepjepa.training.config import JEPAConfig
from stepjepa.training.encoding import pair_columns
from stepjepa.training.evaluating import ScoreAnswers
from stepjepa.training.options import JEPAOptions
from stepjepa.training.reading import Sources
from stepjepa.training.record import plain_settings
from stepjepa.training.run_folder import METRICS, RECORD, RunFolder, on_main
from stepjepa.training.run_options import RunOptions, TrainerOptions
from stepjepa.training.summary import conclusion, start_summary
from stepjepa.training.trainer import JEPATrainer
from stepjepa.utils.failures import writing
from stepjepa.utils.files import write_json
from stepjepa.utils.terminal import is_main_process, print_text, say
from stepjepa.version import __version__

# What to do after something could not be written.
AGAIN = "start the same command again with --resume_from_checkpoint true"


@dataclass(frozen=True)
class TrainResult:
    """A run that has ended. Its text is what ``stepjepa train`` prints at the end.

    Attributes:
        output_dir: where the model and its records are.
        metrics: the final ones, as in ``metrics.json``.
        text: the result in lines.
        trainer: with the trained model; None where the run was complete before.
    """

    output_dir: Path
    metrics: dict[str, Any]
    text: str
    trainer: JEPATrainer | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.text


def run_training(run: RunOptions, config: JEPAConfig, score_answers: ScoreAnswers | None = None) -> TrainResult:
    """Train as the options say and leave the model and its records in `config.output_dir`.

    A run that is resumed from a checkpoint at its last step trains nothing and writes the model. One that is complete
    changes nothing.

    Args:
        run: what to read and which model to train.
        config: the training configuration; it stays as it is, and the trainer's `args` are the resolved ones.
        score_answers: see `JEPATrainer`.

    Raises:
        ConfigError, DataError: before anything is written.
        RunError: the run broke: something is not finite, or could not be written.
    """
    config = copy.copy(config)  # some options are resolved below
    if not run.train_file:
        raise ConfigError("train_file is missing; give --train_file FILE (JSONL, Parquet, CSV or a Hub data set)")
    folder = RunFolder(config.output_dir or "")
    with folder.running():
        return _run(run, config, folder, score_answers)


def _run(run: RunOptions, config: JEPAConfig, folder: RunFolder, score_answers: ScoreAnswers | None) -> TrainResult:
    output, resuming = folder.path, wants_resume(config)
    checkpoint = find_checkpoint(config, folder)
    if is_main_process():
        folder.check_free(config.overwrite_output_dir, resuming, checkpoint)
        if config.overwrite_output_dir:
            check_not_inside(output, run)
    if config.eval_strategy != "no" and not run.eval_file:
        raise ConfigError(
            f"--eval_strategy {getattr(config.eval_strategy, 'value', config.eval_strategy)} needs --eval_file"
        )
    trainer = make_trainer(run, config, checkpoint, score_answers)
    finished = on_main(lambda: folder.finished_steps) if resuming else None
    if checkpoint is not None:
        trainer.check_resumable(checkpoint)
    elif finished is not None:
        folder.check_same(trainer.resume_record)
    if finished is not None and finished == trainer.requested_steps and not config.overwrite_output_dir:
        text = (
            f"{output}: complete, {finished} of {finished} steps, and its model is as it was written: nothing is trained, "
            "no file is changed. More steps (--max_steps, --num_train_epochs) train on; --overwrite_output_dir starts over"
        )
        if config.push_to_hub:
            text += f"\nnote   --push_to_hub: nothing is uploaded; {trainer.upload_command}"
        return TrainResult(output, on_main(lambda: folder.final_metrics), text)
    if resuming and checkpoint is None:
        if finished is not None and not config.overwrite_output_dir:
            raise ConfigError(
                f"--resume_from_checkpoint: the run in {output} ended after {finished} steps and no checkpoint of it is "
                "left; give another --output_dir, or start over with --overwrite_output_dir"
            )
        say(f"{output}: no checkpoint to resume from; starting at step 0")
    if is_main_process():
        print_text(start_summary(trainer, run, checkpoint))
    if trainer.args.should_save:
        if config.overwrite_output_dir and checkpoint is None:
            folder.clear()
        with writing(output, AGAIN):
            dump_yaml((run, trainer.args), output / "resolved.yaml")
            write_json(output / RECORD, run_record(run, trainer))
            write_json(output / "data_report.json", {name: r.to_dict() for name, r in trainer.data_reports.items()})
    result = trainer.train_from(checkpoint)
    metrics = {**trainer.recent_losses(), **result.metrics}
    if run.eval_file:
        metrics |= last_evaluation(trainer) or trainer.evaluate()
    trainer.save_model()
    if trainer.args.should_save:
        with writing(output, AGAIN):
            if config.streaming:  # only now is known what was read
                write_json(output / "data_report.json", {name: r.to_dict() for name, r in trainer.data_reports.items()})
            steps = trainer.state.global_step
            write_json(output / METRICS, {"steps": steps, "metrics": metrics, "log_history": trainer.state.log_history})
    if config.push_to_hub:
        trainer.push_to_hub()
    return TrainResult(output, metrics, conclusion(trainer, run, metrics), trainer)


def make_trainer(
    run: RunOptions,
    config: JEPAConfig,
    checkpoint: Path | None,
    score_answers: ScoreAnswers | None,
) -> JEPATrainer:
    """The trainer of a run: its data, tokenizer and model.

    Raises:
        ConfigError, DataError: options or data that cannot be used.
    """
    tokenizer_name = str(checkpoint) if checkpoint and is_preset(run.model_name) else run.model_name
    sources = [RowSource(name, run.dataset_split, config.streaming) for name in run.train_file or ()]
    texts = texts_of(sources, pair_columns(config))
    tokenizer = load_tokenizer(tokenizer_name, texts, run.trust_remote_code)
    from_scratch = is_preset(run.model_name) or run.pretrain
    config.learning_rate = config.settled_learning_rate(from_scratch)
    if config.uses_pairs and (Path(run.model_name) / PREDICTORS_FILE).is_file():
        say(f"note   {Path(run.model_name) / PREDICTORS_FILE} is not read: predictor rows and head start again")
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
    evaluation = RowSource(run.eval_file, run.eval_split) if run.eval_file else None
    trainer = JEPATrainer(model, config, Sources(sources), evaluation, tokenizer, peft, score_answers)
    trainer.run_options = run
    return trainer


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


def find_checkpoint(config: JEPAConfig, folder: RunFolder) -> Path | None:
    """The checkpoint to go on from, None to start at step 0. Every process must call it.

    Raises:
        ConfigError: a checkpoint was named that is none, or there are only damaged ones.
    """
    if not wants_resume(config):
        return None
    wanted = str(config.resume_from_checkpoint)
    checkpoint, passed = folder.chosen(True if wanted.lower() == "true" else wanted)
    for line in passed:
        say(f"{line}; passed over")
    return checkpoint


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


def run_record(run: RunOptions, trainer: JEPATrainer) -> dict[str, Any]:
    """What distinguishes one run from another: versions, settings, seed, data."""
    own = [*options_of(JEPAOptions), *options_of(TrainerOptions)]
    settings = {name: getattr(trainer.args, name) for name in own if options_of(JEPAConfig)[name].dumped}
    return {
        "stepjepa": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "processes": trainer.accelerator.num_processes,
        "steps": trainer.requested_steps,
        "settings": {**plain_settings({**asdict(run), **settings}), **trainer.resume_record.settings},
        "forward": trainer.setup.forward,
        "data": {name: report.fingerprint for name, report in trainer.data_reports.items()},
    }
