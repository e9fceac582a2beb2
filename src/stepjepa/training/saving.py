"""What a trainer reads from a checkpoint and writes: weights, what belongs to them, and the final model."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any, cast

from torch import nn
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME

from stepjepa.errors import RunError
from stepjepa.modeling.export import export_model
from stepjepa.modeling.extras import load_extras, save_extras
from stepjepa.modeling.forward import causal_lm
from stepjepa.training.config import JEPAConfig
from stepjepa.training.finite import FiniteWatch, weights_are_finite
from stepjepa.training.log_state import log_state_of
from stepjepa.training.run_folder import RunFolder, on_main
from stepjepa.training.setup import ModelSetup
from stepjepa.training.streaming import StreamedExamples
from stepjepa.utils.failures import writing
from stepjepa.utils.files import write_json
from stepjepa.utils.manifest import write_manifest

logger = logging.getLogger("stepjepa")
GO_ON = "go on with --resume_from_checkpoint true"


class SavingTrainer(Trainer):
    """A `Trainer` whose checkpoints hold the head, the EMA encoder and the place in a stream as well, and whose final model
    is a plain one."""

    args: JEPAConfig
    setup: ModelSetup
    _last_step: tuple[Any, float | None] = (None, None)  # gradient norm and learning rate
    _epoch_ended = False
    _watch: FiniteWatch
    _broken: tuple[int, str] | None = None  # the first step that was not finite, and what was not, once it is known
    _rotates = True  # whether the Trainer may remove older checkpoints

    @property
    def _inner(self) -> Any:
        """The causal LM, out of all wrappers."""
        return causal_lm(self.accelerator.unwrap_model(self.model))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        load_extras(self._inner, resume_from_checkpoint)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        missing = missing_weights(cast(nn.Module, self.model), list(load_result.missing_keys))
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.state.best_model_checkpoint:
            load_extras(self._inner, self.state.best_model_checkpoint)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if isinstance(self.train_dataset, StreamedExamples):
            self.train_dataset.save(output_dir, self.state.global_step * self.args.gradient_accumulation_steps)
        log_state_of(self, *self._last_step, self._epoch_ended).save(output_dir, self.args.process_index)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """As `Trainer._save_checkpoint`, but a manifest is its last file, and older checkpoints go after that. Weights that
        are not finite are not saved."""
        folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
        if not weights_are_finite(cast(nn.Module, self.model), self.accelerator):
            self._stop_or_warn(
                f"step {self.state.global_step}: the weights are not finite, so {folder.name} is not written"
            )
            return
        if self.args.should_save and folder.exists():
            shutil.rmtree(folder)  # cut short or damaged, or of an earlier start: nothing of it may stay
        self.accelerator.wait_for_everyone()
        limit = self.args.save_total_limit
        try:
            with writing(folder, GO_ON):
                self._rotates = False
                super()._save_checkpoint(model, trial)
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    state = folder / TRAINER_STATE_NAME
                    write_json(state, json.loads(state.read_text(encoding="utf-8")))  # a loss that is NaN is null
                    write_manifest(folder)
        except BaseException:
            if self.args.should_save:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            self._rotates, self.args.save_total_limit = True, limit
        if self.args.should_save:
            RunFolder(folder.parent).rotate(folder, limit, self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()

    def _check_finite(self) -> None:
        """End a run that broke, or say so once where it is to go on. Every process must call it."""
        found = self._watch.first_broken(self.accelerator)
        if found is not None and found != self._broken:
            self._broken = found
            self._stop_or_warn(f"step {found[0]}: the {found[1]} is not finite (NaN or infinite)")

    def _stop_or_warn(self, what: str) -> None:
        """End a run that broke, unless it is to go on.

        Raises:
            RunError: `terminate_on_nan` is set.
        """
        if self.args.terminate_on_nan:
            kept = on_main(lambda: RunFolder(self.args.output_dir or "").checkpoint)
            where = f"the last good checkpoint is {kept}" if kept else "no checkpoint was written before"
            raise RunError(
                f"{what}; {where}; try a lower --learning_rate or --lbd (docs/troubleshooting.md), or train on with "
                "--terminate_on_nan false"
            )
        logger.warning("%s", what)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the final model: the vocabulary and tokenizer as they came; checkpoints keep the predictor tokens.

        LoRA is merged or written as an adapter as `merge_lora` says; undecided (None) writes an adapter.
        """
        if _internal_call:
            super().save_model(output_dir, _internal_call=True)
            if self.args.should_save:
                save_extras(self._inner, str(output_dir or self.args.output_dir))
            if not self._rotates:  # the arguments are written by now
                self.args.save_total_limit = None
            return
        state_dict = self.accelerator.get_state_dict(self.model_wrapped) if self.is_fsdp_enabled else None
        if self.args.should_save:
            folder = str(output_dir or self.args.output_dir)
            with writing(folder, GO_ON):
                export_model(
                    self.accelerator.unwrap_model(self.model),
                    self.processing_class,
                    folder,
                    vocabulary=self.setup.vocabulary,
                    predictor_ids=self.setup.added_ids,
                    merge_lora=bool(self.args.merge_lora),
                    keep_predictors=self.args.keep_predictors,
                    state_dict=state_dict,
                )
        self.accelerator.wait_for_everyone()


def missing_weights(model: nn.Module, missing: list[str]) -> list[str]:
    """Those of `missing` that nothing else of the model holds: tied weights are saved once, under one of their names."""
    tensors: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
    loaded = {id(tensor) for name, tensor in tensors.items() if name not in missing}
    return [name for name in missing if id(tensors.get(name)) not in loaded]
