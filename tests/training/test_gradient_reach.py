"""What a training step moves and what it leaves alone, by name: predictors, heads, targets, adapters, the EMA encoder."""

from __future__ import annotations

import pytest
import torch
from transformers import TrainerCallback

from stepjepa.modeling.extras import TargetEncoder
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.lora import lora_config
from stepjepa.training.trainer import JEPATrainer
from support import training
from support.models import tiny_model
from support.rows import step_rows
from support.training import STEPS, Options, batch_of, name_of, weights

IN_CONTEXT: Options = {"objective": "llm_jepa"}
STANDALONE: Options = {"objective": "llm_jepa", "views": "standalone"}
INLINE: Options = {"objective": "llm_jepa", "forward": "inline"}
SPLIT: Options = {"objective": "split"}
TUBE: Options = {"objective": "semantic_tube"}


def trainer_for(tmp_path, tokenizer, rows=None, peft=None, model=None, **options) -> JEPATrainer:
    """A trainer with plain gradient descent, without clipping and decay: what has a gradient moves, and nothing else."""
    options = {"lbd": 1.0, "max_steps": 1, "optim": "sgd", "learning_rate": 0.1, **options}
    options |= {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "model": model}
    return training.trainer_for(tmp_path, tokenizer, rows or step_rows(8), 8, peft, **options)


def train(trainer, model=None) -> set[str]:
    """Train and name the parameters that moved."""
    model = model or trainer.model
    before = weights(model)
    trainer.train()
    return {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}


def gradients(trainer) -> dict[str, torch.Tensor]:
    """Gradients of the loss that training computes, by name; None counts as zero."""
    model = trainer.model
    model.zero_grad()
    trainer.compute_loss(model, batch_of(trainer)).backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def flat(found: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.flatten() for value in found.values()])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("two_pass", {**IN_CONTEXT, "forward": "two_pass"}),
        ("inline", INLINE),
        ("horizons", {"objective": "step_jepa", "multi_horizon": [1, 2], "jepa_loss": "smooth_l1"}),
        ("plan", {"objective": "step_jepa", "step_pairs": "plan", "horizon": 2, "jepa_loss": "infonce"}),
        ("lora", {**STEPS, "target_encoder": "ema"}),
        ("frozen", {**STEPS, "target_encoder": "ema"}),
    ],
)
def test_every_parameter_and_every_predictor_moves(tmp_path, tokenizer, kind, options):
    """Under LoRA the adapter, the predictors and the head, and nothing of the base; what was frozen stays."""
    model = tiny_model("llama", vocab_size=len(tokenizer))
    if kind == "lora":
        # In the first step only the half of an adapter that starts at zero has a gradient.
        options = {**options, "peft": lora_config(4, dropout=0.0), "max_steps": 3}
    if kind == "frozen":
        model.model.layers[0].requires_grad_(False)
    trainer = trainer_for(tmp_path, tokenizer, model=model, predictors=3, predictor_head="mlp", **options)
    inner = causal_lm(trainer.model)
    vocabulary, rows = inner.get_input_embeddings().weight, inner.jepa.predictors.weight
    before, rows_before = vocabulary.detach().clone(), rows.detach().clone()
    trained = set(weights(inner))
    if kind == "lora":
        trained = {name for name in trained if "lora_" in name or "jepa." in name}
    if kind == "frozen":
        trained = {name for name in trained if not name.startswith("model.layers.0.")}
    assert train(trainer, inner) == trained and len(trained) > 12
    assert len(vocabulary) == len(tokenizer) and len(rows) == 3 * len(trainer.setup.objective.groups)
    assert ((rows - rows_before).norm(dim=-1) > 1e-6).all()
    unused = set(range(len(tokenizer))) - set(batch_of(trainer).rows.input_ids.unique().tolist())
    assert unused and torch.equal(vocabulary[sorted(unused)], before[sorted(unused)])


@pytest.mark.parametrize("peft", [None, lora_config(4)], ids=["full", "lora"])
@pytest.mark.parametrize(
    ("objective", "networks"), [("next_latent", 8), ("multi_token", 12), ("future_summary", 4), ("semantic_tube", 0)]
)
def test_without_predictors_the_model_and_what_looks_ahead_move(tmp_path, tokenizer, objective, networks, peft):
    # In the first step only the last layer of next_latent's network, which starts at zero, has a gradient there.
    trainer = trainer_for(tmp_path, tokenizer, objective=objective, max_steps=3, peft=peft)
    trained = {name for name, value in trainer.model.named_parameters() if value.requires_grad}
    assert sum("jepa.objective" in name for name in trained) == networks and len(trained) > networks + 8
    assert train(trainer) == trained


def test_a_linear_head_starts_as_none(tmp_path, tokenizer):
    none, linear = (trainer_for(tmp_path, tokenizer, predictor_head=head, **STEPS) for head in ("none", "linear"))
    assert torch.equal(linear.model.jepa.head.layers[0].weight, torch.eye(32))
    found, expected = gradients(linear), gradients(none)
    assert found.pop("jepa.head.layers.0.weight").norm() > 1e-3
    assert found.keys() == expected.keys()
    torch.testing.assert_close(flat(found), flat(expected), atol=1e-6, rtol=1e-4)


