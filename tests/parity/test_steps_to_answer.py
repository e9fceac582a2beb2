"""The state before the answer without the steps against the one with them, by a loop over prompts, cues and answers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stepjepa.data.answers import answer_cue
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.lora import lora_config
from stepjepa.training.datasets import encode
from stepjepa.training.options import JEPAOptions
from support.objectives import Run, assert_flops, assert_near, gradient, layouts, losses, name_of, prepare, run_alone
from support.tokenizers import byte_bpe_tokenizer
from support.training import SAVED, assert_resumes_alike, assert_train_alike, trainer_for

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
        ("It is big. The answer is A", "The answer is "),
        ("The answer is (3,4).", "The answer is "),
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
    learned = list(range(run.setup.vocabulary, run.setup.vocabulary + run.options.predictors))
    layers = run.options.answer_layers or [run.options.readout_layer]

    def state(tokens: list[int], cue: list[int]) -> torch.Tensor:
        read = len(cue) if run.options.readout == "mean" else 1
        return torch.stack([run_alone(run.model, tokens, layer=layer)[-read:].mean(0) for layer in layers])

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
    assert_flops(run, run.collator()(run.examples))
    expected = in_a_loop(run, tokenizer)
    wanted = gradient(run, expected)
    plain = prepare(tokenizer, {"objective": "regular", "model": options["model"]}, rows_of())
    lm = plain.model(batch=plain.collator()(plain.examples)).lm_loss_sum.item()
    for name, batch in layouts(run, monkeypatch):
        parts, found, _ = losses(run, batch)
        assert batch.pairs == 6 * len(options.get("answer_layers", [-1])) and parts.jepa.item() == pytest.approx(
            expected.item(), rel=1e-4
        ), name
        assert_near(found, wanted)
        assert parts.lm.item() == pytest.approx(lm, rel=1e-6)


def test_rows_without_a_cue_behind_steps_are_counted(tokenizer):
    options = JEPAOptions(**OBJECTIVE)
    options.check()
    for used in (tokenizer, byte_bpe_tokenizer()):
        store, report = encode(rows_of(), used, options)
        assert report.pairs == 6 and len(store) == 8
        assert dict(report.examples_without_pairs) == {"no_answer_cue": 2}
    assert any("'####'" in line and "2" in line for line in report.lines())


@pytest.mark.parametrize("peft", [None, lora_config(4)], ids=["full", "lora"])
def test_a_resumed_run_trains_the_same_weights(tmp_path, tokenizer, peft):
    def trainer(folder):
        return trainer_for(folder, tokenizer, rows_of(16), peft=peft, predictors=1, **SAVED, **OBJECTIVE)

    before, (whole, _) = trainer(tmp_path), assert_resumes_alike(trainer, tmp_path)
    moved = [causal_lm(run.model).jepa.predictors.weight.detach() for run in (before, whole)]
    assert (moved[0] - moved[1]).norm() > 1e-4


def test_without_a_weight_it_is_plain_training(tmp_path, tokenizer):
    ways = {**OBJECTIVE, "predictors": 2, "lbd": 0.0}, {"objective": "regular"}
    assert_train_alike(tmp_path, tokenizer, rows_of(16), *ways)
