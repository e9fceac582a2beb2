"""Scoring a trained model: metrics of its answers as ``stepjepa evaluate`` has them, and numbers of its states.

All arms' states are read alike: the views that the metric's options name, each at its last token, behind the final norm.
Predictor tokens are no part of that; most models are exported without them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stepjepa.data.sources import RowSource
from stepjepa.errors import DataError
from stepjepa.study.records import StudyRunFolder, read_record, write_record
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.failures import explaining
from stepjepa.utils.terminal import print_text

if TYPE_CHECKING:
    from stepjepa.analysis.geometry import GeometryNumbers

Options = Mapping[str, Any]


class GeometryMetric(NamedTuple):
    """A number of `GeometryNumbers`.

    Attributes:
        higher_is_better: its direction.
        read: the number, None where there are too few pairs for it.
    """

    higher_is_better: bool
    read: Callable[[GeometryNumbers], float | None]


def _map_fitted_error(numbers: GeometryNumbers) -> float | None:
    """A Frobenius norm, as in Table 14 of LLM-JEPA."""
    fitted = numbers.linear_map
    if fitted is None or fitted.train_rows <= numbers.width:  # the map goes through every row, whatever the states are
        return None
    return fitted.train_error * fitted.train_rows**0.5


GEOMETRY = {
    "cosine_gap": GeometryMetric(True, lambda n: n.pairs.gap),
    "retrieval_mrr": GeometryMetric(True, lambda n: n.pairs.mrr),
    "target_rank": GeometryMetric(True, lambda n: n.target.effective_rank),
    "difference_top_100": GeometryMetric(False, lambda n: n.difference_top_100),
    "map_fitted_error": GeometryMetric(False, _map_fitted_error),
    "map_r2": GeometryMetric(True, lambda n: None if n.linear_map is None else n.linear_map.test_r2),
}


def score_splits(folder: StudyRunFolder, splits: Sequence[str]) -> None:
    """Score a run's model on some splits, and leave a record of each.

    Raises:
        DataError: the folder has no plan of a run.
        ConfigError: see `score_model`.
    """
    from transformers.utils.logging import disable_progress_bar

    plan = read_record(folder.plan)
    if plan is None:
        raise DataError(f"{folder.plan}: there is no plan of a run")
    disable_progress_bar()
    for split in splits:
        begin = time.perf_counter()
        rows = RowSource(plan["files"][split], plan["splits"].get(split, "test"))
        with explaining("evaluate: {batch_size: ...} in the study", "start the study again"):
            values = score_model(folder.model, rows, plan["metrics"], chat=plan["chat"], **plan["evaluation"])
        write_record(folder.record(split), {"metrics": values, "seconds": time.perf_counter() - begin})
        print_text("  ".join([split, *(f"{name} {value}" for name, value in values.items())]))


def score_model(
    model_folder: Path,
    rows: RowSource,
    metrics: Mapping[str, Options],
    max_examples: int | None = None,
    batch_size: int = 32,
    max_new_tokens: int = 256,
    chat: Options | None = None,
) -> dict[str, float | None]:
    """The value of every metric on some rows, greedy decoding.

    Args:
        model_folder: what training wrote, a model or an adapter.
        metrics: name -> options of the metric.
        max_examples: first rows that are scored; None for all.
        batch_size: of generation and of the forward passes.
        chat: options of training that say how rows become chats and chats tokens.

    Returns:
        Metric -> value; None where the model gives no finite number.

    Raises:
        ConfigError, DataError: as `stepjepa.evaluation.run.evaluate_model`; weights that are not finite.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from stepjepa.evaluation.run import evaluate_model
    from stepjepa.modeling.load import check_finite
    from stepjepa.training.encoding import chat_tokenizer, pair_columns

    method = JEPAOptions(**(chat or {}))
    method.check()
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder)
    check_finite(model, str(model_folder))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = chat_tokenizer(AutoTokenizer.from_pretrained(model_folder), method)
    values: dict[str, float | None] = {}
    # Metrics of states are read together where their views are the same, metrics of answers where they have no options.
    groups: dict[str, list[str]] = {}
    for name, options in metrics.items():
        together = name in GEOMETRY or not options
        groups.setdefault(f"{name in GEOMETRY} {dict(options)}" if together else name, []).append(name)
    for names in groups.values():
        options = metrics[names[0]]
        if names[0] in GEOMETRY:
            views = JEPAOptions(**{**(chat or {}), **options}, predictors=0)
            values |= _geometry(model, tokenizer, rows, names, views, max_examples, batch_size)
            continue
        result = evaluate_model(
            model,
            tokenizer,
            rows,
            names,
            metric_options=options,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            system_prompt=method.system_prompt,
            chat_template_kwargs=method.chat_template_kwargs,
            columns=pair_columns(method),
            max_examples=max_examples,
            max_length=method.max_length,
        )
        values |= {name: result.value(name) for name in names}
    return {name: value if (value := values[name]) is not None and math.isfinite(value) else None for name in metrics}


def _geometry(
    model: Any,
    tokenizer: Any,
    rows: RowSource,
    names: Sequence[str],
    method: JEPAOptions,
    max_examples: int | None,
    batch_size: int,
) -> dict[str, float | None]:
    """The metrics of `GEOMETRY` in `names`, all of the views that `method` makes.

    Raises:
        ConfigError, DataError: as `analysis.collect.read_pairs` and `collect_states`.
    """
    from stepjepa.analysis.geometry import measure_states
    from stepjepa.analysis.states import FINAL, StatesNotFinite, collect_states, read_pairs
    from stepjepa.modeling.forward import causal_lm
    from stepjepa.modeling.load import max_positions
    from stepjepa.training.encoding import make_renderer, settings_for

    method.check()
    settings = settings_for(rows, method, max_positions(causal_lm(model)))
    pairs = read_pairs(rows, tokenizer, make_renderer(tokenizer, method), settings, max_examples)
    pad = tokenizer.pad_token_id or 0
    try:
        states = collect_states(model, "the model", pairs, layers=[FINAL], pad_token_id=pad, batch_size=batch_size)
    except StatesNotFinite:  # it has diverged, as its other metrics show too
        return dict.fromkeys(names)
    numbers = measure_states(*states.layer(FINAL), maps=any(name.startswith("map_") for name in names))
    return {name: GEOMETRY[name].read(numbers) for name in names}
