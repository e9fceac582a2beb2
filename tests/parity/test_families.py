"""Every causal model type of the installed transformers is exact against its own logits, in packed rows or two passes, or is
refused with one line; which of them, `docs/exactness.md` says."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import torch
import transformers

from stepjepa.training.options import JEPAOptions
from stepjepa.training.setup import set_up_model
from support.families import family_model, family_names
from support.sweep import PREDICTOR_COUNTS, batches, gradient_of, outcome, own_gradient, same

LIST = Path(__file__).resolve().parents[2] / "docs" / "exactness.md"
# One of each way in which a head, a mask or a backbone differs from Llama's.
OFTEN = [
    "bert", "bloom", "cohere2", "falcon", "falcon_h1", "gemma2", "gemma3", "gpt_neo", "gpt_oss", "llama4_text",
    "mamba2", "mistral", "mllama", "modernbert-decoder", "mpt", "opt", "qwen3_next", "recurrent_gemma", "roberta", "xlnet",
]  # fmt: skip
GRADIENTS = ["cohere2", "falcon_h1", "gemma3", "modernbert-decoder", "opt"]
FAMILIES = [pytest.param(name, marks=[] if name in OFTEN else pytest.mark.long) for name in family_names()]


@pytest.fixture
def lines():
    """What is logged as a warning."""
    found: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("stepjepa")
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def listed():
    """Family -> how it is trained, out of the documentation; nothing where that is of another transformers."""
    text = LIST.read_text(encoding="utf-8")
    if f"transformers {transformers.__version__}" not in text:
        return {}
    rows = re.findall(r"^\| (packed|two_pass|refused) \| .*? \| (`.*`) \|$", text, re.MULTILINE)
    return {name: forward for forward, families in rows for name in re.findall(r"`([^`]+)`", families)}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_its_own_numbers_or_is_refused(family, lines):
    found = [outcome(family, count, lines).forward for count in PREDICTOR_COUNTS]
    assert listed().get(family, found[0]) == found[0]
    order = ["packed", "two_pass", "refused"]
    assert order.index(found[1]) >= order.index(found[0])


@pytest.mark.parametrize("family", GRADIENTS)
def test_the_gradient_is_that_of_the_models_own_logits(family):
    options = JEPAOptions(objective="step_jepa", predictors=0)
    expected = own_gradient(family)
    model, setup = set_up_model(family_model(family), options, 0, "cpu")
    for batch in batches(model, setup, options):
        model.zero_grad()
        model(batch=batch).lm_loss_sum.backward()
        gradient = gradient_of(model)
        assert gradient.shape == expected.shape
        same(gradient, expected, family)


def test_every_family_of_the_list_is_there():
    names = set(listed())
    assert not names or names == set(family_names())


def test_an_inexact_family_would_be_noticed(lines, monkeypatch):
    from stepjepa.modeling import parts

    monkeypatch.setattr(parts, "scaled_logits", lambda values, scale, softcap: values * 1.01)
    monkeypatch.setattr("support.sweep.own_losses", lambda model: [torch.tensor(1.0)])
    with pytest.raises(AssertionError, match="LM loss differ"):
        outcome("llama", 0, lines)
