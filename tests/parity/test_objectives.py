"""Every objective through the training machinery: `packed`, `two_pass` and `inline` against each other and against sequences
that are built by hand and run one by one.

The option values are not multiplied out: `covering` turns every wheel at its own speed, and
`test_every_value_occurs_with_every_objective` sees to it that none is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from stepjepa.data.examples import Example
from stepjepa.forest.collate import ForestCollator
from stepjepa.forest.layout import build_forest
from stepjepa.modeling.ema import add_target_encoder
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import load_tokenizer, max_positions
from stepjepa.training.batches import Draw, DrawnExamples
from stepjepa.training.objective import LossParts, loss_parts, total_loss, total_weight, used_targets
from stepjepa.training.options import JEPAOptions
from stepjepa.training.setup import ModelSetup, encode, make_collator, set_up_model
from support.models import tiny_model
from support.rows import step_rows

Options = dict[str, Any]
LOSSES = ("cosine", "l2", "mse", "smooth_l1", "infonce")
HEADS = ("none", "linear", "mlp")
REGULARIZERS = ("none", "vicreg", "sigreg")
TARGETS = ({"target_grad": True}, {"target_grad": False}, {"target_encoder": "ema"})
ORDERS = ("ascending", "descending")
LAST_TOKENS = (None, -1, -2)
MODELS = ("llama", "gpt2", "mistral_sliding")
SEED = 3

IN_CONTEXT: tuple[Options, ...] = ({"objective": "llm_jepa"},)
STANDALONE: tuple[Options, ...] = (
    {"objective": "llm_jepa", "views": "standalone"},
    {"objective": "llm_jepa", "front_pred": True},
    {"objective": "llm_jepa", "reverse_pred": True},
    {"objective": "llm_jepa", "front_pred": True, "reverse_pred": True},
)
STEPS: tuple[Options, ...] = (
    {"objective": "step_jepa"},
    {"objective": "step_jepa", "step_pairs": "all"},
    {"objective": "step_jepa", "step_pairs": "random"},
    {"objective": "step_jepa", "horizon": 2},
    {"objective": "step_jepa", "multi_horizon": [1, 2]},
    {"objective": "step_jepa", "multi_horizon": [1, 2], "step_pairs": "all"},
)
SPLIT: tuple[Options, ...] = ({"objective": "split"}, {"objective": "split", "split_ratio": 0.3})
TUBE: tuple[Options, ...] = (
    {},
    {"tube_sampler": "draw_both", "tube_times": 3, "tube_length_adjustment": "cosine_like"},
    {"tube_sampler": "uniform", "tube_max_length": 8, "tube_length_adjustment": "jaccard_like"},
    {"tube_sampler": "zero", "tube_content": "with_markup"},
    {"tube_mode": "three_index", "tube_length_adjustment": "cosine_like"},
    {"tube_mode": "three_index", "tube_sampler": "uniform", "tube_times": 2, "tube_content": "whole"},
    {"tube_mode": "e2e"},
    {"tube_mode": "mean", "tube_content": "with_markup"},
    {"tube_mode": "curvature"},
)


def covering(variants: tuple[Options, ...], count: int) -> list[Options]:
    """`count` option sets for each variant; the wheels turn at speeds that meet all neighbours."""
    cases = []
    for position, variant in enumerate(variants):
        for number in range(position, position + count):
            predictors = 1 + number % 3 if "front_pred" in variant else number % 4
            case = {
                "predictors": predictors,
                "jepa_loss": LOSSES[number % 5],
                "predictor_head": HEADS[(number + number // 3) % 3],
                "regularizer": REGULARIZERS[(number // 2 + position) % 3],
                "predictor_order": ORDERS[number // 2 % 2],
                "same_predictor": number % 3 == 2,
                "last_token": LAST_TOKENS[number // 4 % 3],
                "model": MODELS[(number + number // 5) % 3],
            }
            cases.append({**case, **TARGETS[(number + number // 4) % 3], **variant})
    return cases


def tube_cases() -> list[Options]:
    cases = []
    for number, variant in enumerate(TUBE * 2):
        curvature = variant.get("tube_mode") == "curvature"
        case = {
            "objective": "semantic_tube",
            "jepa_loss": "cosine" if curvature else LOSSES[number % 4],
            "predictor_head": HEADS[number % 3],
            "target_grad": number // 2 % 2 == 0,
            "regularizer": REGULARIZERS[number // 3 % 3],
            "tube_layer": (None, 0, 1, 2)[number % 4],
            "model": MODELS[(number + number // 3) % 3],
        }
        cases.append(case | variant)
    return cases


CONTROLS = [
    {**variant, "control": control, "predictors": 2, "model": "llama", **target}
    for variant in (IN_CONTEXT[0], STANDALONE[0], STEPS[1], SPLIT[0])
    for control, target in (("shuffled", TARGETS[0]), ("shuffled", TARGETS[2]), ("random", TARGETS[0]))
] + [
    {"objective": "semantic_tube", "control": control, "target_grad": True, "model": "llama"}
    for control in ("shuffled", "random")
]
FAMILIES = {
    "in_context": covering(IN_CONTEXT, 15),
    "standalone": covering(STANDALONE, 6),
    "step_jepa": covering(STEPS, 5),
    "split": covering(SPLIT, 8),
    "semantic_tube": tube_cases(),
}
CASES = [case for cases in FAMILIES.values() for case in cases] + CONTROLS


def name_of(case: Options) -> str:
    return "-".join(f"{value}" if isinstance(value, str) else f"{name}={value}" for name, value in case.items())


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny", (message["content"] for row in step_rows(40) for message in row["messages"]))


def chats() -> list[dict[str, Any]]:
    """One chat of one step, others of two to four, and one of two turns."""
    rows = step_rows(14, seed=1)
    steps = [row["messages"][1]["content"].count("\n\n") + 1 for row in rows]
    chosen = [rows[steps.index(1)], *(row for row, count in zip(rows, steps, strict=True) if count > 2)][:5]
    return [*chosen, rows[steps.index(2)], {"messages": rows[0]["messages"] + rows[1]["messages"]}]


@dataclass
class Run:
    options: JEPAOptions
    model: Any
    setup: ModelSetup
    examples: list[Example]

    def collator(self, forward: str | None = None, **changes: Any) -> Any:
        """The run's own collator, or that of another forward or other options."""
        setup = replace(self.setup, forward=forward or self.setup.forward)
        options = replace(self.options, **changes)
        return make_collator(setup, options, 0, self.model.config._attn_implementation, "cpu")


