"""The nanoGPT example runs as a user would run it, and its packed losses are those of the literal separate passes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from stepjepa.forest.collate import ForestCollator

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "nanogpt_jepa.py"
TINY = (
    "--n_layer 1 --n_head 2 --n_embd 32 --block_size 32 --batch_size 8 --max_iters 30 --eval_interval 10 --eval_iters 2 "
    "--num_texts 200 --learning_rate 1e-2 --device cpu"
).split()


def check_run(out, said, arms):
    assert {path.name for path in out.iterdir()} == {"results.json", "curves.png"}
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((out / "results.json").read_text())
    assert list(results["arms"]) == arms and results["settings"]["n_embd"] == 32
    for name, arm in results["arms"].items():
        assert [entry["iter"] for entry in arm["log"]] == [10, 20, 30]
        for key in ("train_ce", "held_out_ce"):
            assert arm["log"][-1][key] < arm["log"][0][key] - 0.2
        assert (arm["train_jepa"] is None) == (name == "baseline") and arm["tokens_per_second"] > 0
        assert 0 < arm["held_out_jepa"] < 2 and 0 < arm["held_out_jepa_other"] < 2
        assert f"{name} iter 30: CE " in said
    assert "no evidence" in said


def test_it_runs_as_a_script_and_characters_load_no_transformers(tmp_path):
    words = [*TINY, "--control", "shuffled", "--out_dir", str(tmp_path / "out")]
    code = f"import runpy, sys; sys.argv[1:] = {words!r}; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    code += "assert not {'transformers', 'tokenizers', 'datasets'} & {*sys.modules}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    check_run(tmp_path / "out", done.stdout, ["baseline", "jepa", "shuffled"])


def test_another_run(script, tmp_path, monkeypatch, capsys):
    words = [*TINY, "--tokenizer", "bpe", "--jepa_k", "2", "--out_dir", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
    script.main()
    check_run(tmp_path / "out", capsys.readouterr().out, ["baseline", "jepa"])


def test_a_folder_that_is_not_empty_is_refused_in_one_line(script, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit) as stopped:
        script.parse(["--out_dir", str(tmp_path)])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and error.count("\n") == 1 and "--out_dir" in error
    assert script.parse(["--out_dir", str(tmp_path), "--overwrite"]).out_dir == tmp_path


# The literal computation: the notebook's two separate passes, written against the example's model.


def literal_states(model, idx, predictors=0):
    """States of idx (B, T) and `predictors` copies of the predictor, by themselves with positions from 0."""
    vector = torch.full((len(idx), predictors), model.vocab_size)
    return model(torch.cat([idx, vector], dim=1))


def literal_losses(model, x, y, ratio, count):
    logits = model(x) @ model.transformer.wte.weight[: model.vocab_size].T
    ce = F.cross_entropy(logits.reshape(-1, model.vocab_size), y.reshape(-1))
    split = max(2, int(x.size(1) * ratio))
    prediction = literal_states(model, x[:, :split], count)[:, -1, :]
    with torch.no_grad():
        target = literal_states(model, x[:, split:])[:, -1, :]
    prediction, target = F.normalize(prediction, dim=-1), F.normalize(target, dim=-1)
    return ce, (1.0 - (prediction * target).sum(dim=-1)).mean()


def packed_losses(script, model, x, y, ratio, count, **options):
    collator = ForestCollator((model.vocab_size,) * count, pad_token_id=0, separate_targets=True, **options)
    batch = script.lay_out(x.numpy().astype(np.int32), collator, ratio, "cpu")
    ce, distance, other = script.losses(model, batch, y)
    assert distance.shape == other.shape == (len(x),)
    return ce, distance.mean(), other.mean()


def gradients(model, loss):
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, allow_unused=True)
    return {name: g for name, g in zip(parameters, found, strict=True) if g is not None}


@pytest.fixture
def setting(script):
    torch.manual_seed(0)
    model = script.GPT(vocab_size=23, block_size=24, n_layer=2, n_head=2, n_embd=32)
    for parameter in model.parameters():  # weights as drawn hardly attend, and a wrong mask would hardly show
        parameter.data.mul_(5.0).add_(0.02 * torch.randn_like(parameter))
    tokens = torch.randint(23, (5, 25))
    return model, tokens[:, :-1], tokens[:, 1:]


@pytest.mark.parametrize(("ratio", "count"), [(0.5, 0), (0.5, 1), (0.5, 3), (0.01, 2), (0.8, 4)])
def test_packed_equals_separate_passes(script, setting, ratio, count):
    model, x, y = setting
    slow = literal_losses(model, x, y, ratio, count)
    fast = packed_losses(script, model, x, y, ratio, count)
    assert 0.05 < slow[1].item() < 1.95
    for slow_loss, fast_loss in zip(slow, fast, strict=False):
        assert fast_loss.item() == pytest.approx(slow_loss.item(), abs=1e-5)
        slow_gradients, fast_gradients = gradients(model, slow_loss), gradients(model, fast_loss)
        assert slow_gradients.keys() == fast_gradients.keys() and len(slow_gradients) > 20
        for name, value in slow_gradients.items():
            assert value.abs().max() > 1e-4, name
            torch.testing.assert_close(fast_gradients[name], value, atol=1e-5, rtol=1e-5)
    rows = gradients(model, fast[1])["transformer.wte.weight"]
    assert (rows[-1].abs().max() > 1e-4) == (count > 0)  # the predictor learns from the JEPA term
    assert not gradients(model, fast[0])["transformer.wte.weight"][-1].any()  # and is no class of the softmax


def test_shuffled_targets_are_those_of_another_block(script, setting):
    model, x, y = setting
    true, other = packed_losses(script, model, x, y, 0.5, 1)[1:]
    shuffled = packed_losses(script, model, x, y, 0.5, 1, shuffle_targets=True)[1]
    assert abs(shuffled.item() - true.item()) > 1e-4
    # The measured control turns the targets the other way round, so it is compared with its own literal form.
    target = literal_states(model, x[:, 12:])[:, -1]
    prediction = literal_states(model, x[:, :12], 1)[:, -1]
    for value, shift in ((shuffled, -1), (other, 1)):
        literal = (1 - F.cosine_similarity(prediction, target.roll(shift, 0))).mean()
        assert value.item() == pytest.approx(literal.item(), abs=1e-5)


def test_arms_begin_alike_and_see_the_same_blocks(script, tmp_path):
    args = script.parse([*TINY, "--max_iters", "2", "--eval_interval", "1", "--out_dir", str(tmp_path / "out")])
    streams = script.make_streams(args)
    arms = [script.train_arm(name, *streams, args) for name in ("baseline", "jepa", "shuffled", "baseline")]
    baseline, jepa, shuffled, again = (arm["log"] for arm in arms)
    assert baseline[0]["train_ce"] == pytest.approx(jepa[0]["train_ce"], abs=1e-5)
    assert jepa[0]["train_ce"] == shuffled[0]["train_ce"] and jepa[0]["train_jepa"] != shuffled[0]["train_jepa"]
    assert abs(baseline[1]["train_ce"] - jepa[1]["train_ce"]) > 1e-5
    assert baseline == again


def test_published_values(script, shared_dir):
    golden = shared_dir / "golden"
    if not (golden / "nanogpt.json").is_file():
        pytest.skip("no reference values here")
    values = json.loads((golden / "nanogpt.json").read_text())
    names = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")
    model = script.GPT(**{name: values["meta"]["config"][name] for name in names})
    weights = load_file(golden / "nanogpt_tiny.safetensors")
    table = [weights["transformer.wte.weight"], weights.pop("pred_token")[0]]
    model.load_state_dict(weights | {"transformer.wte.weight": torch.cat(table)})
    x, cases = torch.tensor(values["x"]), values["cases"]
    y = torch.cat([x[:, 1:], torch.tensor(values["y_last_column"])[:, None]], dim=1)
    assert {case["k"] for case in cases} == {0, 2}
    for case in cases:
        ce, jepa, _ = packed_losses(script, model, x, y, case["split"], case["k"])
        assert ce.item() == pytest.approx(case["ce"], rel=2e-5)
        assert jepa.item() == pytest.approx(case["jepa_cosine"], rel=2e-5)
        total = ce + 0.5 * jepa
        assert total.item() == pytest.approx(case["total_lambda_0p5"], rel=2e-5)
        found = gradients(model, total)
        norm = torch.stack([value.norm() for value in found.values()]).norm()
        assert norm.item() == pytest.approx(case["grad_norm_total"], rel=1e-4)
        predictor = found["transformer.wte.weight"][-1].norm().item()
        assert predictor == pytest.approx(case["grad_norm_pred_token"] or 0.0, rel=1e-4)
