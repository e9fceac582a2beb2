"""``stepjepa inspect``: show one row as the model sees it in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from stepjepa.cli.check import file_argument, needed_file, print_text
from stepjepa.cli.parser import StrictParser
from stepjepa.data.steps import SPLITTERS
from stepjepa.errors import ConfigError, DataError
from stepjepa.training.options import JEPAOptions, option


@dataclass
class InspectOptions:
    """Options of ``stepjepa inspect``; those of the method mean what they mean for ``stepjepa train``."""

    file: str | None = option(None, "The data file; usually written without --file.", "inspect")
    row: int = option(0, "Which row, counted from 0.", "inspect")
    model_name: str = option(
        "mini", "Tokenizer: a Hub id, a local folder, or a preset (tiny, mini: trained on the file).", "inspect"
    )
    objective: Literal["regular", "llm_jepa", "step_jepa"] = option("step_jepa", "Which pairs are made.", "method")
    predictors: int | None = option(None, "K, predictor tokens. Default: 2 for step_jepa, else 0.", "method")
    predictor_order: Literal["ascending", "descending"] | None = option(
        None, "Order of the predictor tokens. Default: descending for llm_jepa, else ascending.", "method"
    )
    step_pairs: Literal["first", "all"] = option(
        "first", "Step 1 -> step 2 only, or every step -> its successor.", "method"
    )
    step_splitter: str = option("separator", "How steps are found in an answer.", "method", choices=SPLITTERS)
    step_separator: str = option("\\n\\n", "The string between steps for step_splitter=separator.", "method")
    last_token: int | None = option(None, "Readout by offset from a view's end (-1, -2, ...).", "method")
    max_length: int = option(1024, "Longest chat in tokens; longer ones are cut on the right.", "data")
    system_prompt: str | None = option(None, "System message for chats that have none.", "data")
    chat_template: str | None = option(None, "File with a Jinja chat template to use.", "data")


_METHOD = (
    "objective predictors predictor_order step_pairs step_splitter step_separator last_token max_length system_prompt "
    "chat_template"
).split()


def run(argv: list[str]) -> int:
    """Draw a row; exit status 0, also for one without a pair."""
    parser = StrictParser(
        (InspectOptions,),
        prog="stepjepa inspect FILE",
        description="Show one row as the model sees it in training: tokens, views, predictors, and who sees whom.",
        epilog="example: stepjepa inspect train.jsonl --row 3 --step_splitter lines --step_pairs all",
    )
    options: InspectOptions
    (options,) = parser.parse(file_argument(parser, argv))
    method = JEPAOptions(**{name: getattr(options, name) for name in _METHOD})
    method.check()
    source = needed_file(options.file, "inspect")
    place, row = find_row(source, options.row)

    from stepjepa.inspect.terminal import draw, make_console

    record, notes = inspected(source, place, row, options.model_name, method)
    console = make_console()
    with console.capture() as drawn:
        draw(record, console, f"row {options.row} ({place})", notes)
    print_text(drawn.get().rstrip("\n"))
    return 0


def find_row(source: Any, number: int) -> tuple[str, Any]:
    """(place in words, row) of row `number`, counted from 0.

    Raises:
        ConfigError: no such row.
        DataError: the source cannot be read.
    """
    from stepjepa.data.sources import RowSource

    if number < 0:
        raise ConfigError(f"--row {number}: rows are counted from 0")
    rows = RowSource(source)
    count = 0
    for label, row in rows:
        if count == number:
            return rows.place(label), row
        count += 1
    if not count:
        raise DataError(f"{rows.name}: the file or data set is empty; it needs at least one row")
    raise ConfigError(f"--row {number}: {rows.name} has {count:,} rows, so the last one is --row {count - 1}")


def inspected(source: Any, place: str, row: Any, model_name: str, method: JEPAOptions) -> tuple[Any, list[str]]:
    """The record of one row of `source` under the options of a run, and what there is to say about it.

    Raises:
        ConfigError: the tokenizer or the template cannot be used.
        DataError: training would skip the row.
    """
    from stepjepa.data.chat import ChatRenderer, RowError
    from stepjepa.data.encode import encode_dataset
    from stepjepa.data.report import REASONS
    from stepjepa.data.sources import row_to_messages
    from stepjepa.inspect.model import row_record, token_text, trunk_spans
    from stepjepa.modeling.load import load_tokenizer
    from stepjepa.training.run import contents
    from stepjepa.training.setup import encode_options, make_renderer

    try:
        messages = row_to_messages(row, method.system_prompt)
        tokenizer = load_tokenizer(model_name, contents(source))
        renderer = make_renderer(tokenizer, method) or ChatRenderer(tokenizer)
        settings = encode_options(method)
        steps = settings.splitter if settings.objective == "step_jepa" else None
        spans = trunk_spans(tokenizer, renderer, messages, steps)
    except RowError as error:
        raise DataError(f"{place}: {error}; training skips this row") from None
    try:
        store, report = encode_dataset([row], tokenizer, renderer, settings)
    except DataError as error:
        why = str(error).rpartition("list row 0: ")[2]
        raise DataError(f"{place}: {why}; training skips this row") from None
    record = row_record(
        [store[0]],
        (method.predictors or 0) if method.uses_pairs else 0,
        token_text(tokenizer),
        vocabulary=len(tokenizer),
        predictor_order=method.predictor_order or "ascending",
        spans=[spans],
    )
    notes = []
    for why in report.examples_without_pairs:
        notes.append(f"no pair: {REASONS.get(why, why)}; it trains as plain language modelling")
    if "fewer_than_two_steps" in report.examples_without_pairs:
        notes.append(f"(stepjepa check {source} says which step splitter finds steps)")
    if method.objective == "regular":
        notes.append("no pair: the objective regular makes none")
    if report.answers_truncated:
        notes.append(f"the answer is cut at max_length {method.max_length}")
    if report.system_folded:
        notes.append("the template has no system role: the system message stands in the user's message")
    return record, notes