def test_the_head_is_on_the_source_alone(tmp_path, tokenizer):
    trainer = trainer_for(tmp_path, tokenizer, predictor_head="mlp", **STEPS)
    batch = batch_of(trainer)
    with torch.no_grad():
        before = trainer.model(batch=batch)
        trainer.model.jepa.head.layers[2].bias += 1.0
        after = trainer.model(batch=batch)
    torch.testing.assert_close(after.source_states, before.source_states + 1.0)
    assert torch.equal(after.target_states, before.target_states)
    assert torch.equal(after.lm_loss_sum, before.lm_loss_sum)


# The JEPA loss alone


@pytest.mark.parametrize("options", [IN_CONTEXT, STANDALONE, INLINE, STEPS, SPLIT, TUBE], ids=name_of)
def test_the_gradient_is_the_sum_of_both_sides(tmp_path, tokenizer, options):
    options = {"gamma": 0.0, "predictor_head": "mlp", "predictors": 1, **options}
    if options["objective"] == "semantic_tube":
        options["predictors"] = None
    both = trainer_for(tmp_path, tokenizer, **options, target_grad=True)
    source_only = trainer_for(tmp_path, tokenizer, **options, target_grad=False)
    found, without = gradients(both), gradients(source_only)
    model, batch = both.model, batch_of(both)
    model.zero_grad()
    output = model(batch=batch)
    held = both.setup.objective.distances(output.source_states.detach(), output.target_states)
    weights_P = torch.ones(len(held)) if batch.weights is None else batch.weights
    ((held * weights_P).sum() / both._step_counts([batch])["jepa_loss"]).backward()
    target_only = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
    assert flat(target_only).norm() > 1e-3 and flat(without).norm() > 1e-3
    torch.testing.assert_close(flat(found), flat(without) + flat(target_only), atol=1e-6, rtol=1e-3)
    assert (flat(found) - flat(without)).norm() > 1e-2 * flat(found).norm()


# The EMA target encoder


class Recorder(TrainerCallback):
    """The weights after every optimizer step."""

    def __init__(self, model):
        self.model, self.steps = model, [weights(model)]

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.append(weights(self.model))


@pytest.mark.parametrize("peft", [False, True], ids=["full", "lora"])
def test_the_shadows_follow_the_formula(tmp_path, tokenizer, peft):
    options = {"target_encoder": "ema", "ema_momentum": 0.6, "ema_momentum_end": 0.9, "predictor_head": "mlp"}
    adapter = lora_config(4, dropout=0.0) if peft else None
    trainer = trainer_for(tmp_path, tokenizer, peft=adapter, max_steps=4, **STEPS, **options)
    inner = causal_lm(trainer.model)
    encoder, recorder = TargetEncoder(trainer.model), Recorder(inner)
    trainer.add_callback(recorder)
    trained = {name for name, p in inner.named_parameters() if p.requires_grad and "jepa.head" not in name}
    assert set(encoder.shadow) == trained and (not peft or len(trained) < len(weights(inner)))
    expected = {name: recorder.steps[0][name].clone() for name in trained}
    assert all(torch.equal(encoder.shadow[name], expected[name]) for name in trained)
    trainer.train()
    assert len(recorder.steps) == 5
    # 0.9 - 0.3 * (cos(pi * step / 4) + 1) / 2
    for step, momentum in enumerate((0.6439340, 0.75, 0.8560660, 0.9), 1):
        for name in trained:
            expected[name] = momentum * expected[name] + (1 - momentum) * recorder.steps[step][name]
    for name in trained:
        torch.testing.assert_close(encoder.shadow[name], expected[name], atol=1e-6, rtol=1e-5)
        assert not torch.equal(encoder.shadow[name], recorder.steps[0][name]), name
        assert not torch.equal(encoder.shadow[name], recorder.steps[-1][name]), name
        assert not encoder.shadow[name].requires_grad


@pytest.mark.parametrize(
    ("forward", "peft", "autocast"),
    [("packed", True, False), ("packed", False, True), ("two_pass", False, False), ("inline", False, False)],
)
def test_targets_come_from_the_shadows_and_sources_from_the_weights(tmp_path, tokenizer, forward, peft, autocast):
    options = {"objective": "step_jepa", "target_encoder": "ema", "forward": forward}
    trainer = trainer_for(tmp_path, tokenizer, peft=lora_config(4, dropout=0.0) if peft else None, **options)
    model, batch = trainer.model, batch_of(trainer)
    encoder = TargetEncoder(model)

    def states():
        model.eval()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            output = model(batch=batch)
        return output.source_states, output.target_states

    source, target = states()
    changed = [p for p in model.parameters() if p.requires_grad]
    with torch.no_grad():
        for parameter in changed:
            parameter += 0.05
    own = [parameter.data_ptr() for parameter in changed]
    moved_source, same_target = states()
    assert (moved_source - source).abs().max() > 1e-2 and torch.equal(same_target, target)
    for shadow in encoder.shadow.values():
        shadow += 0.05
    same_source, moved_target = states()
    assert torch.equal(same_source, moved_source) and (moved_target - target).abs().max() > 1e-2
    with pytest.raises(ZeroDivisionError), encoder.in_place():
        raise ZeroDivisionError
    assert [parameter.data_ptr() for parameter in changed] == own, "the weights were not put back"
