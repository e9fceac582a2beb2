"""The FLOPs of a batch equal what torch counts on the real forward and backward, exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode

from stepjepa.forest.collate import ForestCollator, TwoPassCollator
from stepjepa.modeling.extras import PredictorRows, add_extras
from stepjepa.modeling.flops import KERNELS, ModelCost, batch_flops
from stepjepa.modeling.forward import attach_forest_forward, causal_lm
from stepjepa.modeling.lora import lora_config
from stepjepa.modeling.masks import SEGMENTS, use_attention
from support.models import ARCHITECTURES, TRAINED_VOCABULARY, made_up_examples, tiny_model
from support.training import STEPS, trained, trainer_for

LINEAR = "all-linear"


def predictor_ids(count: int) -> tuple[int, ...]:
    return tuple(range(TRAINED_VOCABULARY, TRAINED_VOCABULARY + count))


def ready(name="llama", attention="sdpa", lora="", rows=False, **changes):
    """A model in training mode that takes batches; `lora` names adapted layers, `rows` adds two predictors."""
    model = tiny_model(name, attention, **changes)
    if lora:
        targets = lora if lora == LINEAR else lora.split("+")
        model = get_peft_model(model, LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=targets))
    if rows:
        width = model.get_input_embeddings().weight.shape[1]
        add_extras(causal_lm(model), PredictorRows(torch.randn(2, width), TRAINED_VOCABULARY))
    attach_forest_forward(model, TRAINED_VOCABULARY)
    return model.train()


def counted(model, batch) -> int:
    """What torch counts in forward and backward; the losses on states have no matrix products."""
    with FlopCounterMode(display=False, custom_mapping=KERNELS) as counter:
        output = model(batch=batch)
        loss = output.lm_loss_sum + output.source_states.square().sum()
        (loss + output.target_states.square().sum()).backward()
    return counter.get_total_flops()


def batches(count, attention="sdpa", every=False):
    """Targets apart, two passes, and one row by segments; with `every` all other layouts as well."""
    examples, ids = made_up_examples(count), predictor_ids(count)
    one = ForestCollator(ids, 0)
    yield replace(one, separate_targets=True)(examples)
    yield TwoPassCollator(ids, 0)(examples)
    if attention == "sdpa":
        yield replace(one, one_row=True)(examples)
    if every:
        yield one(examples)
        yield ForestCollator(ids, 0, max_row_length=40)(examples)
        yield replace(one, inline=True)(examples)
        yield TwoPassCollator(ids, 0, separate_targets=True)(examples)
        yield ForestCollator(ids, 0, one_row=True, separate_targets=True)(examples)


def check(model, *layouts, **changes):
    """Every form of a batch (of `batches`) costs what torch counts."""
    cost = ModelCost.of(model, TRAINED_VOCABULARY)
    for batch in batches(*layouts, **changes):
        by_segments = any(rows.forests is not None for rows in batch.every_rows)
        if by_segments:
            use_attention(causal_lm(model), SEGMENTS)
        assert batch_flops(batch, cost) == counted(model, batch)
        if by_segments:
            use_attention(causal_lm(model), "sdpa")


# What is trained: all weights; adapters on all or some layers, with predictor rows below the first layer, whose inputs then
# need gradients that they do not need otherwise, or without.
TRAINED = [
    *((name, kinds[0], "", False, 2) for name, (_, _, kinds) in ARCHITECTURES.items()),
    *(("llama", "sdpa", "", False, 0), ("llama", "eager", "", False, 2), ("llama", "eager", "q_proj", False, 1)),
    *((name, "sdpa", LINEAR, False, 2) for name in ("llama", "phi3")),
    *((name, "sdpa", LINEAR, True, 2) for name in ("llama", "gpt2")),
    *(("llama", "sdpa", lora, False, 1) for lora in ("q_proj", "v_proj", "lm_head+v_proj")),
]


# What differs from others in its sizes alone.
ALIKE = {"qwen2", "qwen3", "olmo2", "granite_scaled_logits", "gpt_neox"}
QUICK = [pytest.param(*case, marks=pytest.mark.long if case[0] in ALIKE else ()) for case in TRAINED]


@pytest.mark.parametrize(("name", "attention", "lora", "rows", "count"), QUICK)
def test_what_is_trained(name, attention, lora, rows, count):
    every = (name, attention, lora) == ("llama", "sdpa", "")
    check(ready(name, attention, lora, rows), count, attention, every=every)


@pytest.mark.parametrize(
    ("name", "lora", "changes"),
    [
        ("llama", LINEAR, {}),
        ("gpt2", "", {}),
        ("gpt2", "", {"resid_pdrop": 0.1}),  # the last product is repeated where something follows it
        ("mixtral", "", {}),
    ],
)
def test_gradient_checkpointing(name, lora, changes):
    model = ready(name, lora=lora, **changes)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
    assert ModelCost.of(model, TRAINED_VOCABULARY).train.read == 0
    check(model, 2)


def test_counting_changes_nothing(tmp_path, tokenizer):
    """The costs of a model are measured between its micro-batches; it has dropout."""
    options = {"gradient_accumulation_steps": 2, "peft": lora_config(4, dropout=0.1), **STEPS}
    plain, counted = (trained(trainer_for(tmp_path, tokenizer, track_flop=on, **options))[1] for on in (False, True))
    assert len(plain) == 2 and all(torch.equal(one, other) for one, other in zip(plain, counted, strict=True))
