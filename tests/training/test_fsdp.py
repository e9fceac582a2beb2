"""FSDP2: two processes that share the weights equal one, over gloo on CPU (`support.sharding`)."""

from __future__ import annotations

import json
import os
from functools import cache

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

from support.rows import write
from support.sharding import STEPS, launch, results, rows

pytestmark = pytest.mark.slow

JEPA = {"objective": "step_jepa", "step_pairs": "all", "predictors": 2}
PLAN = {"objective": "step_jepa", "step_pairs": "plan", "horizon": 2, "predictors": 1}
EMA = {"target_encoder": "ema", "ema_momentum": 0.5, "predictor_head": "linear"}
ADAMW = {"optim": "adamw_torch", "learning_rate": 1e-4}  # at 1e-3 rounding grows to 2e-6 where a gradient is almost 0
META = {"cpu_ram_efficient_loading": True}  # the weights are moved to meta, sharded, and filled by process 0
SHARDED = {"state_dict_type": "SHARDED_STATE_DICT"}
CASES = {
    "step": JEPA,
    "step-two_pass": {**JEPA, "forward": "two_pass", "tied": True},
    "step-stop": {**JEPA, "target_grad": False},
    "step-two_pass-stop": {**JEPA, "forward": "two_pass", "target_grad": False},
    "ratio": {"objective": "llm_jepa", "jepa_ratio": 0.4, "target_grad": False},
    "standalone-two_pass": {"objective": "llm_jepa", "views": "standalone", "forward": "two_pass"},
    "inline": {"objective": "llm_jepa", "predictors": 1, "forward": "inline"},
    "split": {"objective": "split"},
    "split-two_pass": {"objective": "split", "forward": "two_pass"},
    "tube": {"objective": "semantic_tube"},
    "tube-two_pass": {"objective": "semantic_tube", "forward": "two_pass"},
    "next_latent": {"objective": "next_latent", "tied": True},
    "next_latent-two_pass": {"objective": "next_latent", "forward": "two_pass"},
    "multi_token": {"objective": "multi_token", "token_horizon": 3},
    "future_summary": {"objective": "future_summary", "summary_window": 4},
    "multi_token-two_pass": {"objective": "multi_token", "token_horizon": 3, "forward": "two_pass"},
    "masked": {"objective": "llm_jepa", "mask_ratio": 0.4, "predictors": 1},
    "masked-two_pass": {"objective": "split", "mask_ratio": 0.4, "mask_span": True, "forward": "two_pass"},
    "answer": {"objective": "steps_to_answer", "answer_layers": [1, 2], "predictors": 2},
    "answer-two_pass": {"objective": "steps_to_answer", "predictors": 1, "forward": "two_pass"},
    "frozen": {**JEPA, "target_encoder": "frozen", "replay_ratio": 0.5},
    "plan": {**PLAN, "predictor_head": "mlp"},
    "plan-two_pass": {**PLAN, "forward": "two_pass"},
    "head": {**JEPA, "predictor_head": "mlp", "jepa_loss": "infonce", "regularizer": "vicreg"},
    "regular": {"objective": "regular", "tied": True},
    "bf16": {**JEPA, "bf16": True},
    "ema": {**JEPA, **EMA, "resume": True, "scored": True, **ADAMW},
    "ema-lora-two_pass": {**JEPA, **EMA, "lora": True, "forward": "two_pass", "tied": True, "merge_lora": True},
    "ema-lora-sharded": {**JEPA, **EMA, "lora": True, "resume": True, **ADAMW, "fsdp_config": SHARDED},
    "meta": {**JEPA, **EMA, "tied": True, "resume": True, **ADAMW, "fsdp_config": META},
    "activation": {**JEPA, **EMA, "fsdp_config": {"activation_checkpointing": True}},
    "meta-lora": {**JEPA, "lora": True, "gradient_checkpointing": True, "predictor_head": "mlp", "fsdp_config": META},
}
LONG = {"step-two_pass-stop", "inline", "regular", "multi_token", "future_summary", "frozen", "masked", "answer"}
LONG |= {name for name in CASES if name.endswith("-two_pass")} - {"step-two_pass", "ema-lora-two_pass"}
EQUAL = [name for name in CASES if name != "bf16"]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory, tokenizer):
    """The outcome of a case on two processes that share the weights; one pair of processes runs all short cases."""
    folder_of_all = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder_of_all = folder_of_all.parent

    @cache
    def run(long: bool) -> dict[str, dict]:
        cases = {name: options for name, options in CASES.items() if (name in LONG) == long}
        folder = folder_of_all / f"sharded-{'long' if long else 'short'}"
        with FileLock(folder.with_suffix(".lock")):
            if not (folder / "done").exists():
                folder.mkdir(exist_ok=True)
                (folder / "cases.json").write_text(json.dumps(cases))
                tokenizer.save_pretrained(folder / "tokenizer")
                done = launch([folder])
                assert done.returncode == 0, done.stderr[-3000:]
                (folder / "done").touch()
        return {name: {"folder": folder / name, **torch.load(folder / f"{name}.pt")} for name in cases}

    return lambda name: run(name in LONG)[name]