def prepare(tokenizer, case: Options, rows: list | None = None) -> Run:
    """What `JEPATrainer` does before training, on a tiny random model; an EMA encoder gets weights of its own."""
    case = {"sigreg_directions": 8, "lbd": 1.0, **case}
    model = tiny_model(case.pop("model", "llama"), vocab_size=len(tokenizer))
    with torch.no_grad():  # fresh matrices are so small that attention hardly matters
        for parameter in model.parameters():
            parameter *= 4.0 if parameter.ndim == 2 else 1.0
    options = JEPAOptions(**case)
    options.check()
    store, _ = encode(rows or chats(), tokenizer, options, max_positions(model))
    model, setup = set_up_model(model, options, SEED, "cpu", None, tokenizer)
    if options.target_encoder == "ema":
        generator = torch.Generator().manual_seed(1)
        for shadow in add_target_encoder(causal_lm(model)).shadow.values():
            shadow += 0.1 * shadow.std() * torch.randn(shadow.shape, generator=generator)
    drawn = DrawnExamples(store, options, SEED, options.jepa_ratio)
    return Run(options, model, setup, [drawn[Draw(0, row)] for row in range(len(store))])


class InOneRow(ForestCollator):
    """Attention by segments whatever it costs."""

    def lay_out(self, forests):
        return self.pack_one_row(forests)


def in_one_row(collator: ForestCollator) -> ForestCollator:
    return InOneRow(**{field.name: getattr(collator, field.name) for field in fields(collator)})


def losses(run: Run, batch) -> tuple[LossParts, torch.Tensor, torch.Tensor]:
    """The parts of the loss, and the gradients of what belongs to JEPA and of LM, each of all parameters in one."""
    output = run.model(**batch)
    parts = loss_parts(run.options, output, batch, used_targets(run.options, output, SEED), step=5)
    parameters = list(run.model.parameters())

    def gradient(value: torch.Tensor) -> torch.Tensor:
        found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in found])

    return parts, gradient(parts.jepa + parts.regularizer), gradient(parts.lm)


