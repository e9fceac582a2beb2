"""Scores the model of a run: its answers, its likelihoods, and its states.

The states of all arms are scored in the same way: at the last token of the views that the metric's options name, after the
final norm, without predictor tokens, which most exported models do not have.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepjepa.config.option import Names, Values
from stepjepa.data.sources import RowSource
from stepjepa.errors import explaining
from stepjepa.study.folder import StudyRunFolder, write_record
from stepjepa.study.spec import Scoring
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.files import Record, json_line, read_json, write_json, write_whole
from stepjepa.utils.terminal import print_text

if TYPE_CHECKING:
    from stepjepa.evaluation.score import EvaluationResult

_NAME = Names(Scoring)
# Subfolder of a run that holds the answers, in the file format of stepjepa evaluate.
ANSWERS = "evaluation-test"

# Metrics of the states -> whether higher is better.
GEOMETRY = {
    "cosine_gap": True,
    "retrieval_mrr": True,
    "target_rank": True,
    "difference_top_100": False,
    "map_fitted_error": False,
    "map_r2": True,
}


def write_answers(answered: Sequence[EvaluationResult], folder: Path) -> None:
    """Write the answers in the file format of stepjepa evaluate, so that a report can show them."""
    metrics: dict[str, Record] = {}
    for result in answered:
        metrics |= result.metrics
    first = answered[0]
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json_line(prediction.record()) for prediction in first.predictions)
    write_whole(folder / "predictions.jsonl", lines)
    record = {"metrics": metrics, "generation": first.generation, "identity": {}}
    write_json(folder / "metrics.json", record, indent=1)


def score_splits(folder: StudyRunFolder, splits: Sequence[str]) -> None:
    """Score a run's model on some splits. Write a record of each split, and the answers on the test split.

    Raises:
        ConfigError: see `score_model`.
    """
    plan = read_json(folder.plan)
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    for split in splits:
        begin = time.perf_counter()
        rows = RowSource(plan["files"][split], plan["splits"].get(split, "test"))
        with explaining(
            f"evaluate: {{{_NAME.batch_size}: ...}} in the study", "start the study again"
        ):
            scoring = Scoring(**plan["evaluation"])
            values, answered = score_model(
                folder.model, rows, plan["metrics"], scoring, plan["chat"]
            )
        if split == "test" and answered and answered[0].predictions:
            write_answers(answered, folder.path / ANSWERS)
        write_record(
            folder.record(split), {"metrics": values, "seconds": time.perf_counter() - begin}
        )
        print_text("  ".join([split, *(f"{name} {value}" for name, value in values.items())]))


def score_model(
    model_folder: Path,
    rows: RowSource,
    metrics: Mapping[str, Values],
    scoring: Scoring,
    chat: Values,
) -> tuple[dict[str, float | None], list[EvaluationResult]]:
    """The value of every metric on some rows, and the evaluations of answers, the first of which has the metrics without
    options. Decoding is greedy.

    Args:
        model_folder: the output of training, a model or an adapter.
        metrics: name -> options of the metric.
        chat: the training options that convert rows to chats and chats to tokens.

    Raises:
        ConfigError, DataError: see `stepjepa.evaluation.run.evaluate_model`; or the weights are not finite.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from stepjepa.evaluation.run import evaluate_model
    from stepjepa.generation.place import Place
    from stepjepa.modeling.load import check_finite
    from stepjepa.training.datasets import chat_tokenizer

    method = JEPAOptions(**chat)
    method.check()
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder)
    check_finite(model, str(model_folder))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = chat_tokenizer(AutoTokenizer.from_pretrained(model_folder), method)
    trained = Place(str(model_folder), Path(model_folder)).trained_ending
    values: dict[str, float | None] = {}
    answers = []

    # Generation and forward passes are expensive: metrics with equal options share one set of answers, or of states.
    groups = defaultdict[tuple[bool, str], list[str]](list)
    for name in sorted(metrics, key=lambda name: bool(metrics[name])):
        groups[name in GEOMETRY, str(metrics[name])].append(name)
    for (of_states, _), names in groups.items():
        options = metrics[names[0]]
        if of_states:
            compared = JEPAOptions(**{**chat, **options}, predictors=0)
            values |= _geometry(model, tokenizer, rows, names, compared, scoring)
            continue
        result = evaluate_model(
            model,
            tokenizer,
            rows,
            names,
            metric_options=options,
            system_prompt=method.system_prompt,
            chat_template_kwargs=method.chat_template_kwargs,
            trained=trained,
            columns=method.columns,
            max_length=method.max_length,
            **asdict(scoring),
        )
        values |= {name: result.value(name) for name in names}
        answers.append(result)
    return {name: values[name] for name in metrics}, answers


def _geometry(
    model: Any,
    tokenizer: Any,
    rows: RowSource,
    names: Sequence[str],
    method: JEPAOptions,
    scoring: Scoring,
) -> dict[str, float | None]:
    """The metrics `names` of `GEOMETRY`, on the views that `method` defines."""
    from stepjepa.analysis.geometry import MIN_ROWS, linear_map, measure_states
    from stepjepa.analysis.states import StatesNotFinite, read_pairs, read_states
    from stepjepa.modeling.forward import causal_lm
    from stepjepa.modeling.load import max_positions
    from stepjepa.training.datasets import make_renderer, settings_for

    method.check()
    settings = settings_for(rows, method, max_positions(causal_lm(model)))
    renderer = make_renderer(tokenizer, method)
    pairs = read_pairs(rows, tokenizer, renderer, settings, scoring.max_examples)
    pad = tokenizer.pad_token_id or 0
    try:
        source, target = read_states(
            model, "the model", pairs.examples, pad_token_id=pad, batch_size=scoring.batch_size
        )[:, 0]
    except StatesNotFinite:
        # The model diverged, which the other metrics also show.
        return dict.fromkeys(names)
    numbers = measure_states(source, target)
    values: dict[str, float | None] = {
        "cosine_gap": numbers.pairs.gap,
        "retrieval_mrr": numbers.pairs.mrr,
        "target_rank": numbers.target.effective_rank,
        "difference_top_100": numbers.difference_top_100,
    }
    # The linear map costs more than all other metrics, so it is fitted only on request.
    if not set(names) <= values.keys() and len(source) >= MIN_ROWS:
        fitted = linear_map(source, target)
        values["map_r2"] = fitted.test_r2
        # With fewer rows than dimensions, a map fits any states without error.
        if fitted.train_rows > numbers.width:
            # A Frobenius norm, as in Table 14 of LLM-JEPA.
            values["map_fitted_error"] = fitted.train_error * fitted.train_rows**0.5
    return {name: values.get(name) for name in names}
