"""The model that is evaluated, and the files in the evaluation's folder (see `stepjepa.generation.output`):

predictions.jsonl     the answers
answer_nll.jsonl      the likelihoods, if no answers are generated
metrics.json          the result
predictions.partial   finished batches, while the evaluation runs
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import transformers

from stepjepa.config.option import Names
from stepjepa.data.template import template_of
from stepjepa.data.tokens import Prompter
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.evaluation.predictions import REFUSED, STOPPED, read_predictions
from stepjepa.evaluation.questions import SystemPrompt, choose_system_prompt, read_record
from stepjepa.evaluation.score import EvaluationResult
from stepjepa.generation.output import Output, Paths, Reply, ReplyLog
from stepjepa.generation.place import Place, find_model, load_place_tokenizer
from stepjepa.utils.files import Record, digest, model_parts
from stepjepa.utils.text import slug
from stepjepa.version import __version__

_NAME = Names(EvaluateOptions)


@dataclass(frozen=True)
class ModelToEvaluate:
    """A model before it is loaded, how it is prompted, and the options with their defaults resolved."""

    options: EvaluateOptions
    place: Place
    system: SystemPrompt
    prompter: Prompter

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the files of the model and its base (see `model_parts`); for a Hub model, of its name and commit."""
        place = self.place
        model = _parts(place.folder, f"{place.name}:{_commit(place.name)}")
        if place.base is None:
            return digest(model)
        base = _parts(Path(place.base), f"{place.base}{_commit(place.base)}")
        # With --no_lora the adapter has no effect.
        adapter = [] if self.options.no_lora else model
        return digest([*adapter, b"base:", *base])


def _parts(folder: Path | None, name: str) -> list[bytes]:
    """The bytes that identify a model: the files of its folder, or its name if there is no local folder."""
    return list(model_parts(folder)) if folder is not None and folder.is_dir() else [name.encode()]


def _commit(name: str) -> str:
    """The commit of a Hub model's configuration in the cache; empty if unknown."""
    from transformers.utils.hub import cached_file, extract_commit_hash

    try:
        return extract_commit_hash(cached_file(name, "config.json"), None) or ""
    except Exception:
        # No network, or no such model: loading the model reports it.
        return ""


def find(options: EvaluateOptions) -> ModelToEvaluate:
    """Find the model, and read the records in its folder. Raises ConfigError: the model cannot be used."""
    place = find_model(str(options.model_name))
    prompter = place.prompter(load_place_tokenizer(place, options.trust_remote_code), options)
    trained_length = place.settings.get("max_length")
    # Defaults that the answers depend on are resolved here, so that the evaluation's identity contains their values.
    options = replace(
        options,
        batch_size=options.questions_per_batch,
        max_length=options.max_length
        or (trained_length if isinstance(trained_length, int) else None),
        chat_template_kwargs=prompter.renderer.given or None,
    )
    system = choose_system_prompt(
        options.system_prompt, options.use_test_prompts, read_record(place), place.name
    )
    return ModelToEvaluate(options, place, system, prompter)


def output_paths(model: ModelToEvaluate, data: str) -> Paths:
    """Paths of the files. The default folder is ``evaluation-<data>`` in the model's folder; for a Hub id it is
    ``evaluation-<model>-<data>`` in the current folder."""
    options, place = model.options, model.place
    if options.output_file is not None:
        file = Path(options.output_file)
        results = file, file.with_suffix(f".answer_nll{file.suffix}")
        return Paths(results, file.with_suffix(".metrics.json"), file.with_suffix(".partial"))
    is_path = Path(data).exists()
    name = slug(Path(data).stem if is_path else data)
    if options.output_dir:
        folder = Path(options.output_dir)
        # With the harness, the output folder contains one folder per list of tasks.
        folder = folder / f"evaluation-{name}" if options.harness else folder
    elif place.folder is not None:
        folder = place.folder / f"evaluation-{name}"
    else:
        folder = Path(f"evaluation-{slug(place.name)}-{name}")
    results = folder / "predictions.jsonl", folder / "answer_nll.jsonl"
    return Paths(results, folder / "metrics.json", folder / "predictions.partial")


def open_output(model: ModelToEvaluate, paths: Paths, data: str) -> Output:
    """The output of an evaluation of questions with the fingerprint `data`.

    Raises:
        ConfigError: the files cannot be used, or belong to another evaluation.
    """
    options, prompter = model.options, model.prompter
    identity = {
        **options.deciding(),
        "chat_template": digest([template_of(prompter.tokenizer).encode()]),
        "model": model.fingerprint,
        "data": data,
    }
    if prompter.dropped:
        identity["prompt_without"] = prompter.dropped

    return Output(
        paths,
        identity,
        overwrite=options.overwrite_output_dir,
        inputs=[Path(str(options.test_file))],
    )


def metrics_record(
    model: ModelToEvaluate, output: Output, result: EvaluationResult, names: list[str] | None
) -> Record:
    """The content of ``metrics.json``; `names` are the requested metrics."""
    options, system, place = model.options, model.system, model.place
    return {
        "metrics": result.metrics,
        "generation": result.generation,
        "rows": result.rows,
        "system_prompt": {"text": system.text, "own_first": system.keep, "from": system.origin},
        "settings": {**asdict(options), _NAME.metric: names},
        "versions": {
            "stepjepa": __version__,
            "transformers": transformers.__version__,
        },
        "identity": output.identity,
        "model_folder": None if place.folder is None else digest(model_parts(place.folder)),
    }


def restore(log: ReplyLog, record: Record, path: Path) -> None:
    """Copy the answers of a complete evaluation, if it has any, into a log. Raises DataError: they cannot be read."""
    log.seconds = float(record["generation"].get("seconds") or 0.0)
    for stored in read_predictions(path) if path.is_file() else ():
        log.replies[stored.index] = Reply(
            stored.index,
            stored.generated_response,
            stored.stop_reason == STOPPED,
            new_tokens=stored.tokens or 0,
            refused=stored.note or REFUSED if stored.stop_reason == REFUSED else None,
            drafts=stored.drafts,
        )
