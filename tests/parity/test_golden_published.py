"""The published values through the trainer: `JEPATrainer.evaluate()` on the reference model and rows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from stepjepa.modeling.extras import predictor_names
from stepjepa.training.config import JEPAConfig
from stepjepa.training.trainer import JEPATrainer


@pytest.fixture
def trainer_for(golden, golden_tokenizer, tmp_path):
    def make(objective, model=None, max_length=192, **options):
        size = {"per_device_eval_batch_size": 8, "per_device_train_batch_size": 8, "max_length": max_length}
        config = JEPAConfig(str(tmp_path), objective=objective, disable_tqdm=True, **size, **options)
        model = model or AutoModelForCausalLM.from_pretrained(golden / "llama_tiny", dtype=torch.float32)
        rows = golden / "examples_synth.jsonl"
        return JEPATrainer(model, config, eval_dataset=rows, processing_class=golden_tokenizer)

    return make


@pytest.mark.parametrize("forward", ["packed", "two_pass"])
def test_standalone_views(golden, trainer_for, forward):
    values = json.loads((golden / "official.json").read_text())
    assert len(values["losses"]) >= 8
    for case in values["losses"]:
        own = {"predictors": case["predictors"], "last_token": case["last_token"], "jepa_loss": case["loss"]}
        metrics = trainer_for("llm_jepa", views="standalone", forward=forward, **own).evaluate()
        assert metrics["eval_num_pairs"] == 8
        assert metrics["eval_jepa_loss"] == pytest.approx(case["jepa_loss"], abs=1e-5), case


def test_standalone_token_ids(golden, trainer_for):
    values = json.loads((golden / "official.json").read_text())["token_ids"]
    for count, rows in values.items():
        trainer = trainer_for("llm_jepa", views="standalone", predictors=int(count))
        # This tokenizer knows predictor tokens; the rows begin as its vocabulary's and have ids of their own.
        predictors = trainer.processing_class.convert_tokens_to_ids(predictor_names(int(count)))[::-1]
        for example, row in zip(trainer.eval_dataset.store, rows, strict=True):
            views = [index for segment in example.segments for index in segment.tokens(predictors).tolist()]
            assert example.trunk.tolist() == row["full"]
            assert views == row["user"] + row["assistant"]


def test_label_rules(golden, trainer_for):
    values = {row["labels"]: row for row in json.loads((golden / "official.json").read_text())["lm_by_label_rule"]}
    for labels, rule in (("assistant", "content_plus_eot"), ("reference", "collator_pad_is_eot")):
        trainer = trainer_for("regular", labels=labels)
        assert trainer.evaluate()["eval_lm_loss"] == pytest.approx(values[rule]["plain_hf_loss"], rel=2e-6)
        assert trainer.data_reports["eval"].labelled_tokens == values[rule]["n_target_tokens"]


def test_gradients(golden, trainer_for):
    values = json.loads((golden / "official.json").read_text())["gradients"]
    weights = {"jepa_only": (0.0, 1.0), "gamma1_lbd0.5": (1.0, 0.5)}
    for case in values:
        if case["what"] not in weights:
            continue
        gamma, lbd = weights[case["what"]]
        trainer = trainer_for("llm_jepa", views="standalone", predictors=1, gamma=gamma, lbd=lbd, last_token=-2)
        batch = trainer.data_collator(list(trainer.eval_dataset.store))
        counts = trainer._step_counts([batch])
        # The reference labels are the answer without its end of turn: 74 of our 82 labelled tokens.
        ids = trainer.processing_class.convert_tokens_to_ids("<|eot_id|>")
        kept = batch.label_ids != ids
        batch = replace(batch, label_ids=batch.label_ids[kept], label_positions=batch.label_positions[kept])
        counts[0] = batch.label_ids.numel()
        loss = trainer.compute_loss(trainer.model, batch, num_items_in_batch=counts)
        assert loss.item() == pytest.approx(case["total_loss"], rel=2e-5)
        loss.backward()
        gradients = [p.grad.norm() for p in trainer.model.parameters() if p.grad is not None]
        assert torch.stack(gradients).norm().item() == pytest.approx(case["grad_norm"], rel=1e-4)
        row = trainer.model.jepa.predictors.weight.grad[0]
        assert row.norm().item() == pytest.approx(case["grad_norm_predictor_1_row"], rel=1e-4)


def test_semantic_tube_without_draws(golden, trainer_for):
    values = json.loads((golden / "semantic_tube.json").read_text())["cases"]
    modes = {"linear e2e": "e2e", "curvature": "curvature"}
    cases = [case for case in values if case["case"] in modes]
    assert len(cases) == 2
    for case in cases:
        metrics = trainer_for("semantic_tube", tube_mode=modes[case["case"]]).evaluate()
        assert metrics["eval_jepa_loss"] == pytest.approx(case["jepa_loss"], rel=2e-5)


def nanogpt(golden):
    """The reference nanoGPT as the GPT-2 of transformers, which stores its matrices transposed."""
    from safetensors.torch import load_file

    values = json.loads((golden / "nanogpt.json").read_text())
    sizes = values["meta"]["config"]
    own = {name: sizes[name] for name in ("vocab_size", "n_embd", "n_layer", "n_head")}
    own |= dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    model = GPT2LMHeadModel(GPT2Config(n_positions=sizes["block_size"], activation_function="gelu", **own))
    weights = load_file(golden / "nanogpt_tiny.safetensors")
    vector = weights.pop("pred_token").flatten()
    matrices = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    weights = {name: value.T.contiguous() if name.endswith(matrices) else value for name, value in weights.items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not [name for name in missing if name != "lm_head.weight"], missing
    assert all(name.endswith("attn.bias") for name in unexpected), unexpected
    model.tie_weights()
    return model, vector, values


@pytest.mark.parametrize("forward", ["packed", "two_pass"])
def test_split(golden, trainer_for, forward):
    model, vector, values = nanogpt(golden)
    for case in values["cases"]:
        own = {"predictors": case["k"], "split_ratio": case["split"], "same_predictor": True, "forward": forward}
        trainer = trainer_for("split", model, max_length=40, **own)
        if case["k"]:
            trainer.model.jepa.predictors.weight.data[:] = vector
        store = trainer.eval_dataset.store
        assert [example.trunk.tolist() for example in store] == values["x"]
        batch = trainer.data_collator(list(store))
        with torch.no_grad():
            output = trainer.model(batch=batch)
        torch.testing.assert_close(output.source_states[0, :4], torch.tensor(case["z_pred_first4"]), atol=1e-5, rtol=0)
        torch.testing.assert_close(output.target_states[0, :4], torch.tensor(case["z_tgt_first4"]), atol=1e-5, rtol=0)
        assert trainer.evaluate()["eval_jepa_loss"] == pytest.approx(case["jepa_cosine"], abs=1e-5)
