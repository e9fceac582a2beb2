"""What a trainer writes and reads: checkpoints, how a run resumes from one, the final model and its upload."""

from __future__ import annotations

import json
import logging
import math
import operator
import platform
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import transformers
from huggingface_hub import CommitInfo, HfApi
from transformers import GenerationConfig, Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import TrainOutput

from stepjepa.config.option import Names, options_of, public_values
from stepjepa.config.yaml_file import representable
from stepjepa.data.report import DataReport
from stepjepa.errors import ConfigError, RunError, said
from stepjepa.modeling.card import CARD, Records, base_model, is_card, is_hub_id
from stepjepa.modeling.export import export_model, write_generation_config
from stepjepa.modeling.extras import is_extra, load_extras, save_extras
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import is_preset
from stepjepa.modeling.sharding import whole_weights
from stepjepa.objectives.base import objective_of
from stepjepa.training.config import JEPAConfig, fixed_on_resume
from stepjepa.training.encoding import StreamedExamples
from stepjepa.training.meter import FiniteWatch, LossMeter, weights_are_finite
from stepjepa.training.options import JEPAOptions, RunOptions, TrainerOptions, loss_line
from stepjepa.training.run_folder import (
    BROKEN,
    LOG_STATE,
    Cut,
    ResumeRecord,
    RunFolder,
    begin_checkpoint,
    loading,
    on_main,
    recorded_steps,
    remove_checkpoint,
)
from stepjepa.training.setup import ModelSetup
from stepjepa.utils.failures import writing
from stepjepa.utils.files import read_json, remove_tree, share, write_json, write_manifest, write_whole
from stepjepa.version import __version__

logger = logging.getLogger("stepjepa")
_NAME = Names(JEPAConfig, RunOptions)
_RESUME = f"resume with --{_NAME.resume_from_checkpoint} true"


class LastStep(NamedTuple):
    """What the Trainer logs of an optimizer step, and whether what happens at an epoch's end has happened after it."""

    step: int = 0
    grad_norm: Any = None
    learning_rate: float | None = None
    epoch_ended: bool = False


class ResumeLog(TrainerCallback):
    """Lets a resumed trainer continue its log, once the Trainer has set its own sums to 0."""

    def __init__(self, trainer: CheckpointedTrainer, checkpoint: Path):
        self.trainer, self.checkpoint = trainer, checkpoint

    def on_train_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self.trainer.resume_log(self.checkpoint)


class StopAtEvaluation(TrainerCallback):
    """Ends a training by `metric_for_best_model` of its evaluations: at `value`, or after `patience` of them in a row
    without a better one, as `transformers.EarlyStoppingCallback`.

    It looks at the evaluations in the log, which a resumed run has too.
    """

    def __init__(self, value: float | None, patience: int | None):
        self.value, self.patience = value, patience

    def on_evaluate(self, args, state, control, **kwargs):
        """See `TrainerCallback`. Raises ConfigError where there is no such metric."""
        if self.reason(args, state):
            control.should_training_stop = True

    def reason(self, args: TrainingArguments, state: TrainerState) -> str:
        """Why the last evaluation ends the training, empty where it does not.

        Raises:
            ConfigError: the evaluation has no such metric.
        """
        evaluations = [entry for entry in state.log_history if "eval_loss" in entry]
        if not evaluations:
            return ""
        name = str(args.metric_for_best_model).removeprefix("eval_")
        if f"eval_{name}" not in evaluations[-1]:
            known = ", ".join(name.removeprefix("eval_") for name in evaluations[-1] if name.startswith("eval_"))
            raise ConfigError(f"metric_for_best_model is {name}; an evaluation has {known}")
        better = operator.gt if args.greater_is_better else operator.lt
        # A checkpoint keeps NaN as None.
        values = [math.nan if entry.get(f"eval_{name}") is None else entry[f"eval_{name}"] for entry in evaluations]
        if self.value is not None and (values[-1] == self.value or better(values[-1], self.value)):
            return f"{args.metric_for_best_model} has reached --{_NAME.stop_at} {self.value:g}"
        best = waited = 0
        for number, value in enumerate(values[1:], 1):
            waited += 1
            if better(value, values[best]):
                best, waited = number, 0
        if self.patience is not None and waited >= self.patience:
            rule = f"--{_NAME.early_stopping_patience} {self.patience}"
            return f"{args.metric_for_best_model} has not improved in the last evaluations ({rule})"
        return ""


