"""Regularizers in the loss, what is logged, evaluated and written; rows that are no chats."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from stepjepa.losses.sigreg import random_directions, sigreg_regularizer
from stepjepa.losses.vicreg import vicreg_regularizer
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import lora_config
from stepjepa.training.batches import Draw
from stepjepa.training.run_folder import RunFolder
from support.encoding import views_of
from support.rows import step_rows
from support.training import STEPS, Options, batch_of, logs_of, name_of, trained, trainer_for

TUBE: Options = {"objective": "semantic_tube", "tube_length_adjustment": "cosine_like", "tube_times": 2}

# The regularizer, the log, and evaluation


@pytest.mark.parametrize(("kind", "weight"), [("vicreg", None), ("vicreg", 3.0), ("sigreg", None), ("sigreg", 0.2)])
@pytest.mark.parametrize("target_grad", [True, False])
def test_the_regularizer_enters_the_loss_with_its_weight(tmp_path, tokenizer, kind, weight, target_grad):
    options = {**STEPS, "regularizer": kind, "regularizer_weight": weight, "sigreg_directions": 16}
    trainer = trainer_for(
        tmp_path,
        tokenizer,
        eval_rows=step_rows(6, seed=1),
        per_device_eval_batch_size=6,
        target_grad=target_grad,
        **options,
    )
    used = {"vicreg": 1.0, "sigreg": 0.05}[kind] if weight is None else weight
    batch = batch_of(trainer)
    output = trainer.model(batch=batch)
    source, target = output.source_states, output.target_states
    if kind == "vicreg":
        plain = vicreg_regularizer(source, target, 1.0, 0.04)
    else:
        plain = sigreg_regularizer(source, target, random_directions(32, 16, 0))
    jepa = 1 - torch.cosine_similarity(source, target)
    expected = output.lm_loss_sum / len(batch.label_ids) + 0.5 * (jepa.mean() + used * plain)
    parameters = list(trainer.model.parameters())
    expected_gradient = torch.autograd.grad(expected, parameters)
    loss = trainer.compute_loss(trainer.model, batch)
    assert plain > 1e-2 and loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for got, want in zip(torch.autograd.grad(loss, parameters), expected_gradient, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-3)
    logs, _ = trained(trainer)
    for log in logs:
        parts = log["lm_loss"] + 0.5 * (log["jepa_loss"] + log["regularizer"])
        assert log["loss"] == pytest.approx(parts, rel=1e-5)
    metrics = trainer.evaluate()
    parts = metrics["eval_lm_loss"] + 0.5 * (metrics["eval_jepa_loss"] + metrics["eval_regularizer"])
    assert metrics["eval_loss"] == pytest.approx(parts, rel=1e-5) and metrics["eval_regularizer"] > 0


def test_sigreg_draws_its_directions_anew_every_step(tmp_path, tokenizer):
    trainer = trainer_for(tmp_path, tokenizer, regularizer="sigreg", sigreg_directions=4, **STEPS)
    batch, found = batch_of(trainer), []
    output = trainer.model(batch=batch)
    source, target = output.source_states, output.target_states
    distance = (1 - torch.cosine_similarity(source, target)).mean()
    for step in (0, 3):
        trainer.state.global_step = step
        plain = sigreg_regularizer(source, target, random_directions(32, 4, step))
        expected = output.lm_loss_sum / len(batch.label_ids) + 0.5 * (distance + 0.05 * plain)
        found.append(trainer.compute_loss(trainer.model, batch).item())
        assert found[-1] == pytest.approx(expected.item(), rel=1e-6)
    assert abs(found[0] - found[1]) > 1e-4


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "regular"},
        STEPS,
        {**STEPS, "regularizer": "vicreg", "target_encoder": "ema"},
        TUBE,
        {"objective": "split"},
    ],
    ids=name_of,
)
def test_keys_of_log_and_evaluation(tmp_path, tokenizer, options):
    trainer = trainer_for(tmp_path, tokenizer, eval_rows=step_rows(6, seed=1), gamma=0.5, **options)
    trainer.train()
    metrics = trainer.evaluate()
    names = {"loss", "lm_loss"}
    if options["objective"] != "regular":
        names |= {"jepa_loss", "cosine_similarity", "num_pairs", "target_std", "effective_rank"}
    if "regularizer" in options:
        names |= {"regularizer"}
    timing = {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "epoch"}
    assert metrics.keys() - timing == {f"eval_{name}" for name in names}
    extra = {"tokens_per_second", "grad_norm", "learning_rate", "epoch", "step"}
    assert all(log.keys() - extra == names for log in logs_of(trainer))
    jepa = metrics.get("eval_jepa_loss", 0.0) + metrics.get("eval_regularizer", 0.0)
    assert metrics["eval_loss"] == pytest.approx(0.5 * metrics["eval_lm_loss"] + 0.5 * jepa, rel=1e-6)
    if options["objective"] != "regular":
        draw = trainer.eval_dataset
        pairs = (draw[Draw(0, row)] for row in range(6))
        expected = sum(len(example.pairs) for example in pairs)
        assert metrics["eval_num_pairs"] == expected > 1


# What is written


@pytest.mark.parametrize("kind", ["full", "merged", "adapter"])
def test_the_final_model_is_plain_and_the_predictors_are_next_to_it(tmp_path, tokenizer, kind):
    peft = None if kind == "full" else lora_config(4, dropout=0.0)
    options = {"predictor_head": "mlp", "target_encoder": "ema", "predictors": 2, "merge_lora": kind == "merged"}
    trainer = trainer_for(tmp_path, tokenizer, peft=peft, **STEPS, **options)
    trainer.train()
    final = tmp_path / "final"
    trainer.save_model(str(final))
    saved = load_file(final / "predictors.safetensors")
    own = dict(causal_lm(trainer.model).jepa.named_parameters())
    assert saved.keys() == own.keys() and all(torch.equal(saved[name], own[name]) for name in saved)
    assert {name.partition(".")[0] for name in saved} == {"predictors", "head"}
    (weights,) = [path for path in final.glob("*.safetensors") if path.name != "predictors.safetensors"]
    names = load_file(weights).keys()
    assert weights.name == ("adapter_model.safetensors" if kind == "adapter" else "model.safetensors")
    assert names and not [name for name in names if "jepa" in name or "embed" in name and kind == "adapter"]
    assert not (final / "target_encoder.safetensors").exists()
    if kind == "adapter":
        return
    model, loading = AutoModelForCausalLM.from_pretrained(final, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    assert model.config.vocab_size == len(tokenizer)
    ids = torch.tensor([[7, 8, 9, 10]])
    expected = trainer.model.eval()(input_ids=ids).logits[..., : len(tokenizer)]
    torch.testing.assert_close(model(ids).logits, expected, atol=1e-5, rtol=1e-5)


def test_starting_over_removes_the_predictors_of_the_run_before(tmp_path):
    for name in ("model.safetensors", "predictors.safetensors", "jepa_head.safetensors", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    RunFolder(tmp_path).clear()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_without_predictors_and_head_there_is_no_such_file(tmp_path, tokenizer):
    trainer = trainer_for(tmp_path, tokenizer, predictors=0, **STEPS)
    trainer.save_model(str(tmp_path / "final"))
    assert not (tmp_path / "final" / "predictors.safetensors").exists()


# Rows that are no chats


TEXTS = ["Start with 7. Add 2. We have 9.", "The answer is 12.", "Add 3. Add 4. Add 5. The answer is 12. We have 12."]


def text_ids(tokenizer, text: str) -> list[int]:
    return [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]


@pytest.mark.parametrize("kind", ["text", "input_ids"])
@pytest.mark.parametrize("objective", ["split", "regular"])
def test_plain_text_and_token_ids(tmp_path, tokenizer, kind, objective):
    streams = [text_ids(tokenizer, text) for text in TEXTS]
    rows = [{"text": text} for text in TEXTS]
    if kind == "input_ids":
        rows = [{"input_ids": ids} for ids in streams]
    options = {"objective": objective, "split_ratio": 0.4} if objective == "split" else {"objective": objective}
    trainer = trainer_for(tmp_path, tokenizer, rows, **options)
    store = trainer.train_dataset.store
    assert [example.input_ids.tolist() for example in store] == streams
    assert [example.label_spans for example in store] == [((1, len(ids)),) for ids in streams]
    if objective == "split":
        for example, ids in zip(store, streams, strict=True):
            cut, (view,) = int(len(ids) * 0.4), views_of(example)
            assert view.end == cut - 1 and (view.start, view.stop) == (cut, len(ids))
            assert example.segments[-1].ids.tolist() == ids[cut:]
    trainer.train()
    labels = sum(len(ids) - 1 for ids in streams)
    assert len(batch_of(trainer).label_ids) == labels and trainer.data_reports["train"].labelled_tokens == labels
    pairs = [log.get("num_pairs") for log in logs_of(trainer)]
    assert pairs == ([3, 3] if objective == "split" else [None, None])


def test_long_text_is_cut_into_blocks_that_each_have_a_pair(tmp_path, tokenizer):
    text = " ".join(TEXTS) + " We have 12."
    ids = text_ids(tokenizer, text)
    trainer = trainer_for(tmp_path, tokenizer, [{"text": text}], objective="split", max_length=16)
    assert len(ids) % 16 > 3, "a shorter rest has no pair"
    blocks = [example.input_ids.tolist() for example in trainer.train_dataset.store]
    assert sum(blocks, []) == ids and len(blocks) > 2 and {len(block) for block in blocks[:-1]} == {16}
    assert trainer.data_reports["train"].pairs == len(blocks)


def test_two_named_columns(tmp_path, tokenizer):
    rows = [{"from": f"Add {n}.", "to": f"We have {n}.\n\nThe answer is {n}.", "text": "not read"} for n in range(3, 9)]
    chats = [{"question": row["from"], "answer": row["to"]} for row in rows]
    for options in ({"objective": "llm_jepa"}, STEPS, {"objective": "semantic_tube"}):
        named = trainer_for(tmp_path, tokenizer, rows, source_column="from", target_column="to", **options)
        known = trainer_for(tmp_path, tokenizer, chats, **options)
        for got, want in zip(named.train_dataset.store, known.train_dataset.store, strict=True):
            assert got.input_ids.tolist() == want.input_ids.tolist() and got.pairs == want.pairs
            assert got.view_spans == want.view_spans and got.view_pairs
        named.train()
        assert all(log["num_pairs"] > 1 for log in logs_of(named))


def test_multiple_choice(tmp_path, tokenizer):
    rows = [{"q": f"Add {n} and 1.", "choices": [f"{n}.", f"It is {n + 1}.", "9."], "label": n % 3} for n in range(6)]
    rows[4]["label"], rows[5]["label"] = 3, "1"
    columns = {"source_column": "q", "target_column": "choices", "choice_column": "label"}
    trainer = trainer_for(tmp_path, tokenizer, rows, objective="llm_jepa", **columns)
    report = trainer.data_reports["train"]
    assert (report.rows_kept, report.pairs, dict(report.rows_skipped)) == (5, 5, {"no_such_choice": 1})
    answers = []
    for example in trainer.train_dataset.store:
        (view,) = views_of(example)
        answers.append(tokenizer.decode(example.trunk[view.start : view.stop]))
    assert answers == ["0.", "It is 2.", "9.", "3.", "It is 6."]
    trainer.train()
    assert len(logs_of(trainer)) == 2 and math.isfinite(logs_of(trainer)[0]["loss"])
