"""The packed forest is exact: plain fine-tuning's LM loss, and the two-pass form's states and gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from stepjepa.forest.collate import ForestCollator, TwoPassCollator
from stepjepa.modeling import masks
from stepjepa.modeling.forward import attach_forest_forward
from stepjepa.modeling.masks import FLEX, SEGMENTS, use_attention
from support.models import ARCHITECTURES, TRAINED_VOCABULARY, made_up_examples, tiny_model

CASES = [(name, attention) for name, (_, _, kinds) in ARCHITECTURES.items() for attention in kinds]


def predictor_ids(count: int) -> tuple[int, ...]:
    return tuple(range(TRAINED_VOCABULARY, TRAINED_VOCABULARY + count))


def ready(name, attention="sdpa"):
    model = tiny_model(name, attention)
    attach_forest_forward(model, TRAINED_VOCABULARY)
    return model


def run(model, batch):
    """States, LM sum and all gradients of a loss that weighs every state differently."""
    model.zero_grad()
    output = model(batch=batch)
    weights = torch.linspace(-1, 1, output.source_states.numel()).view_as(output.source_states)
    total = output.lm_loss_sum + (output.source_states * weights).sum()
    total = total + (output.target_states * weights.flip(0)).sum()
    total.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return output, gradient


def plain_lm_loss(model, examples):
    """Plain fine-tuning, one example at a time, through the model's own forward."""
    total = torch.zeros(())
    for example in examples:
        ids = torch.tensor(example.trunk.tolist())[None]
        labels = torch.full_like(ids, -100)
        for start, stop in example.labels:
            labels[0, start:stop] = ids[0, start:stop]
        logits = model(input_ids=ids).logits[0, :-1, :TRAINED_VOCABULARY]
        total = total + F.cross_entropy(logits, labels[0, 1:], reduction="sum", ignore_index=-100)
    return total


@pytest.mark.parametrize(
    ("name", "attention", "count"),
    [(*case, count) for case in CASES for count in ((0, 1, 2, 3) if case == ("llama", "sdpa") else (0, 2))],
)
def test_packed_equals_two_pass_and_plain(name, attention, count):
    model = ready(name, attention)
    examples = made_up_examples(count)
    reference, reference_gradient = run(model, TwoPassCollator(predictor_ids(count), 0)(examples))
    labels = sum(stop - start for example in examples for start, stop in example.labels)
    with torch.no_grad():
        plain = plain_lm_loss(model, examples) / labels
    batches = [ForestCollator(predictor_ids(count), 0, max_row_length=length)(examples) for length in (None, 40)]
    assert [len(batch.rows.input_ids) > 2 for batch in batches] == [False, True]
    if attention == "sdpa":
        use_attention(model, SEGMENTS)
        batches.append(ForestCollator(predictor_ids(count), 0, one_row=True)(examples))
    for batch in batches:
        packed, gradient = run(model, batch)
        assert packed.source_states.shape == (4, 32)
        assert packed.source_states.abs().mean() > 0.1
        assert abs(float(packed.lm_loss_sum / labels - plain)) < 1e-5
        assert abs(float(reference.lm_loss_sum / labels - plain)) < 1e-5
        torch.testing.assert_close(packed.source_states, reference.source_states, atol=1e-5, rtol=0)
        torch.testing.assert_close(packed.target_states, reference.target_states, atol=1e-5, rtol=0)
        assert (gradient - reference_gradient).norm() / reference_gradient.norm() < 1e-4


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("name", ["llama", "mistral_sliding", "gemma3_sliding", "qwen3"])
def test_the_forward_of_flex_attention_equals_the_dense_mask(name, inline):
    model = ready(name, "eager")
    batch = ForestCollator(predictor_ids(2), 0, 128, inline=inline)(made_up_examples(2))
    blind = replace(batch, rows=replace(batch.rows, attach=batch.rows.attach * 0 - 1))
    with torch.no_grad():
        dense = model(batch=batch)
        use_attention(model, FLEX)
        flex, other = model(batch=batch), model(batch=blind)
    assert abs(float(flex.lm_loss_sum - dense.lm_loss_sum)) < 1e-4
    for side in ("source_states", "target_states"):
        torch.testing.assert_close(getattr(flex, side), getattr(dense, side), atol=1e-5, rtol=0)
    assert inline or (other.source_states - dense.source_states).norm() > 0.1  # the block mask decides


def test_flex_attention_computes_in_the_dtype_of_autocast(monkeypatch):
    """Rotary positions leave queries and keys in float32 there, and values in bfloat16."""
    model, dtypes = ready("llama"), set()
    use_attention(model, FLEX)
    own = masks.flex_attention_forward

    def seen(module, *tensors, **kwargs):
        dtypes.update(one.dtype for one in tensors[:3])
        return own(module, *tensors, **kwargs)

    monkeypatch.setattr(masks, "flex_attention_forward", seen)
    batch = ForestCollator(predictor_ids(2), 0, 128)(made_up_examples(2))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        short = model(batch=batch).source_states
    assert dtypes == {torch.bfloat16}
    with torch.no_grad():
        exact = model(batch=batch).source_states
    assert (short - exact).norm() < 0.05 * exact.norm()


@pytest.fixture
def llama():
    return ready("llama")


@pytest.fixture
def batch():
    """One row for all four examples; the case above has several rows too."""
    batch = ForestCollator(predictor_ids(2), 0)(made_up_examples(2))
    assert batch.rows.input_ids.shape[0] == 1
    return batch


def test_lm_gradient_equals_plain_fine_tuning(llama, batch):
    plain_lm_loss(llama, made_up_examples(2)).backward()
    expected = {name: p.grad.clone() for name, p in llama.named_parameters()}
    llama.zero_grad()
    llama(batch=batch).lm_loss_sum.backward()
    for name, parameter in llama.named_parameters():
        assert expected[name].norm() > 0
        assert (parameter.grad - expected[name]).norm() / expected[name].norm() < 1e-4, name


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, {}) for name in ("llama", "gemma3_sliding", "gpt2", "mistral_sliding")]
    + [("llama", {"mean": True, "layer": layer}) for layer in (1, 2, None)],
)
def test_gradient_checkpointing_changes_nothing(name, how):
    batch = ForestCollator(predictor_ids(2), 0)(made_up_examples(2, **how))
    model = ready(name)
    model.train()
    _, expected = run(model, batch)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    _, gradient = run(model, batch)
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-5)


def test_no_list_of_hidden_states_is_kept(llama, batch):
    seen = []
    llama.model.register_forward_hook(lambda module, args, output: seen.append(output))
    llama(batch=batch)
    assert len(seen) == 1 and seen[0].hidden_states is None and seen[0].past_key_values is None


def test_bf16_autocast_is_close_and_losses_are_float32(llama, batch):
    exact = llama(batch=batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = llama(batch=batch)
    assert rough.lm_loss_sum.dtype == torch.float32
    assert abs(float(rough.lm_loss_sum / exact.lm_loss_sum) - 1) < 0.01
    assert (rough.source_states.float() - exact.source_states).abs().max() < 0.2
