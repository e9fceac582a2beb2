"""Scoring one trained model on one split, in a process of its own, as ``stepjepa evaluate`` scores."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from stepjepa.data.sources import RowSource
from stepjepa.errors import DataError
from stepjepa.evaluation.run import evaluate_model
from stepjepa.modeling.load import check_finite
from stepjepa.study.geometry import GEOMETRY, geometry_scores
from stepjepa.study.plan import CHAT_OPTIONS
from stepjepa.study.results import StudyRunFolder, now, read_record, write_record
from stepjepa.training.encoding import chat_tokenizer, pair_columns
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.failures import explaining
from stepjepa.utils.terminal import print_text

Options = Mapping[str, Any]


def run(argv: Sequence[str]) -> int:
    """``FOLDER SPLIT ...``: score a run's model on these splits and leave a record of each. Exit status 0.

    Raises:
        DataError: the folder is none of a run's.
    """
    folder = StudyRunFolder(Path(argv[0]))
    plan = read_record(folder.plan)
    if plan is None:
        raise DataError(f"{folder.plan}: there is no plan of a run")
    disable_progress_bar()
    for split in argv[1:]:
        begin = time.perf_counter()
        source = RowSource(plan["files"][split], plan["splits"].get(split, "test"))
        options = JEPAOptions(objective="regular", **plan["chat"])
        with explaining("evaluate: {batch_size: ...} in the study", "start the study again"):
            scored = score_run(folder.model, source, plan["metrics"], options=options, **plan["evaluation"])
        write_record(folder.record(split), {"at": now(), "metrics": scored, "seconds": time.perf_counter() - begin})
        print_text("  ".join([split, *(f"{name} {value}" for name, value in scored.items())]))
    return 0


def score_run(
    model_folder: Path,
    file: Any,
    metrics: Mapping[str, Options] | Sequence[str],
    max_examples: int | None = None,
    batch_size: int = 32,
    max_new_tokens: int = 256,
    options: JEPAOptions | None = None,
) -> dict[str, float | None]:
    """The value of every metric on the rows of a file, greedy decoding.

    Args:
        model_folder: what training wrote, a model or an adapter.
        file: what `RowSource` takes.
        metrics: names, or name -> options of the metric. Those with options of their own are generated for by themselves;
            those of `geometry.GEOMETRY` are read from the states.
        max_examples: first rows that are scored; None for all.
        batch_size: of generation and of the forward passes.
        options: how rows become chats and chats tokens, as in training.

    Returns:
        Metric -> value; None where the model gives no finite number.

    Raises:
        ConfigError, DataError: as `stepjepa.evaluation.run.evaluate_model`; weights that are not finite.
    """
    options = options or JEPAOptions(objective="regular")
    options.check()
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder)
    check_finite(model, str(model_folder))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = chat_tokenizer(AutoTokenizer.from_pretrained(model_folder), options)
    values: dict[str, float | None] = {}
    wanted = metrics if isinstance(metrics, Mapping) else dict.fromkeys(metrics, {})
    answered = {name: given for name, given in wanted.items() if name not in GEOMETRY}
    for names, given in _groups(answered):
        result = evaluate_model(
            model,
            tokenizer,
            file,
            names,
            metric_options=given,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            system_prompt=options.system_prompt,
            chat_template_kwargs=options.chat_template_kwargs,
            columns=pair_columns(options),
            max_examples=max_examples,
            max_length=options.max_length,
        )
        values |= {name: result.value(name) for name in names}
    if len(answered) < len(wanted):
        chat = {name: getattr(options, name) for name in CHAT_OPTIONS}
        rows = file if isinstance(file, RowSource) else RowSource(file, "test")
        values |= geometry_scores(model, tokenizer, rows, wanted, chat, max_examples, batch_size)
    return {name: value if _finite(value := values[name]) else None for name in wanted}


def _groups(metrics: Mapping[str, Options]) -> Iterator[tuple[list[str], Options]]:
    """Names that are evaluated together, and their options: each takes all options that it knows."""
    plain = [name for name, given in metrics.items() if not given]
    if plain:
        yield plain, {}
    yield from (([name], given) for name, given in metrics.items() if given)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
