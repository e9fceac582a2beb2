"""Against reference values computed elsewhere (see the README beside them): LM and JEPA losses of a fixed model."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from stepjepa.data.sources import RowSource
from stepjepa.forest.collate import ForestCollator, TwoPassCollator
from stepjepa.modeling.forward import attach_forest_forward
from stepjepa.objectives.base import objective_of
from stepjepa.training.datasets import encode
from stepjepa.training.options import JEPAOptions


@pytest.fixture(scope="module")
def model(golden):
    model = AutoModelForCausalLM.from_pretrained(golden / "llama_tiny", dtype=torch.float32).eval()
    attach_forest_forward(model, model.config.vocab_size)
    return model


@pytest.fixture(scope="module")
def values(golden):
    return json.loads((golden / "step.json").read_text())


def examples_for(golden, tokenizer, **options):
    settings = JEPAOptions(objective="step_jepa", **options)
    settings.check()
    return list(encode(RowSource(golden / "examples_steps.jsonl"), tokenizer, settings)[0]), settings


def test_lm_loss(golden, golden_tokenizer, model, values):
    examples, _ = examples_for(golden, golden_tokenizer, predictors=0)
    with torch.no_grad():
        output = model(batch=ForestCollator((), 0)(examples))
    expected = values["lm"]
    labels = sum(stop - start for example in examples for start, stop in example.labels)
    assert labels == expected["n_tokens"]
    assert float(output.lm_loss_sum) / labels == pytest.approx(expected["loss_token_mean"], rel=2e-5)


def test_step_jepa_cases(golden, golden_tokenizer, model, values):
    assert len(values["cases"]) >= 8
    for case in values["cases"]:
        ids = [golden_tokenizer.convert_tokens_to_ids(f"<|predictor_{k}|>") for k in range(1, case["K"] + 1)]
        if case["order"] == "descending":
            ids.reverse()
        examples, settings = examples_for(golden, golden_tokenizer, jepa_loss=case["loss"], predictors=case["K"])
        for collator in (ForestCollator(tuple(ids), 0), TwoPassCollator(tuple(ids), 0)):
            model.zero_grad()
            output = model(batch=collator(examples))
            loss = objective_of(settings).distances(output.source_states, output.target_states).mean()
            assert loss.item() == pytest.approx(case["jepa_loss"], rel=2e-5, abs=1e-6), case
            if "cosine_per_example" in case:
                cosines = torch.cosine_similarity(output.source_states, output.target_states, dim=-1)
                torch.testing.assert_close(cosines, torch.tensor(case["cosine_per_example"]), atol=1e-5, rtol=1e-4)
            loss.backward()
            norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
            assert norm.item() == pytest.approx(case["grad_norm"], rel=1e-4), case
