"""The estimated FLOPs of a batch equal what torch counts on forward and backward of models that are trained whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode

from stepjepa.forest.collate import ForestCollator, TwoPassCollator
from stepjepa.modeling.extras import PredictorRows, add_extras
from stepjepa.modeling.forward import ModelCost, PassCost, attach_forest_forward, batch_flops, causal_lm
from support.models import ARCHITECTURES, TRAINED_VOCABULARY, Views, made_up_example, made_up_examples, tiny_model

# What torch's counter has no formula for: the product of several experts at once.
KERNELS = {torch.ops.aten._grouped_mm: lambda a, b, *_, **__: 2 * a[0] * a[1] * b[-1]}


def predictor_ids(count: int) -> tuple[int, ...]:
    return tuple(range(TRAINED_VOCABULARY, TRAINED_VOCABULARY + count))


def ready(name="llama", lora=None, **changes):
    """A model in training mode that takes batches and has two predictors of its own; `lora` names the adapted layers."""
    model = tiny_model(name, "eager", **changes)
    if lora is not None:
        model = get_peft_model(model, LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=lora))
    width = model.get_input_embeddings().weight.shape[1]
    add_extras(causal_lm(model), PredictorRows(torch.randn(2, width), TRAINED_VOCABULARY), "mlp")
    attach_forest_forward(model, TRAINED_VOCABULARY)
    return model.train()


def counted(model, batch) -> int:
    """What torch counts in forward and backward; the losses on states have no matrix products."""
    with FlopCounterMode(display=False, custom_mapping=KERNELS) as counter:
        output = model(batch=batch)
        loss = output.lm_loss_sum + output.source_states.square().sum()
        (loss + output.target_states.square().sum()).backward()
    return counter.get_total_flops()


def batches():
    """Every layout but attention by segments."""
    examples, ids = made_up_examples(2), predictor_ids(2)
    one = ForestCollator(ids, 0)
    yield one(examples)
    yield replace(one, separate_targets=True)(examples)
    yield replace(one, inline=True)(examples)
    yield ForestCollator(ids, 0, max_row_length=40)(examples)
    yield TwoPassCollator(ids, 0)(examples)
    yield TwoPassCollator(ids, 0, separate_targets=True)(examples)


def ratios(model) -> list[float]:
    """The estimate of every form of a batch over what torch counts."""
    cost = ModelCost.of(model, TRAINED_VOCABULARY)
    return [batch_flops(batch, cost) / counted(model, batch) for batch in batches()]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_weights(name):
    # Rotary positions are a product of one number each, which is not estimated; experts of a few tokens are padded.
    assert ratios(ready(name)) == pytest.approx([1] * 6, rel=2e-3)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "mixtral"])
def test_gradient_checkpointing(name):
    model = ready(name)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
    # torch does not compute the last product of a layer again, since nothing needs its result.
    assert ratios(model) == pytest.approx([1] * 6, rel=0.08)


@pytest.mark.parametrize(("name", "lora"), [("llama", "all-linear"), ("gpt2", "all-linear"), ("llama", ["q_proj"])])
def test_frozen_weights_have_no_gradient(name, lora):
    """States of the first layer need none either where nothing below it is trained: with a predictor row they do."""
    assert ratios(ready(name, lora)) == pytest.approx([1] * 6, rel=0.03)


def test_experts_that_are_not_chosen_cost_nothing():
    models = [ready("mixtral", num_local_experts=number) for number in (4, 8)]
    few, many = (ModelCost.of(model, TRAINED_VOCABULARY).forward.token for model in models)
    assert many - few == 2 * 2 * 32 * 4  # the matrix of each layer's router is longer by 4 outputs


# By hand: every token costs 1, each key 100, each label 1000. Nothing is trained.
BY_HAND = ModelCost(PassCost(1, 100), PassCost(1, 100), 1000)


def test_by_segments_a_token_pays_for_the_keys_of_its_segment(monkeypatch):
    """A branch sees its trunk's 6 keys and its own 2, the trunk and the target only themselves."""
    monkeypatch.setattr("stepjepa.forest.layout.CALL_COST", 0)
    example = made_up_example(6, [Views(2, 3, 6), Views(2, 4, 6)], predictors=2)  # a branch that serves two targets
    trunk, branch = 6 + 6 * 600, 2 + 2 * 800
    targets, labels = 5 + (3 * 3 + 2 * 2) * 100, 4000
    batch = ForestCollator(predictor_ids(2), 0).in_one_row([example])
    assert batch_flops(batch, BY_HAND) == trunk + branch + targets + labels


def test_padding_and_rows_of_their_own_are_paid_for():
    """Trunk 6, branch 2, target 3, one padded token; in two passes rows of 6, 5 and 3, the last padded to 5."""
    example = made_up_example(6, [Views(2, 3, 6)], predictors=2)
    batch = ForestCollator(predictor_ids(2), 0, pad_to_multiple_of=12)([example])
    assert batch_flops(batch, BY_HAND) == 12 * 1201 + 4000
    batch = TwoPassCollator(predictor_ids(2), 0)([example])
    assert batch_flops(batch, BY_HAND) == 6 * 601 + 10 * 501 + 4000
