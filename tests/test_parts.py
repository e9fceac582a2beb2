"""`stepjepa.parts`: loops of your own come to the weights of `JEPATrainer`, and what is attached comes off again."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch.utils.data import DataLoader

from stepjepa import parts
from stepjepa.errors import ConfigError, DataError
from stepjepa.modeling.lora import lora_config
from support.loops import CASES, SPREAD, STEPS, WINDOW, example, model_for, rows, saved, trainer_weights
from support.models import tiny_model
from support.sharding import launch


def assert_same_bits(weights, expected):
    assert weights.keys() == expected.keys()
    assert [name for name, weight in expected.items() if not torch.equal(weights[name], weight)] == []


def assert_alike(pictures, expected):
    """Two results of `pictured`: the same logits, and all else the same."""
    assert torch.equal(pictures.pop("logits"), expected.pop("logits")) and pictures == expected


def attached(tokenizer, model, **options):
    encoder = parts.Encoder(tokenizer, model, **options)
    examples = encoder(rows())
    model = parts.attach(model, encoder, options.pop("peft_config", None))
    return model, encoder, parts.Collator(encoder, model)(examples[:4])


# Loops


@pytest.mark.parametrize("name", CASES)
def test_a_plain_loop_gives_the_weights_of_the_trainer(tmp_path, tokenizer, name):
    model, lines = model_for(tokenizer), []
    begin = saved(model)
    loop = example("own_loop").train
    loop(model, tokenizer, rows(), STEPS, **WINDOW, log=lines.append, **CASES[name])
    assert_same_bits(saved(model), trainer_weights(tmp_path, tokenizer, CASES[name]))
    assert all(not torch.equal(weight, begin[one]) for one, weight in saved(model).items())
    assert len(lines) == STEPS + 1


@pytest.fixture(scope="module")
def on_two_processes(tmp_path_factory, tokenizer):
    """The weights of each case by who trained them; two processes for all."""

    @cache
    def run():
        folder = tmp_path_factory.mktemp("loops")
        tokenizer.save_pretrained(folder / "tokenizer")
        done = launch([folder], "support.loops")
        assert done.returncode == 0, done.stderr[-3000:]
        return {name: torch.load(folder / f"{name}.pt") for name in SPREAD}

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", SPREAD)
def test_loops_on_two_processes_give_the_weights_of_the_trainer(on_two_processes, name):
    weights = on_two_processes()[name]
    assert_same_bits(weights["accelerate"], weights["trainer"])
    # FSDP adds up in another order.
    torch.testing.assert_close(weights["fsdp"], weights["trainer"], atol=2e-6, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("name", ["ema", "next_latent"])
def test_the_lightning_module_gives_the_weights_of_the_trainer(tmp_path, tokenizer, name):
    lightning = pytest.importorskip("lightning", reason="needs lightning")
    script, model = example("lightning_module"), model_for(tokenizer)
    encoder = parts.Encoder(tokenizer, model, **CASES[name])
    data, size = encoder.read(rows()), WINDOW["size"] * WINDOW["accumulation"]
    examples = [one for epoch in range(3) for one in encoder(data, epoch)][: STEPS * size]
    model = parts.attach(model, encoder).train()
    collate = parts.Collator(encoder, model)
    loader = DataLoader(examples, size, collate_fn=lambda window: script.window_of(window, collate, WINDOW["size"]))
    module = script.jepa_module(lightning.LightningModule)(model, encoder, STEPS, WINDOW["learning_rate"])
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    lightning.Trainer(max_steps=STEPS, accelerator="cpu", **quiet).fit(module, loader)
    assert_same_bits(saved(model), trainer_weights(tmp_path, tokenizer, CASES[name]))


# On and off


def pictured(model):
    """What `detach` gives back, and the model's own logits."""
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    return {
        "logits": logits,
        "keys": list(model.state_dict()),
        "parameters": {name: one.requires_grad for name, one in model.named_parameters()},
        "config": model.config.to_dict(),
        "attention": model.config._attn_implementation,
        "forward": model.forward,
        "children": [name for name, _ in model.named_children()],
    }


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_what_is_attached_comes_off_again(tokenizer, name, attention):
    model = tiny_model("llama", attention, vocab_size=len(tokenizer))
    model.model.layers[0].requires_grad_(False)
    before = pictured(model)
    wrapped, _, batch = attached(tokenizer, model, **CASES[name])
    assert wrapped is model
    parts.forward(model, batch)
    assert model.forward != before["forward"] and model(input_ids=torch.arange(1, 9)[None]).logits.isfinite().all()
    assert parts.detach(torch.nn.parallel.DataParallel(model)) is model
    assert_alike(pictured(model), before)
    with pytest.raises(ConfigError, match="parts.attach"):
        parts.forward(model, batch)


