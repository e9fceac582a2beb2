"""What a GPU computes, next to the CPU: `make test_gpu`. All other tests hide the GPU from themselves.

Without a GPU these tests run on CPU, which shows that they run and nothing more.
"""

import copy
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import stepjepa
from stepjepa.forest.collate import ForestCollator, TwoPassCollator
from stepjepa.modeling.extras import begin_targets, placed_predictors
from stepjepa.modeling.load import load_model
from stepjepa.modeling.masks import FLEX
from stepjepa.training.options import JEPAOptions
from stepjepa.training.setup import set_up_model
from support import families
from support.models import Views, made_up_example
from support.rows import step_rows, write
from support.runs import copy_of
from support.sharding import launch
from support.sweep import batches
from support.training import JEPA, METHODS, logs_of, trainer_for

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
EXACT, SHORT = 1e-4, 2e-2  # relative, of losses in float32 and in shorter dtypes
LOSSES = ("lm_loss", "jepa_loss")


def run(tmp_path, tokenizer, attention=None, **options):
    """A trainer of `tiny` that has trained three steps at a learning rate at which rounding stays small."""
    model = load_model("tiny", tokenizer, attn_implementation=attention)
    given = {"max_steps": 3, "learning_rate": 1e-3, "model": model, **options}
    trainer = trainer_for(tmp_path, tokenizer, **given)
    trainer.train()
    return trainer


def same(found, expected, limit):
    for one, other in zip(found, expected, strict=True):
        for name in [name for name in one if name in LOSSES or "cosine" in name]:
            assert one[name] == pytest.approx(other[name], rel=limit, abs=limit), name


# What is trained


@pytest.mark.parametrize("method", METHODS)
def test_losses_are_those_of_the_cpu(method, tmp_path, tokenizer):
    options = METHODS[method]
    here = run(tmp_path / "here", tokenizer, **options)
    there = run(tmp_path / "there", tokenizer, **options, use_cpu=True)
    assert here.args.device.type == DEVICE.type and len(logs_of(here)) == 3
    same(logs_of(here), logs_of(there), EXACT)
    attention = here.model.config.get_text_config()._attn_implementation
    if CUDA and options.get("forward") != "two_pass" and "attention" not in options:
        assert attention == FLEX


@pytest.mark.parametrize("dtype", ["bf16", *["fp16"] * CUDA])
@pytest.mark.parametrize("attention", [None, "sdpa"])
def test_shorter_dtypes_are_near(dtype, attention, tmp_path, tokenizer):
    here = run(tmp_path / "here", tokenizer, attention, **JEPA, **{dtype: True})
    there = run(tmp_path / "there", tokenizer, **JEPA, use_cpu=True)
    same(logs_of(here), logs_of(there), SHORT)


def wide(monkeypatch):
    """The kernels of FlexAttention want heads of 16 and more."""
    small = {name: 4 * value if value in (8, 32) else value for name, value in families._SMALL.items()}
    keep = ("max_position_embeddings", "n_positions", "n_ctx", "original_max_position_embeddings", "chunk_size")
    small |= {name: families._SMALL[name] for name in keep} | {"rotary_dim": 16, "initializer_range": 0.1}
    monkeypatch.setattr(families, "_SMALL", small)


ATTENTION = dict.fromkeys("llama qwen3 mistral gemma2 gemma3_text olmo2 gpt_neox cohere2".split(), FLEX)


@pytest.mark.parametrize("family", [*ATTENTION, "gpt2"])
def test_a_family_has_the_numbers_of_the_cpu(family, monkeypatch):
    """Windows included: every layer's, or every other layer's."""
    wide(monkeypatch)
    options = JEPAOptions(objective="step_jepa", step_pairs="all", predictors=2)
    model = families.family_model(family, "eager")
    cpu, setup = set_up_model(copy.deepcopy(model), options, 0, "cpu")
    ids = placed_predictors(setup.predictor_ids, options, len(setup.objective.groups))
    with torch.no_grad():
        expected = cpu(batch=TwoPassCollator(ids, 0)(families.examples_with(2)))
    here, setup = set_up_model(families.family_model(family).to(DEVICE), options, 0, DEVICE.type)
    assert setup.forward == "packed"
    if CUDA:
        assert here.config._attn_implementation == ATTENTION.get(family, "sdpa")
    for batch in batches(here, setup, options):
        with torch.no_grad():
            found = here(batch=batch.to(DEVICE))
        for name in ("lm_loss_sum", "source_states", "target_states"):
            one, other = getattr(found, name).float().cpu(), getattr(expected, name).float()
            assert float((one - other).norm()) <= EXACT * float(other.norm()), name


def test_no_form_of_flex_attention_is_left_uncompiled(monkeypatch):
    """Layers with and without a window, many shapes, with a gradient and without, in two dtypes."""
    wide(monkeypatch)
    options = JEPAOptions(objective="step_jepa", step_pairs="all", predictors=2)
    model, setup = set_up_model(families.family_model("gemma3_text").to(DEVICE), options, 0, DEVICE.type)
    collator = ForestCollator(tuple(setup.predictor_ids), 0, 128)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for count in (1, 2, 3, 5):
            examples = [made_up_example(60 * count, [Views(20, 25, 50)], seed, 2) for seed in range(count)]
            batch = collator(examples).to(DEVICE)
            for short in (False, True):
                with torch.autocast(DEVICE.type, torch.bfloat16, enabled=short):
                    with torch.no_grad():
                        model(batch=batch)
                    if CUDA:
                        model(batch=batch).lm_loss_sum.backward()


