"""Going on from a checkpoint: which one, what is checked, and what the Trainer does not restore by itself."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, cast

import torch

from stepjepa.errors import ConfigError
from stepjepa.training.finite import FiniteWatch, weights_are_finite
from stepjepa.training.log_state import LogState
from stepjepa.training.meter import LossMeter
from stepjepa.training.record import ResumeRecord
from stepjepa.training.run_folder import BROKEN, RunFolder, recorded_steps
from stepjepa.training.saving import SavingTrainer
from stepjepa.training.streaming import StreamedExamples

logger = logging.getLogger("stepjepa")


class ResumingTrainer(SavingTrainer):
    """A `Trainer` that ends, after a checkpoint, where it would have ended without: weights, log and number of steps."""

    _meter: LossMeter
    _view: Any
    _resumed_from: Path | None = None

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts of the loss."""
        raise NotImplementedError

    def new_meter(self) -> LossMeter:
        """A meter that has counted nothing."""
        return LossMeter(self.part_names)

    @property
    def requested_steps(self) -> int:
        """Optimizer steps that the options and the data ask for."""
        raise NotImplementedError

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As `Trainer.train`; ``resume_from_checkpoint=True`` goes on from the newest checkpoint that matches its manifest.

        A checkpoint at the last step that is asked for is loaded, and nothing is trained.

        Raises:
            ConfigError: no checkpoint can be resumed from, its run had other settings or data, it has more steps than are
                asked for, or another run is writing to `output_dir`.
            RunError: a loss, a gradient norm or the weights are not finite, or a checkpoint could not be written.
        """
        folder = RunFolder(self.args.output_dir or "")
        with folder.running():
            checkpoint = None
            if resume_from_checkpoint:
                checkpoint, passed = folder.chosen(resume_from_checkpoint)
                for line in passed:
                    logger.warning("%s; passed over", line)
                if checkpoint is None:
                    raise ConfigError(f"resume_from_checkpoint: no checkpoint to go on from in {folder.path}")
            return self.train_from(checkpoint, *args, **kwargs)

    def train_from(self, checkpoint: Path | None, *args: Any, **kwargs: Any) -> Any:
        """`train`, from a checkpoint that was checked (`RunFolder.newest`, `checked_checkpoint`); None starts at step 0.

        Raises:
            ConfigError, RunError: as `train`.
        """
        steps = self.requested_steps
        if self.args.same_flop and self.args.uses_pairs:
            self.args.max_steps = steps
        if checkpoint is not None:
            done, planned = self.check_resumable(checkpoint)
            if planned != steps and self.is_world_process_zero():
                logger.warning(
                    "%s was written by a run of %d steps; this one has %d: the schedules of the learning rate, of lambda "
                    "and of the target encoder are recomputed",
                    *(checkpoint, planned, steps),
                )
            if isinstance(self.train_dataset, StreamedExamples):
                self.train_dataset.go_on(checkpoint, done * self.args.gradient_accumulation_steps)
            if self.args.should_save:
                RunFolder(self.args.output_dir or "").finish_rotation(checkpoint, self.args.save_total_limit)
        elif isinstance(self.train_dataset, StreamedExamples):
            self.train_dataset.start_over()
        if self.args.should_save:
            (Path(self.args.output_dir or "") / BROKEN).unlink(missing_ok=True)  # of an earlier start
        self._resumed_from = checkpoint
        self._meter, self._watch, self._broken = self.new_meter(), FiniteWatch(self.args.device), None
        try:
            result = super().train(None if checkpoint is None else str(checkpoint), *args, **kwargs)
        finally:
            self._view.close()
        self._check_finite()
        model: Any = self.model
        if self._broken is None and not weights_are_finite(model, self.accelerator):
            self._stop_or_warn(self.state.global_step, "the weights are not finite")
        return result._replace(training_loss=result.metrics["train_loss"])

    def check_resumable(self, checkpoint: Path) -> tuple[int, int]:
        """The step of a checkpoint, and how many its run was to have.

        Raises:
            ConfigError: its run had other settings or other data, or it has more steps than are asked for.
        """
        self.resume_record.check_same(ResumeRecord.read(checkpoint), checkpoint)
        done, planned = recorded_steps(checkpoint)
        if done > self.requested_steps:
            raise ConfigError(
                f"--resume_from_checkpoint {checkpoint}: it has {done} steps and only {self.requested_steps} are asked for; "
                "raise --max_steps or --num_train_epochs, or name an older checkpoint"
            )
        return done, planned

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:  # the Trainer asks after a step only
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def resume_log(self) -> None:
        """Take up the log where the checkpoint left it; called when a run goes on, before its first step."""
        checkpoint = self._resumed_from
        assert checkpoint is not None
        state = LogState.load(checkpoint, self.args.process_index)
        self._meter = state.meter(self.part_names, self.args.device)
        self._tr_loss = torch.tensor(state.loss, device=self.args.device)
        self._total_loss_scalar, self._globalstep_last_logged = state.total_loss, state.last_logged
        at_end = self.state.global_step >= self.state.max_steps
        if not state.epoch_ended and (at_end or float(self.state.epoch or 0).is_integer()):
            # The checkpoint was written at the last step of an epoch, before what happens when an epoch ends.
            self.control._new_step()
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self._maybe_log_save_evaluate(
                *(self._tr_loss, state.grad_norm, self.model_wrapped, None, self.state.epoch, None, time.time()),
                state.learning_rate,
            )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        scheduler = self.lr_scheduler
        if checkpoint is None or not isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR):
            return
        if recorded_steps(Path(checkpoint))[1] != self.state.max_steps:
            # The rates that were loaded are those of the old schedule.
            rates = [
                rate * at(scheduler.last_epoch)
                for rate, at in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
            ]
            for group, rate in zip(cast(Any, self.optimizer).param_groups, rates, strict=True):
                group["lr"] = rate
            scheduler._last_lr = rates