def last_evaluation(state: TrainerState) -> dict[str, float]:
    """The metrics of the evaluation at the last step of a run; none where there was no evaluation."""
    found = [entry for entry in state.log_history if "eval_loss" in entry and entry["step"] == state.global_step]
    return found[-1] if found else {}


class CheckpointedTrainer(Trainer):
    """A `Trainer` that ends, after a checkpoint, where it would have ended without: weights, log and number of steps.

    Checkpoints and the final model are plain ones. Next to them are the predictors; in checkpoints the EMA encoder and the
    position in a stream as well.
    """

    args: JEPAConfig
    setup: ModelSetup
    data_reports: dict[str, DataReport]
    run_options: RunOptions | None = None  # of the command, which made the model from them
    _meter: LossMeter
    _watch: FiniteWatch
    _view: Any
    _last_step = LastStep()

    @property
    def at_equal_compute(self) -> bool:
        """Whether it takes as many steps as cost what a regular run of the given length costs."""
        return self.args.same_flop and self.setup.objective.makes_pairs

    @property
    def requested_steps(self) -> int:
        """Optimizer steps that the options and the data ask for."""
        raise NotImplementedError

    @property
    def _folder(self) -> RunFolder:
        return RunFolder(self.args.output_dir or "")

    @property
    def _inner(self) -> Any:
        """The causal LM, out of all wrappers."""
        return causal_lm(self.accelerator.unwrap_model(self.model))

    # Training, from the start or from a checkpoint

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """As `Trainer.train`; ``resume_from_checkpoint=True`` resumes from the newest checkpoint that matches its manifest.

        A checkpoint at the last step that is asked for is loaded, and nothing is trained.

        Raises:
            ConfigError: no checkpoint can be resumed from, its run had other settings or data, it has more steps than are
                asked for, or another run is writing to `output_dir`.
            RunError: a loss, a gradient norm or the weights are not finite, or a checkpoint could not be written.
        """
        with self._folder.running():
            checkpoint = None
            if resume_from_checkpoint:
                checkpoint, passed = self._folder.chosen(resume_from_checkpoint)
                for line in passed:
                    logger.warning("%s; passed over", line)
                if checkpoint is None:
                    raise ConfigError(
                        f"{_NAME.resume_from_checkpoint}: no checkpoint to resume from in {self._folder.path}"
                    )
            return self.train_from(checkpoint, *args, **kwargs)

    def train_from(self, checkpoint: Path | None, *args: Any, **kwargs: Any) -> TrainOutput:
        """`train` inside `RunFolder.running`, from a checkpoint of `RunFolder.chosen`; None starts at step 0.

        Raises:
            ConfigError, RunError: as `train`.
        """
        on_main(lambda: self._folder.check_checkpoints(checkpoint))
        if checkpoint is not None:
            with loading(checkpoint):
                self._follow(checkpoint)
        else:
            steps = self.requested_steps
            if self.at_equal_compute:
                self.args.max_steps = steps
            if isinstance(self.train_dataset, StreamedExamples):
                self.train_dataset.resume(None)
        if self.args.should_save:
            (self._folder.path / BROKEN).unlink(missing_ok=True)  # of an earlier start
        self._meter, self._watch = LossMeter(self._meter.names), FiniteWatch(self.args.device)
        evaluated = self.args.eval_on_start
        if checkpoint is not None:
            self.add_callback(ResumeLog(self, checkpoint))
            self.args.eval_on_start = False  # its start was that of the run
        try:
            result = super().train(None if checkpoint is None else str(checkpoint), *args, **kwargs)
        finally:
            self._view.close()
            self.remove_callback(ResumeLog)
            self.args.eval_on_start = evaluated
        self._check_finite()
        if self._watch.found is None and not weights_are_finite(cast(torch.nn.Module, self.model), self.accelerator):
            self._stop_or_warn(self.state.global_step, "the weights are not finite")
        return result._replace(training_loss=result.metrics["train_loss"])

    def _follow(self, checkpoint: Path) -> None:
        """Check and set up what must be known of a checkpoint before the Trainer loads it.

        Raises:
            ConfigError: as `check_resumable`.
        """
        done, planned = self.check_resumable(checkpoint)
        steps = self.requested_steps
        if self.at_equal_compute:
            self.args.max_steps = steps
        if self._was_to_stop(checkpoint):
            self.args.max_steps = steps = planned = done
        before = ResumeRecord.read(checkpoint).cut
        if before != self.cut and self.is_world_process_zero():
            logger.warning(
                "%s was written with %s examples a step, this run takes %s: the same examples in the same order, but "
                "dropout, InfoNCE, regularizers and shuffled targets depend on how a step is cut",
                *(checkpoint, before, self.cut),
            )
        if planned != steps and self.is_world_process_zero():
            logger.warning(
                "%s was written by a run of %d steps; this one has %d: the schedules of the learning rate, of lambda "
                "and of the target encoder are recomputed",
                *(checkpoint, planned, steps),
            )
        if self.args.should_save:
            self._folder.rotate(checkpoint, self.args.save_total_limit, resumed=True)
        if isinstance(self.train_dataset, StreamedExamples):
            self.train_dataset.resume(checkpoint, done)

    def check_resumable(self, checkpoint: Path) -> tuple[int, int]:
        """The step of a checkpoint, and how many its run was to have. With other micro-batches or another number of
        processes `args.gradient_accumulation_steps` becomes what keeps the batch of the optimizer step.

        Raises:
            ConfigError: its run had other settings, other data or another batch, or it has more steps than are asked for.
        """
        with loading(checkpoint):
            before = ResumeRecord.read(checkpoint)
            self.args.gradient_accumulation_steps = self.resume_record.check_same(before, checkpoint)
            done, planned = recorded_steps(checkpoint)
            TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if done > self.requested_steps:
            raise ConfigError(
                f"--{_NAME.resume_from_checkpoint} {checkpoint}: it has {done} steps and only {self.requested_steps} are "
                f"asked for; raise --{_NAME.max_steps} or --{_NAME.num_train_epochs}, or name an older checkpoint"
            )
        return done, planned

    def _was_to_stop(self, checkpoint: Path) -> bool:
        """Whether the evaluation at a checkpoint ends the training, and only the final model was not written."""
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        return bool(last_evaluation(state) and self.stop_reason(state))

    def stop_reason(self, state: TrainerState) -> str:
        """Why the last evaluation in a log ends the training, empty where it does not."""
        stops = [one for one in self.callback_handler.callbacks if isinstance(one, StopAtEvaluation)]
        return "".join(one.reason(self.args, state) for one in stops)

    @property
    def cut(self) -> Cut:
        """How the examples of an optimizer step are shared out."""
        args = self.args
        return Cut(args.per_device_train_batch_size, args.gradient_accumulation_steps, self.accelerator.num_processes)

    @property
    def resume_record(self) -> ResumeRecord:
        """What a run that is resumed from a checkpoint of this one must share with it."""
        settings: dict[str, Any] = {}
        model: Any = self.model
        if self.run_options is not None:
            fixed = [name for name, one in options_of(RunOptions).items() if not one.resume]
            settings = {name: getattr(self.run_options, name) for name in fixed}
        elif hasattr(model, "get_base_model"):
            adapter = model.peft_config[model.active_adapter].to_dict()
            names = ("peft_type", "r", "lora_alpha", "lora_dropout", "target_modules")
            settings = {f"peft.{name}": adapter[name] for name in names if name in adapter}
        settings |= {name: value for name, value in public_values(self.args).items() if name in fixed_on_resume()}
        settings |= objective_of(self.args).code
        data = {name: one.fingerprint for name, one in self.data_reports.items() if not name.startswith("eval")}
        return ResumeRecord(plain_settings(settings), data, self.cut)

    @property
    def run_record(self) -> dict[str, Any]:
        """What distinguishes one run from another: versions, settings, seed, data."""
        run, name = self.run_options, str(getattr(self._inner.config, "_name_or_path", ""))
        if run is not None:
            name = "" if run.pretrain or is_preset(run.model_name) else run.model_name
        own = {**options_of(JEPAOptions), **options_of(TrainerOptions)}
        settings = {one: value for one, value in public_values(self.args).items() if one in own and own[one].dumped}
        settings = {**(public_values(run) if run else {}), **settings}
        sources = [one.source for split, one in self.data_reports.items() if split.startswith("train")]
        return {
            "stepjepa": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
            "processes": self.accelerator.num_processes,
            "cut": self.cut,
            "steps": self.requested_steps,
            "settings": {**plain_settings(settings), **self.resume_record.settings},
            "loss": loss_line(self.args) if self.setup.objective.makes_pairs else "LM",
            "base_model": base_model(name, self._inner.config),
            "datasets": [one.partition(":")[0] for one in sources if "/" in one and is_hub_id(one)],
            "forward": self.setup.forward,
            "data": {split: report.fingerprint for split, report in self.data_reports.items()},
        }

    def resume_log(self, checkpoint: Path) -> None:
        """Continue the log where the checkpoint left it."""
        with loading(checkpoint):
            processes = ResumeRecord.read(checkpoint).cut.processes
            paths = [checkpoint / LOG_STATE.format(number) for number in range(processes)]
            states = [torch.load(path, map_location=self.args.device.type, weights_only=True) for path in paths]
            own, state = slice(self.args.process_index, None, self.args.world_size), states[0]
            self._meter = LossMeter.of_states(self._meter.names, states, own)
            # The Trainer takes the mean over the processes.
            loss = sum(one["loss"] for one in states[own]) * (self.args.world_size / len(states))
            self._tr_loss = torch.tensor(loss, device=self.args.device)
            self._total_loss_scalar, self._globalstep_last_logged = state["total_loss"], state["last_logged"]
            last = self._last_step = LastStep(*state["last_step"])
        at_end = self.state.global_step >= self.state.max_steps
        if not last.epoch_ended and (at_end or float(self.state.epoch or 0).is_integer()):
            # The checkpoint was written at the last step of an epoch, before what happens when an epoch ends.
            self.control._new_step()
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            rest: Any = (self.state.epoch, None, time.time(), last.learning_rate)
            self._maybe_log_save_evaluate(self._tr_loss, last.grad_norm, self.model_wrapped, None, *rest)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        with loading(Path(checkpoint)):
            super()._load_optimizer_and_scheduler(checkpoint)
            check_moments(cast(torch.optim.Optimizer, self.optimizer))
        scheduler = self.lr_scheduler
        if not isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR):
            return
        if recorded_steps(Path(checkpoint))[1] != self.state.max_steps:
            # The rates that were loaded are those of the old schedule.
            bases = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
            rates = [rate * at(scheduler.last_epoch) for rate, at in bases]
            for group, rate in zip(cast(Any, self.optimizer).param_groups, rates, strict=True):
                group["lr"] = rate
            scheduler._last_lr = rates

    # Checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """As `Trainer._save_checkpoint`, but a manifest is its last file, and older checkpoints go after that. Weights that
        are not finite are not saved."""
        begin = time.perf_counter()
        folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
        if not weights_are_finite(cast(torch.nn.Module, self.model), self.accelerator):
            self._stop_or_warn(self.state.global_step, f"the weights are not finite, so {folder.name} is not written")
            return
        if self.args.should_save:
            with writing(folder, _RESUME):
                begin_checkpoint(folder, self.resume_record)
        self.accelerator.wait_for_everyone()
        limit, self.args.save_total_limit = self.args.save_total_limit, None  # the Trainer removes none
        try:
            with writing(folder, _RESUME):
                super()._save_checkpoint(model, trial)
                self.accelerator.wait_for_everyone()
                self.args.save_total_limit = limit
                if self.args.should_save:
                    torch.save(self.args, folder / TRAINING_ARGS_NAME)
                    state = folder / TRAINER_STATE_NAME
                    write_json(state, read_json(state))  # a loss that is NaN is null
                    write_manifest(folder)
        except BaseException:
            if self.args.should_save:
                remove_checkpoint(folder)
            raise
        finally:
            self.args.save_total_limit = limit
        if self.args.should_save:
            RunFolder(folder.parent).rotate(folder, limit)
        self.accelerator.wait_for_everyone()
        self._meter.since += time.perf_counter() - begin

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if isinstance(self.train_dataset, StreamedExamples):
            self.train_dataset.save(output_dir, self.state.global_step)
        last = self._last_step
        norm = None if last.grad_norm is None else float(last.grad_norm)
        log = {
            "loss": float(self._tr_loss),
            "total_loss": float(self._total_loss_scalar),
            "last_logged": int(self._globalstep_last_logged),
            "last_step": tuple(last._replace(grad_norm=norm)),
        }
        torch.save({**self._meter.state(), **log}, Path(output_dir) / LOG_STATE.format(self.args.process_index))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with loading(Path(resume_from_checkpoint)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            load_extras(self.accelerator.unwrap_model(self.model), resume_from_checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            with loading(Path(checkpoint)):
                super()._load_rng_state(checkpoint)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.state.best_model_checkpoint:
            load_extras(self.accelerator.unwrap_model(self.model), self.state.best_model_checkpoint)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse weights that are not those of the model, which the Trainer only warns of. Tied weights are saved once under
        one of their names, and are not missing.

        Raises:
            ConfigError: tensors are missing, or not the model's.
        """
        missing = load_result.missing_keys
        tensors = dict(cast(torch.nn.Module, self.model).named_parameters(remove_duplicate=False))
        loaded = {id(tensor) for name, tensor in tensors.items() if name not in missing}
        missing = [name for name in missing if id(tensors.get(name)) not in loaded]
        for what, names in (("lacks", missing), ("has a tensor that is not the model's:", load_result.unexpected_keys)):
            if names:
                raise ConfigError(f"the checkpoint {what} {names[0]} ({len(names)} in all); resume from another one")

    # What is not finite

    def _check_finite(self) -> None:
        """End a run that broke, or say so once where it is to continue. Every process must call it."""
        found = self._watch.first_broken(self.accelerator)
        if found is not None:
            self._stop_or_warn(found[0], f"the {found[1]} is not finite (NaN or infinite)")

    def _stop_or_warn(self, step: int, what: str) -> None:
        """End a run that broke at a step, unless it is to continue.

        Raises:
            RunError: `terminate_on_nan` is set.
        """
        if not self.args.terminate_on_nan:
            logger.warning("step %d: %s", step, what)
            return
        folder = self._folder
        if self.args.should_save:
            with writing(folder.path / BROKEN, _RESUME):
                write_json(folder.path / BROKEN, {"step": step, "what": what})
        kept = on_main(lambda: folder.checkpoint)
        where = f"the last good checkpoint is {kept}" if kept else "no checkpoint was written before"
        raise RunError(
            f"step {step}: {what}; {where}; try a lower --{_NAME.learning_rate} or --{_NAME.lbd} "
            f"(docs/troubleshooting.md), or train on with --{_NAME.terminate_on_nan} false"
        )

    # Models

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        plain = state_dict and {name: value for name, value in state_dict.items() if not is_extra(name)}
        inner, own = self._inner, self._inner.generation_config
        inner.generation_config = GenerationConfig()  # the own one may be one that transformers refuses to write
        try:
            super()._save(output_dir, plain)
        finally:
            inner.generation_config = own
        folder, tokenizer = Path(output_dir or self.args.output_dir or ""), cast(Any, self.processing_class)
        write_generation_config(inner, tokenizer, folder, self.args.chat_template_kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the final model: the vocabulary and tokenizer as they came, the predictors in a file next to them.

        LoRA is merged or written as an adapter as `merge_lora` says; undecided (None) writes an adapter.
        """
        if _internal_call:  # a checkpoint's
            super().save_model(output_dir, _internal_call=True)
            folder, main = Path(output_dir or self.args.output_dir or ""), self.args.should_save
            folder.mkdir(parents=True, exist_ok=True)
            save_extras(self.accelerator.unwrap_model(self.model), folder, main)
            if main and not (folder / TOKENIZER_CONFIG_FILE).exists():  # the Trainer leaves it out of a sharded one
                cast(Any, self.processing_class).save_pretrained(folder)
            if main:
                share(folder)
            return
        target, model = str(output_dir or self.args.output_dir), self.accelerator.unwrap_model(self.model)
        best = self.state.best_global_step if self.args.load_best_model_at_end else None
        data = {split: one.to_dict() for split, one in self.data_reports.items()}
        name, step = str(self.hub_model_id or "").rpartition("/")[2], best or self.state.global_step
        with whole_weights(model, self.args.should_save), writing(target, _RESUME):
            if self.args.should_save:
                export_model(
                    model,
                    cast(Any, self.processing_class),
                    target,
                    merge_lora=bool(self.args.merge_lora),
                    keep_predictors=self.args.keep_predictors,
                    records=Records(self.run_record, data, self.state.log_history, step, name),
                )
        self.accelerator.wait_for_everyone()

    def create_model_card(self, *args: object, **kwargs: object) -> None:  # type: ignore[override]
        """Nothing: `save_model` has written the card with the model."""

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """As `Trainer.init_hf_repo`.

        Raises:
            RunError: the Hub cannot be reached, or refuses.
        """
        if private is not None:  # which not every version of the Trainer takes as an argument
            self.args.hub_private_repo = private
        with reaching_hub("the repository could not be made on the Hub, nothing was trained or uploaded"):
            super().init_hf_repo(token=token)

    @property
    def upload_command(self) -> str:
        """What uploads the final model later."""
        name = self.args.hub_model_id or Path(self.args.output_dir or "").name
        return f"upload it with: hf upload {name} {shlex.quote(str(self.args.output_dir))} --exclude 'checkpoint-*/*'"

    def push_to_hub(  # type: ignore[override]
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
    ) -> CommitInfo | None:
        """As `Trainer.push_to_hub`, of what `save_model` writes; nothing in the output folder changes. It
        always waits for the upload.

        Raises:
            RunError: the Hub cannot be reached, or refuses.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        folder = self._folder.path / ".upload"
        if self.is_world_process_zero():
            remove_tree(folder)
        try:
            self.save_model(str(folder))
            if not self.is_world_process_zero():
                return None
            own = self._folder.path / CARD
            if own.exists() and not is_card(own.parent):
                write_whole(folder / CARD, [own.read_bytes()])
            with reaching_hub(f"the model was not uploaded to {self.hub_model_id}", f"; {self.upload_command}"):
                return HfApi().upload_folder(
                    repo_id=str(self.hub_model_id),
                    folder_path=folder,
                    commit_message=commit_message,
                    token=token or self.args.hub_token,
                    revision=revision or self.args.hub_revision,
                )
        finally:
            if self.is_world_process_zero():
                with suppress(OSError):
                    remove_tree(folder)


@contextmanager
def reaching_hub(failed: str, then: str = "") -> Iterator[None]:
    """Turn whatever goes wrong between here and the Hub into one line.

    Raises:
        RunError: something went wrong.
    """
    try:
        yield
    except Exception as error:  # huggingface_hub's, httpx's, the system's
        raise RunError(f"{failed}: {said(error)}{then}") from None


def check_moments(optimizer: torch.optim.Optimizer) -> None:
    """Check that the moments that an optimizer was given have the shapes of its parameters.

    Raises:
        ValueError: one has another shape.
    """
    for parameter, state in optimizer.state.items():
        for name in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
            moment = state.get(name)
            if isinstance(moment, torch.Tensor) and moment.shape != parameter.shape:
                raise ValueError(f"{name} has shape {tuple(moment.shape)} for a parameter of {tuple(parameter.shape)}")


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON gives them back; those that it cannot hold are left out."""
    found = {}
    for name, value in settings.items():
        with suppress(TypeError):
            found[name] = json.loads(json.dumps(representable(sorted(value) if isinstance(value, set) else value)))
    return found