def assert_same_direction_and_size(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.norm() > 1e-3
    assert (found - expected).norm() < 1e-4 * expected.norm()


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_packed_equals_two_pass(tokenizer, case):
    run = prepare(tokenizer, case)
    assert run.setup.forward == "packed"
    batches = {
        "own choice": run.collator()(run.examples),
        "one row": replace(run.collator(), segmented=False)(run.examples),
        "several rows": run.collator(max_row_length=150)(run.examples),
        "segments": in_one_row(run.collator())(run.examples),
    }
    assert len(batches["several rows"]["input_ids"]) > 2 and "forests" in batches["segments"]
    reference_batch = run.collator("two_pass")(run.examples)
    apart = run.options.separate_targets
    assert ("target_input_ids" in reference_batch) == apart
    expected, jepa_gradient, lm_gradient = losses(run, reference_batch)
    assert expected.jepa > 0 and (expected.regularizer > 0) == (run.options.regularizer != "none")
    for name, batch in batches.items():
        assert "view_input_ids" not in batch and ("target_input_ids" in batch) == apart
        found, found_jepa_gradient, found_lm_gradient = losses(run, batch)
        for part in LossParts._fields:
            value, want = getattr(found, part).item(), getattr(expected, part).item()
            assert value == pytest.approx(want, rel=1e-5, abs=1e-5), (name, part)
        assert_same_direction_and_size(found_lm_gradient, lm_gradient)
        assert_same_direction_and_size(found_jepa_gradient, jepa_gradient)


def test_every_value_occurs_with_every_objective():
    for family, cases in FAMILIES.items():
        wheels: dict[str, tuple] = {"predictor_head": HEADS, "regularizer": REGULARIZERS, "model": MODELS}
        if family == "semantic_tube":
            wheels |= {"jepa_loss": LOSSES[:-1], "target_grad": (True, False), "tube_layer": (None, 0, 1, 2)}
            wheels["tube_sampler"] = ("default", "draw_both", "uniform", "zero")
            wheels["tube_mode"] = ("span", "three_index", "e2e", "mean", "curvature")
            wheels["tube_length_adjustment"] = ("none", "cosine_like", "jaccard_like")
            wheels["tube_content"] = ("messages", "with_markup", "whole")
            wheels["control"] = ("none", "shuffled", "random")
            cases = cases + [case for case in CONTROLS if case["objective"] == family]
        else:
            wheels |= {"jepa_loss": LOSSES, "predictors": (0, 1, 2, 3), "last_token": LAST_TOKENS}
            wheels |= {"predictor_order": ORDERS, "same_predictor": (True, False), "target_encoder": ("self", "ema")}
            wheels["target_grad"] = (None, True, False)
        for name, values in wheels.items():
            default = JEPAOptions.__dataclass_fields__.get(name)
            found = {case.get(name, default.default if default else None) for case in cases}
            assert found == set(values), (family, name)


def test_the_comparison_can_fail(tokenizer):
    """The states are compared closely enough to see one predictor out of place, and a target one position off."""
    run = prepare(tokenizer, {"objective": "step_jepa", "predictors": 2, "model": "gpt2"})
    expected, jepa_gradient, _ = losses(run, run.collator("two_pass")(run.examples))
    swapped = run.collator(predictor_order="descending")(run.examples)
    moved = run.collator()(run.examples)
    moved["position_ids"] = moved["position_ids"] + (moved["segment"] == moved["segment"].max()).long()
    for batch in (swapped, moved):
        found, gradient, _ = losses(run, batch)
        assert abs(found.jepa - expected.jepa) > 1e-3
        assert (gradient - jepa_gradient).norm() > 1e-2 * jepa_gradient.norm()


# Views as sequences of their own, written out by hand and run one by one


def alone(run: Run, ids: list[int], first: int = 0) -> torch.Tensor:
    """Last hidden states (T, D) of one sequence without a mask, its first token at position `first`."""
    inner = causal_lm(run.model)
    positions = torch.arange(first, first + len(ids))[None]
    return getattr(inner, inner.base_model_prefix)(torch.tensor([ids]), position_ids=positions).last_hidden_state[0]


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
        source_end, target_start, target_end = (
            text.index(question) + len(question),
            answer_start,
            answer_start + len(answer),
        )
    else:
        steps = [f"{step}\n\n" for step in answer.split("\n\n")]
        edges = [answer_start + sum(map(len, steps[:number])) for number in range(len(steps) + 1)]
        horizon = case.get("horizon", 1)
        source_end, target_start = edges[1], edges[horizon]
        target_end = min(edges[horizon + 1], answer_start + len(answer))
    source = [token for token, at in zip(ids, last, strict=True) if at < source_end]
    target = [
        (n, token) for n, (token, at) in enumerate(zip(ids, last, strict=True)) if target_start <= at < target_end
    ]
    return (
        source + predictors,
        len(source + predictors) - 1,
        [token for _, token in target],
        target[0][0] + len(predictors),
        len(target) - 1,
    )


@pytest.mark.parametrize("model", ["llama", "gpt2"])
@pytest.mark.parametrize("case", [*IN_CONTEXT, *STANDALONE, STEPS[0], STEPS[3], *SPLIT], ids=name_of)
def test_views_are_what_the_texts_say(tokenizer, case, model):
    rows = [row for row in step_rows(12, seed=4) if row["messages"][1]["content"].count("\n\n") > 1][:4]
    run = prepare(tokenizer, {**case, "predictors": 2, "model": model}, rows)
    predictors = run.setup.predictor_ids
    if case["objective"] == "llm_jepa":
        predictors = predictors[::-1]
    with torch.no_grad():
        output = run.model(**run.collator()(run.examples))
        for number, row in enumerate(rows):
            source, source_read, target, first, target_read = by_hand(tokenizer, case, row, predictors)
            expected_source, expected_target = alone(run, source)[source_read], alone(run, target, first)[target_read]
            torch.testing.assert_close(output.source_states[number], expected_source, atol=1e-5, rtol=0)
            torch.testing.assert_close(output.target_states[number], expected_target, atol=1e-5, rtol=0)
            assert (alone(run, source)[source_read - 1] - expected_source).abs().max() > 0.01


@pytest.mark.parametrize(
    "case", [{**TUBE[1], "jepa_loss": "l2"}, {**TUBE[2], "tube_layer": 1}, TUBE[4], TUBE[7], TUBE[8]], ids=name_of
)
def test_a_tube_is_the_weighted_mean_over_spans(tokenizer, case):
    run = prepare(tokenizer, {"objective": "semantic_tube", "gamma": 0.0, **case})
    distances, weights = [], []
    for example in run.examples:
        with torch.no_grad():
            own = run.model.model(torch.tensor([example.input_ids.tolist()]), output_hidden_states=True)
        states = own.hidden_states[1][0] if "tube_layer" in case else own.last_hidden_state[0]
        for number, weight in enumerate(example.tube.weight.tolist()):
            source, target = torch.zeros(32), torch.zeros(32)
            for vector, side in ((source, example.tube.source), (target, example.tube.target)):
                for position, coefficient, pair in zip(*side, strict=True):
                    if pair == number:
                        vector += float(coefficient) * states[position]
            cosine = torch.cosine_similarity(source, target, dim=0)
            distance = (source - target).norm() if run.options.jepa_loss == "l2" else 1 - cosine
            distances.append(torch.arccos(cosine) if run.options.tube_mode == "curvature" else distance)
            weights.append(weight)
    expected = (torch.stack(distances) * torch.tensor(weights)).sum() / sum(weights)
    for forward in ("packed", "two_pass"):
        batch = run.collator(forward)(run.examples)
        parts, _, _ = losses(run, batch)
        loss = total_loss(run.options, parts, torch.tensor(1.0), total_weight(batch), 1.0)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    unequal = len(set(weights)) > 1
    assert unequal == (run.options.tube_length_adjustment != "none" or run.options.tube_mode == "curvature")
    assert not unequal or abs(torch.stack(distances).mean() - expected) > 1e-3 * expected


# Many pairs of one example


def jepa_and_gradient(run: Run, examples: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    parts, gradient, _ = losses(run, run.collator()(examples))
    return parts.jepa, gradient


@pytest.mark.parametrize("loss", ["cosine", "l2", "mse", "smooth_l1"])
@pytest.mark.parametrize("predictors", [0, 2])
@pytest.mark.parametrize("target_grad", [True, False])
def test_all_pairs_are_the_sum_of_single_pairs(tokenizer, loss, predictors, target_grad):
    case = {"objective": "step_jepa", "step_pairs": "all", "jepa_loss": loss, "predictor_head": "mlp"}
    run = prepare(tokenizer, {**case, "predictors": predictors, "target_grad": target_grad})
    single = [[example._replace(pairs=(pair,))] for example in run.examples for pair in example.pairs]
    assert max(len(example.pairs) for example in run.examples) == 3 and len(single) > 8
    value, gradient = jepa_and_gradient(run, run.examples)
    values, gradients = zip(*(jepa_and_gradient(run, examples) for examples in single), strict=True)
    assert value.item() == pytest.approx(sum(values).item(), rel=1e-5)
    assert_same_direction_and_size(gradient, sum(gradients))


@pytest.mark.parametrize("which", ["first", "all"])
@pytest.mark.parametrize("target", TARGETS, ids=name_of)
def test_several_horizons_are_the_sum_of_each(tokenizer, which, target):
    case = {"objective": "step_jepa", "step_pairs": which, "predictors": 2, "model": "gpt2", **target}
    both = prepare(tokenizer, {**case, "multi_horizon": [1, 2]})
    value, gradient = jepa_and_gradient(both, both.examples)
    each = [prepare(tokenizer, {**case, "horizon": horizon}) for horizon in (1, 2)]
    counts = [sum(len(example.pairs) for example in run.examples) for run in (both, *each)]
    assert counts[0] == counts[1] + counts[2] and min(counts) > 2
    values, gradients = zip(*(jepa_and_gradient(run, run.examples) for run in each), strict=True)
    assert value.item() == pytest.approx(sum(values).item(), rel=1e-5)
    assert_same_direction_and_size(gradient, sum(gradients))


@pytest.mark.parametrize("target_grad", [True, False])
def test_pairs_share_branches_and_targets(tokenizer, target_grad):
    """Four steps with horizons 1 and 2 give five pairs from three sources to three targets, and no more tokens than that."""
    row = next(row for row in step_rows(20) if row["messages"][1]["content"].count("\n\n") == 3)
    case = {"objective": "step_jepa", "multi_horizon": [1, 2], "step_pairs": "all", "predictors": 2}
    run = prepare(tokenizer, {**case, "target_grad": target_grad}, [row])
    (example,) = run.examples
    starts = sorted({pair.target_start for pair in example.pairs})
    answer_end = example.label_spans[0][1] - 1
    targets = answer_end - starts[0]  # steps 2 to 4, each once
    assert len(example.pairs) == 5 and len(starts) == 3
    batch = run.collator()(run.examples)
    assert batch["input_ids"].numel() == len(example.input_ids) + 3 * 2 + (targets if target_grad else 0)
    if not target_grad:
        assert batch["target_input_ids"].numel() == targets
    assert len(batch["source_readouts"].unique()) == 3 and len(batch["source_readouts"]) == 5
    assert len(batch["target_readouts"].unique()) == 3 and len(batch["target_readouts"]) == 5


# Inline

INLINE = [
    {"objective": "step_jepa"},
    {"objective": "step_jepa", "step_pairs": "random"},
    {"objective": "step_jepa", "horizon": 2},
    {"objective": "llm_jepa"},
]


def single_turns() -> list[dict[str, Any]]:
    return chats()[:-1]


def inline_lm_by_hand(run: Run, example: Example, predictors: list[int]) -> torch.Tensor:
    """Summed cross-entropy of the sequence with predictors behind the source and the target isolated, written out."""
    ids = example.input_ids.tolist()
    labels = [-100] * len(ids)
    for start, stop in example.label_spans:
        labels[start:stop] = ids[start:stop]
    target = range(0)
    if example.pairs:
        (pair,) = example.pairs
        behind = pair.source_end + 1
        ids[behind:behind] = predictors
        labels[behind:behind] = [-100] * len(predictors)
        target = range(pair.target_start + len(predictors), pair.target_end + len(predictors))
    mask = torch.zeros(1, 1, len(ids), len(ids), dtype=torch.bool)
    for q in range(len(ids)):
        for k in range(q + 1):
            mask[0, 0, q, k] = k in target if q in target else True
    positions = torch.arange(len(ids))[None]
    logits = run.model(input_ids=torch.tensor([ids]), attention_mask=mask, position_ids=positions).logits[0]
    return F.cross_entropy(logits[:-1, : run.setup.vocabulary], torch.tensor(labels[1:]), reduction="sum")


@pytest.mark.parametrize("model", ["llama", "gpt2"])
@pytest.mark.parametrize("predictors", [0, 1, 2, 3])
@pytest.mark.parametrize("case", INLINE, ids=name_of)
def test_inline_reads_what_packed_reads_and_trains_the_lm_in_place(tokenizer, case, predictors, model):
    case = {**case, "predictors": predictors, "model": model, "target_grad": predictors != 1}
    inline = prepare(tokenizer, {**case, "forward": "inline"}, single_turns())
    packed = prepare(tokenizer, case, single_turns())
    assert (inline.setup.forward, packed.setup.forward) == ("inline", "packed")
    batch = inline.collator()(inline.examples)
    parts, gradient, lm_gradient = losses(inline, batch)
    expected, expected_gradient, other_lm_gradient = losses(packed, packed.collator()(packed.examples))
    with torch.no_grad():
        states, expected_states = (run.model(**run.collator()(run.examples)) for run in (inline, packed))
    for name in ("source_states", "target_states"):
        assert expected_states[name].shape[0] > 2
        torch.testing.assert_close(states[name], expected_states[name], atol=1e-5, rtol=0)
    assert parts.jepa.item() == pytest.approx(expected.jepa.item(), rel=1e-5, abs=1e-5)
    assert_same_direction_and_size(gradient, expected_gradient)
    assert batch["label_ids"].numel() == sum(stop - start for e in inline.examples for start, stop in e.label_spans)
    assert not set(batch["label_ids"].tolist()) & set(inline.setup.predictor_ids)

    order = inline.setup.predictor_ids
    order = order[::-1] if inline.options.predictor_order == "descending" else order
    by_hand = torch.stack([inline_lm_by_hand(inline, example, order) for example in inline.examples]).sum()
    by_hand.backward()
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in inline.model.parameters()]
    assert parts.lm.item() == pytest.approx(by_hand.item(), rel=1e-5)
    assert_same_direction_and_size(lm_gradient, torch.cat([part.flatten() for part in found]))
    assert (lm_gradient - other_lm_gradient).norm() > 2e-2 * other_lm_gradient.norm()


def test_inline_equals_packed_where_there_is_no_pair(tokenizer):
    one_step = [row for row in step_rows(30) if "\n\n" not in row["messages"][1]["content"]][:3]
    runs = [
        prepare(tokenizer, {"objective": "step_jepa", "forward": forward}, [*one_step, *single_turns()])
        for forward in ("inline", "packed")
    ]
    inline, packed = (losses(run, run.collator()(run.examples[:3]))[0] for run in runs)
    assert len(one_step) == 3 and not any(example.pairs for example in runs[0].examples[:3])
    assert inline.lm.item() == pytest.approx(packed.lm.item(), rel=1e-6)


@pytest.mark.parametrize("target_grad", [True, False])
def test_inline_shuffles_as_packed_does(tokenizer, target_grad):
    case = {"objective": "step_jepa", "control": "shuffled", "target_grad": target_grad}
    runs = [prepare(tokenizer, {**case, "forward": forward}, single_turns()) for forward in ("inline", "packed")]
    (inline, gradient, _), (packed, expected, _) = (losses(run, run.collator()(run.examples)) for run in runs)
    assert inline.jepa.item() == pytest.approx(packed.jepa.item(), rel=1e-5)
    assert_same_direction_and_size(gradient, expected)


@pytest.mark.parametrize("objective", ["llm_jepa", "step_jepa"])
@pytest.mark.parametrize("target", TARGETS, ids=name_of)
def test_inline_takes_the_first_pair_of_a_chat_of_several_turns(tokenizer, objective, target):
    """It holds one pair an example, whether the targets have a gradient or not."""
    longer = [row["messages"] for row in step_rows(40) if "\n\n" in row["messages"][1]["content"]]
    turns = [{"messages": longer[number] + longer[number + 1]} for number in (0, 2)]
    case = {"objective": objective, "predictors": 2, **target}
    run = prepare(tokenizer, {**case, "forward": "inline"}, turns)
    several = prepare(tokenizer, case, turns).examples
    firsts = [example._replace(pairs=example.pairs[:1]) for example in several]
    assert [len(example.pairs) for example in several] == [2, 2]
    assert [example.pairs for example in run.examples] == [example.pairs for example in firsts]
    parts, gradient, _ = losses(run, run.collator()(several))
    expected, expected_gradient, _ = losses(run, run.collator()(firsts))
    assert parts.jepa.item() == pytest.approx(expected.jepa.item(), rel=1e-6)
    assert_same_direction_and_size(gradient, expected_gradient)


def test_a_forest_of_views_apart_leaves_the_trunk_alone(tokenizer):
    """The trunk of a chat is the same, token for token, whatever stands behind it."""
    plain = prepare(tokenizer, {"objective": "llm_jepa", "lbd": 0.0})
    for case in (*IN_CONTEXT, *STANDALONE, *STEPS, *SPLIT):
        run = prepare(tokenizer, {**case, "predictors": 2})
        for example, expected in zip(run.examples, plain.examples, strict=True):
            forest = build_forest(example, tuple(run.setup.predictor_ids))
            trunk = forest.input_ids[: forest.trunk_length]
            assert trunk.tolist() == expected.input_ids.tolist() and (forest.segment == 0).sum() == len(trunk)
