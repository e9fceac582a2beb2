"""Checkpoints, resuming from them, and the final model with its upload.

Weights, optimizer, schedule, random states and log are in the files of transformers' `Trainer`. A checkpoint also has the
predictors, the EMA target encoder, the position in a stream, the record of what a resumed run must share with the
checkpoint, and a manifest, which is written last.
"""

from __future__ import annotations

import json
import logging
import math
import platform
import shlex
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import CommitInfo, HfApi
from torch import Tensor
from transformers import (
    GenerationConfig,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import TrainOutput

from stepjepa.config.option import Names, Values, options_of, public_values
from stepjepa.config.yaml_file import representable
from stepjepa.data.report import DataReport
from stepjepa.errors import ConfigError, RunError, said, writing
from stepjepa.modeling.card import CARD, Records, base_model, is_hub_id
from stepjepa.modeling.export import export_model, write_generation_config
from stepjepa.modeling.extras import PREDICTORS_FILE, is_extra, load_extras, save_extras
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import is_preset
from stepjepa.modeling.parts import whole_weights
from stepjepa.objectives.base import objective_of
from stepjepa.training.config import JEPAConfig, fixed_on_resume
from stepjepa.training.datasets import StreamedExamples
from stepjepa.training.metrics import Bars, LossMeter, weights_are_finite
from stepjepa.training.options import JEPAOptions, RunOptions, TrainerOptions, loss_line
from stepjepa.training.run_folder import (
    BROKEN,
    Cut,
    ResumeRecord,
    RunFolder,
    begin_checkpoint,
    loading,
    on_main,
    remove_checkpoint,
)
from stepjepa.training.setup import ModelSetup, target_fingerprint
from stepjepa.utils.files import MANIFEST, Record, listed_files, share, write_json, write_manifest
from stepjepa.version import __version__

logger = logging.getLogger("stepjepa")
_NAME = Names(JEPAConfig, RunOptions)
# Advice after a failed write.
_RESUME = f"resume with --{_NAME.resume_from_checkpoint} true"
# Metrics of the Trainer that are right only if it made all steps of the run.
_OF_WHOLE_RUN = (
    "train_loss",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
)


class StepEvents(TrainerCallback):
    """Calls the trainer when an epoch begins and when a step or an epoch ends, and ends training as `stop_reason` says.

    A checkpoint at the last step of an epoch, or of the run, is delayed until the epoch has ended. The Trainer would write
    it before the epoch's evaluation and log entry, and a run that resumes from it begins with the next epoch, so both would
    be lost. A run that resumes at its last step repeats neither.
    """

    def __init__(self, trainer: CheckpointedTrainer):
        self.trainer = trainer
        self.first_step, self.save_waits = 0, False

    def on_train_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self.first_step, self.save_waits = state.global_step, False
        # The Trainer checks this only after a step, so a finished run would train one more step.
        if state.global_step >= state.max_steps:
            control.should_training_stop = True

    def on_epoch_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self.trainer.begin_epoch(int(state.epoch or 0))

    def on_step_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        epoch_ends = control.should_training_stop or float(state.epoch).is_integer()
        if control.should_save and epoch_ends:
            control.should_save, self.save_waits = False, True
        self.trainer.end_step(control)

    def on_evaluate(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        if stop_reason(self.trainer.run_options, args, state):
            control.should_training_stop = True

    def on_epoch_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        # No step has been taken since the checkpoint, which already has this epoch's evaluation and log entry.
        if state.global_step == self.first_step:
            control.should_log = control.should_evaluate = control.should_save = False
        if self.save_waits:
            control.should_save, self.save_waits = True, False
        self.trainer.end_step(control)


class LoadedCheckpoints(TrainerCallback):
    """Loads what the Trainer does not load, from the checkpoint that a run resumes from and from the best checkpoint.

    Attributes:
        checkpoint: the checkpoint that the run resumes from; None if the run starts at step 0.
        loaded: whether everything is loaded, that is, whether the first step has begun.
    """

    def __init__(self, checkpoint: Path | None):
        self.checkpoint, self.loaded = checkpoint, False

    def on_train_begin(self, args, state, control, model=None, lr_scheduler=None, **kwargs):
        """See `TrainerCallback`."""
        if self.checkpoint is None:
            return
        load_extras(model, self.checkpoint)
        if isinstance(lr_scheduler, torch.optim.lr_scheduler.LambdaLR):
            # The loaded learning rate belongs to the old schedule, which may have had another number of steps. One step back
            # and one step forward recomputes it.
            lr_scheduler.last_epoch -= 1
            lr_scheduler.step()

    def on_step_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self.loaded = True

    def on_train_end(self, args, state, control, model=None, **kwargs):
        """See `TrainerCallback`."""
        if args.load_best_model_at_end and state.best_model_checkpoint:
            load_extras(model, state.best_model_checkpoint)


def stop_reason(rules: RunOptions | None, args: TrainingArguments, state: TrainerState) -> str:
    """Why the last evaluation in the log of `state` ends the training; empty if it does not.

    With `stop_at`, the `metric_for_best_model` has reached this value. With `early_stopping_patience`, this number of
    evaluations in a row has not improved it, as in `transformers.EarlyStoppingCallback`. The log is in every checkpoint, so
    a resumed run stops at the same evaluation.
    """
    evaluations = [entry for entry in state.log_history if "eval_loss" in entry]
    if rules is None or not evaluations:
        return ""
    value, patience = rules.stop_at, rules.early_stopping_patience
    name = str(args.metric_for_best_model).removeprefix("eval_")
    # With this sign, a larger score is always better.
    sign = 1 if args.greater_is_better else -1
    logged = [entry.get(f"eval_{name}") for entry in evaluations]
    # NaN counts as the worst score. Up to version 0.2 it was logged as None.
    scores = [-math.inf if score is None or math.isnan(score) else sign * score for score in logged]
    if value is not None and scores[-1] >= sign * value:
        return f"{args.metric_for_best_model} has reached --{_NAME.stop_at} {value:g}"
    since_best = len(scores) - 1 - scores.index(max(scores))
    if patience is not None and since_best >= patience:
        rule = f"--{_NAME.early_stopping_patience} {patience}"
        return f"{args.metric_for_best_model} has not improved in the last evaluations ({rule})"
    return ""


def last_evaluation(state: TrainerState) -> dict[str, float]:
    """The metrics of the evaluation at the last step of a run; empty if there was none."""
    for entry in reversed(state.log_history):
        if "eval_loss" in entry and entry["step"] == state.global_step:
            return {name: value for name, value in entry.items() if name != "step"}
    return {}


class CheckpointedTrainer(Trainer):
    """A `Trainer` that ends with the same weights and number of steps, whether or not the run was killed and resumed."""

    args: JEPAConfig
    # Attributes of the Trainer that it declares with wider types.
    model: Any
    processing_class: Any
    train_dataset: Any
    data_collator: Any
    setup: ModelSetup
    data_reports: dict[str, DataReport]
    # Options of ``stepjepa train``, by which the model was loaded; None when the trainer is used from Python.
    run_options: RunOptions | None = None
    _meter: LossMeter
    # (), the first step at which the loss was not finite; 0 for none. On the device, so that no step waits for it.
    _broken_step: Tensor
    bars: Bars

    @property
    def at_equal_compute(self) -> bool:
        """Whether the run has as many steps as fit into the FLOPs of a regular run of the requested length."""
        return self.args.same_flop and self.setup.objective.makes_pairs

    @property
    def requested_steps(self) -> int:
        """Number of optimizer steps that the options and the data ask for."""
        raise NotImplementedError

    def begin_epoch(self, epoch: int) -> None:
        """Sample the examples of this epoch."""
        raise NotImplementedError

    def end_step(self, control: TrainerControl) -> None:
        """End a run whose loss is not finite, before anything is logged or written."""
        if control.should_log or control.should_save or control.should_evaluate:
            self._check_finite()

    @property
    def _folder(self) -> RunFolder:
        return RunFolder(self.args.output_dir or "")

    @property
    def _inner(self) -> Any:
        """The causal LM without its wrappers (DDP, PEFT)."""
        return causal_lm(self.accelerator.unwrap_model(self.model))

    # Training, from the start or from a checkpoint

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """As `Trainer.train`; ``resume_from_checkpoint=True`` resumes from the newest checkpoint that matches its manifest.

        A checkpoint at the last step of the run is loaded, and nothing is trained.

        Raises:
            ConfigError: there is no checkpoint to resume from, its run had other settings or data, it has more steps than
                this run is to have, or another run is writing to `output_dir`.
            RunError: a loss, a gradient norm or the weights are not finite, or a checkpoint could not be written.
        """
        # The command line prints the complete reports.
        for name, report in self.data_reports.items():
            if self.args.should_log and (report.rows_skipped or report.answers_truncated):
                logger.warning("%s %s", name, "\n".join(report.lines()))
        with self._folder.running():
            checkpoint = None
            if resume_from_checkpoint:
                checkpoint = self._folder.chosen(resume_from_checkpoint)
                if checkpoint is None:
                    raise ConfigError(
                        f"{_NAME.resume_from_checkpoint}: no checkpoint to resume from in {self._folder.path}"
                    )
            return self.train_from(checkpoint, *args, **kwargs)

    def train_from(self, checkpoint: Path | None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Do the work of `train` inside `RunFolder.running`, from a checkpoint that `RunFolder.chosen` returned, or from
        step 0.

        Raises:
            ConfigError, RunError: see `train`.
        """
        on_main(self._folder.check_checkpoints)
        # Before the Trainer loads anything, check that the run may resume and how many steps it has.
        state = TrainerState() if checkpoint is None else self.check_resumable(checkpoint)
        # Computed in every case, because it refuses a run without a batch.
        steps = self.requested_steps
        if self.at_equal_compute:
            self.args.max_steps = steps
        if checkpoint is not None:
            self._warn_of_changes(checkpoint, state)
            # If an evaluation ended the run and a kill came before the final model was written, no step is left.
            if last_evaluation(state) and stop_reason(self.run_options, self.args, state):
                self.args.max_steps = state.global_step
        if isinstance(self.train_dataset, StreamedExamples):
            with loading(checkpoint):
                self.train_dataset.resume(checkpoint, state.global_step)
        if self.args.should_save:
            # An earlier start may have left this file.
            (self._folder.path / BROKEN).unlink(missing_ok=True)
        self._meter = LossMeter(self._meter.names)
        loader, eval_on_start = LoadedCheckpoints(checkpoint), self.args.eval_on_start
        self.add_callback(loader)
        # The evaluation at the start belongs to step 0; a resumed run has it in its log.
        self.args.eval_on_start = eval_on_start and checkpoint is None
        try:
            with loading(checkpoint, lambda: not loader.loaded), warnings.catch_warnings():
                # The warning concerns writing to the view, which never happens here.
                warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
                result = super().train(
                    None if checkpoint is None else str(checkpoint), *args, **kwargs
                )
        finally:
            self.bars.on_train_end(self.args, self.state, self.control)
            self.remove_callback(loader)
            self.args.eval_on_start = eval_on_start
        # The Trainer divides the loss and the time since the resume by the steps of the whole run.
        if checkpoint is not None or self.state.global_step == 0:
            for record in (result.metrics, self.state.log_history[-1]):
                for name in _OF_WHOLE_RUN:
                    record.pop(name, None)
        self._check_finite()
        if not weights_are_finite(self.model, self.accelerator):
            self._stop_or_warn(self.state.global_step, "the weights are not finite")
        return result

    def check_resumable(self, checkpoint: Path) -> TrainerState:
        """The state of the run at a checkpoint.

        If the micro-batches or the number of processes differ, `args.gradient_accumulation_steps` is set so that the batch
        of an optimizer step stays the same.

        Raises:
            ConfigError: the checkpoint's run had other settings, other data or another batch, or it has more steps than this
                run is to have.
        """
        with loading(checkpoint):
            before = ResumeRecord.read(checkpoint)
            self.args.gradient_accumulation_steps = self.resume_record.check_same(
                before, checkpoint
            )
            state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
            has_more = state.global_step > self.requested_steps
        if has_more:
            raise ConfigError(
                f"--{_NAME.resume_from_checkpoint} {checkpoint}: it has {state.global_step} steps, but only "
                f"{self.requested_steps} are requested; raise --{_NAME.max_steps} or --{_NAME.num_train_epochs}, or name an "
                "older checkpoint"
            )
        return state

    def _warn_of_changes(self, checkpoint: Path, state: TrainerState) -> None:
        """Warn of what this run does differently from the run that wrote `checkpoint` with the trainer state `state`."""
        if not self.is_world_process_zero():
            return
        before, steps = ResumeRecord.read(checkpoint).cut, self.requested_steps
        if before != self.cut:
            logger.warning(
                "%s was written with %s examples per step, and this run takes %s: the same examples in the same order, but "
                "dropout, InfoNCE, regularizers and shuffled targets depend on how a step is divided",
                *(checkpoint, before, self.cut),
            )
        if state.max_steps != steps:
            logger.warning(
                "%s was written by a run of %d steps, and this run has %d: the schedules of the learning rate, of lambda "
                "and of the target encoder are recomputed",
                *(checkpoint, state.max_steps, steps),
            )

    @property
    def cut(self) -> Cut:
        """How the batch of an optimizer step is divided into micro-batches and among processes."""
        args = self.args
        return Cut(
            args.per_device_train_batch_size,
            args.gradient_accumulation_steps,
            self.accelerator.num_processes,
        )

    @property
    def resume_record(self) -> ResumeRecord:
        """The `ResumeRecord` of this run's checkpoints."""
        settings: Record = {}
        model = self.model
        if self.run_options is not None:
            for name, option in options_of(RunOptions).items():
                if not option.resume:
                    settings[name] = getattr(self.run_options, name)
        elif hasattr(model, "get_base_model"):
            # A trainer used from Python has no options for the adapter, so the adapter's configuration is compared.
            adapter = model.peft_config[model.active_adapter].to_dict()
            names = ("peft_type", "r", "lora_alpha", "lora_dropout", "target_modules")
            settings = {f"peft.{name}": adapter[name] for name in names if name in adapter}
        values = public_values(self.args)
        settings |= {name: values[name] for name in fixed_on_resume() if name in values}
        settings |= objective_of(self.args).code | target_fingerprint(self.args)
        data = {
            split: report.fingerprint
            for split, report in self.data_reports.items()
            if not split.startswith("eval")
        }
        return ResumeRecord(plain_settings(settings), data, self.cut)

    @property
    def run_record(self) -> Record:
        """The content of ``run.json``: versions, settings, seed and data of the run."""
        run, name = self.run_options, str(getattr(self._inner.config, "_name_or_path", ""))
        if run is not None:
            name = "" if run.pretrain or is_preset(run.model_name) else run.model_name
        known = options_of(JEPAOptions, TrainerOptions)
        settings = {
            key: value
            for key, value in public_values(self.args).items()
            if key in known and known[key].dumped
        }
        settings = {**(public_values(run) if run else {}), **settings}
        sources = [
            report.source
            for split, report in self.data_reports.items()
            if split.startswith("train")
        ]
        return {
            "stepjepa": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
            "processes": self.accelerator.num_processes,
            "cut": self.cut,
            "steps": self.requested_steps,
            "settings": {**plain_settings(settings), **self.resume_record.settings},
            "loss": loss_line(self.args),
            "base_model": base_model(name),
            "datasets": [
                source.partition(":")[0]
                for source in sources
                if "/" in source and is_hub_id(source)
            ],
            "forward": self.setup.forward,
            "data": {split: report.fingerprint for split, report in self.data_reports.items()},
        }

    # Checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """As `Trainer._save_checkpoint`, but the manifest is written last, and only then are older checkpoints removed.
        Weights that are not finite are not saved."""
        begin, step = time.perf_counter(), self.state.global_step
        folder = self._folder.path / f"checkpoint-{step}"
        if not weights_are_finite(self.model, self.accelerator):
            self._stop_or_warn(step, f"the weights are not finite, so {folder.name} is not written")
            return
        # The Trainer would remove older checkpoints before this one is complete.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with writing(folder, _RESUME):
                if self.args.should_save:
                    begin_checkpoint(folder, self.resume_record)
                # The folder must exist before any process writes to it, and be complete before the manifest lists its files.
                self.accelerator.wait_for_everyone()
                super()._save_checkpoint(model, trial)
                if isinstance(self.train_dataset, StreamedExamples):
                    self.train_dataset.save(folder)
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    write_manifest(folder)
        except BaseException:
            if self.args.should_save:
                # An incomplete checkpoint would keep a full disk full.
                remove_checkpoint(folder)
            raise
        finally:
            self.args.save_total_limit = limit
        if self.args.should_save:
            self._folder.rotate(folder, limit)
        self.accelerator.wait_for_everyone()
        # The logged speed is that of training, which excludes the time of writing.
        self._meter.since += time.perf_counter() - begin

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse weights of another model; the Trainer only warns about them.

        Raises:
            ConfigError: the checkpoint lacks tensors of the model, or has others.
        """
        # Tied weights are saved under only one of their names; the other names are not missing.
        tensors = dict(self.model.named_parameters(remove_duplicate=False))
        absent = set(load_result.missing_keys)
        loaded = {id(tensor) for name, tensor in tensors.items() if name not in absent}
        missing = [name for name in load_result.missing_keys if id(tensors.get(name)) not in loaded]
        differing = [*missing, *load_result.unexpected_keys]
        if differing:
            raise ConfigError(
                f"the checkpoint is of another model, and only one of the two has {differing[0]} ({len(differing)} tensors "
                "in all); resume from another checkpoint"
            )

    # NaN and infinity

    def _check_finite(self) -> None:
        """End a run whose loss is not finite, or warn if it is to continue. Every process must call this method."""
        steps = self.accelerator.gather(self._broken_step.reshape(1)).tolist()
        broken = [int(step) for step in steps if step]
        self._broken_step.zero_()
        if broken:
            self._stop_or_warn(min(broken), "the loss is not finite (NaN or infinite)")

    def _stop_or_warn(self, step: int, problem: str) -> None:
        """End a run in which a number is not finite, or warn if it is to continue.

        Raises:
            RunError: `terminate_on_nan` is set.
        """
        if not self.args.terminate_on_nan:
            logger.warning("step %d: %s", step, problem)
            return
        folder = self._folder
        if self.args.should_save:
            with writing(folder.path / BROKEN, _RESUME):
                write_json(folder.path / BROKEN, {"step": step, "what": problem})
        last_good = on_main(lambda: folder.checkpoint)
        raise RunError(
            f"step {step}: {problem}; last good checkpoint: {last_good or 'none'}; try a lower --{_NAME.learning_rate} or "
            f"--{_NAME.lbd} (docs/troubleshooting.md), or continue with --{_NAME.terminate_on_nan} false"
        )

    # Models

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        # Newer versions of transformers call this in every process.
        if not self.args.should_save:
            return
        # Predictors and head are in a separate file, so the weights are those of a plain model.
        plain = state_dict and {
            name: value for name, value in state_dict.items() if not is_extra(name)
        }
        folder = Path(output_dir or self.args.output_dir or "")
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        inner, generation_config = self._inner, self._inner.generation_config
        # transformers refuses to write some of the generation configurations that models come with.
        inner.generation_config = GenerationConfig()
        try:
            # The Trainer's own method would also pickle the arguments, with their secrets.
            model.save_pretrained(folder, state_dict=plain)
        finally:
            inner.generation_config = generation_config
        kwargs = self.args.chat_template_kwargs
        write_generation_config(inner, self.processing_class, folder, kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the final model with its original vocabulary and tokenizer, and the predictors to a separate file.

        With `merge_lora` true, LoRA is merged into the weights; with false and None, an adapter is written.
        """
        # The Trainer sets `_internal_call` for checkpoints.
        if _internal_call:
            super().save_model(output_dir, _internal_call=True)
            folder, main = Path(output_dir or self.args.output_dir or ""), self.args.should_save
            folder.mkdir(parents=True, exist_ok=True)
            save_extras(self.accelerator.unwrap_model(self.model), folder, main)
            if main:
                self.processing_class.save_pretrained(folder)
                share(folder)
            return
        target = str(output_dir or self.args.output_dir)
        model = self.accelerator.unwrap_model(self.model)
        # The card names the step of the weights, which may be that of the best checkpoint.
        best = self.state.best_global_step if self.args.load_best_model_at_end else None
        data = {split: report.to_dict() for split, report in self.data_reports.items()}
        name, step = str(self.hub_model_id or "").rpartition("/")[2], best or self.state.global_step
        with whole_weights(model, self.args.should_save), writing(target, _RESUME):
            if self.args.should_save:
                export_model(
                    model,
                    self.processing_class,
                    target,
                    merge_lora=bool(self.args.merge_lora),
                    keep_predictors=self.args.keep_predictors,
                    records=Records(self.run_record, data, self.state.log_history, step, name),
                )
        self.accelerator.wait_for_everyone()

    def create_model_card(self, *args: object, **kwargs: object) -> None:  # type: ignore[override]
        """Do nothing: `save_model` writes the card with the model."""

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """As `Trainer.init_hf_repo`.

        Raises:
            RunError: the Hub cannot be reached, or refuses the request.
        """
        with reaching_hub(
            "the repository could not be created on the Hub, and nothing was trained or uploaded"
        ):
            super().init_hf_repo(*args, **kwargs)

    @property
    def upload_command(self) -> str:
        """The command that uploads the final model later."""
        name = self.args.hub_model_id or Path(self.args.output_dir or "").name
        return f"upload it with: hf upload {name} {shlex.quote(str(self.args.output_dir))} --exclude 'checkpoint-*/*'"

    def push_to_hub(  # type: ignore[override]
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        save: bool = True,
    ) -> CommitInfo | None:
        """As `Trainer.push_to_hub`, but it uploads what `save_model` writes, and always waits until the upload is done.
        Without `save`, it uploads the final model that `save_model` wrote before.

        Raises:
            RunError: the Hub cannot be reached, or refuses the request.
        """
        # The Trainer's own method would save the model as it saves a checkpoint.
        if self.hub_model_id is None:
            self.init_hf_repo(token=token)
        if save:
            self.save_model()
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if not self.is_world_process_zero():
            return None
        folder = self._folder.path
        with reaching_hub(
            f"the model was not uploaded to {self.hub_model_id}", f"; {self.upload_command}"
        ):
            return HfApi().upload_folder(
                repo_id=str(self.hub_model_id),
                folder_path=folder,
                commit_message=commit_message,
                token=token or self.args.hub_token,
                revision=revision or self.args.hub_revision,
                # Only the files of the model: `output_dir` may have checkpoints, logs and files of the user.
                allow_patterns=[MANIFEST, CARD, PREDICTORS_FILE, *(listed_files(folder) or ())],
            )


@contextmanager
def reaching_hub(failed: str, then: str = "") -> Iterator[None]:
    """Within this context, turn every error in reaching the Hub into one line.

    Raises:
        RunError: there was an error; the message includes it.
    """
    try:
        yield
    except Exception as error:
        # These errors come from huggingface_hub, httpx and the operating system, and have no common class.
        raise RunError(f"{failed}: {said(error)}{then}") from None


def plain_settings(settings: Values) -> Record:
    """Settings after a round trip through JSON, so that they compare equal to recorded ones. Values that JSON cannot hold
    are left out."""
    plain = {}
    for name, value in settings.items():
        with suppress(TypeError):
            plain[name] = json.loads(
                json.dumps(representable(sorted(value) if isinstance(value, set) else value))
            )
    return plain
