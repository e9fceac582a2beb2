"""What each family comes to: exact in packed rows, exact in two passes, or refused with one line."""

from typing import Any, NamedTuple

import torch

from stepjepa.data.types import Batch
from stepjepa.errors import ConfigError
from stepjepa.forest.collate import TwoPassCollator
from stepjepa.modeling.extras import placed_predictors
from stepjepa.training.options import JEPAOptions
from stepjepa.training.setup import make_collator, set_up_model
from support.families import EXAMPLES, examples_with, family_model, own_loss, own_losses

TOLERANCE = 1e-4
PREDICTOR_COUNTS = (0, 2)  # K of the runs that are tried


class Outcome(NamedTuple):
    """How a family is trained: ``packed``, ``two_pass`` or ``refused``, and why it is not packed."""

    kind: str
    forward: str
    reason: str


def outcome(family: str, count: int, lines: list[str]) -> Outcome:
    """Set a tiny model up with `count` predictor tokens and check that its numbers are its own and that at most one line is
    said; `lines` is what is logged as a warning, as the caller collects it."""
    model = family_model(family)
    kind = type(model).__name__
    try:
        own = sum(own_losses(model))
    except (RuntimeError, ValueError, IndexError):
        own = float("nan")  # then it must be refused
    lines.clear()
    options = JEPAOptions(objective="step_jepa", step_pairs="all", predictors=count)
    try:
        model, setup = set_up_model(model, options, 0, "cpu")
    except ConfigError as error:
        assert "\n" not in str(error) and len(str(error)) < 400 and not lines
        return Outcome(kind, "refused", str(error).split(": ", 1)[1])
    chosen = [line for line in lines if "forward two_pass" in line]
    assert len(chosen) == (setup.forward == "two_pass")
    ids = placed_predictors(setup.predictor_ids, options, len(setup.objective.groups))
    with torch.no_grad():
        expected = model(batch=TwoPassCollator(ids, 0)(examples_with(count)))
        for batch in batches(model, setup, options):
            found = model(batch=batch)
            same(found.lm_loss_sum, torch.tensor(own), f"{family}: LM loss")
            same(found.source_states, expected.source_states, f"{family}: sources")
            same(found.target_states, expected.target_states, f"{family}: targets")
    return Outcome(kind, setup.forward, chosen[0].split("because ", 1)[1] if chosen else "")


def batches(model: Any, setup: Any, options: JEPAOptions) -> list[Batch]:
    """The examples as training lays them out, in one row and in several."""
    attention = model.config.get_text_config()._attn_implementation
    rows = [options]
    if setup.forward != "two_pass":
        rows.append(JEPAOptions(**{**vars(options), "max_row_length": 60}))
    examples = examples_with(options.predictors or 0)
    return [make_collator(setup, one, 0, attention, "cpu")(examples) for one in rows]


def same(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    distance = float((found - expected).norm())
    assert distance <= TOLERANCE * float(expected.norm()), f"{what} differ by {distance}"


def own_gradient(family: str) -> torch.Tensor:
    """Gradient of a family's LM loss through its own forward, all trainable parameters in one vector."""
    model = family_model(family)
    for example in EXAMPLES:
        own_loss(model, example).backward()
    return gradient_of(model)


def gradient_of(model: Any) -> torch.Tensor:
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)])
