"""The models of ``stepjepa analyze``: what they are called, how each reads its rows, and its states."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from stepjepa.analysis.collect import Pairs, collect_states, layers_of, read_pairs
from stepjepa.analysis.compare import Saved, check_base, check_map_layers, same_pairs
from stepjepa.analysis.draw import slug
from stepjepa.analysis.states import save_states
from stepjepa.cli.analyze import FED
from stepjepa.cli.predictors import Predictors, find_predictors, quiet
from stepjepa.data.sources import RowSource
from stepjepa.errors import ConfigError
from stepjepa.evaluation.models import (
    Place,
    TrainingRecord,
    find_model,
    load_place,
    load_place_tokenizer,
    read_record,
)
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.modeling.configs import text_config
from stepjepa.modeling.extras import PREDICTORS_FILE, attach_saved
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import max_positions
from stepjepa.training.encoding import chat_tokenizer, make_renderer, settings_for
from stepjepa.training.options import JEPAOptions, method_of
from stepjepa.utils.failures import saying_out_of_memory
from stepjepa.utils.progress import Bar
from stepjepa.utils.text import escaped

# What decides how rows and views are read, held against what a run was trained with.
_VIEWS = ("objective", "views", "step_pairs", "last_token")
_ROWS = ("system_prompt", "plain", "chat_template", "chat_template_kwargs")


@dataclass(frozen=True)
class Chosen:
    """A model that is asked for.

    Attributes:
        label: what it is called in tables, figures and file names.
        place: where it lies.
        flag: that named it.
    """

    label: str
    place: Place
    flag: str


def choose_models(models: Sequence[str], base: str | None) -> tuple[list[Chosen], str | None]:
    """The models, the base first, each once, and the base's label.

    Raises:
        ConfigError: one is none.
    """
    named = [("base_model", base)] if base is not None else []
    named += [("models", name) for name in models if name != base]
    places = []
    for flag, name in named:
        with naming(flag):
            places.append(find_model(str(name)))
    labels = labels_of([place.name for place in places])
    chosen = [Chosen(label, place, flag) for label, place, (flag, _) in zip(labels, places, named, strict=True)]
    return chosen, labels[0] if base is not None else None


def labels_of(names: Sequence[str]) -> list[str]:
    """Short names: as many last parts of each path as tell it from the others; two for a checkpoint."""
    parts = [
        Path(name).expanduser().resolve().parts if Path(name).expanduser().is_dir() else Path(name).parts
        for name in names
    ]
    counts = [2 if part[-1].startswith("checkpoint-") else 1 for part in parts]
    while True:
        labels = ["/".join(part[-count:]) for part, count in zip(parts, counts, strict=True)]
        slugs = [slug(label).casefold() for label in labels]  # files of a system that knows no case
        alike = [i for i, one in enumerate(slugs) if slugs.count(one) > 1]
        longer = [i for i in alike if counts[i] < len(parts[i])]
        if not longer:
            return [escaped(f"{label}-{i + 1}" if i in alike else label) for i, label in enumerate(labels)]
        for i in longer:
            counts[i] += 1


class Collector:
    """Runs the models one after the other over the same rows.

    Args:
        options: of the command.
        explicit: names of the options that were given.
        folder: where the states go.
        bar: says how far it is.
    """

    def __init__(self, options: Any, explicit: Collection[str], folder: Path, bar: Bar):
        self.options, self.explicit, self.folder, self.bar = options, explicit, folder, bar
        self.method = method_of(options)
        self.rows = RowSource(options.file, options.dataset_split)
        self.first: tuple[str, Pairs] | None = None
        self.base: tuple[str, int, tuple[int, ...]] | None = None  # label, width and layers

    def collect(self, chosen: Chosen) -> tuple[Saved, dict[str, Any]]:
        """States of one model on disk, and what is to be known about them.

        Raises:
            ConfigError: it cannot be loaded, or has no such layers.
            DataError: no pairs, or not those of the first model.
        """
        options, place, record = self.options, chosen.place, read_record(chosen.place)
        with naming(chosen.flag), quiet():
            tokenizer = chat_tokenizer(load_place_tokenizer(place, options.trust_remote_code), self.method)
            model, words = load_place(
                place,
                tokenizer,
                EvaluateOptions(
                    dtype=options.dtype,
                    attn_implementation=options.attn_implementation,
                    trust_remote_code=options.trust_remote_code,
                ),
            )
        layers = layers_of(model, options.layer_numbers)
        check_map_layers(options.map_layers or (), layers, chosen.label)
        shape = chosen.label, int(text_config(model.config).hidden_size), layers
        self.base = self.base or (shape if chosen.flag == "base_model" else None)
        if self.base is not None:
            check_base(shape, self.base)
        head = None if place.folder is None else attach_saved(causal_lm(model), place.folder, options.head)
        predictors = self.predictors(model, tokenizer, place, record)
        method = replace(
            self.method,
            predictors=predictors.count,
            predictor_order=predictors.order,  # type: ignore[arg-type]  # one of training's own values
            same_predictor=predictors.same,
        )
        renderer = make_renderer(tokenizer, method)
        settings = settings_for(self.rows, method, max_positions(causal_lm(model)))
        pairs = read_pairs(self.rows, tokenizer, renderer, settings, options.max_examples)
        self.bar.say(f"{chosen.label}: {words}; {predictors.in_words(head)}")
        for line in [*self.notes(record, predictors), *([] if self.first else data_lines(pairs))]:
            self.bar.say(f"  {line}")
        if self.first is None:
            self.first = chosen.label, pairs
        else:
            same_pairs(self.first[1], pairs, (self.first[0], chosen.label))
        self.bar.start(chosen.label, len(pairs), 0)
        with saying_out_of_memory(
            f"{chosen.label}: out of memory with {options.batch_size} pairs at once; lower --batch_size"
        ):
            states = collect_states(
                model,
                place.name,
                pairs,
                layers=layers,
                predictor_ids=predictors.ids,
                pad_token_id=tokenizer.pad_token_id or 0,
                batch_size=options.batch_size,
                advance=self._advance,
            )
        del model
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        path = self.folder / f"states-{slug(chosen.label)}.safetensors"
        save_states(states, path)
        about = {"label": chosen.label, "model": place.name, "states": path.name, "predictors": predictors.count}
        return Saved(chosen.label, path), {**about, "head": head}

    def predictors(self, model: Any, tokenizer: Any, place: Place, record: TrainingRecord) -> Predictors:
        """The predictors that a model has, as the options or its own run have them."""
        options, explicit = self.options, self.explicit
        order = options.predictor_order if "predictor_order" in explicit else None
        same = options.same_predictor if "same_predictor" in explicit else None
        usual = self.method.predictor_order
        return find_predictors(model, tokenizer, place, record, options.predictors, order, same, usual)

    def notes(self, record: TrainingRecord, predictors: Predictors) -> list[str]:
        """Where the states are not those that the model was trained on."""
        own, lines = record.settings, list[str]()
        trained = own.get("objective") not in (None, "regular") and bool(own.get("lbd"))
        count = own.get("predictors") if trained else None
        if self.options.predictors and not predictors.count:
            lines.append(f"it does not hold {self.options.predictors} predictor tokens")
        elif count and not predictors.count and self.options.predictors is None:
            lines.append(
                f"it was trained with {count} predictor tokens, which its folder does not hold "
                f"({PREDICTORS_FILE} is missing)"
            )
        for name in (*(_VIEWS if trained else ()), *_ROWS):
            if name in own and own[name] != getattr(self.method, name):
                lines.append(f"it was trained with --{name} {own[name]}, and is read with {getattr(self.method, name)}")
                if name == "objective":
                    break
        return lines

    def _advance(self, count: int) -> None:
        self.bar.advance(count)
        self.bar.tell()


def data_lines(pairs: Pairs) -> list[str]:
    """How many pairs there are and what was left out."""
    report = pairs.report
    skipped, without = sum(report.rows_skipped.values()), sum(report.examples_without_pairs.values())
    line = f"{len(pairs):,} pairs of {report.rows_read:,} rows"
    if skipped:
        line += f"; {skipped:,} rows skipped"
    if without:
        line += f"; {without:,} without a pair"
    return [line, *report.steps.lines()]


@contextmanager
def naming(flag: str) -> Iterator[None]:
    """Let messages name the flag that was given here in place of the one of the command that they were written for."""
    try:
        yield
    except ConfigError as error:
        words = str(error).replace("--model_name ", f"--{flag} ").replace(" or --backend vllm", "")
        raise ConfigError(words) from None


def method_record(method: JEPAOptions) -> dict[str, Any]:
    """The options of training that decided the views."""
    return {name: getattr(method, name) for name in FED}
