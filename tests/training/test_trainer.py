"""`JEPATrainer` from Python: what is trained, logged and evaluated, and on which rows."""

from __future__ import annotations

import datasets
import pytest
import torch
from transformers import TrainerCallback

from stepjepa.data.sources import texts_of
from stepjepa.errors import ConfigError
from stepjepa.modeling.load import load_tokenizer
from stepjepa.modeling.lora import lora_config
from stepjepa.training.config import JEPAConfig
from stepjepa.training.sampling import Draw
from stepjepa.training.trainer import JEPATrainer
from support.models import tiny_model
from support.rows import step_rows
from support.training import STEPS, assert_same_weights, assert_train_alike, batch_of, logs_of, name_of, trainer_for

TUBE = {"objective": "semantic_tube", "tube_length_adjustment": "cosine_like", "tube_times": 2}
READOUT = {"objective": "llm_jepa", "readout": "mean", "readout_layer": 1}
LATENT = {"objective": "next_latent", "latent_horizon": 2}


@pytest.mark.parametrize(
    "given",
    [{"objective": "step_jepa", "predictors": 2}, {"objective": "llm_jepa", "predictors": 0}, READOUT, LATENT],
    ids=name_of,
)
def test_lbd_zero_equals_regular_bit_for_bit(tmp_path, tokenizer, given):
    assert_train_alike(tmp_path, tokenizer, step_rows(20), {"objective": "regular"}, {**given, "lbd": 0.0})


def test_an_adapter_begins_with_the_seed_alone(tmp_path, tokenizer):
    """Arms and seeds are compared in pairs: what was sampled before must not matter."""
    found = []
    for seed, before in ((3, 0), (3, 1), (4, 0)):
        torch.manual_seed(before)
        trainer = trainer_for(tmp_path, tokenizer, peft=lora_config(4), seed=seed, **STEPS)
        found.append([value for name, value in trainer.model.named_parameters() if "lora_A" in name])
    for first, same, other in zip(*found, strict=True):
        assert torch.equal(first, same) and not torch.equal(first, other)


@pytest.mark.parametrize(
    "options",
    [{"objective": "regular"}, {**STEPS, "regularizer": "vicreg", "target_encoder": "ema"}, TUBE, LATENT],
    ids=name_of,
)
def test_log_and_evaluation(tmp_path, tokenizer, options):
    trainer = trainer_for(tmp_path, tokenizer, eval_rows=step_rows(6, seed=1), gamma=0.5, **options)
    trainer.train()
    metrics = trainer.evaluate()
    names = {"loss", "lm_loss"}
    if options["objective"] != "regular":
        names |= {"jepa_loss", "cosine_similarity", "num_pairs", "target_std", "effective_rank"}
        drawn = (trainer.eval_dataset[Draw(0, row)] for row in range(6))
        assert metrics["eval_num_pairs"] == sum(len(example.pairs) for example in drawn) > 1
    more = {"regularizer"} if "regularizer" in options else {"latent_kl"} if options is LATENT else set()
    names |= more
    timing = {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "epoch"}
    assert metrics.keys() - timing == {f"eval_{name}" for name in names}
    for log in logs_of(trainer):
        assert log.keys() - {"tokens_per_second", "grad_norm", "learning_rate", "epoch", "step"} == names
        jepa = log.get("jepa_loss", 0.0) + sum(log[name] for name in more)
        assert log["loss"] == pytest.approx(0.5 * log["lm_loss"] + 0.5 * jepa, abs=1e-5)
    jepa = metrics.get("eval_jepa_loss", 0.0) + sum(metrics[f"eval_{name}"] for name in more)
    assert metrics["eval_loss"] == pytest.approx(0.5 * metrics["eval_lm_loss"] + 0.5 * jepa, rel=1e-6)


def test_accuracy_and_entropy_are_those_of_the_models_logits_at_the_labels(tmp_path, tokenizer, monkeypatch):
    """In one piece, in chunks, and by the model's own forward; the loss and the weights stay as they are."""
    rows, found, trained = step_rows(8), [], []
    options = {"max_steps": 1, "batch": 8, "eval_rows": rows, **STEPS}
    plain = trainer_for(tmp_path, tokenizer, rows, **options)
    batch = batch_of(plain)
    with torch.no_grad():
        logits = torch.cat([plain.model(input_ids=one).logits[0, labels - 1] for one, labels in labelled(plain)])
    log_probabilities = logits[:, : plain.setup.vocabulary].log_softmax(-1)
    right = (log_probabilities.argmax(-1) == batch.label_ids).float().mean()
    entropy = -(log_probabilities.exp() * log_probabilities).sum(-1).mean()
    for token_metrics, most in ((False, None), (True, None), (True, 5)):
        if most:
            monkeypatch.setattr("stepjepa.modeling.parts.chunk_rows", lambda vocabulary, most=most: most)
        trainer = trainer_for(tmp_path, tokenizer, rows, token_metrics=token_metrics, **options)
        evaluated = trainer.evaluate()
        trainer.train()
        trained.append((logs_of(trainer)[0]["loss"], trainer.model.model.norm.weight))
        assert ("entropy" in logs_of(trainer)[0]) == ("eval_entropy" in evaluated) == token_metrics
        if token_metrics:
            found += [logs_of(trainer)[0], {name.removeprefix("eval_"): value for name, value in evaluated.items()}]
    for metrics in found:
        assert metrics["mean_token_accuracy"] == pytest.approx(float(right), abs=1e-6)
        assert metrics["entropy"] == pytest.approx(float(entropy), rel=1e-5)
    assert trained[0][0] == trained[1][0] and torch.equal(trained[0][1], trained[1][1])


