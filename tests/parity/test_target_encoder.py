"""Targets by the model at the start of a run, and by another model, against separate passes of those models."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch

from stepjepa.cli.main import main
from stepjepa.data.types import ISOLATED
from stepjepa.errors import ConfigError
from stepjepa.forest.collate import shuffled_order
from stepjepa.losses.distances import cosine_loss
from stepjepa.modeling.extras import target_encoder
from stepjepa.modeling.lora import lora_config
from support.models import tiny_model
from support.objectives import assert_flops, assert_near, gradient, in_one_row, prepare, run_alone
from support.rows import step_rows, write
from support.runs import one_line
from support.tokenizers import byte_bpe_tokenizer
from support.training import SAVED, STEPS, assert_resumes_alike, batch_of, trainer_for


def saved_model(folder, tokenizer, kind="llama", **changes) -> str:
    """The folder of another tiny model with the tests' tokenizer."""
    model = tiny_model(kind, vocab_size=len(tokenizer), **changes)
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("peft", [False, True], ids=["full", "lora"])
def test_a_frozen_encoder_is_the_model_of_the_start(tmp_path, tokenizer, peft):
    adapter = lora_config(4, dropout=0.0) if peft else None
    trainer = trainer_for(tmp_path, tokenizer, peft=adapter, target_encoder="frozen", predictors=1, **SAVED, **STEPS)
    batch = batch_of(trainer)
    with torch.no_grad():
        first = copy.deepcopy(trainer.model.eval()(batch=batch))
    trainer.train()
    with torch.no_grad():
        last = trainer.model.eval()(batch=batch)
    assert torch.equal(first.target_states, last.target_states)
    assert (first.source_states - last.source_states).abs().max() > 1e-3
    trainer.save_model(str(tmp_path / "final"))
    assert not (tmp_path / "final" / "target_encoder.safetensors").exists()


@pytest.mark.parametrize("encoder", ["frozen", "folder"])
def test_a_resumed_run_has_the_same_encoder(tmp_path, tokenizer, encoder):
    encoder = encoder if encoder == "frozen" else saved_model(tmp_path / "encoder", tokenizer, hidden_size=16)
    options = {"target_encoder": encoder, **SAVED, **STEPS}
    assert_resumes_alike(lambda folder: trainer_for(folder, tokenizer, **options), tmp_path)


@pytest.mark.parametrize(
    ("changes", "case"),
    [
        ({}, {}),
        ({}, {"objective": "llm_jepa", "views": "standalone", "predictors": 1}),
        ({"hidden_size": 16}, {"readout": "mean"}),
        ({"hidden_size": 16}, {"predictor_head": "mlp", "step_pairs": "all", "multi_horizon": [1, 2]}),
        ({"kind": "gpt2"}, {"model": "gpt2", "readout_layer": -2}),
        ({"kind": "mistral_sliding"}, {"control": "shuffled"}),
    ],
    ids=["same width", "standalone", "narrower", "narrower-mlp", "gpt2", "sliding-shuffled"],
)
def test_another_model_encodes_the_targets(tmp_path, tokenizer, changes, case):
    folder = saved_model(tmp_path / "encoder", tokenizer, **changes)
    run = prepare(tokenizer, {"objective": "step_jepa", **case, "target_encoder": folder})
    assert_flops(run, run.collator()(run.examples), run.collator("two_pass")(run.examples))
    other = target_encoder(run.model)
    # Every target alone in a row, at the positions that it has in the forest.
    targets = []
    for example in run.examples:
        for pair in example.pairs:
            segment = example.segments[pair.target.terms[0].segment - 1]
            assert segment.attach == ISOLATED
            with torch.no_grad():
                states = run_alone(other, segment.ids, segment.position, case.get("readout_layer"))
            terms = pair.target.terms
            targets.append(sum(one.coefficient * states[one.token : one.token + one.tokens].sum(0) for one in terms))
    expected = torch.stack(targets)
    if case.get("control") == "shuffled":
        expected = expected[shuffled_order([len(example.pairs) for example in run.examples])]
    gradients = []
    for collate in (run.collator(), in_one_row(run.collator()), run.collator("two_pass")):
        output = run.model(batch=collate(run.examples), step=5)
        torch.testing.assert_close(output.target_states, expected, atol=2e-5, rtol=1e-4)
        assert not output.target_states.requires_grad
        found, loss = output.parts["jepa_loss"].sum, cosine_loss(output.source_states, output.target_states).sum()
        assert found.item() == pytest.approx(loss.item(), rel=1e-5)
        gradients.append(gradient(run, found))
        assert_near(gradients[-1], gradients[0])
    head = run.model.jepa.head
    assert (head is None) == (
        output.source_states.shape[1] == run.model.config.hidden_size and "predictor_head" not in case
    )
    if head is not None:
        trained = torch.autograd.grad(output.parts["jepa_loss"].sum, list(head.parameters()), retain_graph=True)
        assert all(one.abs().sum() > 0 for one in trained)


def test_what_is_written_and_read_again(tmp_path, tokenizer, capsys):
    encoder = saved_model(tmp_path / "encoder", tokenizer, hidden_size=16)
    saved_model(tmp_path / "model", tokenizer)
    rows = write(tmp_path / "rows.jsonl", step_rows(12))
    paths = f"--model_name {tmp_path / 'model'} --train_file {rows} --output_dir {tmp_path / 'run'}"
    steps = "--max_steps 2 --use_cpu --save_strategy steps --save_steps 1"
    words = f"train {paths} --objective step_jepa --target_encoder {encoder} {steps}"
    assert main(words.split()) == 0
    assert "so a linear head maps to them" in capsys.readouterr().err
    record = (tmp_path / "run" / "run.json").read_text()
    assert "target from" in record and "weights of the target encoder" in record
    assert main(f"analyze --models {tmp_path / 'run'} --file {rows} --output_dir {tmp_path / 'a'}".split()) == 0
    capsys.readouterr()
    # Another model in that folder is another run.
    saved_model(tmp_path / "encoder", tokenizer, hidden_size=16, num_hidden_layers=1)
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    (tmp_path / "run" / "metrics.json").unlink()
    assert main([*words.split(), "--resume_from_checkpoint", "true"]) == 2
    assert "weights of the target encoder" in one_line(capsys.readouterr().err)


def test_what_cannot_encode_targets_is_refused(tmp_path, tokenizer):
    other = saved_model(tmp_path / "other", byte_bpe_tokenizer())
    short = saved_model(tmp_path / "short", tokenizer, "gpt2", n_positions=32)
    for encoder, words in {
        other: "has a different tokenizer",
        short: "has 32 learned positions, fewer than the trained model",
        "./nowhere": "target_encoder: .*nowhere",
        "emma": "target_encoder is 'emma'; known: self, ema, frozen, or the folder of a model",
    }.items():
        with pytest.raises(ConfigError, match=words) as error:
            trainer_for(tmp_path, tokenizer, target_encoder=encoder, **STEPS)
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="target_encoder=frozen receives no gradient"):
        trainer_for(tmp_path, tokenizer, target_encoder="frozen", target_grad=True, **STEPS)
