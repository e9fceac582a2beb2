"""Which model an evaluation is of, and its files in its folder (see `stepjepa.generation.output`):

predictions.jsonl     the answers
answer_nll.jsonl      instead of them where nothing is generated
metrics.json          the result
predictions.partial   while it runs: what is done
"""

from __future__ import annotations

import json
import math
import platform
import re
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
import transformers

from stepjepa.config.option import Names
from stepjepa.data.options import ColumnOptions
from stepjepa.data.template import template_of
from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics import model_metrics
from stepjepa.evaluation.nll import AnswerLikelihood, AnswerLoss
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.evaluation.predictions import REFUSED, STOPPED, Prediction, read_predictions
from stepjepa.evaluation.questions import SystemPrompt, choose_system_prompt, read_record
from stepjepa.generation.local import BATCH_SIZE, VLLM_BATCH_SIZE
from stepjepa.generation.output import Output, Paths, Record, Reply, ReplyLog
from stepjepa.generation.place import Place, find_model, load_place_tokenizer
from stepjepa.utils.files import digest, model_parts
from stepjepa.utils.terminal import Bar
from stepjepa.version import __version__

_NAME = Names(EvaluateOptions)


@dataclass(frozen=True)
class ModelToEvaluate:
    """A model before it is loaded, and how it is asked; the options with what they leave open."""

    options: EvaluateOptions
    place: Place
    system: SystemPrompt
    prompter: Prompter

    @cached_property
    def fingerprint(self) -> str:
        """A digest that differs for another model: by the files of its folder (see `model_parts`), and of its base."""
        place = self.place
        own = _parts(place.folder, f"{place.name}:{_commit(place.name)}")
        if place.base is None:
            return digest(own)
        base = _parts(Path(place.base), f"{place.base}{_commit(place.base)}")
        adapter = [] if self.options.no_lora else own
        return digest([*adapter, b"base:", *base])


def find(options: EvaluateOptions) -> ModelToEvaluate:
    """Find the model, and read what its folder says. Raises ConfigError: it cannot be used."""
    place = find_model(str(options.model_name))
    prompter = place.prompter(load_place_tokenizer(place, options.trust_remote_code), options)
    trained_length = place.settings.get("max_length")
    options = replace(
        options,
        batch_size=options.batch_size or (VLLM_BATCH_SIZE if options.backend == "vllm" else BATCH_SIZE),
        max_length=options.max_length or (trained_length if isinstance(trained_length, int) else None),
        chat_template_kwargs=prompter.renderer.given or None,
    )
    system = choose_system_prompt(options.system_prompt, options.use_test_prompts, read_record(place), place.name)
    return ModelToEvaluate(options, place, system, prompter)


def output_paths(model: ModelToEvaluate, data: str) -> Paths:
    """The files, by default in ``evaluation-<data>`` in the model's folder; ``evaluation-<model>-<data>`` for a Hub id.

    Raises:
        ConfigError: their folder is a file.
    """
    options, place = model.options, model.place
    if options.output_file is not None:
        file = Path(options.output_file)
        results = file, file.with_name(f"{file.stem}.answer_nll{file.suffix}")
        return Paths(results, file.with_name(f"{file.stem}.metrics.json"), file.with_name(f"{file.stem}.partial"))
    name = Path(data).stem if Path(data).exists() else data
    name = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "data"
    if options.output_dir:
        folder = Path(options.output_dir)
        folder = folder / f"evaluation-{name}" if options.harness else folder
    elif place.folder is not None:
        folder = place.folder / f"evaluation-{name}"
    else:
        hub_name = re.sub(r"[^a-zA-Z0-9_.-]+", "-", place.name)
        folder = Path(f"evaluation-{hub_name}-{name}")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--{_NAME.output_dir} {folder}: is a file; give a folder")
    results = folder / "predictions.jsonl", folder / "answer_nll.jsonl"
    return Paths(results, folder / "metrics.json", folder / "predictions.partial")


