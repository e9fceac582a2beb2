"""Every objective through the training machinery: `packed`, `two_pass` and `inline` against each other and against sequences
that are built by hand and run one by one.

The option values are not multiplied out: `covering` turns every wheel at its own speed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stepjepa.analysis.states import FINAL, read_states
from stepjepa.data.types import MASKED
from support import tool_rows
from support.objectives import (
    CASES,
    IN_CONTEXT,
    SPLIT,
    STANDALONE,
    STEPS,
    TUBE,
    Options,
    assert_flops,
    assert_same_losses,
    in_one_row,
    losses,
    name_of,
    prepare,
    run_alone,
)
from support.rows import step_rows

MASKS = {"objective": "llm_jepa", "mask_ratio": 0.4}
MASKED_CASES = [
    {**MASKS, "predictors": 3, "same_predictor": True, "jepa_loss": "mse", "predictor_head": "mlp"},
    {**MASKS, "readout": "mean", "readout_layer": 1},
    {**MASKS, "last_token": -1, "target_encoder": "ema"},
    {**MASKS, "views": "standalone", "model": "gpt2"},
    {**MASKS, "front_pred": True, "reverse_pred": True, "predictors": 2},
    {**MASKS, "jepa_target_column": "plan", "replay_ratio": 0.5},
]


@pytest.mark.parametrize("case", [*CASES, *MASKED_CASES], ids=name_of)
def test_packed_equals_two_pass(tokenizer, case):
    run = prepare(tokenizer, case)
    masked = any((segment.ids == MASKED).any() for example in run.examples for segment in example.segments)
    assert masked == ("mask_ratio" in case)
    if masked:
        assert_flops(run, *(run.collator(way)(run.examples) for way in ("packed", "two_pass")))
    assert run.setup.forward == "packed"
    batches = {
        "several rows": run.collator(max_row_length=150)(run.examples),
        "segments": in_one_row(run.collator())(run.examples),
    }
    assert len(batches["several rows"].rows.input_ids) > 2 and batches["segments"].rows.forests is not None
    reference_batch = run.collator("two_pass")(run.examples)
    apart = run.setup.objective.separate_targets
    assert (reference_batch.target_rows is not None) == apart
    expected = losses(run, reference_batch)
    assert expected[0].jepa > 0 and (expected[0].regularizer > 0) == (run.options.regularizer != "none")
    for batch in batches.values():
        assert batch.views is None and (batch.target_rows is not None) == apart
        assert_same_losses(run, batch, expected)


TOOL_ROWS = [
    tool_rows.row(tool_rows.CHATS[name]) for name in ("one call", "call alone", "two calls", "two turns", "system")
]
TOOL_CASES = (
    {"objective": "llm_jepa", "predictors": 2},
    {"objective": "step_jepa", "step_splitter": "separator", "predictors": 1},
)


@pytest.mark.parametrize("case", TOOL_CASES, ids=lambda case: case["objective"])
@pytest.mark.parametrize("name", ["llama3_1", "qwen3", "hermes", "mistral_v3"])
def test_packed_equals_two_pass_in_rows_with_tools(name, case):
    run = prepare(tool_rows.tool_tokenizer(name), {**case, "max_length": 2000}, TOOL_ROWS)
    assert [len(example.pairs) for example in run.examples][:3] == [1, 0, 1]
    expected = losses(run, run.collator("two_pass")(run.examples))
    assert expected[0].jepa > 0 and expected[0].lm > 0
    for collate in (run.collator(), in_one_row(run.collator())):
        assert_same_losses(run, collate(run.examples), expected)


def test_the_comparison_can_fail(tokenizer):
    """The states are compared closely enough to see one predictor out of place, and a target one position off."""
    run = prepare(tokenizer, {"objective": "step_jepa", "predictors": 2, "model": "gpt2"})
    expected, jepa_gradient, _ = losses(run, run.collator("two_pass")(run.examples))
    swapped = run.collator(predictor_order="descending")(run.examples)
    moved = run.collator()(run.examples)
    last = (moved.rows.segment == moved.rows.segment.max()).long()
    moved = replace(moved, rows=replace(moved.rows, position_ids=moved.rows.position_ids + last))
    for batch in (swapped, moved):
        found, gradient, _ = losses(run, batch)
        assert abs(found.jepa - expected.jepa) > 1e-3
        assert (gradient - jepa_gradient).norm() > 1e-2 * jepa_gradient.norm()


# Views as sequences of their own, written out by hand and run one by one


def by_hand(tokenizer, case: Options, row, predictors: list[int]) -> tuple[list[int], int, list[int], int, int]:
    """Source ids and readout, target ids, first position and readout, from the texts."""
    question, answer = (message["content"] for message in row["messages"])

    def ids_of(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    if case.get("views") == "standalone" or "front_pred" in case or "reverse_pred" in case:
        sides = [("<|bos|><|user|>", question), ("<|bos|><|assistant|>", answer)]
        (header, content), (target_header, target) = sides[::-1] if "reverse_pred" in case else sides
        front = len(ids_of(header)) if "front_pred" in case else len(ids_of(header + content))
        source = ids_of(header + content)
        source[front:front] = predictors
        target_ids = ids_of(target_header + target + "<|end|>")
        return [*source, *ids_of("<|end|>")], len(source) - 1, target_ids, 0, len(target_ids) - 2
    text = f"<|bos|><|user|>{question}<|end|><|assistant|>{answer}<|end|>"
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, last = encoded["input_ids"], [end - 1 for _, end in encoded["offset_mapping"]]
    if case["objective"] == "split":
        cut = int(len(ids) * case.get("split_ratio", 0.5))
        source = ids[:cut] + predictors
        return source, len(source) - 1, ids[cut:], 0, len(ids) - cut - 1
    answer_start = text.index(answer)
    if case["objective"] == "llm_jepa":
        source_end, target_start = text.index(question) + len(question), answer_start
        target_end = answer_start + len(answer)
    else:
        steps = [f"{step}\n\n" for step in answer.split("\n\n")]
        edges = [answer_start + sum(map(len, steps[:number])) for number in range(len(steps) + 1)]
        horizon = case.get("horizon", 1)
        source_end, target_start = edges[1], edges[horizon]
        target_end = min(edges[horizon + 1], answer_start + len(answer))
    source = [token for token, at in zip(ids, last, strict=True) if at < source_end]
    source += predictors
    inside = [n for n, at in enumerate(last) if target_start <= at < target_end]
    first = inside[0] + len(predictors)
    return source, len(source) - 1, [ids[n] for n in inside], first, len(inside) - 1


@pytest.mark.parametrize("model", ["llama", "gpt2"])
@pytest.mark.parametrize("case", [*IN_CONTEXT, *STANDALONE, STEPS[0], STEPS[3], *SPLIT], ids=name_of)
def test_views_are_what_the_texts_say(tokenizer, case, model):
    rows = [row for row in step_rows(12, seed=4) if row["messages"][1]["content"].count("\n\n") > 1][:4]
    run = prepare(tokenizer, {**case, "predictors": 2, "model": model}, rows)
    predictors = run.setup.predictor_ids
    if case["objective"] == "llm_jepa":
        predictors = predictors[::-1]
    with torch.no_grad():
        output = run.model(batch=run.collator()(run.examples))
        for number, row in enumerate(rows):
            source, source_read, target, first, target_read = by_hand(tokenizer, case, row, predictors)
            sources, targets = run_alone(run.model, source), run_alone(run.model, target, first)
            torch.testing.assert_close(output.source_states[number], sources[source_read], atol=1e-5, rtol=0)
            torch.testing.assert_close(output.target_states[number], targets[target_read], atol=1e-5, rtol=0)
            assert (sources[source_read - 1] - sources[source_read]).abs().max() > 0.01


@pytest.mark.parametrize(
    ("views", "layer"), [("in_context", None), ("in_context", 0), ("in_context", -2), ("standalone", 1)]
)
def test_means_and_layers_are_what_the_texts_say(tokenizer, views, layer):
    """The question is read as its mean in the chat, or with its markup alone, and the plan as its mean alone."""
    rows = [{**row, "plan": f"Plan {number}: add."} for number, row in enumerate(step_rows(3, seed=4))]
    case = {"objective": "llm_jepa", "views": views, "readout": "mean", "readout_layer": layer, "model": "gpt2"}
    run = prepare(tokenizer, {**case, "jepa_target_column": "plan", "predictors": 0}, rows)

    def mean(text: str, skipped: str = "", first: int = 0) -> torch.Tensor:
        ids, before = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (text, skipped))
        return run_alone(run.model, ids, first, layer)[len(before) :].mean(0)

    with torch.no_grad():
        output = run.model(batch=run.collator()(run.examples))
        for number, row in enumerate(rows):
            question, header = f"<|bos|><|user|>{row['messages'][0]['content']}", "<|end|><|assistant|>"
            source, target = mean(question, "<|bos|><|user|>"), None
            if views == "standalone":
                source, target = mean(f"{question}<|end|>"), mean(f"<|bos|><|assistant|>{row['plan']}<|end|>")
            else:
                start = len(tokenizer(question + header, add_special_tokens=False)["input_ids"])
                target = mean(row["plan"], first=start)
            torch.testing.assert_close(output.source_states[number], source, atol=1e-5, rtol=0)
            torch.testing.assert_close(output.target_states[number], target, atol=1e-5, rtol=0)


PLAN = {"objective": "llm_jepa", "readout": "mean", "readout_layer": -2, "jepa_target_column": "plan"}
ANSWER = {"objective": "steps_to_answer", "target_grad": True}


@pytest.mark.parametrize(
    ("case", "layers"),
    [
        ({**PLAN, "predictors": 0}, (1, FINAL)),
        ({**PLAN, "predictors": 1}, (1, FINAL)),
        ({**ANSWER, "readout": "mean"}, (FINAL, 1)),
        ({**ANSWER, "predictors": 1, "jepa_loss": "infonce"}, (FINAL, 1)),
    ],
)
def test_an_analysis_reads_what_training_reads(tokenizer, case, layers):
    """Means, and the predictor head on the layer that it was trained on."""
    run = prepare(tokenizer, {**case, "predictor_head": "linear"})
    examples = [example for example in run.examples if example.pairs]
    with torch.no_grad():
        output = run.model(batch=run.collator()(examples))
    ids = run.collator().predictor_ids
    views = read_states(run.model, "m", examples, layers, predictor_ids=ids, batch_size=2, head_layer=layers[0])
    assert views.shape == (2, 2, *output.source_states.shape)
    for found, trained in zip(torch.from_numpy(views), (output.source_states, output.target_states), strict=True):
        torch.testing.assert_close(found[0], trained, atol=1e-5, rtol=0)
        assert (found[1] - trained).abs().max() > 0.01


@pytest.mark.parametrize(
    "case",
    [{**TUBE[1], "jepa_loss": "l2"}, {**TUBE[2], "tube_layer": 1}, TUBE[4], TUBE[7], TUBE[8], *TUBE[9:]],
    ids=name_of,
)
def test_a_tube_is_the_weighted_mean_over_spans(tokenizer, case):
    run = prepare(tokenizer, {"objective": "semantic_tube", **case})
    distances, weights = [], []
    for example in run.examples:
        with torch.no_grad():
            states = run_alone(run.model, example.trunk, layer=case.get("tube_layer"))
        for pair in example.pairs:
            source, target = (
                sum(c * states[token : token + tokens].sum(0) for _, token, c, tokens in read.terms)
                for read in pair[:2]
            )
            cosine = torch.cosine_similarity(source, target, dim=0)
            distance = (source - target).norm() if run.options.jepa_loss == "l2" else 1 - cosine
            distances.append(torch.arccos(cosine) if run.options.tube_mode == "curvature" else distance)
            weights.append(pair.weight)
    expected = (torch.stack(distances) * torch.tensor(weights)).sum() / sum(weights)
    for forward in ("packed", "two_pass"):
        batch = run.collator(forward)(run.examples)
        parts, _, _ = losses(run, batch)
        assert (parts.jepa / batch.weight).item() == pytest.approx(expected.item(), rel=1e-4)
    unequal = len(set(weights)) > 1
    assert unequal == (run.options.tube_length_adjustment != "none" or run.options.tube_mode == "curvature")
    assert not unequal or abs(torch.stack(distances).mean() - expected) > 1e-3 * expected
