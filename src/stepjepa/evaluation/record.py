"""What the folder of a model records of its training, and what tells the model from others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from stepjepa.data.template import template_of
from stepjepa.data.tokens import kept_predictors
from stepjepa.generation.place import Place
from stepjepa.modeling.parts import causal_lm, vocabulary_size
from stepjepa.utils.files import digest, model_parts


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
    record = TrainingRecord(settings=place.settings)
    for name, report in place.record("data_report.json").items():
        if not name.startswith("train"):
            continue
        try:
            if name == "train":
                record.splitter = (report.get("steps") or {}).get("splitter")
            for prompt, rows in (report.get("system_prompts") or {}).items():
                record.system_prompts[prompt] += int(rows)
            record.system_prompts[None] += int(report.get("without_system_prompt") or 0)
            record.others += int(report.get("other_system_prompts") or 0)
        except (AttributeError, TypeError, ValueError, OverflowError):  # a damaged report says nothing more
            continue
    record.system_prompts = +record.system_prompts  # those with rows
    return record


def softmax_size(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> int:
    """Entries of the LM softmax: the model's vocabulary without predictor tokens that were kept at its end."""
    rows = vocabulary_size(causal_lm(model))
    kept = list(kept_predictors(tokenizer).values())
    return rows - len(kept) if kept == list(range(rows - len(kept), rows)) else rows


def digests(place: Place, tokenizer: PreTrainedTokenizerBase, data: str, no_lora: bool = False) -> dict[str, str]:
    """What decides the answers besides the options; `data` is the fingerprint of the questions."""
    template = digest([template_of(tokenizer).encode()])
    return {"chat_template": template, "model": fingerprint(place, no_lora), "data": data}


def fingerprint(place: Place, no_lora: bool = False) -> str:
    """A digest that differs for another model: by the files of its folder (see `model_parts`), and of its base."""
    own = _parts(place.folder, f"{place.name}:{_commit(place.name)}")
    if place.base is None:
        return digest(own)
    base = _parts(Path(place.base), f"{place.base}{_commit(place.base)}")
    adapter = [] if no_lora else own
    return digest([*adapter, b"base:", *base])


def _parts(folder: Path | None, name: str) -> list[bytes]:
    """What a model is known by: the files of its folder, or its name where it has none here."""
    if folder is None or not folder.is_dir():
        return [name.encode()]
    return list(model_parts(folder))


def _commit(name: str) -> str:
    """The commit of a Hub model's configuration in the cache; empty where that is unknown."""
    from transformers.utils.hub import cached_file, extract_commit_hash

    try:
        return extract_commit_hash(cached_file(name, "config.json"), None) or ""
    except Exception:  # no network, or no such model: loading it will say so
        return ""
