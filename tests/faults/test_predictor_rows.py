"""Faults: predictor rows were in the vocabulary: checkpoints and adapters held it resized, and final models no rows."""

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepjepa.cli.main import main
from stepjepa.modeling.lora import lora_config
from stepjepa.training.sampling import FILLER, Draw
from support import training
from support.models import tiny_model
from support.rows import step_rows, write
from support.states import load_states
from support.training import batch_of

IDS = torch.tensor([[7, 8, 9, 10]])


def trainer_for(folder, tokenizer, name="llama", peft=None, model=None, **options):
    saves = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant"}
    options = {"objective": "step_jepa", "predictors": 2, **saves, **options}
    model = model or tiny_model(name, "eager" if name == "gemma2" else "sdpa", vocab_size=len(tokenizer))
    return training.trainer_for(folder, tokenizer, step_rows(12), peft=peft, model=model, **options)


def plain_model(folder, vocabulary):
    model, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.config.vocab_size == model.get_input_embeddings().weight.shape[0] == vocabulary
    return model.eval()


@pytest.mark.parametrize("options", [{"predictor_head": "mlp"}, {"same_predictor": True}])
def test_a_checkpoint_has_the_vocabulary_as_it_came(tmp_path, tokenizer, options):
    trainer, out = trainer_for(tmp_path, tokenizer, **options), tmp_path / "out"
    trainer.train()
    model = plain_model(out / "checkpoint-4", len(tokenizer))
    assert torch.equal(model(IDS).logits, trainer.model.eval()(IDS).logits)
    assert AutoTokenizer.from_pretrained(out / "checkpoint-4").get_vocab() == tokenizer.get_vocab()
    first, last = (load_file(out / f"checkpoint-{step}" / "predictors.safetensors") for step in (2, 4))
    assert last["predictors.weight"].shape == (1 if "same_predictor" in options else 2, 32)
    assert ((last["predictors.weight"] - first["predictors.weight"]).norm(dim=-1) > 1e-4).all()
    trainer.save_model(str(out / "final"))
    final = load_file(out / "final" / "predictors.safetensors")
    assert final.keys() == last.keys() and all(torch.equal(final[name], last[name]) for name in last)


def grown(model, rows):
    """A copy of a trained model whose vocabulary ends with the predictor rows, as an independent reference."""
    model = copy.deepcopy(model)
    size = model.get_input_embeddings().weight.shape[0]
    del model.jepa, model.forward
    model.resize_token_embeddings(size + len(rows), mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[size:] = rows
    return model


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "gemma3_sliding"])
@pytest.mark.parametrize("forward", ["auto", "two_pass"])
def test_the_rows_are_embedded_as_the_vocabulary_s_are(tmp_path, tokenizer, name, forward):
    """Sources are the states of a model that has the rows in its vocabulary (which Gemma scales by the root of D)."""
    trainer = trainer_for(tmp_path, tokenizer, name, forward=forward)
    trainer.model.eval()
    with torch.no_grad():
        trainer.model.jepa.predictors.weight += 0.1
        found = trainer.model(batch=batch_of(trainer)).source_states
        reference = grown(trainer.model, trainer.model.jepa.predictors.weight)
        expected, ids = [], list(range(len(tokenizer), len(tokenizer) + 2))
        for row in range(len(trainer.train_dataset)):
            example = trainer.train_dataset[Draw(0, row)]
            for pair in example.pairs:
                source = [*example.trunk[: example.sees(pair.source) + 1].tolist(), *ids]
                states = getattr(reference, reference.base_model_prefix)(torch.tensor([source])).last_hidden_state
                expected.append(states[0, -1])
    assert len(expected) > 4
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("forward", ["packed", "two_pass", "inline"])
@pytest.mark.parametrize("peft", [False, True], ids=["full", "lora"])
def test_a_batch_without_a_pair_has_a_gradient_for_the_rows(tmp_path, tokenizer, forward, peft):
    """DDP waits for the gradient of every parameter, in every batch."""
    adapter = lora_config(2) if peft else None
    trainer = trainer_for(tmp_path, tokenizer, peft=adapter, forward=forward, predictor_head="mlp")
    filler = trainer.train_dataset[Draw(0, FILLER)]
    chat = trainer.train_dataset[Draw(0, 0)]._replace(pairs=())
    for examples in ([filler], [chat, filler]):
        trainer.model.zero_grad(set_to_none=True)
        trainer.compute_loss(trainer.model, trainer.data_collator(examples)).backward()
        extras = [p for name, p in trainer.model.named_parameters() if "jepa." in name]
        assert len(extras) == 5 and all(p.grad is not None and not p.grad.any() for p in extras)


def test_analyze_reads_a_final_model_where_training_read_it(tmp_path, monkeypatch):
    """The states of an adapter are its checkpoint's, after the predictors and the head."""
    monkeypatch.setattr("stepjepa.analysis.run.save_figure", lambda figure, path: None)
    data, base, run, out = (tmp_path / name for name in ("data.jsonl", "base", "run", "states"))
    write(data, step_rows(12))
    words = f"train --train_file {data} --step_jepa --max_steps 3 --save_steps 3 --batch_size 4 --learning_rate 1e-2"
    words += " --disable_tqdm true --predictor_head linear --predictor_order descending"
    for more in (f"--output_dir {base} --model_name tiny", f"--output_dir {run} --model_name {base} --lora"):
        assert main(f"{words} {more}".split()) == 0

    def states(*more):
        words = f"analyze {data} --models {run} {run / 'checkpoint-3'} --output_dir {out} --step_jepa --layers -1"
        assert main([*words.split(), *more]) == 0
        return [load_states(path) for path in sorted(out.glob("states-*.safetensors"))]

    final, checkpoint = states()
    assert np.allclose(final.source, checkpoint.source, atol=1e-5)
    assert np.allclose(final.target, checkpoint.target, atol=1e-5)
    last_token, _ = states("--predictors", "0", "--overwrite_output_dir")
    assert np.allclose(last_token.target, final.target, atol=1e-5)
    assert np.abs(last_token.source - final.source).max() > 1e-2
