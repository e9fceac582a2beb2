"""From the options of a run to the examples that ``stepjepa inspect`` shows, as training draws them, and their records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from stepjepa.cli.inspect_data import Found, encode_row, following, row_spans, tokenizer_for
from stepjepa.errors import DataError
from stepjepa.training.options import JEPAOptions


class Piece(NamedTuple):
    """An example that is shown.

    Attributes:
        row: number of its row.
        example: as training draws it.
        spans: names for its trunk (`inspect.spans.TrunkSpan`).
        notes: what there is to say about it.
    """

    row: int
    example: Any
    spans: Any
    notes: list[str]


@dataclass(frozen=True)
class Shown:
    """The examples that are shown under the options of one run.

    Attributes:
        tokenizer: of the run.
        method: options, checked.
        pieces: at least one.
        notes: what there is to say about them, each once.
    """

    tokenizer: Any
    method: JEPAOptions
    pieces: list[Piece]
    notes: list[str]

    @property
    def examples(self) -> list[Any]:
        """The examples alone."""
        return [piece.example for piece in self.pieces]

    @property
    def form(self) -> Any:
        """How views are read and computed (`inspect.padding.Form`)."""
        from stepjepa.inspect.padding import Form

        paired = self.method.uses_pairs and self.method.objective != "semantic_tube"
        return Form(
            (self.method.predictors or 0) if paired else 0,
            self.method.predictor_order == "descending",
            self.method.same_predictor,
            form_of(self.method),
        )

    def records(self) -> list[Any]:
        """The rows that the examples are packed into (`inspect.model.RowRecord`)."""
        from stepjepa.inspect.model import token_text
        from stepjepa.inspect.packing import packed_rows

        return packed_rows(
            self.examples,
            self.form,
            token_text(self.tokenizer),
            vocabulary=len(self.tokenizer),
            pad_token_id=self.tokenizer.pad_token_id or 0,
            max_row_length=self.method.max_row_length,
            tube_mode=self.method.tube_mode,
            spans=[piece.spans for piece in self.pieces],
        )

    def packing(self) -> list[str]:
        """How many positions they take (`inspect.packing.packing_lines`)."""
        from stepjepa.inspect.packing import packing_lines

        return packing_lines(
            self.examples,
            self.form,
            vocabulary=len(self.tokenizer),
            separate_targets=self.method.separate_targets,
            max_row_length=self.method.max_row_length,
        )


def form_of(method: JEPAOptions) -> str:
    """``packed``, ``inline`` or ``two_pass``."""
    return method.forward if method.forward in ("inline", "two_pass") and method.uses_pairs else "packed"


def show_rows(source: Any, found: Found, tokenizer: Any, method: JEPAOptions, seed: int, count: int = 1) -> Shown:
    """The first `count` examples from row `found` on, as training draws them in epoch 0.

    Rows that training skips are passed over; at the first one that is an error.

    Args:
        method: checked.

    Raises:
        ConfigError: the template cannot be used.
        DataError: training would skip the first row, or stop at one.
    """
    from stepjepa.data.encode import make_encoder
    from stepjepa.data.sources import RowSource
    from stepjepa.inspect.notes import remarks, without_pairs
    from stepjepa.training.encoding import chat_tokenizer, make_renderer, settings_for

    tokenizer = chat_tokenizer(tokenizer, method)
    renderer, rows = make_renderer(tokenizer, method), RowSource(source)
    settings = settings_for(rows, method)
    encoder = make_encoder(rows, tokenizer, renderer, settings)
    general: list[str] = []
    pieces: list[Piece] = []
    taken: list[tuple[Found, Any, Any]] = []
    for row in following(source, found):
        if sum(len(store) for _, store, _ in taken) >= count:
            break
        try:
            taken.append((row, *encode_row(row, encoder)))
        except DataError as error:
            if row.number == found.number:
                raise
            general.append(f"row {row.number} is passed over: {error}")
    draw = Drawing(source, taken[-1][0].number, tokenizer, renderer, method, settings, seed)
    index = draw.before(found.number, taken[0][1])
    for row, store, report in taken:
        for part in range(len(store)):
            if len(pieces) == count:
                break
            example, drawn = draw.example(store, part, index + part)
            notes = [
                *report.steps.lines(),
                *without_pairs(source, method.objective, store[part], report),
                *drawn,
                *remarks(store, report, form_of(method), method.max_length),
                *of_the_form(method, store[part], example),
            ]
            pieces.append(Piece(row.number, example, row_spans(row, example, tokenizer, renderer, settings), notes))
        index += len(store)
    if len(pieces) < count:
        general.append(f"{len(pieces)} examples are shown: there are no more behind row {found.number}")
    return Shown(tokenizer, method, pieces, [*general, *together(pieces)])


def together(pieces: Sequence[Piece]) -> list[str]:
    """The notes of all examples, each once, with the rows they are about where these are not all."""
    about: dict[str, list[int]] = {}
    for piece in pieces:
        for note in piece.notes:
            rows = about.setdefault(note, [])
            rows += [piece.row] if piece.row not in rows else []
    every = len({piece.row for piece in pieces})
    return [
        note if len(rows) == every else f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows))}: {note}"
        for note, rows in about.items()
    ]


def inspected(source: Any, found: Found, model_name: str, method: JEPAOptions, seed: int) -> tuple[Any, list[str]]:
    """The record of one row of `source` under the options of a run, and what there is to say about it.

    Raises:
        ConfigError: the tokenizer or the template cannot be used.
        DataError: training would skip the row.
    """
    shown = show_rows(source, found, tokenizer_for(source, model_name, method), method, seed)
    return shown.records()[0], shown.notes


class Drawing:
    """What training draws for the examples up to one row in epoch 0.

    What is drawn depends on an example's place among all examples, so the rows before it are encoded as well; where nothing
    is drawn they are not.
    """

    def __init__(
        self, source: Any, last: int, tokenizer: Any, renderer: Any, method: JEPAOptions, settings: Any, seed: int
    ):
        from stepjepa.data.encode import encode_dataset
        from stepjepa.data.sources import RowSource

        self.method, self.seed = method, seed
        self.one_pair = method.objective == "step_jepa" and method.step_pairs == "random"
        self.tube = method.objective == "semantic_tube" and method.tube_mode in ("span", "three_index")
        self._encode = lambda rows: encode_dataset(rows, tokenizer, renderer, settings)[0]
        self.drawn = method.uses_pairs and (self.one_pair or self.tube or method.jepa_ratio < 1)
        self._rows = [row for _, row in islice(RowSource(source), last + 1)] if self.drawn else []

    def before(self, row: int, store: Any) -> int:
        """How many examples stand before those of row `row`, which are `store`; 0 where nothing is drawn."""
        return len(self._encode(self._rows[: row + 1])) - len(store) if self.drawn else 0

    def example(self, store: Any, part: int, index: int) -> tuple[Any, list[str]]:
        """Example `part` of a row as it is drawn, and what there is to say about the draw.

        Args:
            store: the row's examples.
            index: of this one among all examples.
        """
        from stepjepa.training.draws import ExampleDraw, keeps_pairs

        method, seed = self.method, self.seed
        example = ExampleDraw(method, seed, method.jepa_ratio)(store[part], 0, index)
        pairs = len(store[part].pairs)
        if pairs and not keeps_pairs(seed, 0, index, method.jepa_ratio):
            ratio = f"{method.jepa_ratio:g}"
            return example, [f"no pair in epoch 0 with seed {seed}: jepa_ratio {ratio} leaves this row out"]
        if self.one_pair and pairs > 1:
            return example, [f"one of {pairs} pairs, drawn for epoch 0 with seed {seed}"]
        if self.tube and example.tube is not None:
            return example, [f"spans are drawn for epoch 0 with seed {seed}; there are no tokens beside the chat's"]
        if method.objective == "semantic_tube" and pairs and example.tube is None:
            return example, [
                "no pair: the contents are too short for this tube_mode; it trains as plain language modelling"
            ]
        return example, []


def of_the_form(method: JEPAOptions, encoded: Any, example: Any) -> list[str]:
    """What the options say about pairs that the picture does not show."""
    notes = []
    if form_of(method) == "inline" and method.step_pairs != "random" and len(encoded.pairs) > 1 and example.pairs:
        notes.append(f"forward inline holds one pair an example: the first of {len(encoded.pairs)}")
    if method.separate_targets and example.pairs:
        encoder = " by the EMA encoder" if method.target_encoder == "ema" else ""
        notes.append(f"targets get no gradient: they are encoded{encoder} in a pass of their own, apart from this row")
    return notes
