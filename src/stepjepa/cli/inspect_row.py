"""``stepjepa inspect``: show rows as the model sees them in training, in the terminal, as a picture or as a page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepjepa.cli.check import needed_file
from stepjepa.cli.inspect_data import find_row, tokenizer_for
from stepjepa.cli.inspect_shown import Shown, inspected, show_rows
from stepjepa.config.option import option
from stepjepa.config.parser import StrictParser
from stepjepa.config.spellings import published
from stepjepa.errors import ConfigError
from stepjepa.training.options import ExampleOptions, JEPAOptions, method_of, summary, without_effect
from stepjepa.utils.terminal import print_drawn, print_text

__all__ = ["InspectOptions", "find_row", "inspected", "run"]


@dataclass
class RowOptions:
    """What ``stepjepa inspect`` shows."""

    file: str | None = option(None, "The data file; usually written without --file.", "inspect")
    row: int = option(0, "Which row, counted from 0.", "inspect")
    rows_packed: int = option(
        1, "How many examples from --row on are packed as one batch, in the order of the file.", "inspect"
    )
    model_name: str = option(
        "mini", "Tokenizer: a Hub id, a local folder, or a preset (tiny, mini: trained on the file).", "inspect"
    )
    seed: int = option(42, "Seed of what is drawn anew every epoch; epoch 0 is shown.", "inspect")
    png: str | None = option(None, "Write the picture of the rows to this PNG file (extra analysis).", "inspect")
    html: str | None = option(
        None, "Write a page to this file that shows, token by token, who sees whom; it needs no network.", "inspect"
    )
    run_model: bool | None = option(
        None,
        "Run the model of --model_name for the page: cosine of each pair, LM loss of each token, attention. Default: where "
        "it is a local folder. A preset's weights are random.",
        "inspect",
    )
    attention_layers: list[int] | None = option(
        None, "Layers, from 1 on, whose attention the page holds. Default: as many as fit.", "inspect"
    )
    overwrite: bool = option(False, "Replace existing files.", "inspect", aliases=("overwrite_output_dir",))


@dataclass
class InspectOptions(ExampleOptions, RowOptions):
    """All options of ``stepjepa inspect``; those of training mean what they mean there."""

    predictors: int | list[int] | None = option(  # type: ignore[assignment]
        None,
        "K, learned predictor tokens after a source view; several numbers are shown side by side. Default: 2 for step_jepa, "
        "1 for split, else 0.",
        "method",
    )


def run(argv: list[str]) -> int:
    """Draw a row; exit status 0, also for one without a pair."""
    parser = StrictParser(
        (InspectOptions,),
        aliases=published(InspectOptions),
        positional=("file",),
        prog="stepjepa inspect FILE",
        description="Show one row as the model sees it in training: tokens, views, predictors, and who sees whom. The "
        "options of training mean what they mean for stepjepa train; --predictors 1 2 3 shows several K side by side.",
        epilog="example: stepjepa inspect train.jsonl --row 3 --step_jepa --step_pairs all --predictors 2",
    )
    (options,) = parser.parse(argv)
    methods = methods_of(options)
    source = needed_file(options.file, "inspect")
    if options.rows_packed < 1:
        raise ConfigError(f"--rows_packed is {options.rows_packed}; at least one example is shown")
    for name, suffixes in (("png", (".png",)), ("html", (".html", ".htm"))):
        check_output(name, getattr(options, name), suffixes, options.overwrite)
    found = find_row(source, options.row)
    tokenizer = tokenizer_for(source, options.model_name, methods[0])
    shown = [show_rows(source, found, tokenizer, method, options.seed, options.rows_packed) for method in methods]
    notes = [
        *map(str, without_effect(methods[0], parser.explicit)),
        *page_options_unread(options, parser.explicit),
        *dict.fromkeys(note for one in shown for note in one.notes),
    ]
    place = f"row {options.row} ({found.place})"
    if options.png or options.html:
        from stepjepa.cli.inspect_files import write_files

        print_text("\n".join(write_files(options, source, found, shown, place, notes)))
        return 0
    print_drawn(drawing(shown, place, notes))
    return 0


def methods_of(options: Any) -> list[JEPAOptions]:
    """The options of a run for each value of --predictors.

    Raises:
        ConfigError: a value that cannot be used.
    """
    given = options.predictors
    several = list(dict.fromkeys(given)) if isinstance(given, list) else [given]
    methods = [method_of(replace(options, predictors=count)) for count in several]
    return methods if methods[0].uses_pairs and methods[0].objective != "semantic_tube" else methods[:1]


def check_output(name: str, file: str | None, suffixes: tuple[str, ...], overwrite: bool) -> None:
    """Refuse an output that cannot be written.

    Raises:
        ConfigError: it has another suffix, is a folder, or is there already.
    """
    if file is None:
        return
    path = Path(file)
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"--{name} {file}: the file's name must end in {' or '.join(suffixes)}")
    if path.is_dir():
        raise ConfigError(f"--{name} {file}: is a folder; give a file")
    if path.exists() and not overwrite:
        raise ConfigError(f"--{name} {file}: exists; choose another name, or --overwrite to replace it")


def page_options_unread(options: Any, explicit: set[str]) -> list[str]:
    """A line for every option of the page that has no effect."""
    unread = sorted({"run_model", "attention_layers"} & explicit) if not options.html else []
    notes = [f"--{name} has no effect without --html" for name in unread]
    if "overwrite" in explicit and not (options.html or options.png):
        notes.append("--overwrite has no effect without --png or --html")
    return notes


def drawing(shown: list[Shown], place: str, notes: list[str]) -> str:
    """What the terminal shows."""
    from stepjepa.inspect.terminal import draw, draw_beside, make_console

    console = make_console()
    title = f"{place}, {titled([one.method for one in shown])}"
    rows = [one.records() for one in shown]
    with console.capture() as drawn:
        if len(shown) > 1:
            several = [
                (f"K = {one.method.predictors}{_which(number, records)}", record)
                for one, records in zip(shown, rows, strict=True)
                for number, record in enumerate(records)
            ]
            packing = [f"K = {one.method.predictors}: {line}" for one in shown for line in one.packing()]
            draw_beside(several, console, title, notes, packing)
        else:
            for number, record in enumerate(rows[0]):
                if number:
                    console.print()
                    draw(record, console, f"packed row {number + 1} of {len(rows[0])}")
                else:
                    draw(record, console, title + _which(0, rows[0]), notes, shown[0].packing())
    return drawn.get().rstrip("\n")


def titled(methods: list[JEPAOptions]) -> str:
    """The methods, which differ in K alone, in a few words."""
    words = summary(methods[0])
    counts = ", ".join(str(method.predictors) for method in methods)
    return words.replace(f"K = {methods[0].predictors}", f"K = {counts}")


def _which(number: int, rows: list[Any]) -> str:
    return f", packed row {number + 1} of {len(rows)}" if len(rows) > 1 else ""
