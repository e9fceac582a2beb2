"""What a trainer reads from a checkpoint and writes: weights, what belongs to them, and the final model."""

from __future__ import annotations

import logging
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from huggingface_hub import HfApi
from torch import nn
from transformers import Trainer
from transformers.modelcard import TrainingSummary
from transformers.trainer import TRAINER_STATE_NAME

from stepjepa.data.report import DataReport
from stepjepa.errors import RunError
from stepjepa.modeling.export import export_model
from stepjepa.modeling.extras import is_extra, load_extras, save_extras
from stepjepa.modeling.forward import causal_lm
from stepjepa.training.config import JEPAConfig
from stepjepa.training.finite import FiniteWatch, weights_are_finite
from stepjepa.training.log_state import log_state_of
from stepjepa.training.record import ResumeRecord, fixed_settings
from stepjepa.training.run_folder import BROKEN, RunFolder, on_main
from stepjepa.training.run_options import RunOptions
from stepjepa.training.setup import ModelSetup
from stepjepa.training.streaming import StreamedExamples
from stepjepa.utils.failures import writing
from stepjepa.utils.files import read_json, share, write_json, write_manifest, write_whole

logger = logging.getLogger("stepjepa")
GO_ON = "go on with --resume_from_checkpoint true"


class SavingTrainer(Trainer):
    """A `Trainer` whose checkpoints and final model are plain ones. Next to them lie the predictors; in checkpoints the EMA
    encoder and the place in a stream as well."""

    args: JEPAConfig
    setup: ModelSetup
    data_reports: dict[str, DataReport]
    run_options: RunOptions | None = None  # of the command, which made the model from them
    _last_step: tuple[Any, float | None] = (None, None)  # gradient norm and learning rate
    _epoch_ended = False
    _watch: FiniteWatch
    _broken: tuple[int, str] | None = None  # the first step that was not finite, and what was not, once it is known
    _rotates = True  # whether the Trainer may remove older checkpoints

    @property
    def resume_record(self) -> ResumeRecord:
        """What a run that is resumed from a checkpoint of this one must share with it."""
        model: Any = self.model
        peft = model.peft_config[model.active_adapter] if hasattr(model, "get_base_model") else None
        data = {name: one.fingerprint for name, one in self.data_reports.items() if not name.startswith("eval")}
        return ResumeRecord(fixed_settings(self.args, self.run_options, peft), data, self.accelerator.num_processes)

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
            self._stop_or_warn(self.state.global_step, f"the weights are not finite, so {folder.name} is not written")
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
                    write_json(state, read_json(state))  # a loss that is NaN is null
                    self.resume_record.write(folder)
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
            self._stop_or_warn(found[0], f"the {found[1]} is not finite (NaN or infinite)")

    def _stop_or_warn(self, step: int, what: str) -> None:
        """End a run that broke at a step, unless it is to go on.

        Raises:
            RunError: `terminate_on_nan` is set.
        """
        if self.args.terminate_on_nan:
            folder = RunFolder(self.args.output_dir or "")
            if self.args.should_save:
                with writing(folder.path / BROKEN, GO_ON):
                    write_json(folder.path / BROKEN, {"step": step, "what": what})
            kept = on_main(lambda: folder.checkpoint)
            where = f"the last good checkpoint is {kept}" if kept else "no checkpoint was written before"
            raise RunError(
                f"step {step}: {what}; {where}; try a lower --learning_rate or --lbd "
                "(docs/troubleshooting.md), or train on with --terminate_on_nan false"
            )
        logger.warning("step %d: %s", step, what)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        plain = state_dict and {name: value for name, value in state_dict.items() if not is_extra(name)}
        super()._save(output_dir, plain)
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir or "")
            save_extras(self._inner, folder, state_dict)
            share(folder)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the final model: the vocabulary and tokenizer as they came, the predictors in a file next to them.

        LoRA is merged or written as an adapter as `merge_lora` says; undecided (None) writes an adapter.
        """
        if _internal_call:
            super().save_model(output_dir, _internal_call=True)
            if not self._rotates:  # the arguments are written by now
                self.args.save_total_limit = None
            return
        self._export(str(output_dir or self.args.output_dir))

    def _export(self, folder: str) -> None:
        """Write the final model; every process must call it."""
        state_dict = self.accelerator.get_state_dict(self.model_wrapped) if self.is_fsdp_enabled else None
        if self.args.should_save:
            with writing(folder, GO_ON):
                export_model(
                    self.accelerator.unwrap_model(self.model),
                    self.processing_class,
                    folder,
                    merge_lora=bool(self.args.merge_lora),
                    keep_predictors=self.args.keep_predictors,
                    state_dict=state_dict,
                )
        self.accelerator.wait_for_everyone()

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """As `Trainer.init_hf_repo`.

        Raises:
            RunError: the Hub cannot be reached, or refuses.
        """
        with reaching_hub("the repository could not be made on the Hub, nothing was trained or uploaded"):
            super().init_hf_repo(token=token, private=private)

    @property
    def upload_command(self) -> str:
        """What uploads the final model later."""
        name = self.args.hub_model_id or Path(self.args.output_dir or "").name
        return f"upload it with: hf upload {name} {shlex.quote(str(self.args.output_dir))} --exclude 'checkpoint-*/*'"

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Upload what `save_model` writes, and a model card; nothing in the output folder changes.

        Args:
            blocking: it always waits for the upload.
            kwargs: of the card, see `Trainer.create_model_card`.

        Returns:
            What `huggingface_hub.HfApi.upload_folder` gives; None on other processes than the first.

        Raises:
            RunError: the Hub cannot be reached, or refuses.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        folder = Path(self.args.output_dir or "") / ".upload"
        if self.is_world_process_zero():
            shutil.rmtree(folder, ignore_errors=True)
        try:
            self._export(str(folder))
            if not self.is_world_process_zero():
                return None
            name = kwargs.pop("model_name", None) or str(self.hub_model_id).split("/")[-1]
            card = TrainingSummary.from_trainer(self, model_name=name, **kwargs).to_model_card()
            write_whole(folder / "README.md", [card.encode()])
            with reaching_hub(f"the model was not uploaded to {self.hub_model_id}", self.upload_command):
                return HfApi().upload_folder(
                    repo_id=str(self.hub_model_id),
                    folder_path=folder,
                    commit_message=commit_message,
                    token=token or self.args.hub_token,
                    revision=revision or self.args.hub_revision,
                )
        finally:
            if self.is_world_process_zero():
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def reaching_hub(said: str, then: str = "") -> Iterator[None]:
    """Turn whatever goes wrong between here and the Hub into one line that begins with what was `said` and ends with what to
    do `then`.

    Raises:
        RunError: something went wrong.
    """
    try:
        yield
    except Exception as error:  # huggingface_hub's, httpx's, the system's
        why = " ".join(str(error).split()) or type(error).__name__
        raise RunError(f"{said}: {why[:200]}" + (f"; {then}" if then else "")) from None


def missing_weights(model: nn.Module, missing: list[str]) -> list[str]:
    """Those of `missing` that nothing else of the model holds: tied weights are saved once, under one of their names."""
    tensors: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
    loaded = {id(tensor) for name, tensor in tensors.items() if name not in missing}
    return [name for name in missing if id(tensors.get(name)) not in loaded]