def labelled(trainer):
    """Token ids (1, T) and places of the labels of each training example."""
    for example in trainer.train_dataset.store:
        places = torch.cat([torch.arange(*span) for span in example.labels])
        yield torch.from_numpy(example.trunk.astype("int64"))[None], places


def test_evaluation_is_the_same_for_every_batch_size_and_for_rows(tmp_path, tokenizer):
    rows, values = step_rows(7, seed=1), []
    for size in (1, 3, 8):
        trainer = trainer_for(tmp_path, tokenizer, eval_rows=rows, per_device_eval_batch_size=size, **STEPS)
        found = trainer.evaluate()
        values.append([found["eval_lm_loss"], found["eval_jepa_loss"]])
        assert values[-1] == pytest.approx(values[0], abs=1e-5)
    assert trainer.evaluate(rows)["eval_loss"] == found["eval_loss"]


def test_data_besides_that_of_the_run(tmp_path, tokenizer, caplog):
    data = datasets.Dataset.from_list(step_rows(10))
    splits = datasets.DatasetDict(train=data.select(range(7)), test=data.select(range(7, 10)))
    given = {"eval_rows": splits, "max_steps": 4, "eval_strategy": "steps", "eval_steps": 1}
    plain, trainer = (trainer_for(tmp_path / name, tokenizer, splits["train"], **given, **STEPS) for name in "ab")
    trainer.predict([{"question": "Why?"}, *data.select(range(2))])
    assert len(trainer.eval_dataset) == trainer.data_reports["eval"].rows_read == 3 and "skipped 1: " in caplog.text
    callback = TrainerCallback()
    callback.on_train_begin = lambda *args, **kwargs: trainer.get_train_dataloader() and None
    trainer.add_callback(callback)
    for one in (plain, trainer):
        one.train()
    assert_same_weights(plain.model, trainer.model)
    evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert [entry["examples"] for entry in evaluations] == [4, 7, 11, 14]


def test_where_no_other_example_has_a_pair_no_target_is_shuffled(tmp_path, tokenizer):
    rows = sorted(step_rows(12), key=lambda row: row["messages"][1]["content"].count("\n\n"))
    rows = [*rows[:2], *rows[-4:]]  # the first two have no pair
    options = {"control": "shuffled", "train_sampling_strategy": "sequential", "predictor_head": "mlp", **STEPS}
    trainer = trainer_for(tmp_path, tokenizer, rows, 3, **options)
    trainer.train()
    assert [log["num_pairs"] for log in logs_of(trainer)] == [0, 9]


def test_data_loader_workers_give_the_same_run(tmp_path, tokenizer):
    options = {"jepa_ratio": 0.5, "max_steps": 4, **STEPS}
    assert_train_alike(tmp_path, tokenizer, step_rows(20), options, {**options, "dataloader_num_workers": 2})


# Models


def test_a_preset_is_made_with_a_tokenizer_of_the_data(tmp_path, tokenizer):
    rows, config = step_rows(12), JEPAConfig(output_dir=str(tmp_path / "out"), objective="regular")
    made = JEPATrainer("tiny", config, iter(rows))
    assert len(made.train_dataset) == 12 and made.model.config.hidden_size == 96
    assert made.processing_class.get_vocab() == load_tokenizer("tiny", texts_of([rows])).get_vocab()
    with pytest.raises(ConfigError, match="pass them as train_dataset, or pass a processing_class"):
        JEPATrainer("tiny", config)
    assert JEPATrainer("tiny", config, processing_class=tokenizer).train_dataset is None
    with pytest.raises(ConfigError, match="streaming"):
        JEPATrainer("tiny", config, datasets.Dataset.from_list(rows).to_iterable_dataset())
    made.save_model(str(tmp_path / "base"))
    again = JEPATrainer(str(tmp_path / "base"), config, datasets.Dataset.from_list(rows))
    assert_same_weights(again.model, made.model)
    assert again.processing_class.get_vocab() == made.processing_class.get_vocab() and len(again.train_dataset) == 12


def test_several_gpus_need_a_process_each(tmp_path, tokenizer):
    trainer = trainer_for(tmp_path, tokenizer)
    trainer.args._n_gpu = 2
    with pytest.raises(ConfigError, match="torchrun"):
        JEPATrainer(trainer.model, trainer.args, step_rows(4), processing_class=tokenizer)


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 64.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(("changes", "warned"), [({}, True), ({"rope_parameters": YARN}, False)])
def test_rows_beyond_what_a_rotary_model_was_made_for(changes, warned, tmp_path, tokenizer, caplog):
    model = tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=32, **changes)
    trainer_for(tmp_path, tokenizer, model=model, objective="regular")
    lines = [one.getMessage() for one in caplog.records if "max_position_embeddings" in one.getMessage()]
    assert len(lines) == warned and all("for 32 positions" in line and "--max_length 32" in line for line in lines)
