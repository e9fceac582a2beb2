"""Every boolean and enumeration of `TrainingArguments` runs, or is refused in one line before anything is written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from stepjepa.config.option import options_of
from stepjepa.config.values import choices_of, union_members
from stepjepa.errors import ConfigError
from stepjepa.training.trainer import JEPATrainer
from support.rows import step_rows
from support.training import logs_of, trainer_for

ROWS = step_rows(8)
# What cannot run, and why; everything else must.
REFUSED = {
    ("bf16_full_eval", True): "this trainer does not support",  # evaluation is in the weights' own dtype
    ("fp16_full_eval", True): "this trainer does not support",
    ("use_liger_kernel", True): "replaces parts of the model",
    ("hub_strategy", "checkpoint"): "hub_strategy is .*; known: end",
    ("hub_strategy", "all_checkpoints"): "hub_strategy is .*; known: end",
    ("fsdp", True): "only works in distributed training",
    ("tf32", True): "requires Ampere",
    ("save_strategy", "best"): "metric_for_best_model",
    ("dataloader_persistent_workers", True): "dataloader_num_workers",
    ("lr_scheduler_type", "cosine_with_min_lr"): "min_lr",
    ("lr_scheduler_type", "cosine_warmup_with_min_lr"): "min_lr",
    ("lr_scheduler_type", "warmup_stable_decay"): "num_decay_steps",
}
# The first has a test below; there is no network; the optimizers are those of transformers.
ELSEWHERE = {"torch_compile", "push_to_hub", "hub_always_push", "optim"}
TOGETHER = {
    "load_best_model_at_end": {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1},
    "lr_scheduler_type": {"eval_strategy": "steps", "eval_steps": 1},
    "save_strategy": {"save_steps": 1},
}


def cases():
    for name, option in options_of(transformers.TrainingArguments).items():
        for member in union_members(option.hint):
            for value in choices_of(member) or ([True, False] if member is bool else []):
                if value == getattr(option.default, "value", option.default) or name in ELSEWHERE:
                    continue
                # `make test_all` tries the schedules that run.
                runs_alike = name == "lr_scheduler_type" and (name, value) not in REFUSED
                yield pytest.param(name, value, marks=pytest.mark.long if runs_alike else ())


@pytest.fixture
def trainer(tokenizer, tmp_path):
    def make(**options):
        return trainer_for(tmp_path, tokenizer, ROWS, eval_rows=ROWS, **{"max_steps": 1, **options})

    return make


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "value"), list(cases()))
def test_it_runs_or_is_refused(name, value, trainer, tmp_path):
    options = {"objective": "step_jepa", **TOGETHER.get(name, {}), name: value}
    if (name, value) not in REFUSED:
        assert trainer(**options).train().global_step == 1
        return
    with pytest.raises(ConfigError, match=REFUSED[name, value]) as caught:
        trainer(**options).train()
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_metrics_and_predictions_of_labelled_tokens(trainer):
    seen = []

    def accuracy(prediction):
        seen.append(prediction)
        known = prediction.label_ids != -100
        return {"accuracy": float((prediction.predictions == prediction.label_ids)[known].mean())}

    made = trainer(objective="step_jepa", per_device_eval_batch_size=3)
    made = JEPATrainer(made.model, made.args, None, ROWS, made.processing_class, compute_metrics=accuracy)
    metrics = made.evaluate()
    output = made.predict(ROWS[:5])
    assert metrics["eval_accuracy"] >= 0 and metrics["eval_lm_loss"] > 0
    assert output.metrics["test_lm_loss"] > 0 and "test_accuracy" in output.metrics
    assert np.array_equal(output.label_ids, seen[0].label_ids[:5, : output.label_ids.shape[1]])
    other = {"forward": "two_pass", "dataloader_drop_last": True, "per_device_eval_batch_size": 3}
    apart = trainer(objective="step_jepa", **other).predict(ROWS[:5])
    assert np.array_equal(apart.predictions, output.predictions) and np.array_equal(apart.label_ids, output.label_ids)
    store = made.eval_dataset.store
    for row, (predicted, labels) in enumerate(zip(seen[0].predictions, seen[0].label_ids, strict=True)):
        ids = np.asarray(store[row].trunk)
        labelled = np.concatenate([np.arange(*span) for span in store[row].labels])
        assert labels[: len(labelled)].tolist() == ids[labelled].tolist()
        assert set(labels[len(labelled) :]) <= {-100} and set(predicted[len(labelled) :]) <= {-100}
        with torch.no_grad():
            logits = made.model(input_ids=torch.tensor(ids[None].astype(np.int64))).logits[0, labelled - 1]
        assert predicted[: len(labelled)].tolist() == logits[:, : made.setup.vocabulary].argmax(-1).tolist()


def test_what_the_trainer_cannot_use_is_refused(trainer, tmp_path):
    with pytest.raises(ConfigError, match="args is a TrainingArguments; pass a JEPAConfig"):
        JEPATrainer("tiny", transformers.TrainingArguments(str(tmp_path)), ROWS)
    with pytest.raises(ConfigError, match="does not take data_collator"):
        JEPATrainer("tiny", None, ROWS, data_collator=lambda *args: None)
    with pytest.raises(ConfigError, match="cannot be constructed"):
        trainer(optim="lomo").train()
    made = trainer(objective="step_jepa", predictors=1)
    own = {"optimizers": (torch.optim.SGD(made.model.parameters()), None)}
    with pytest.raises(ConfigError, match="the optimizer lacks 1 trained tensors, such as .*predictor"):
        JEPATrainer(made.model, made.args, ROWS, None, made.processing_class, **own)
    with pytest.raises(ConfigError, match="another trainer, or parts.attach, has set this model up since"):
        made.train()


@pytest.mark.slow
def test_torch_compile_runs_to_the_same_numbers(trainer):
    losses = []
    for options in ({}, {"torch_compile": True, "torch_compile_backend": "eager"}):
        made = trainer(objective="step_jepa", **options)
        made.train()
        losses.append([entry["lm_loss"] for entry in logs_of(made)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
