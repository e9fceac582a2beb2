"""The options of training that change what a model is fed, for the commands that show it without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, get_type_hints

from stepjepa.cli.parser import Alias
from stepjepa.cli.spellings import PUBLISHED
from stepjepa.training.options import JEPAOptions

FED = (
    "objective predictors predictor_order same_predictor target_grad target_encoder jepa_ratio forward step_pairs horizon "
    "multi_horizon step_splitter step_separator steps_column views front_pred reverse_pred last_token split_ratio "
    "source_column target_column choice_column tube_mode tube_sampler tube_max_length tube_times tube_length_adjustment "
    "tube_content labels plain max_length system_prompt chat_template chat_template_kwargs"
).split()


def fed_fields(names: Sequence[str] = FED) -> list[tuple[str, Any, Any]]:
    """Fields for `dataclasses.make_dataclass`, with the types, defaults and help texts of `stepjepa train`."""
    hints, fields = get_type_hints(JEPAOptions), JEPAOptions.__dataclass_fields__
    return [(name, hints[name], field(default=fields[name].default, metadata=fields[name].metadata)) for name in names]


def fed_method(options: Any, names: Sequence[str] = FED) -> JEPAOptions:
    """The options of a run that `options` holds, checked.

    Raises:
        ConfigError: a value that cannot be used.
    """
    method = JEPAOptions(**{name: getattr(options, name) for name in names})
    method.check()
    return method


def spellings(names: Sequence[str] = FED) -> dict[str, Alias]:
    """Those of training's other spellings that lead to the options `names`."""
    targets = {name: target[0] if isinstance(target, tuple) else target for name, target in PUBLISHED.items()}
    return {name: PUBLISHED[name] for name, field_name in targets.items() if field_name in names}


def summary(method: JEPAOptions) -> str:
    """The method in a few words."""
    if not method.uses_pairs:
        return method.objective
    if method.objective == "semantic_tube":
        return f"{method.objective}, {method.tube_mode}"
    views = f", {method.views}" if method.objective == "llm_jepa" else ""
    form = "packed" if method.forward == "auto" else method.forward
    return f"{method.objective}{views}, K = {method.predictors}, {form}"