def test_frozen_parameters_and_a_forward_of_another_library_come_back(tokenizer):
    """A layer that no loss reaches is frozen meanwhile; what was frozen before stays so."""
    model = model_for(tokenizer)
    model.vision_tower = torch.nn.Linear(2, 2)
    model.lm_head.requires_grad_(False)
    own = model.forward
    model.forward = lambda *args, **kwargs: own(*args, **kwargs)
    before = pictured(model)
    attached(tokenizer, model, objective="step_jepa")
    assert not model.vision_tower.weight.requires_grad
    parts.detach(model)
    assert_alike(pictured(model), before)


def test_an_adapter_is_attached_and_stays(tokenizer):
    model = model_for(tokenizer)
    before, names = pictured(model), list(model.state_dict())
    encoder = parts.Encoder(tokenizer, model, **CASES["step_jepa"])
    adapted = parts.attach(model, encoder, lora_config(4, dropout=0.0))
    assert adapted is not model and list(model.state_dict()) == names
    batch = parts.Collator(encoder, adapted)(encoder(rows()))
    parts.loss(parts.forward(adapted, batch), encoder.lbd()).backward()
    trained = {name for name, one in adapted.named_parameters() if one.grad is not None}
    assert {"lora" in name or "jepa" in name for name in trained} == {True} and any("jepa" in one for one in trained)
    plain = parts.detach(adapted)
    assert plain is adapted and not [name for name, _ in plain.named_parameters() if "jepa" in name]
    assert_alike(pictured(model), before)


def test_a_model_may_be_attached_with_another_encoder(tokenizer):
    model, first, batch = attached(tokenizer, model_for(tokenizer), objective="step_jepa", predictors=2)
    model, second, _ = attached(tokenizer, model, objective="next_latent")
    with pytest.raises(ConfigError, match="another Encoder"):
        parts.Collator(first, model)
    parts.detach(model)
    assert not hasattr(model, "jepa")


# The pieces


def test_the_encoder_reads_once_and_samples_every_epoch(tokenizer):
    encoder = parts.Encoder(tokenizer, objective="step_jepa", step_pairs="random", seed=3)
    data = encoder.read([*rows(), {"messages": "no chat"}])
    assert sum(encoder.report.rows_skipped.values()) == 1 and encoder.report.examples == len(data) == len(rows())
    first, again, second = encoder(data), encoder(data, 0), encoder(data, 1)
    sources = [[one.pairs for one in epoch] for epoch in (first, again, second)]
    assert sources[0] == sources[1] != sources[2]
    assert [one.trunk.tolist() for one in first] == [one.trunk.tolist() for one in second]


def test_the_loss_divides_by_its_own_counts_or_by_those_of_a_window(tokenizer):
    model, encoder, batch = attached(tokenizer, model_for(tokenizer), **CASES["step_jepa"], gamma=2.0)
    output = parts.forward(model, batch)
    counts = parts.counts(encoder, [batch, batch])
    assert counts["lm_loss"] == 2 * batch.label_ids.numel() and counts["jepa_loss"] == 2 * batch.pairs
    alone = parts.loss(output, 0.5)
    torch.testing.assert_close(parts.loss(output, 0.5, counts), alone / 2)
    lm, jepa = (output.parts[name] for name in counts)
    torch.testing.assert_close(alone.float(), 2 * lm.sum / lm.count + 0.5 * jepa.sum / jepa.count)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"predictor": 2}, "unknown option 'predictor'.*predictors"),
        ({"learning_rate": 1e-3}, "learning_rate is for JEPATrainer"),
        ({"grad_accum": 2}, "gradient_accumulation_steps is for JEPATrainer"),
        ({"loss_scale": "reference"}, "loss_scale is for JEPATrainer"),
    ],
)
def test_options_are_checked_like_flags(tokenizer, options, message):
    with pytest.raises(ConfigError, match=message) as raised:
        parts.Encoder(tokenizer, **options)
    assert "\n" not in str(raised.value)


def test_what_does_not_fit_is_one_line(tokenizer):
    with pytest.raises(DataError, match="no example has a pair for step_jepa"):
        parts.Encoder(tokenizer, objective="step_jepa")([{"question": "1 + 1?", "answer": "2"}])
    learned = tiny_model("gpt2", vocab_size=len(tokenizer))
    with pytest.raises(ConfigError, match="256 learned positions.*Encoder.tokenizer, model"):
        parts.attach(learned, parts.Encoder(tokenizer))
    horizons = parts.Encoder(tokenizer, objective="step_jepa", step_pairs="plan", horizon=2, predictors=0)
    with pytest.raises(ConfigError, match="predictors=0 predicts 2 horizons from one state"):
        parts.attach(model_for(tokenizer), horizons)
    with pytest.raises(ConfigError, match="parts.attach"):
        parts.Collator(parts.Encoder(tokenizer), learned)
    with pytest.raises(ConfigError, match="the model"):
        parts.attach(tiny_model("llama"), parts.Encoder(tokenizer))
