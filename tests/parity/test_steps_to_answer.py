"""The state before the answer without the steps against the one with them, by a loop over prompts, cues and answers."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from stepjepa.analysis.states import read_states
from stepjepa.data.answers import answer_cue
from stepjepa.modeling.flops import KERNELS, ModelCost, batch_flops
from stepjepa.modeling.lora import lora_config
from stepjepa.training.datasets import encode
from stepjepa.training.options import JEPAOptions
from support.objectives import Run, assert_same_direction_and_size, gradient, layouts, losses, name_of, prepare
from support.tokenizers import byte_bpe_tokenizer
from support.training import trainer_for, weights

OBJECTIVE = {"objective": "steps_to_answer"}
CUES = ["#### ", "The answer is ", r"So \boxed{", "My final answer: "]


def rows_of(count: int = 8) -> list[dict]:
    """One row in five has no cue, another nothing but the cue and the answer."""
    rows = []
    for number in range(count):
        steps = "Add one number after the other.\n" * (number % 3 + 1)
        answer = f"{steps}{CUES[number % 4]}{number + 31}{'}' if number % 4 == 2 else ''}"
        if number % 5 == 3:
            answer = steps + "Done."
        if number % 5 == 4:
            answer = f"#### {number}"
        question = {"role": "user", "content": f"What is {number} + 31?"}
        rows.append({"messages": [question, {"role": "assistant", "content": answer}]})
    return rows


@pytest.mark.parametrize(
    ("text", "cue"),
    [
        ("2 + 3 = 5\n#### 5", "#### "),
        ("####\t5", "####\t"),
        (r"So the answer is \boxed{18}.", r"\boxed{"),
        (r"\boxed{2}, then \boxed{ 3 }", r"\boxed{ "),
        ("Thus the final answer is $18.", "the final answer is $"),
        ("Answer: 7 apples", "Answer: "),
        ("2\n<answer> 7 </answer>", "<answer> "),
        ("<think>The answer is 9</think>The answer is 7", "The answer is "),
        ("It is 9.", None),
        ("<think>The answer is 9</think>It is 9.", None),
        ("", None),
    ],
)
def test_the_cue_ends_right_before_the_final_answer(text, cue):
    found = answer_cue(text)
    assert (found and text[slice(*found)]) == cue
    assert cue is None or found[0] == text.rindex(cue)


def in_a_loop(run: Run, tokenizer) -> torch.Tensor:
    """The sum of the losses, from the texts of the rows."""
    model, vocabulary = run.model, run.setup.vocabulary
    rows = model.get_input_embeddings().weight
    if run.options.predictors:
        rows = torch.cat([rows, model.jepa.predictors.weight])
    learned = list(range(vocabulary, vocabulary + run.options.predictors))

    layers = run.options.answer_layers or [run.options.readout_layer or -1]

    def state(tokens: list[int], cue: list[int]) -> torch.Tensor:
        inner = getattr(model, model.base_model_prefix)
        output = inner(inputs_embeds=rows[tokens][None], output_hidden_states=True)
        found = [output.last_hidden_state if layer == -1 else output.hidden_states[layer] for layer in layers]
        read = len(cue) if run.options.readout == "mean" else 1
        return torch.stack([states[0, -read:].mean(0) for states in found])

    sources, targets = [], []
    for number, row in enumerate(rows_of()):
        question, answer = (message["content"] for message in row["messages"])
        if number % 5 in (3, 4):
            continue
        place = answer.rindex(CUES[number % 4])
        place += 3 * (number % 4 == 2)  # the cue is the box
        prompt = f"<|bos|><|user|>{question}<|end|><|assistant|>"
        encoded = tokenizer(prompt + answer, add_special_tokens=False, return_offsets_mapping=True)
        ends = [end - len(prompt) for _, end in encoded["offset_mapping"]]
        stop = place + len(CUES[number % 4]) - 3 * (number % 4 == 2)
        cue = [token for token, end in zip(encoded["input_ids"], ends, strict=True) if place < end <= stop]
        before = [token for token, end in zip(encoded["input_ids"], ends, strict=True) if end <= stop]
        sources.append(state([*tokenizer(prompt, add_special_tokens=False)["input_ids"], *learned, *cue], cue))
        targets.append(state(before, cue).detach())
    if run.options.control == "shuffled":
        targets = targets[1:] + targets[:1]
    pairs = zip(sources, targets, strict=True)
    losses_L = [F.smooth_l1_loss(*states) for pair in pairs for states in zip(*pair, strict=True)]
    return torch.stack(losses_L).sum()


@pytest.mark.parametrize(
    "options",
    [
        {"model": "llama"},
        {"model": "gpt2", "predictors": 2},
        {"model": "mistral_sliding", "predictors": 1, "control": "shuffled"},
        {"model": "llama", "readout_layer": 1},
        {"model": "gpt2", "answer_layers": [0, 1, -1], "control": "shuffled"},
        {"model": "llama", "answer_layers": [0, 1], "predictors": 1, "readout": "mean"},
    ],
    ids=name_of,
)
def test_every_layout_equals_a_plain_loop(tokenizer, options, monkeypatch):
    run = prepare(tokenizer, {**OBJECTIVE, **options}, rows_of())
    cost = ModelCost.of(run.model.train(), run.setup.vocabulary)
    batch = run.collator()(run.examples)
    with FlopCounterMode(display=False, custom_mapping=KERNELS) as counter:
        sum(part.sum for part in run.model(batch=batch, step=0).parts.values()).backward()
    assert sum(batch_flops(batch, cost).values()) == counter.get_total_flops()
    expected = in_a_loop(run, tokenizer)
    wanted = gradient(run, expected)
    plain = prepare(tokenizer, {"objective": "regular", "model": options["model"]}, rows_of())
    lm = plain.model(batch=plain.collator()(plain.examples)).lm_loss_sum.item()
    for name, batch in layouts(run, monkeypatch):
        parts, found, _ = losses(run, batch)
        assert batch.pairs == 6 * len(options.get("answer_layers", [-1])) and parts.jepa.item() == pytest.approx(
            expected.item(), rel=1e-4
        ), name
        assert_same_direction_and_size(found, wanted)
        assert parts.lm.item() == pytest.approx(lm, rel=1e-6)


@pytest.mark.parametrize("options", [{"readout": "mean"}, {"predictors": 1, "jepa_loss": "infonce"}], ids=name_of)
def test_an_analysis_reads_what_training_reads(tokenizer, options):
    run = prepare(tokenizer, {**OBJECTIVE, "target_grad": True, "predictor_head": "linear", **options}, rows_of())
    examples = [example for example in run.examples if example.pairs]
    with torch.no_grad():
        output = run.model(batch=run.collator()(examples))
    views = torch.from_numpy(read_states(run.model, "m", run.collator("two_pass"), examples, batch_size=2))
    torch.testing.assert_close(views[0, 0], output.source_states, atol=1e-5, rtol=0)
    torch.testing.assert_close(views[1, 0], output.target_states, atol=1e-5, rtol=0)


def test_rows_without_a_cue_behind_steps_are_counted(tokenizer):
    options = JEPAOptions(**OBJECTIVE)
    options.check()
    for used in (tokenizer, byte_bpe_tokenizer()):
        store, report = encode(rows_of(), used, options)
        assert report.pairs == 6 and len(store) == 8
        assert dict(report.examples_without_pairs) == {"no_answer_cue": 2}
    assert any("'####'" in line and "2" in line for line in report.lines())


RUN = {"max_steps": 4, "save_steps": 2, "save_strategy": "steps", "lr_scheduler_type": "constant"}


@pytest.mark.parametrize("peft", [None, lora_config(4)], ids=["full", "lora"])
def test_a_resumed_run_trains_the_same_weights(tmp_path, tokenizer, peft):
    def trainer(name):
        return trainer_for(tmp_path / name, tokenizer, rows_of(16), peft=peft, predictors=1, **RUN, **OBJECTIVE)

    whole = trainer("a")
    before = weights(whole.model)
    whole.train()
    expected = weights(whole.model)
    (rows,) = (name for name in expected if name.endswith("jepa.predictors.weight"))
    assert (expected[rows] - before[rows]).norm() > 1e-4
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(next((tmp_path / "b").rglob("checkpoint-4")))
    resumed = trainer("b")
    resumed.train(resume_from_checkpoint=True)
    assert all(torch.equal(value, expected[name]) for name, value in weights(resumed.model).items())


def test_without_a_weight_it_is_plain_training(tmp_path, tokenizer):
    trained = []
    for number, options in enumerate(({**OBJECTIVE, "predictors": 2, "lbd": 0.0}, {"objective": "regular"})):
        trainer = trainer_for(tmp_path / f"{number}", tokenizer, rows_of(16), **options)
        trainer.train()
        trained.append(weights(trainer.model))
    assert all(torch.equal(value, trained[1][name]) for name, value in trained[0].items())
