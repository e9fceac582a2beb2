"""``stepjepa inspect``: show one row as the model sees it in training."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, make_dataclass
from itertools import islice
from typing import Any, NamedTuple, get_type_hints

from stepjepa.cli.check import file_argument, needed_file, print_text
from stepjepa.cli.parser import Alias, StrictParser
from stepjepa.cli.spellings import PUBLISHED
from stepjepa.errors import ConfigError, DataError
from stepjepa.training.checks import without_effect
from stepjepa.training.options import JEPAOptions, option

# Options of training that change what the model is fed.
FED = (
    "objective predictors predictor_order same_predictor target_grad target_encoder jepa_ratio forward step_pairs horizon "
    "multi_horizon step_splitter step_separator views front_pred reverse_pred last_token split_ratio source_column "
    "target_column choice_column tube_mode tube_sampler tube_max_length tube_times tube_length_adjustment tube_content "
    "labels plain max_length system_prompt chat_template"
).split()


@dataclass
class RowOptions:
    """What ``stepjepa inspect`` shows."""

    file: str | None = option(None, "The data file; usually written without --file.", "inspect")
    row: int = option(0, "Which row, counted from 0.", "inspect")
    model_name: str = option(
        "mini", "Tokenizer: a Hub id, a local folder, or a preset (tiny, mini: trained on the file).", "inspect"
    )
    seed: int = option(42, "Seed of what is drawn anew every epoch; epoch 0 is shown.", "inspect")


def _fed_fields() -> list[tuple[str, Any, Any]]:
    hints, fields = get_type_hints(JEPAOptions), JEPAOptions.__dataclass_fields__
    return [(name, hints[name], field(default=fields[name].default, metadata=fields[name].metadata)) for name in FED]


# Types, defaults and help texts are those of `stepjepa train`.
InspectOptions: Any = make_dataclass("InspectOptions", _fed_fields(), bases=(RowOptions,))


class Found(NamedTuple):
    """A row of a data set.

    Attributes:
        number: counted from 0.
        place: where it stands, in words.
        row: what stands there.
        first: the first row of the data set.
    """

    number: int
    place: str
    row: Any
    first: Any


def run(argv: list[str]) -> int:
    """Draw a row; exit status 0, also for one without a pair."""
    parser = StrictParser(
        (InspectOptions,),
        aliases=_spellings(),
        prog="stepjepa inspect FILE",
        description="Show one row as the model sees it in training: tokens, views, predictors, and who sees whom. The "
        "options of training mean what they mean for stepjepa train.",
        epilog="example: stepjepa inspect train.jsonl --row 3 --step_jepa --step_pairs all --predictors 2",
    )
    (options,) = parser.parse(file_argument(parser, argv))
    method = JEPAOptions(**{name: getattr(options, name) for name in FED})
    method.check()
    source = needed_file(options.file, "inspect")
    found = find_row(source, options.row)

    from stepjepa.inspect.terminal import draw, make_console

    record, notes = inspected(source, found, options.model_name, method, options.seed)
    console = make_console()
    with console.capture() as drawn:
        draw(
            record,
            console,
            f"row {options.row} ({found.place}), {summary(method)}",
            [*without_effect(method, parser.explicit & set(FED)), *notes],
        )
    print_text(drawn.get().rstrip("\n"))
    return 0


def _spellings() -> dict[str, Alias]:
    """Those of training's other spellings that lead to an option of this command."""
    names = {name: target[0] if isinstance(target, tuple) else target for name, target in PUBLISHED.items()}
    return {name: PUBLISHED[name] for name, field_name in names.items() if field_name in FED}


def summary(method: JEPAOptions) -> str:
    """The method in a few words."""
    if not method.uses_pairs:
        return method.objective
    if method.objective == "semantic_tube":
        return f"{method.objective}, {method.tube_mode}"
    views = f", {method.views}" if method.objective == "llm_jepa" else ""
    form = "packed" if method.forward == "auto" else method.forward
    return f"{method.objective}{views}, K = {method.predictors}, {form}"


def find_row(source: Any, number: int) -> Found:
    """Row `number`, counted from 0.

    Raises:
        ConfigError: no such row.
        DataError: the source cannot be read.
    """
    from stepjepa.data.sources import RowSource

    if number < 0:
        raise ConfigError(f"--row {number}: rows are counted from 0")
    rows = RowSource(source)
    count, first = 0, None
    for label, row in rows:
        first = row if count == 0 else first
        if count == number:
            return Found(number, rows.place(label), row, first)
        count += 1
    if not count:
        raise DataError(f"{rows.name}: the file or data set is empty; it needs at least one row")
    raise ConfigError(f"--row {number}: {rows.name} has {count:,} rows, so the last one is --row {count - 1}")


