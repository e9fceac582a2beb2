"""``stepjepa check``: read a data file, say what is in it, and what a model will see of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stepjepa.config.option import option, options_of
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.data.format_check import check_format
from stepjepa.data.format_report import FormatReport
from stepjepa.data.report import DataReport
from stepjepa.data.sources import PairColumns, RowSource
from stepjepa.data.texts import texts_of
from stepjepa.data.warnings import Caution, format_warnings, warning_lines
from stepjepa.errors import ConfigError
from stepjepa.training.options import ExampleOptions, JEPAOptions, method_of, summary, without_effect
from stepjepa.utils.terminal import print_json, print_text

_WIDTH = 100
_SAMPLED = ("per_device_train_batch_size", "seed")
# What the format check reads itself, without a tokenizer and whatever the objective is.
_READ = set(
    "objective step_splitter step_separator steps_column source_column target_column choice_column system_prompt "
    "strict_data".split()
)


@dataclass
class FileOptions:
    """What ``stepjepa check`` reads and shows."""

    file: str | None = option(None, "The data file; usually written without --file.", "check")
    dataset_split: str = option("train", "Split of a Hub data set.", "check")
    eval_file: str | None = option(
        None, "A second file or data set, whose questions are looked for in the first.", "check"
    )
    eval_split: str = option("test", "Split of a Hub data set given as eval_file.", "check")
    model_name: str | None = option(
        None,
        "Tokenizer: a Hub id, a local folder, or a preset (tiny, mini: trained on the file). With one, the report says what "
        "a model will see of the file under the options of training.",
        "check",
    )
    per_device_train_batch_size: int = option(8, "Examples of a batch, for the padding.", "check")
    seed: int = option(42, "Seed of the rows that are drawn as a sample.", "check")
    show: int = option(1, "How many rows to show.", "check")
    json: bool = option(False, "Print the report as one JSON object.", "check")


@dataclass
class CheckOptions(ExampleOptions, FileOptions):
    """All options of ``stepjepa check``; those of training mean what they mean there."""


def run(argv: list[str]) -> int:
    """Check a file; exit status 0 where it can be used."""
    parser = StrictParser(
        (CheckOptions,),
        aliases=published(CheckOptions),
        positional=("file",),
        prog="stepjepa check FILE",
        description="Read a data file and report what is in it: messages, roles, steps, rows that cannot be used, and what "
        "to beware of. With --model_name also what a model will see of it: pairs, truncation, tokens by kind, padding.",
        epilog="example: stepjepa check train.jsonl --model_name mini --step_jepa --eval_file test.jsonl",
    )
    (options,) = parser.parse(argv)
    method = method_of(options)
    if options.per_device_train_batch_size < 1:
        raise ConfigError(
            f"per_device_train_batch_size is {options.per_device_train_batch_size}; it must be at least 1"
        )
    rows = RowSource(needed_file(options.file, "check"), options.dataset_split)
    columns = None
    if method.source_column and method.target_column:
        columns = PairColumns(method.source_column, method.target_column, method.choice_column)
    report = check_format(
        rows,
        method.step_splitter,
        method.step_separator,
        show=options.show,
        strict=method.strict_data,
        columns=columns,
        steps_column=method.steps_column,
        system_prompt=method.system_prompt,
        eval_file=options.eval_file,
        eval_split=options.eval_split,
    )
    asked = "objective" in parser.explicit
    cautions = format_warnings(report, steps=method.objective == "step_jepa" or not asked)
    lines, record = report.lines(), report.to_dict()
    if options.model_name is not None:
        if report.plain_text and not asked:
            options.objective = "split"
            method = method_of(options)
        feeding, words, more = feed(rows, options, method, report)
        lines += ["", *words]
        cautions += more
        record["feeding"] = feeding
        notes = [str(one) for one in without_effect(method, parser.explicit - _READ)]
    else:
        unread = sorted((parser.explicit & {*options_of(ExampleOptions), *_SAMPLED}) - _READ)
        notes = [f"--{name} has no effect without --model_name" for name in unread]
        notes.append("--model_name NAME adds what a model will see: pairs, truncation, tokens by kind, padding")
    record |= {"warnings": [asdict(caution) for caution in cautions], "notes": notes}
    if options.json:
        print_json(record)
    else:
        lines += ["", *warning_lines(cautions), *(f"Note: {note}" for note in notes)]
        print_text("\n".join(folded(lines)))
    return 0


def feed(
    rows: RowSource, options: Any, method: JEPAOptions, report: FormatReport
) -> tuple[dict[str, Any], list[str], list[Caution]]:
    """What a model will see of the rows on which `report` is: as a record, in words, and what to warn of.

    Raises:
        ConfigError: the tokenizer or the template cannot be used.
        DataError: no row can be trained on, or with ``strict_data`` the first one that would be skipped or cut.
    """
    from stepjepa.forest.collate import ForestCollator
    from stepjepa.forest.two_pass import TwoPassCollator
    from stepjepa.inspect.feeding import read_feeding
    from stepjepa.inspect.feeding_report import FeedingReport
    from stepjepa.inspect.feeding_words import feeding_lines, feeding_warnings
    from stepjepa.inspect.padding import Form, measure_padding, segment_tokens
    from stepjepa.modeling.load import is_preset, load_tokenizer
    from stepjepa.training.batches import DrawnExamples, EpochSampler
    from stepjepa.training.encoding import chat_tokenizer, make_renderer, pair_columns, settings_for

    texts: Iterable[str] = ()
    if is_preset(options.model_name):
        texts = texts_of([rows], pair_columns(method))
    tokenizer = chat_tokenizer(load_tokenizer(options.model_name, texts), method)
    renderer = make_renderer(tokenizer, method)
    settings = settings_for(rows, method)
    paired = method.uses_pairs and method.objective != "semantic_tube"
    form = Form(
        (method.predictors or 0) if paired else 0,
        method.predictor_order == "descending",
        method.same_predictor,
        method.forward if paired and method.forward in ("inline", "two_pass") else "packed",
    )
    feeding = FeedingReport(
        options.model_name, len(tokenizer), summary(method), settings.objective, DataReport(rows.name)
    )
    sampled = read_feeding(
        rows, tokenizer, renderer, settings, feeding, form, count=report.rows_read, seed=options.seed
    )
    examples = [example for example, _ in sampled]
    draw = DrawnExamples(examples, method, options.seed, method.jepa_ratio)
    drawn = [draw[index] for index in EpochSampler(len(examples), 1, options.seed)]
    ids, pad = tuple(form.predictor_ids(len(tokenizer))), tokenizer.pad_token_id or 0
    collator: Any = TwoPassCollator(ids, pad, method.separate_targets)
    if form.forward != "two_pass":
        collator = ForestCollator(
            ids,
            pad,
            max_row_length=method.max_row_length,
            inline=form.forward == "inline",
            separate_targets=method.separate_targets,
        )
    feeding.segments = segment_tokens(sampled, drawn, form, len(tokenizer))
    feeding.padding = measure_padding(drawn, collator, options.per_device_train_batch_size, settings.max_length)
    return feeding.to_dict(), feeding_lines(feeding, report.rows_skipped), feeding_warnings(feeding)


def needed_file(name: str | None, command: str) -> str:
    """The file's name.

    Raises:
        ConfigError: none was given.
    """
    if not name:
        raise ConfigError(f"no data file given; write: stepjepa {command} FILE")
    return name


def folded(lines: Sequence[str]) -> list[str]:
    """`lines` with those that are longer than a page is wide broken, indented further where they go on."""
    out = []
    for line in lines:
        if len(line) <= _WIDTH or len(line.split()) < 4:
            out.append(line)
            continue
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        out += textwrap.wrap(line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return out
