"""What the folder of a model to evaluate says of its training, and of its weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from stepjepa.data.chat import template_of
from stepjepa.data.tokens import kept_predictors
from stepjepa.generation.local import Place
from stepjepa.modeling.extras import PREDICTORS_FILE
from stepjepa.modeling.parts import causal_lm, vocabulary_size
from stepjepa.objectives.base import trained_pairs
from stepjepa.utils.files import digest, model_parts, read_object


@dataclass
class TrainingRecord:
    """What a folder says of how its model was trained; empty for a model from elsewhere.

    Attributes:
        system_prompts: system message -> rows; None for rows without one.
        others: rows with further system messages, which the record does not hold.
        settings: of the run.
        splitter: name of the step splitter that its training data were read with, None where they were several data sets.
    """

    system_prompts: Counter[str | None] = field(default_factory=Counter)
    others: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    splitter: str | None = None


def read_record(place: Place) -> TrainingRecord:
    """What the model's folder, or that of the run whose checkpoint it is, says of the training."""
    record, folder = TrainingRecord(settings=place.settings), place.run_folder
    if folder is None:
        return record
    for name, report in read_object(folder / "data_report.json").items():
        if name.partition("_")[0] != "train" or not isinstance(report, dict):
            continue
        if name == "train" and isinstance(report.get("steps"), dict):
            record.splitter = report["steps"].get("splitter") or None
        prompts = report.get("system_prompts")
        for prompt, rows in prompts.items() if isinstance(prompts, dict) else ():
            record.system_prompts[prompt] += _count(rows)
        record.system_prompts[None] += _count(report.get("without_system_prompt"))
        record.others += _count(report.get("other_system_prompts"))
    record.system_prompts = +record.system_prompts  # those with rows
    return record


def softmax_size(model: nn.Module, tokenizer: PreTrainedTokenizerBase, place: Place, record: TrainingRecord) -> int:
    """Entries of the LM softmax: the model's vocabulary without predictor tokens at its end."""
    rows = vocabulary_size(causal_lm(model))
    if place.folder is not None and (place.folder / "trainer_state.json").is_file():
        if (place.folder / PREDICTORS_FILE).is_file() or not trained_pairs(record.settings):
            return rows
        count = _count(record.settings.get("predictors"))  # a checkpoint of version 0.1 has them in its vocabulary
        return rows - (min(count, 1) if record.settings.get("same_predictor") else count)
    kept = list(kept_predictors(tokenizer).values())
    return rows - len(kept) if kept == list(range(rows - len(kept), rows)) else rows


def digests(place: Place, tokenizer: PreTrainedTokenizerBase, data: str, no_lora: bool = False) -> dict[str, str]:
    """What decides the answers besides the options; `data` is the fingerprint of the questions."""
    template = digest([template_of(tokenizer).encode()])
    return {"chat_template": template, "model": fingerprint(place, no_lora), "data": data}


def fingerprint(place: Place, no_lora: bool = False) -> str:
    """A digest that differs for another model: by the files of its folder (see `model_parts`), and of its base."""
    own = model_parts(place.folder) if place.folder else [f"{place.name}:{_commit(place.name)}".encode()]
    if place.base is None:
        return digest(own)
    folder = Path(place.base)
    base = model_parts(folder) if folder.is_dir() else [f"{place.base}{_commit(place.base)}".encode()]
    return digest([*([] if no_lora and place.folder else own), b"base:", *base])


def _commit(name: str) -> str:
    """The commit of a Hub model's configuration in the cache; empty where that is unknown."""
    from transformers.utils.hub import cached_file, extract_commit_hash

    try:
        return extract_commit_hash(cached_file(name, "config.json"), None) or ""
    except Exception:  # no network, or no such model: loading it will say so
        return ""


def _count(value: Any) -> int:
    """A count as a record holds it; 0 for anything else."""
    return value if type(value) is int and value > 0 else 0