# Commands


def command(tmp_path, name, *flags, launched=False):
    """`stepjepa train` in a process of its own; the losses of its steps."""
    write(tmp_path / "rows.jsonl", step_rows(24))
    train = f"train --model_name tiny --train_file {tmp_path / 'rows.jsonl'} --output_dir {tmp_path / name} --step_jepa"
    train += " --predictors 2 --max_steps 4 --logging_steps 1 --learning_rate 0.001 --disable_tqdm true --quiet"
    words = [*train.split(), "--save_steps", "2", *flags]
    if launched:
        done = launch(words, "stepjepa", processes=1)
    else:
        done = subprocess.run([sys.executable, "-m", "stepjepa", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    state = json.loads((tmp_path / name / "checkpoint-4" / "trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "lm_loss" in entry]


SHARDED = ["--fsdp", "true", "--fsdp_config", '{"state_dict_type": "SHARDED_STATE_DICT"}']
LAUNCHED = {"ddp": [], "fsdp": ["--fsdp", "true"], "sharded": SHARDED}  # accelerate shards on accelerators alone


@pytest.mark.parametrize("name", LAUNCHED if CUDA else ["ddp"])
def test_a_launched_process_equals_one_without_and_resumes_to_rounding(name, tmp_path):
    """Kernels of a GPU add in any order."""
    flags, plain = LAUNCHED[name], command(tmp_path, "plain")
    found = command(tmp_path, "launched", *flags, launched=True)
    same(found, plain, EXACT)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("launched", "plain"))
    assert all(torch.allclose(one[key], other[key], atol=1e-4) for key in other)
    copy_of(tmp_path / "launched", tmp_path / "killed", killed_after=2)
    same(command(tmp_path, "killed/out", *flags, "--resume_from_checkpoint", "true", launched=True), found, 1e-5)


COMPILED = "--torch_compile true"  # on a GPU transformers lets it round float32 to TF32


@pytest.mark.parametrize("flags", [COMPILED, f"{COMPILED} --bf16", *[f"{COMPILED} --tf32 false", "--tf32 true"] * CUDA])
def test_a_compiled_or_rounded_model_trains(flags, tmp_path):
    plain = command(tmp_path, "plain")
    same(command(tmp_path, "other", *flags.split()), plain, SHORT)


def test_a_run_is_evaluated_and_looked_at(tmp_path):
    command(tmp_path, "run")
    run, rows = str(tmp_path / "run"), str(tmp_path / "rows.jsonl")
    asked = {"metric": ["exact", "answer_nll"], "max_new_tokens": 8}
    assert stepjepa.evaluate(model_name=run, test_file=rows, output_dir=str(tmp_path / "answers"), **asked)
    assert stepjepa.analyze(file=rows, models=[run], output_dir=str(tmp_path / "looked"))


def test_doctor_finds_every_setting_exact_and_compiles():
    found = stepjepa.doctor()
    faults = {one.flags: one.fault for one in found.tried if one.fault}
    assert not faults
    if CUDA:
        assert any(name.startswith("cuda") for name in found.about["devices"]) and found.tried[0].attention == FLEX


# Waiting


def one_step(trainer, batches):
    """One optimizer step without the log."""
    (batch,), counts = trainer.get_batch_samples(batches, 1, trainer.args.device)
    with trainer.accelerator.autocast():
        trainer.training_step(trainer.model, batch, counts)
    trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), 1.0)
    trainer.optimizer.step()
    trainer.model.zero_grad()


@pytest.mark.parametrize("method", ["regular", "step", "standalone", "infonce", "ema"])
def test_a_step_never_waits_and_launches_few_kernels(method, tmp_path, tokenizer):
    """Views launch nothing, so there are fewer launches than calls of operators."""
    model = load_model("tiny", tokenizer)
    trainer = trainer_for(tmp_path, tokenizer, rows=step_rows(64), model=model, bf16=True, **METHODS[method])
    trainer.create_optimizer()
    begin_targets(trainer.model, trainer.args.target_encoder)
    batches = iter(trainer.get_train_dataloader())
    for _ in range(4):  # shapes are compiled, and memory is cached
        one_step(trainer, batches)
    if CUDA:
        torch.cuda.set_sync_debug_mode("error")
    try:
        one_step(trainer, batches)
    finally:
        if CUDA:
            torch.cuda.set_sync_debug_mode("default")
    with torch.profiler.profile() as recorded:
        one_step(trainer, batches)
    calls = {one.key: one.count for one in recorded.key_averages()}
    launches = sum(count for name, count in calls.items() if "LaunchKernel" in name)
    assert bool(launches) == CUDA and launches < sum(count for name, count in calls.items() if "aten::" in name)
