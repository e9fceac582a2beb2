"""The FLOPs of a batch equal what torch counts on the real forward and backward, exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode

from stepjepa.forest.collate import ForestCollator, TwoPassCollator
from stepjepa.losses.lm import linear_cross_entropy_sum
from stepjepa.modeling.extras import PredictorRows, add_extras
from stepjepa.modeling.flops import KERNELS, ModelCost, PassCost, batch_flops
from stepjepa.modeling.forward import attach_forest_forward, causal_lm
from stepjepa.modeling.masks import SEGMENTS, use_attention
from support.models import ARCHITECTURES, TRAINED_VOCABULARY, Views, made_up_example, made_up_examples, tiny_model

LINEAR = "all-linear"


def predictor_ids(count: int) -> tuple[int, ...]:
    return tuple(range(TRAINED_VOCABULARY, TRAINED_VOCABULARY + count))


def ready(name="llama", attention="sdpa", lora="", rows=False, **changes):
    """A model in training mode that takes batches; `lora` names the layers that are adapted, `rows` gives it two predictors
    of its own."""
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


def batches(count, attention="sdpa", examples=None, every=False):
    """Targets apart, two passes, and one row by segments; with `every` all other layouts as well."""
    examples, ids = examples or made_up_examples(count), predictor_ids(count)
    one = ForestCollator(ids, 0)
    yield replace(one, separate_targets=True)(examples)
    yield TwoPassCollator(ids, 0)(examples)
    if attention == "sdpa":
        yield one.in_one_row(examples)
    if every:
        yield one(examples)
        yield ForestCollator(ids, 0, max_row_length=40)(examples)
        yield replace(one, inline=True)(examples)
        yield TwoPassCollator(ids, 0, separate_targets=True)(examples)
        yield ForestCollator(ids, 0, attention_length=1, segmented=True, separate_targets=True)(examples)


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
    *((name, "sdpa", LINEAR, False, 2) for name in ("llama", "gpt_neox", "phi3")),
    *((name, "sdpa", LINEAR, True, 2) for name in ("llama", "gpt2")),
    *(("llama", "sdpa", lora, False, 1) for lora in ("q_proj", "v_proj", "down_proj", "lm_head+v_proj")),
]


# What differs from others in its sizes alone.
ALIKE = {"qwen2", "qwen3", "olmo2", "granite_scaled_logits", "gpt_neox"}
QUICK = [pytest.param(*case, marks=pytest.mark.long if case[0] in ALIKE else ()) for case in TRAINED]


@pytest.mark.parametrize(("name", "attention", "lora", "rows", "count"), QUICK)
def test_what_is_trained(name, attention, lora, rows, count):
    every = (name, attention, lora) == ("llama", "sdpa", "")
    check(ready(name, attention, lora, rows), count, attention, every=every)


# With adapters not `mixtral`: see test_lora_on_experts_is_exact_but_for_a_constant.
AGAIN = [
    ("gemma2", "eager", ""),
    ("llama", "sdpa", LINEAR),
    *((name, "sdpa", "") for name in ("llama", "gpt2", "mixtral")),
]


@pytest.mark.parametrize(("name", "attention", "lora"), AGAIN)
def test_gradient_checkpointing(name, attention, lora):
    model = ready(name, attention, lora)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
    assert ModelCost.of(model, TRAINED_VOCABULARY).train.read == 0
    check(model, 2, attention)


def test_checkpointing_repeats_the_last_product_where_something_follows_it():
    model = ready("gpt2", resid_pdrop=0.1)
    model.gradient_checkpointing_enable()
    check(model, 1)


def test_lora_on_experts_is_exact_but_for_a_constant():
    """In every call PEFT adds B @ A to the weights of all experts and of the router."""
    model = ready("mixtral", lora=LINEAR)
    cost = ModelCost.of(model, TRAINED_VOCABULARY)
    batches = [ForestCollator(predictor_ids(2), 0)(made_up_examples(2)[:count]) for count in (1, 4)]
    constant, other = (counted(model, batch) - batch_flops(batch, cost) for batch in batches)
    assert other == constant > 0


@pytest.fixture(scope="module")
def plain_cost():
    return ModelCost.of(ready(), TRAINED_VOCABULARY)


@pytest.mark.parametrize(("kind", "matrices"), [("linear", 1), ("mlp", 4)])
def test_predictor_head(kind, matrices, plain_cost):
    model = ready()
    add_extras(model, None, kind)
    cost = ModelCost.of(model, TRAINED_VOCABULARY)
    assert cost == replace(plain_cost, source=3 * matrices * 2 * 32 * 32) and plain_cost.source == 0
    batch = ForestCollator(predictor_ids(1), 0)(made_up_examples(1))
    assert batch_flops(batch, cost) == counted(model, batch)


def test_means_and_layers():
    model = ready()
    add_extras(model, None, "linear")
    check(model, 0, examples=made_up_examples(0, mean=True, layer=1))


def test_long_heads_are_computed_again():
    cost = ModelCost.of(ready("granite_scaled_logits"), TRAINED_VOCABULARY)
    assert cost.chunk == 2**26 // TRAINED_VOCABULARY
    states, weight = torch.randn(50, 32, requires_grad=True), torch.randn(TRAINED_VOCABULARY, 32, requires_grad=True)
    for rows in (50, 16):
        with FlopCounterMode(display=False) as counter:
            limit = 4 * TRAINED_VOCABULARY * rows
            labels = torch.zeros(50, dtype=torch.int64)
            linear_cross_entropy_sum(states, weight, labels, scale=0.5, max_logits_bytes=limit).backward()
        assert counter.get_total_flops() == replace(cost, chunk=rows).heads(50, 0)
    assert replace(cost, chunk=16).heads(50, 0) == 4 / 3 * cost.heads(50, 0)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "linear_cross_entropy"), reason="this torch has no kernel for it")
def test_torchs_own_kernel_repeats_nothing(plain_cost):
    assert plain_cost.label_again == 0
    assert ModelCost.of(ready(), TRAINED_VOCABULARY, autocast=True).label_again > 0


# Every token costs 1, in the last MLP 10, each key 100, each label 1000. Nothing is trained. A trunk of 6 tokens predicts
# 4 labels; a branch has 2 predictors after 3 tokens of it, and a target 3 tokens.
BY_HAND = ModelCost(PassCost(1, 10, 100), PassCost(1, 10, 100), 1000, 0, 10**6, 0)
PREDICTORS, VIEWS = predictor_ids(2), [Views(2, 3, 6)]
PACKED = ForestCollator(PREDICTORS, 0, pad_to_multiple_of=12)


@pytest.mark.parametrize(
    ("views", "collate", "flops"),
    [
        # One padded token; 4 labels, the source and the target are read.
        (VIEWS, PACKED, 12 + 6 * 10 + 12 * 1200 + 4000),
        # A branch that serves two targets sees 6 + 2 keys; trunk and targets see themselves.
        ([*VIEWS, Views(2, 4, 6)], PACKED.in_one_row, 13 + 70 + 100 * (6 * 6 + 2 * 8 + 3 * 3 + 2 * 2) + 4000),
        # Rows of 6 tokens, and of 5 (3 of the trunk and the predictors) and 3, padded to 5.
        (VIEWS, TwoPassCollator(PREDICTORS, 0), 6 * 611 + 2 * 5 * 511 + 4000),
    ],
)
def test_by_hand(views, collate, flops, monkeypatch):
    monkeypatch.setattr("stepjepa.forest.layout.CALL_COST", 0)
    assert batch_flops(collate([made_up_example(6, views, predictors=2)]), BY_HAND) == flops


def test_the_model_is_left_as_it_was():
    """Costs may be asked for between two micro-batches, and some optimizers step in hooks on gradients."""
    model, called = ready(attention_dropout=0.5), []
    model.model.layers[0].eval()
    weight, *others = model.parameters()
    weight.grad = torch.ones_like(weight)
    weight.register_post_accumulate_grad_hook(called.append)
    modes = [part.training for part in model.modules()]
    state = torch.random.get_rng_state()
    with torch.no_grad():
        cost = ModelCost.of(model, TRAINED_VOCABULARY)
    assert cost.train.token > cost.forward.token
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [part.training for part in model.modules()] == modes
    assert model.config._attn_implementation == "sdpa"
    assert not any(part._forward_pre_hooks for part in model.modules())
    assert torch.equal(weight.grad, torch.ones_like(weight)) and not called
    assert all(parameter.grad is None for parameter in others)
    model(batch=ForestCollator((), 0)(made_up_examples(0))).lm_loss_sum.backward()
    assert len(called) == 1 and not torch.equal(weight.grad, torch.ones_like(weight))
