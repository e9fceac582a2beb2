"""Bases in 4 and 8 bits: what is refused, what is asked of bitsandbytes, and, where it is installed, runs of three steps."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepjepa.api import analyze, evaluate, train
from stepjepa.cli.main import main
from stepjepa.errors import ConfigError
from stepjepa.modeling.load import load_model, load_tokenizer
from stepjepa.modeling.lora import lora_config, quantization
from stepjepa.modeling.parts import causal_lm, tolerance
from support.models import tiny_model
from support.rows import step_rows, write
from support.runs import one_line
from support.training import STEPS, trainer_for

BITS = (4, 8)
missing = importlib.util.find_spec("bitsandbytes") is None
needs_bitsandbytes = pytest.mark.skipif(missing, reason="needs pip install 'stepjepa[quant]', as make test_all does")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Rows, and a base whose layers are as wide as the blocks of nf4; it has outliers, as large models do."""
    folder = tmp_path_factory.mktemp("place")
    write(folder / "rows.jsonl", step_rows(12))
    tokenizer = load_tokenizer("tiny", [str(row) for row in step_rows(12)])
    sizes = {"hidden_size": 64, "intermediate_size": 128, "initializer_range": 0.1}
    model = tiny_model("llama", vocab_size=len(tokenizer), **sizes)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight[:3] *= 30
    for part in (model, tokenizer):
        part.save_pretrained(folder / "base")
    return folder


def options(place, out, bits, **more):
    given = {"train_file": str(place / "rows.jsonl"), "model_name": str(place / "base"), "output_dir": str(out)}
    given |= {"objective": "step_jepa", "lora": True, "lora_rank": 4, f"load_in_{bits}bit": True, "disable_tqdm": True}
    given |= {"max_steps": 3, "logging_steps": 1, "learning_rate": 0.01, "lora_dropout": 0.0, "save_strategy": "no"}
    return {**given, **more}


# Without bitsandbytes


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--load_in_4bit", "quantised weights cannot be trained; train an adapter on them with --lora"),
        ("--load_in_4bit --load_in_8bit --lora", "--load_in_8bit: the base can be quantised to only one"),
        ("--load_in_8bit --lora --model_name mini", "--load_in_8bit: mini starts from random weights"),
        ("--load_in_4bit --lora --track_flop", "FLOPs of quantised layers are not counted"),
        ("--load_in_4bit --lora", "pip install 'stepjepa[quant]'"),
    ],
)
def test_what_is_refused_before_anything_is_read(tmp_path, monkeypatch, capsys, flags, said):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    words = f"train --train_file no.jsonl --model_name {tmp_path} --output_dir {tmp_path / 'out'} {flags}"
    assert main(words.split()) == 2
    assert said in one_line(capsys.readouterr().err) and not (tmp_path / "out").exists()


@pytest.fixture
def stand_in(monkeypatch):
    """Nothing of bitsandbytes but that it can be imported."""
    monkeypatch.setattr("stepjepa.modeling.lora.library", lambda name, extra: SimpleNamespace(name=name))


def test_what_is_asked_of_bitsandbytes(stand_in):
    """And the rounding that the trial allows for."""
    model = tiny_model("llama")
    assert quantization({}) is None and quantization({"load_in_4bit": False}) is None
    for flags, dtype in (({}, torch.float32), ({"bf16": True}, torch.bfloat16), ({"fp16": True}, torch.float16)):
        found = model.config.quantization_config = quantization({"load_in_4bit": True, **flags})
        assert (found.bnb_4bit_quant_type, found.bnb_4bit_use_double_quant) == ("nf4", True)
        assert found.bnb_4bit_compute_dtype == dtype
        assert tolerance(model) == max(1e-4, 8 * torch.finfo(dtype).eps)
    found = model.config.quantization_config = quantization({"load_in_8bit": True})
    assert found.load_in_8bit and found.llm_int8_threshold == 0, "a token is rounded by itself"
    assert tolerance(model) == 8 * 2**-7


def test_the_base_of_a_run_is_loaded_as_it_was_trained(stand_in, monkeypatch, place, tmp_path):
    """Evaluation and analysis ask for the same quantisation, by the run's record."""
    done = train(**{**options(place, tmp_path / "run", 4, max_steps=1), "load_in_4bit": False})
    record = json.loads((done.output_dir / "run.json").read_text())
    record["settings"] |= {"load_in_4bit": True, "bf16": True}
    (done.output_dir / "run.json").write_text(json.dumps(record))
    asked = []
    monkeypatch.setattr(
        "stepjepa.generation.place.load_model",
        lambda *args, quantized, **more: asked.append(quantized) or load_model(*args, **more),
    )
    file = str(place / "rows.jsonl")
    evaluate(model_name=str(done.output_dir), test_file=file, metric=["answer_nll"])
    analyze(file=file, models=[str(done.output_dir)], output_dir=str(tmp_path / "analysis"), layers=[-1])
    assert [one.bnb_4bit_compute_dtype for one in asked] == [torch.bfloat16] * 2
    words = ["export", str(done.output_dir), str(tmp_path / "merged"), "--merge_lora", "true"]
    assert main(words) == 2