def open_output(model: ModelToEvaluate, paths: Paths, data: str) -> Output:
    """The output of an evaluation of questions with the fingerprint `data`.

    Raises:
        ConfigError: the files cannot be used, or are of another evaluation.
    """
    options, prompter = model.options, model.prompter
    identity = {
        **options.deciding(ColumnOptions),  # the columns decide the questions, and those are compared
        "chat_template": digest([template_of(prompter.tokenizer).encode()]),
        "model": model.fingerprint,
        "data": data,
    }
    if prompter.dropped:
        identity["prompt_without"] = prompter.dropped

    def identity_of(record: Record) -> Record:
        known = dict(record["identity"])
        if not model_metrics(record["scoring"]["metric"]):  # the longest chat has decided nothing
            known["max_length"] = options.max_length
        return known

    inputs = [Path(str(options.test_file))]
    return Output(paths, identity, overwrite=options.overwrite_output_dir, inputs=inputs, identity_of=identity_of)


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


def metrics_record(
    model: ModelToEvaluate, output: Output, metrics: Record, generation: Record, rows: Record, names: list[str] | None
) -> Record:
    """What ``metrics.json`` holds; `names` are the metrics that were asked for."""
    options, system, place = model.options, model.system, model.place
    return {
        "metrics": metrics,
        "generation": generation,
        "rows": rows,
        "system_prompt": {"text": system.text, "own_first": system.keep, "from": system.origin},
        "settings": {**asdict(options), _NAME.metric: names},
        "versions": {
            "stepjepa": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "identity": output.identity,
        "scoring": scoring_of(names, options),
        "model_folder": None if place.folder is None else digest(model_parts(place.folder)),
    }


def scoring_of(names: list[str] | None, options: EvaluateOptions) -> Record:
    """What the numbers depend on besides the answers, as JSON has it."""
    scoring: Record = json.loads(json.dumps({_NAME.metric: names, _NAME.metric_options: options.metric_options}))
    return scoring


@dataclass
class Answers(ReplyLog):
    """What the model has answered so far.

    Attributes:
        losses: likelihoods of the reference answers, by the index of the question.
    """

    losses: dict[int, AnswerLoss] = field(default_factory=dict)

    def compute(self, likelihood: AnswerLikelihood, bar: Bar) -> None:
        """Compute the likelihoods that are not known yet."""
        bar.begin("likelihoods", len(likelihood.examples), len(self.losses))
        for losses in likelihood.compute(self.losses):
            self.add({"losses": losses})
            bar.step(len(losses))

    def take(self, line: Record) -> None:
        """As `ReplyLog.take`."""
        if "losses" not in line:
            super().take(line)
            return
        for row, total, tokens, end_total, end_tokens in line["losses"]:
            sums = [math.nan if value is None else value for value in (total, end_total)]
            self.losses[row] = AnswerLoss(row, sums[0], tokens, sums[1], end_tokens)

    def take_complete(self, record: Record, paths: Paths, samples: int) -> None:
        """Take the answers of a complete evaluation of the same questions, `samples` to each.

        Raises:
            DataError: a file cannot be read.
        """
        self.seconds = float(record["generation"].get("seconds") or 0.0)
        for path in paths.results:
            stored = read_predictions(path, every_sample=True) if path.is_file() else []
            for one in stored:
                if one.answer_nll is not None and one.answer_tokens and one.end_tokens is not None:
                    total = one.answer_nll * one.answer_tokens
                    end_total = (one.end_nll or 0.0) * one.end_tokens
                    loss = AnswerLoss(one.index, total, one.answer_tokens, end_total, one.end_tokens)
                    self.losses[one.index] = loss
                if path == paths.results[0]:
                    sample = (one.sample or 1) - 1
                    number = one.index * samples + sample
                    self.replies[number] = _reply_of(one, number)


def _reply_of(one: Prediction, number: int) -> Reply:
    refused = one.note or REFUSED if one.stop_reason == REFUSED else None
    stopped = one.stop_reason == STOPPED
    return Reply(number, one.generated_response, stopped, new_tokens=one.tokens or 0, refused=refused)
