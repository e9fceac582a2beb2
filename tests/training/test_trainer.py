"""`JEPATrainer` from Python: what is trained, logged, evaluated and written."""

from __future__ import annotations

import datasets
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepjepa.data.sources import texts_of
from stepjepa.errors import ConfigError, DataError
from stepjepa.modeling.load import load_model, load_tokenizer, lora_config
from stepjepa.training.config import JEPAConfig
from stepjepa.training.meter import collapse_signs
from stepjepa.training.trainer import JEPATrainer
from support.rows import step_rows


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny", (message["content"] for row in step_rows(40) for message in row["messages"]))


def trainer_for(tmp_path, tokenizer, rows=None, peft=None, eval_rows=None, model=None, **options):
    arguments = {"objective": "step_jepa", "max_steps": 4, "logging_steps": 1, "save_strategy": "no", **options}
    config = JEPAConfig(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=arguments.pop("batch", 4),
        learning_rate=1e-3,
        disable_tqdm=True,
        **arguments,
    )
    model = model or load_model("tiny", tokenizer, seed=1)
    return JEPATrainer(model, config, rows or step_rows(24), eval_rows, tokenizer, peft)


def weights(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("objective", ["step_jepa", "llm_jepa"])
@pytest.mark.parametrize("predictors", [0, 2])
def test_lbd_zero_equals_regular_bit_for_bit(tmp_path, tokenizer, objective, predictors):
    results = []
    for options in ({"objective": "regular"}, {"objective": objective, "lbd": 0.0, "predictors": predictors}):
        trainer = trainer_for(tmp_path, tokenizer, **options)
        trainer.train()
        results.append((weights(trainer.model), [e["loss"] for e in trainer.state.log_history if "loss" in e]))
    (regular, regular_loss), (zero, zero_loss) = results
    assert regular_loss == zero_loss and len(zero_loss) == 4
    assert regular.keys() == zero.keys()
    for name in regular:
        assert torch.equal(regular[name], zero[name]), name


def test_an_adapter_begins_with_the_seed_alone(tmp_path, tokenizer):
    """Arms and seeds are compared in pairs: what was drawn before must not matter."""
    found = []
    for seed, before in ((3, 0), (3, 1), (4, 0)):
        torch.manual_seed(before)
        trainer = trainer_for(tmp_path, tokenizer, peft=lora_config(4), seed=seed, predictors=2)
        found.append({name: value for name, value in weights(trainer.model).items() if "lora_A" in name})
    assert found[0] and all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert not any(torch.equal(found[0][name], found[2][name]) for name in found[0])


@pytest.mark.parametrize("logging_steps", [1, 3])
def test_the_final_losses_are_means_only(tmp_path, tokenizer, logging_steps):
    """With 4 steps the last log was written behind step 4 or behind step 3."""
    trainer = trainer_for(tmp_path, tokenizer, logging_steps=logging_steps, regularizer="vicreg", predictors=0)
    trainer.train()
    names = "lm_loss jepa_loss cosine_similarity regularizer target_std effective_rank".split()
    assert list(trainer.recent_losses()) == names


def test_the_jepa_loss_changes_the_weights(tmp_path, tokenizer):
    """The test above can fail: with lbd > 0 the same runs differ."""
    ends = []
    for lbd in (0.0, 0.5):
        trainer = trainer_for(tmp_path, tokenizer, lbd=lbd, predictors=0)
        trainer.train()
        ends.append(weights(trainer.model))
    assert not torch.equal(ends[0]["model.norm.weight"], ends[1]["model.norm.weight"])


@pytest.mark.parametrize("loss", ["cosine", "l2", "mse", "infonce"])
def test_every_trainable_parameter_moves(tmp_path, tokenizer, loss):
    trainer = trainer_for(tmp_path, tokenizer, predictors=3, lbd=1.0, jepa_loss=loss)
    before = weights(trainer.model)
    trainer.train()
    for name, value in trainer.model.named_parameters():
        assert not torch.equal(value, before[name]), name
    moved = (trainer.model.jepa.predictors.weight - before["jepa.predictors.weight"]).abs()
    assert (moved.sum(dim=-1) > 0).all()


def test_lora_trains_the_adapter_and_the_predictor_rows_only(tmp_path, tokenizer):
    trainer = trainer_for(tmp_path, tokenizer, predictors=2, lbd=1.0, peft=lora_config(4, dropout=0.0))
    before = weights(trainer.model)
    trainer.train()
    moved = {name for name, value in trainer.model.named_parameters() if not torch.equal(value, before[name])}
    trained = {name for name, value in trainer.model.named_parameters() if value.requires_grad}
    assert moved == trained
    assert any("jepa.predictors" in name for name in moved)
    assert all("lora_" in name or "jepa.predictors" in name for name in moved)
    delta = [value for name, value in trainer.model.named_parameters() if "jepa.predictors" in name][0]
    old = [value for name, value in before.items() if "jepa.predictors" in name][0]
    assert ((delta - old).abs().sum(dim=-1) > 0).tolist() == [True, True]


def test_logs_and_evaluate(tmp_path, tokenizer):
    trainer = trainer_for(tmp_path, tokenizer, eval_rows=step_rows(7, seed=1), step_pairs="all")
    trainer.train()
    log = next(entry for entry in trainer.state.log_history if "loss" in entry)
    expected = {"loss", "lm_loss", "jepa_loss", "cosine_similarity", "num_pairs", "tokens_per_second"}
    assert expected | {"target_std", "effective_rank", "grad_norm", "learning_rate"} <= log.keys()
    assert log["loss"] == pytest.approx(log["lm_loss"] + 0.1 * log["jepa_loss"], abs=1e-5)
    assert log["jepa_loss"] == pytest.approx(1 - log["cosine_similarity"], abs=1e-5)
    metrics = trainer.evaluate()
    assert {"eval_loss", "eval_lm_loss", "eval_jepa_loss", "eval_cosine_similarity"} <= metrics.keys()
    assert metrics["eval_num_pairs"] == trainer.data_reports["eval"].pairs
    assert metrics["eval_loss"] == pytest.approx(metrics["eval_lm_loss"] + 0.1 * metrics["eval_jepa_loss"])


def test_evaluate_does_not_depend_on_the_batch_size(tmp_path, tokenizer):
    values = []
    for size in (1, 3, 8):
        trainer = trainer_for(tmp_path, tokenizer, eval_rows=step_rows(7, seed=1), per_device_eval_batch_size=size)
        values.append(trainer.evaluate())
    for other in values[1:]:
        for name in ("eval_lm_loss", "eval_jepa_loss"):
            assert other[name] == pytest.approx(values[0][name], abs=1e-5)


def test_save_model_has_the_vocabulary_and_tokenizer_as_they_came(tmp_path, tokenizer):
    trainer = trainer_for(tmp_path, tokenizer, predictors=2)
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    assert model.config.vocab_size == len(tokenizer) == model.get_input_embeddings().weight.shape[0]
    assert AutoTokenizer.from_pretrained(tmp_path / "final").get_vocab() == tokenizer.get_vocab()
    ids = torch.tensor([[7, 8, 9]])
    trained = trainer.model.eval()(ids).logits
    torch.testing.assert_close(model(ids).logits, trained, atol=1e-5, rtol=1e-5)
    assert model.generate(ids, max_new_tokens=3).shape[1] > 3


def test_takes_a_name_and_a_datasets_dataset(tmp_path, tokenizer):
    load_model("tiny", tokenizer, seed=1).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    config = JEPAConfig(output_dir=str(tmp_path / "out"), objective="llm_jepa", max_steps=1, save_strategy="no")
    trainer = JEPATrainer(str(tmp_path / "base"), config, datasets.Dataset.from_list(step_rows(8)))
    trainer.train()
    assert trainer.data_reports["train"].pairs == 8


def test_a_preset_is_made_with_a_tokenizer_of_the_data(tmp_path, tokenizer):
    rows, config = step_rows(12), JEPAConfig(output_dir=str(tmp_path / "out"), objective="regular")
    made = JEPATrainer("tiny", config, iter(rows))
    assert len(made.train_dataset) == 12 and made.model.config.hidden_size == 96
    assert made.processing_class.get_vocab() == load_tokenizer("tiny", texts_of([rows])).get_vocab()
    with pytest.raises(ConfigError, match="give them as train_dataset, or processing_class"):
        JEPATrainer("tiny", config)
    assert JEPATrainer("tiny", config, processing_class=tokenizer).train_dataset is None
    with pytest.raises(ConfigError, match="did you mean tiny"):
        JEPATrainer("tinny", config, rows)


def test_jepa_ratio_keeps_a_share_of_the_pairs(tmp_path, tokenizer):
    rows = [row for row in step_rows(200) if "\n\n" in row["messages"][1]["content"]]
    trainer = trainer_for(tmp_path, tokenizer, rows=rows, jepa_ratio=0.25, max_steps=-1, num_train_epochs=1, batch=32)
    trainer.train()
    seen = sum(entry.get("num_pairs", 0) for entry in trainer.state.log_history)
    assert 0.15 * len(rows) < seen < 0.35 * len(rows)


def test_data_loader_workers_give_the_same_run(tmp_path, tokenizer):
    losses = []
    for workers in (0, 2):
        trainer = trainer_for(tmp_path, tokenizer, dataloader_num_workers=workers, jepa_ratio=0.5, max_steps=8)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == losses[1] and len(losses[0]) == 8


def test_no_pair_at_all_is_an_error(tmp_path, tokenizer):
    rows = [{"question": "Hello?", "answer": "One step."}] * 3
    with pytest.raises(DataError, match="no example has a pair for step_jepa"):
        trainer_for(tmp_path, tokenizer, rows=rows)


def test_several_gpus_in_one_process_are_refused(tmp_path, tokenizer):
    config = JEPAConfig(output_dir=str(tmp_path), objective="regular")
    config._n_gpu = 2
    with pytest.raises(ConfigError, match="torchrun"):
        JEPATrainer(load_model("tiny", tokenizer), config, step_rows(4), processing_class=tokenizer)


def test_bloom_falls_back_to_two_pass(tmp_path, tokenizer, caplog):
    from transformers import BloomConfig

    config = BloomConfig(vocab_size=len(tokenizer), hidden_size=32, n_layer=2, n_head=4)
    trainer = trainer_for(tmp_path, tokenizer, model=AutoModelForCausalLM.from_config(config))
    assert trainer.setup.forward == "two_pass"
    assert "two_pass, because" in caplog.text
    trainer.train()
    assert trainer.state.global_step == 4
    with pytest.raises(ConfigError, match="use --forward two_pass"):
        trainer_for(tmp_path, tokenizer, model=AutoModelForCausalLM.from_config(config), forward="packed")


def test_resuming_from_python_passes_over_a_half_written_checkpoint(tmp_path, tokenizer):
    trainer = trainer_for(tmp_path, tokenizer, save_strategy="steps", save_steps=2)
    trainer.train()
    (tmp_path / "out" / "checkpoint-4" / "trainer_state.json").write_text('{"half')
    again = trainer_for(tmp_path, tokenizer, save_strategy="no")
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 4
    for name, value in weights(trainer.model).items():
        assert torch.equal(weights(again.model)[name], value), name
    with pytest.raises(ConfigError, match="no checkpoint to go on from"):
        trainer_for(tmp_path / "empty", tokenizer).train(resume_from_checkpoint=True)


def test_evaluate_takes_rows(tmp_path, tokenizer):
    rows = step_rows(7, seed=1)
    trainer = trainer_for(tmp_path, tokenizer, eval_rows=rows)
    assert trainer.evaluate(rows)["eval_loss"] == trainer.evaluate()["eval_loss"]


def test_gpt_neo_falls_back_to_two_pass(tmp_path, tokenizer):
    """Its local attention goes by the place in the row, where a branch is not beside its source."""
    from transformers import GPTNeoConfig

    types = [[["global", "local"], 1]]
    config = GPTNeoConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_layers=2, num_heads=4, attention_types=types, window_size=16
    )
    trainer = trainer_for(tmp_path, tokenizer, model=AutoModelForCausalLM.from_config(config))
    assert trainer.setup.forward == "two_pass"


def test_states_that_are_not_finite_do_not_stop_the_log():
    signs = collapse_signs([torch.full((4, 8), float("nan"))])
    assert signs.keys() == {"target_std", "effective_rank"} and signs["target_std"] != signs["target_std"]
