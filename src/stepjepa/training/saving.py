"""What a trainer reads from a checkpoint and writes: weights, what belongs to them, and the final model."""

from __future__ import annotations

from typing import Any, cast

from torch import nn
from transformers import Trainer

from stepjepa.modeling.export import export_model
from stepjepa.modeling.extras import is_extra, load_extras, save_extras
from stepjepa.modeling.forward import causal_lm
from stepjepa.training.checkpoints import missing_weights
from stepjepa.training.config import JEPAConfig
from stepjepa.training.setup import ModelSetup
from stepjepa.training.streaming import StreamedExamples


class SavingTrainer(Trainer):
    """A `Trainer` whose checkpoints and final model are plain ones. Next to them lie the predictors; in checkpoints the EMA
    encoder and the place in a stream as well."""

    args: JEPAConfig
    setup: ModelSetup

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
        # The trainer's state is written next and marks the checkpoint as whole: every process must be done by then.
        self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        plain = state_dict and {name: value for name, value in state_dict.items() if not is_extra(name)}
        super()._save(output_dir, plain)
        if self.args.should_save:
            save_extras(self._inner, str(output_dir or self.args.output_dir), state_dict)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the final model: the vocabulary and tokenizer as they came, the predictors in a file next to them.

        LoRA is merged or written as an adapter as `merge_lora` says; undecided (None) writes an adapter.
        """
        if _internal_call:
            super().save_model(output_dir, _internal_call=True)
            return
        state_dict = self.accelerator.get_state_dict(self.model_wrapped) if self.is_fsdp_enabled else None
        if self.args.should_save:
            export_model(
                self.accelerator.unwrap_model(self.model),
                self.processing_class,
                str(output_dir or self.args.output_dir),
                merge_lora=bool(self.args.merge_lora),
                keep_predictors=self.args.keep_predictors,
                state_dict=state_dict,
            )
        self.accelerator.wait_for_everyone()