# With it


@pytest.mark.long
@needs_bitsandbytes
@pytest.mark.parametrize("bits", BITS)
def test_three_steps_and_the_adapter_loads(place, tmp_path, bits):
    """What the run measures of its weights, an evaluation of its folder measures again: from the same rounded base."""
    file = str(place / "rows.jsonl")
    done = train(**options(place, tmp_path / "run", bits, eval_file=file))
    model = done.trainer.model
    plain = AutoModelForCausalLM.from_pretrained(place / "base")
    assert causal_lm(model).num_parameters() - plain.num_parameters() == sum(
        one.numel() for name, one in causal_lm(model).named_parameters() if one.requires_grad
    )
    assert {one.dtype for one in model.parameters() if one.requires_grad} == {torch.float32}
    assert all(one.abs().max() > 0 for name, one in model.named_parameters() if "lora_B" in name), "all of it moved"
    result = evaluate(model_name=str(done.output_dir), test_file=file, metric=["answer_nll"])
    assert result.value("answer_nll") == pytest.approx(done.metrics["eval_lm_loss"], rel=1e-3)
    adapter = AutoModelForCausalLM.from_pretrained(done.output_dir)  # on the base as it was saved
    ids = AutoTokenizer.from_pretrained(done.output_dir)("1 2", return_tensors="pt")
    assert adapter(**ids).logits.isfinite().all()


@pytest.mark.long
@needs_bitsandbytes
@pytest.mark.parametrize("bits", BITS)
def test_an_evaluation_on_the_way_and_a_stop_change_nothing(place, tmp_path, bits):
    weights = []
    ways = ({}, {"eval_file": str(place / "rows.jsonl"), "eval_strategy": "steps", "eval_steps": 1})
    for number, way in enumerate(ways):
        out = tmp_path / str(number)
        train(**options(place, out, bits, save_strategy="steps", save_steps=2, **way))
        weights.append((out / "adapter_model.safetensors").read_bytes())
    (tmp_path / "1" / "metrics.json").unlink()
    (tmp_path / "1" / "checkpoint-3" / "manifest.json").unlink()
    more = {"save_strategy": "steps", "save_steps": 2, "resume_from_checkpoint": str(tmp_path / "1" / "checkpoint-2")}
    train(**options(place, tmp_path / "2", bits, **more))
    assert weights[0] == weights[1] == (tmp_path / "2" / "adapter_model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match=f"load_in_{bits}bit=True, not False"):
        train(**{**options(place, tmp_path / "3", bits, **more), f"load_in_{bits}bit": False})


@pytest.mark.long
@needs_bitsandbytes
def test_a_model_that_python_has_quantised_trains_like_its_rounded_weights(place, tmp_path):
    """Also after a pass without gradients, in which bitsandbytes rounds the weights again on some CPUs."""
    from bitsandbytes.functional import dequantize_4bit

    tokenizer = AutoTokenizer.from_pretrained(place / "base")
    given = {"quantization_config": quantization({"load_in_4bit": True})}
    base = AutoModelForCausalLM.from_pretrained(place / "base", **given)
    plain = AutoModelForCausalLM.from_pretrained(place / "base")
    for name, module in base.named_modules():
        if hasattr(module, "quant_state"):
            plain.get_submodule(name).weight.data = dequantize_4bit(module.weight.data, module.weight.quant_state)
    trained = []
    for number, model in enumerate((base, plain)):
        adapter, more = lora_config(2, dropout=0.0), {"optim": "sgd", "learning_rate": 0.1, **STEPS}
        one = trainer_for(tmp_path / f"{number}", tokenizer, peft=adapter, model=model, eval_rows=step_rows(4), **more)
        one.evaluate()
        one.train()
        one.save_model()
        trained.append(load_file(tmp_path / f"{number}" / "out" / "adapter_model.safetensors"))
    assert all(value.abs().max() > 0 for value in trained[0].values())
    torch.testing.assert_close(trained[0], trained[1], rtol=1e-3, atol=1e-6)
    with pytest.raises(ConfigError, match="cannot be merged into quantised weights"):
        trainer_for(tmp_path, tokenizer, peft=lora_config(2), model=base, merge_lora=True, **STEPS)
    fresh = AutoModelForCausalLM.from_pretrained(place / "base", **given)
    with pytest.raises(ConfigError, match="quantized"):  # the Trainer's own words
        trainer_for(tmp_path, tokenizer, model=fresh, **STEPS)
    if any(getattr(one, "support_avx512bf16_for_cpu", False) for one in fresh.modules()):
        with pytest.raises(ConfigError, match="load it again"):
            trainer_for(tmp_path, tokenizer, peft=lora_config(2), model=fresh, **STEPS)