def saved(folder) -> dict[str, torch.Tensor]:
    """The tensors of a final model's files."""
    return {
        f"{path.name} {name}": one for path in folder.glob("*.safetensors") for name, one in load_file(path).items()
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in EQUAL]
)
def test_two_processes_equal_one(tmp_path, tokenizer, sharded, name):
    found, expected = sharded(name), results(tmp_path, tokenizer, CASES[name], processes=1)
    assert found["sharded"] == len(found["weights"]) and not expected["sharded"]
    assert len(found["logs"]) == len(expected["logs"]) == STEPS
    for got, want in zip(found["logs"], expected["logs"], strict=True):
        for part in want.keys() & {"loss", "lm_loss", "jepa_loss", "cosine_similarity", "num_pairs", "grad_norm"}:
            assert got[part] == pytest.approx(want[part], abs=1e-6, rel=1e-6), part
    for got, want in zip(found["gradients"], expected["gradients"], strict=True):
        assert got.keys() == want.keys()
        for one, gradient in want.items():
            torch.testing.assert_close(got[one], gradient, atol=1e-5, rtol=0)
    for one, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][one], weight, atol=1e-6, rtol=0)
    final, alone = saved(found["folder"] / "final"), saved(tmp_path / "final")
    assert final.keys() == alone.keys() and len(final) > 5
    for one, weight in alone.items():
        torch.testing.assert_close(final[one], weight, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].get("resume")])
def test_a_run_is_resumed(sharded, name):
    final, resumed = (saved(sharded(name)["folder"] / folder) for folder in ("final", "resumed"))
    assert final.keys() == resumed.keys() and all(torch.equal(final[one], resumed[one]) for one in final)


def test_answers_are_scored_by_processes_that_generate_differently_often(sharded):
    assert [one["eval_answers"] for one in sharded("ema")["evaluations"]] == [2.0] * 3


def test_the_parts_of_the_loss_stay_in_float32(sharded):
    rounded, exact = sharded("bf16"), sharded("step")
    assert rounded["dtypes"] == exact["dtypes"] == {"torch.float32"}
    for got, want in zip(rounded["logs"], exact["logs"], strict=True):
        assert got["loss"] == pytest.approx(want["loss"], rel=1e-2) and got["loss"] != want["loss"]
    assert all(weight.dtype == torch.float32 for weight in rounded["weights"].values())


ACTIVATION = '--lora --fsdp_config {"activation_checkpointing":true}'


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "more", "message"),
    [
        # As it is, it trains with DDP there.
        ("stepjepa", "", "--fsdp: accelerate does not shard weights on cpu"),
        ("support.sharding", ACTIVATION, "give --gradient_checkpointing true"),
    ],
)
def test_what_would_not_be_sharded_or_saved_is_refused(tmp_path, module, more, message):
    data = write(tmp_path / "rows.jsonl", rows())
    flags = f"train --fsdp true --train_file {data} --model_name tiny --output_dir {tmp_path / 'out'} --max_steps 1"
    done = launch([*flags.split(), *more.split()], module)
    assert done.returncode and message in done.stderr
    assert "stepjepa/training/trainer.py" not in done.stderr and not (tmp_path / "out").exists()