def inspected(source: Any, found: Found, model_name: str, method: JEPAOptions, seed: int) -> tuple[Any, list[str]]:
    """The record of one row of `source` under the options of a run, and what there is to say about it.

    Raises:
        ConfigError: the tokenizer or the template cannot be used.
        DataError: training would skip the row.
    """
    from stepjepa.data.chat import ChatRenderer
    from stepjepa.data.sources import row_to_messages
    from stepjepa.data.streams import is_stream
    from stepjepa.inspect.model import row_record, token_text
    from stepjepa.inspect.notes import remarks, without_pairs
    from stepjepa.inspect.spans import TrunkSpan, trunk_spans
    from stepjepa.modeling.load import load_tokenizer
    from stepjepa.training.run import contents
    from stepjepa.training.setup import encode_options, make_renderer

    tokenizer = load_tokenizer(model_name, contents(source))
    renderer = make_renderer(tokenizer, method)
    notes = settle(source, method)
    settings = encode_options(method)
    store, report = encode_row(found, tokenizer, renderer, settings)
    example, drawn = draw_example(source, found, store, tokenizer, renderer, method, seed)
    spans: Any = [TrunkSpan("text", 0, len(example.input_ids))]
    if settings.columns is not None or not is_stream(found.row):
        messages = row_to_messages(found.row, method.system_prompt, settings.columns)
        steps = settings.splitter if settings.objective == "step_jepa" else None
        spans = trunk_spans(tokenizer, renderer or ChatRenderer(tokenizer), messages, steps, example.input_ids)
    form = method.forward if method.forward in ("inline", "two_pass") and method.uses_pairs else "packed"
    record = row_record(
        [example],
        (method.predictors or 0) if method.uses_pairs else 0,
        token_text(tokenizer),
        vocabulary=len(tokenizer),
        predictor_order=method.predictor_order or "ascending",
        same_predictor=method.same_predictor,
        forward=form,
        tube_mode=method.tube_mode,
        spans=[spans],
    )
    return record, [
        *notes,
        *without_pairs(source, method.objective, store[0], report),
        *drawn,
        *remarks(store, report, record, method.max_length),
        *of_the_form(method, store[0], record),
    ]


def settle(source: Any, method: JEPAOptions) -> list[str]:
    """Settle ``step_splitter=auto`` on the data set as training does, and what training says about it."""
    from stepjepa.data.sources import RowSource
    from stepjepa.training.setup import logger, settle_splitter

    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        settle_splitter(RowSource(source), method)
    finally:
        logger.removeHandler(handler)
    return said


def encode_row(found: Found, tokenizer: Any, renderer: Any, settings: Any) -> tuple[Any, Any]:
    """The examples that one row becomes, and the report on it.

    Raises:
        DataError: training would skip the row, or stop at it.
    """
    from stepjepa.data.chat import RowError
    from stepjepa.data.encode import encode_dataset
    from stepjepa.data.sources import row_to_messages
    from stepjepa.data.streams import is_stream

    try:
        if is_stream(found.row) and not is_stream(found.first):
            row_to_messages(found.row, settings.system_prompt, settings.columns)  # a data set of chats has no texts
        return encode_dataset([found.row], tokenizer, renderer, settings)
    except RowError as error:
        raise DataError(f"{found.place}: {error}; training skips this row") from None
    except DataError as error:
        message = str(error)
        skipped = "; training skips this row" if message.startswith("no row can be trained on") else ""
        raise DataError(f"{found.place}: {message.rpartition('list row 0: ')[2]}{skipped}") from None


def draw_example(
    source: Any, found: Found, store: Any, tokenizer: Any, renderer: Any, method: JEPAOptions, seed: int
) -> tuple[Any, list[str]]:
    """The first example of a row as training draws it in epoch 0, and what there is to say about the draw.

    What is drawn depends on the example's place among all examples, so the rows before it are encoded as well.
    """
    from stepjepa.data.encode import encode_dataset
    from stepjepa.data.sources import RowSource
    from stepjepa.training.batches import Draw, DrawnExamples, keeps_pairs
    from stepjepa.training.setup import encode_options

    one_pair = method.objective == "step_jepa" and method.step_pairs == "random"
    tube = method.objective == "semantic_tube" and method.tube_mode in ("span", "three_index")
    kept, index = store, 0
    if method.uses_pairs and (one_pair or tube or method.jepa_ratio < 1):
        rows = [row for _, row in islice(RowSource(source), found.number + 1)]
        kept, _ = encode_dataset(rows, tokenizer, renderer, encode_options(method))
        index = len(kept) - len(store)
    example = DrawnExamples(kept, method, seed, method.jepa_ratio)[Draw(0, index)]
    pairs = len(store[0].pairs)
    if pairs and not keeps_pairs(seed, 0, index, method.jepa_ratio):
        return example, [f"no pair in epoch 0 with seed {seed}: jepa_ratio {method.jepa_ratio:g} leaves this row out"]
    if one_pair and pairs > 1:
        return example, [f"one of {pairs} pairs, drawn for epoch 0 with seed {seed}"]
    if tube and example.tube is not None:
        return example, [f"spans are drawn for epoch 0 with seed {seed}; there are no tokens beside the chat's"]
    if method.objective == "semantic_tube" and pairs and example.tube is None:
        return example, [
            "no pair: the contents are too short for this tube_mode; it trains as plain language modelling"
        ]
    return example, []


def of_the_form(method: JEPAOptions, encoded: Any, record: Any) -> list[str]:
    """What the options say about pairs that the picture does not show."""
    notes = []
    if record.forward == "inline" and method.step_pairs != "random" and len(encoded.pairs) > len(record.pairs) > 0:
        notes.append(f"forward inline holds one pair an example: the first of {len(encoded.pairs)}")
    if method.separate_targets and record.pairs:
        encoder = " by the EMA encoder" if method.target_encoder == "ema" else ""
        notes.append(f"targets get no gradient: they are encoded{encoder} in a pass of their own, apart from this row")
    return notes
