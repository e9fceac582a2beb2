"""Cases of every objective and option, and what a run of one computes, for the parity tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from stepjepa.data.types import LM, Example, ForestOutput
from stepjepa.forest.collate import ForestCollator
from stepjepa.losses import lm
from stepjepa.modeling.extras import TargetEncoder, trained_extras
from stepjepa.modeling.flops import KERNELS, ModelCost, batch_flops
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import max_positions
from stepjepa.training.datasets import encode
from stepjepa.training.options import JEPAOptions
from stepjepa.training.sampling import Draw, DrawnExamples
from stepjepa.training.setup import ModelSetup, make_collator, set_up_model
from support.models import tiny_model
from support.rows import step_rows
from support.training import Options
from support.training import name_of as name_of

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
    {"objective": "step_jepa", "step_pairs": "plan", "horizon": 3},
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
    {"tube_sampler": "steps", "tube_length_adjustment": "cosine_like"},
    {"tube_mode": "three_index", "tube_sampler": "steps"},
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
                "last_token": LAST_TOKENS[number // 3 % 3],
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


READOUTS: tuple[Options, ...] = (
    {"objective": "llm_jepa", "readout": "mean"},
    {"objective": "llm_jepa", "readout_layer": 1},
    {"objective": "llm_jepa", "jepa_target_column": "plan"},
    {"objective": "llm_jepa", "views": "standalone", "readout": "mean", "readout_layer": -2},
    {"objective": "llm_jepa", "views": "standalone", "readout": "mean", "jepa_target_column": "plan"},
    {"objective": "llm_jepa", "front_pred": True, "readout": "mean"},
    {"objective": "step_jepa", "step_pairs": "all", "readout": "mean", "readout_layer": 2},
    {"objective": "step_jepa", "step_pairs": "all", "readout_layer": 0, "jepa_target_column": "plan"},
    {"objective": "step_jepa", "step_pairs": "random", "readout": "mean", "control": "shuffled"},
    {"objective": "split", "readout": "mean", "readout_layer": 1},
)
CONTROLS = [
    {**variant, "control": control, "predictors": 2, "model": "llama", **target}
    for variant in (IN_CONTEXT[0], STANDALONE[0], STEPS[1], SPLIT[0])
    for control, target in (("shuffled", TARGETS[0]), ("shuffled", TARGETS[2]), ("random", TARGETS[0]))
] + [
    {"objective": "semantic_tube", "control": control, "target_grad": True, "model": "llama"}
    for control in ("shuffled", "random")
]
CASES = [*covering(IN_CONTEXT, 9), *covering(STANDALONE, 4), *covering(STEPS, 3), *covering(SPLIT, 6)]
CASES += [*tube_cases(), *CONTROLS]
CASES += [case | {"last_token": None} for case in covering(READOUTS, 2)]


def chats() -> list[dict[str, Any]]:
    """One chat of one step, others of two to four, and one of two turns."""
    rows = step_rows(14, seed=1)
    steps = [row["messages"][1]["content"].count("\n\n") + 1 for row in rows]
    chosen = [rows[steps.index(1)], *(row for row, count in zip(rows, steps, strict=True) if count > 2)][:5]
    found = [*chosen, rows[steps.index(2)], {"messages": rows[0]["messages"] + rows[1]["messages"]}]
    return [
        {**row, "plan": f"Add {'one after the other ' * number}and name the sum."} for number, row in enumerate(found)
    ]


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
    options.seed = SEED  # type: ignore[attr-defined]
    store, _ = encode(rows or chats(), tokenizer, options, max_positions(model))
    model, setup = set_up_model(model, options, SEED, "cpu", None, tokenizer)
    if options.target_encoder == "ema":
        generator = torch.Generator().manual_seed(1)
        for shadow in TargetEncoder(causal_lm(model)).shadow.values():
            shadow += 0.1 * shadow.std() * torch.randn(shadow.shape, generator=generator)
    drawn = DrawnExamples(store, setup.objective, SEED, options.jepa_ratio)
    return Run(options, model, setup, [drawn[Draw(0, row)] for row in range(len(store))])


def in_one_row(collator: ForestCollator) -> ForestCollator:
    return replace(collator, one_row=True)


def layouts(run: Run, monkeypatch: Any, order: int = 1, tensors: int = 1) -> Iterator[tuple[str, Any]]:
    """The examples in every layout, by name, each of so many `tensors`; the last is reordered, in chunks."""
    yield "several rows", run.collator(max_row_length=150)(run.examples)
    yield "segments", in_one_row(run.collator())(run.examples)
    yield "two_pass", run.collator("two_pass")(run.examples)
    monkeypatch.setattr(lm, "MAX_LOGITS_BYTES", 4 * 7 * tensors * run.setup.vocabulary)
    yield "in chunks", run.collator()(run.examples[::order])


class Parts(NamedTuple):
    """The sums of a batch, () each."""

    lm: torch.Tensor
    jepa: torch.Tensor
    regularizer: torch.Tensor

    @classmethod
    def of(cls, output: ForestOutput) -> Parts:
        zero = output.lm_loss_sum.new_zeros(())
        values = (output.parts[name].sum if name in output.parts else zero for name in (LM, "jepa_loss", "regularizer"))
        return cls(*values)


def run_alone(model: Any, ids: Any, first: int = 0, layer: int | None = None) -> torch.Tensor:
    """The states (T, D) of one sequence after a layer, or the last ones; id V + k is the k-th learned token."""
    inner = causal_lm(model)
    rows, learned = inner.get_input_embeddings().weight, trained_extras(inner).predictors
    if learned is not None:
        rows = torch.cat([rows, learned.weight])
    embedded, positions = rows[torch.as_tensor(ids).long()][None], torch.arange(first, first + len(ids))[None]
    backbone = getattr(inner, inner.base_model_prefix)
    output = backbone(inputs_embeds=embedded, position_ids=positions, output_hidden_states=True)
    return output.last_hidden_state[0] if layer in (None, -1) else output.hidden_states[layer][0]


def gradient(run: Run, value: torch.Tensor) -> torch.Tensor:
    """Of all parameters in one."""
    parameters = list(run.model.parameters())
    found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in found])


def losses(run: Run, batch) -> tuple[Parts, torch.Tensor, torch.Tensor]:
    """The parts of the loss, and the gradients of what belongs to JEPA and of LM."""
    parts = Parts.of(run.model(batch=batch, step=5))
    return parts, gradient(run, parts.jepa + parts.regularizer), gradient(run, parts.lm)


def assert_same_losses(run: Run, batch, expected) -> None:
    """The parts of the loss and their gradients are those that `losses` has returned for another batch."""
    parts, *gradients = losses(run, batch)
    for name, value, want in zip(Parts._fields, parts, expected[0], strict=True):
        assert value.item() == pytest.approx(want.item(), rel=1e-5, abs=1e-5), name
    for found, wanted in zip(gradients, expected[1:], strict=True):
        assert_near(found, wanted)


def assert_flops(run: Run, *batches) -> None:
    cost = ModelCost.of(run.model.train(), run.setup.vocabulary, objective=run.setup.objective)
    for batch in batches:
        with FlopCounterMode(display=False, custom_mapping=KERNELS) as counter:
            sum(part.sum for part in run.model(batch=batch, step=0).parts.values()).backward()
        assert batch_flops(batch, cost) == counter.get_total_flops()


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.norm() > 1e-3
    assert (found - expected).norm() < 1e-4 * expected.norm()
