"""A plain record of one packed row: what every token is, what is read where, and who sees whom.

The record holds no rule of its own: the layout is that of `forest.layout` (or of `forest.two_pass`), the visibility that
of `forest.visibility.visible` on numpy arrays.

Shapes: L positions of the row, K predictors, T tokens of one trunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stepjepa.data.examples import Example
from stepjepa.forest.layout import Forest, build_forest, build_inline
from stepjepa.forest.visibility import visible
from stepjepa.inspect.pairs import PairRecord, pair_records
from stepjepa.inspect.spans import TrunkSpan, trunk_names
from stepjepa.inspect.tube import TubeRecord, tube_records
from stepjepa.inspect.two_pass import two_pass_rows

# What a token is, in the order of the legend.
KINDS = {
    "prompt": "trunk, no label",
    "answer": "trunk, labelled",
    "source_end": "end of a source view on the trunk",
    "original": "a target view's original on the trunk",
    "isolated": "a target view isolated in its place",
    "span": "within a drawn span",
    "predictor": "predictor token",
    "source": "a source view in a segment of its own",
    "target": "isolated copy of a target view",
    "padding": "padding, which sees itself alone",
}
LAYOUTS = {"packed": build_forest, "inline": build_inline, "two_pass": two_pass_rows}
_FIELDS = ("input_ids", "position_ids", "example", "segment", "order", "attach", "floor")


@dataclass(frozen=True)
class RowRecord:
    """One row of one or several examples.

    Attributes:
        texts: L token texts.
        ids, positions, examples, segments, orders, attaches, floors: (L,) int64, as `ForestCollator` would hand them to
            the model (`examples` counts from 0 along the batch; -1 is padding).
        names: L segment names: "trunk: user", "trunk: step 1", "branch 1", "source 1", "target 1"; a segment that serves
            several pairs bears the number of the first. "predictors" are those within the trunk (`inline`).
        kinds: L of the keys of `KINDS`.
        labelled: (L,) bool, tokens that the LM loss predicts.
        pairs: in the order of the losses.
        forward: ``packed``, ``inline`` or ``two_pass``, where every segment is a row of its own.
        tube: pairs of the semantic tube.
        batch: examples of the batch; where there are several, this row may hold some of them.
    """

    texts: tuple[str, ...]
    ids: np.ndarray
    positions: np.ndarray
    examples: np.ndarray
    segments: np.ndarray
    orders: np.ndarray
    attaches: np.ndarray
    floors: np.ndarray
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    labelled: np.ndarray
    pairs: tuple[PairRecord, ...]
    forward: str = "packed"
    tube: tuple[TubeRecord, ...] = ()
    batch: int = 1

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def visible(self) -> np.ndarray:
        """(L, L) bool, True where the token of the row sees the token of the column."""
        return self.seen_by(slice(None))

    def seen_by(self, queries: slice) -> np.ndarray:
        """The rows `queries` of `visible`, computed alone: a long row's matrix need not be held whole."""
        return visible(
            self.examples[queries, None],
            self.examples[None],
            self.segments[queries, None],
            self.segments[None],
            self.orders[queries, None],
            self.orders[None],
            self.attaches[queries, None],
            self.floors[queries, None],
        )

    def sections(self) -> list[tuple[int, int]]:
        """[start, stop) of every run of tokens that share example, segment and name; padding is one run."""
        segments = np.where(self.examples < 0, -1, self.segments)
        keys = list(zip(self.examples.tolist(), segments.tolist(), self.names, strict=True))
        edges = [0, *(i for i in range(1, len(keys)) if keys[i] != keys[i - 1]), len(keys)]
        return list(zip(edges[:-1], edges[1:], strict=True))


def row_record(
    examples: Sequence[Example],
    predictors: int,
    token_text: Callable[[int], str],
    *,
    vocabulary: int,
    predictor_order: str = "ascending",
    same_predictor: bool = False,
    forward: str = "packed",
    tube_mode: str = "span",
    spans: Sequence[Sequence[TrunkSpan]] | None = None,
    numbers: Sequence[int] | None = None,
    batch: int | None = None,
    laid_out: Mapping[str, np.ndarray] | None = None,
) -> RowRecord:
    """The record of a row that holds `examples`.

    Args:
        examples: at least one, as training draws them: with the pairs or the `tube` of an epoch.
        predictors: K.
        token_text: text of a token id below `vocabulary`.
        vocabulary: entries of the vocabulary; the predictors' ids are taken to lie right behind it.
        predictor_order: ``ascending`` or ``descending``.
        same_predictor: the first predictor K times.
        forward: ``packed``, ``inline`` or ``two_pass`` (which loads torch).
        tube_mode: mode of the examples' tubes.
        spans: names for each example's trunk (`spans.trunk_spans`); without them labelled tokens are called "answer", the
            others "prompt".
        numbers: of the examples in their batch, 0, 1, .. unless given; `batch`: how many examples that has.
        laid_out: the integer fields (L,) of a row that a collator has laid out, padding behind its examples included, by the
            collator's names. Without it the examples stand one behind the other and there is no padding.
    """
    ids = [vocabulary] * predictors if same_predictor else list(range(vocabulary, vocabulary + predictors))
    shown = {index: f"<|predictor_{number}|>" for number, index in enumerate(dict.fromkeys(ids), 1)}
    if predictor_order == "descending":
        ids.reverse()
    numbers = range(len(examples)) if numbers is None else numbers
    forests = [LAYOUTS[forward](example, ids) for example in examples]
    starts = np.cumsum([0, *(len(forest) for forest in forests)]).tolist()
    row = _one_behind_the_other(forests, numbers) if laid_out is None else laid_out
    fields = {name: np.asarray(row[name]).astype(np.int64) for name in _FIELDS if name in row}
    texts = tuple(shown.get(index) or token_text(index) for index in fields["input_ids"].tolist())
    labelled = np.zeros(len(texts), bool)
    names: list[str] = []
    kinds: list[str] = []
    pairs: list[PairRecord] = []
    tube: list[TubeRecord] = []
    for place, (number, example, forest, start) in enumerate(zip(numbers, examples, forests, starts, strict=False)):
        labelled[start + forest.label_positions + 1] = True
        predictor = np.isin(forest.input_ids, ids)
        own_pairs = pair_records(number, example, forest, start, texts, predictor)
        own_tube = () if example.tube is None else tube_records(number, example.tube, tube_mode, start, texts)
        names += _names(example, forest, predictor, spans[place] if spans else ())
        kinds += _kinds(forest, labelled[start : start + len(forest)], predictor, own_pairs, own_tube, start)
        pairs += own_pairs
        tube += own_tube
    behind = len(texts) - len(names)
    return RowRecord(
        texts=texts,
        ids=fields["input_ids"],
        positions=fields["position_ids"],
        examples=fields["example"],
        segments=fields["segment"],
        orders=fields["order"],
        attaches=fields["attach"],
        floors=fields.get("floor", np.zeros(len(texts), np.int64)),
        names=(*names, *["padding"] * behind),
        kinds=(*kinds, *["padding"] * behind),
        labelled=labelled,
        pairs=tuple(pairs),
        forward=forward,
        tube=tuple(tube),
        batch=len(examples) if batch is None else batch,
    )


def token_text(tokenizer: Any) -> Callable[[int], str]:
    r"""A function from a token id to its text; bytes that are no whole character are written ``\xf0``."""
    letters = _byte_letters()

    def text(index: int) -> str:
        piece = tokenizer.convert_ids_to_tokens(index)
        if piece is None:
            return f"<id {index}>"
        decoded = tokenizer.decode([index], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if "\ufffd" in decoded and all(letter in letters for letter in piece):
            return "".join(f"\\x{letters[c]:02x}" if letters[c] > 126 else chr(letters[c]) for c in piece)
        if piece.startswith("\u2581") and not decoded.startswith(" "):
            return " " + decoded  # SentencePiece's decoder drops the first space of a text
        return piece if decoded == "" or "\ufffd" in decoded else decoded

    return text


def _one_behind_the_other(forests: Sequence[Forest], numbers: Sequence[int]) -> dict[str, np.ndarray]:
    fields = ("input_ids", "position_ids", "segment", "order", "attach")
    row = {name: np.concatenate([getattr(forest, name) for forest in forests]) for name in fields}
    row["floor"] = np.concatenate([_floor(forest) for forest in forests])
    row["example"] = np.repeat(np.asarray(numbers), [len(forest) for forest in forests])
    return row


def _floor(forest: Forest) -> np.ndarray:
    return np.zeros(len(forest), np.int64) if forest.floor is None else forest.floor.astype(np.int64)


def _names(example: Example, forest: Forest, predictor: np.ndarray, spans: Sequence[TrunkSpan]) -> list[str]:
    trunk = iter(trunk_names(example, spans))
    names = ["predictors" if inserted else next(trunk) for inserted in predictor[: forest.trunk_length]]
    for part in forest.parts:
        names += [f"{part.kind} {part.pair + 1}"] * (part.stop - part.start)
    return names


def _kinds(
    forest: Forest,
    labelled: np.ndarray,
    predictor: np.ndarray,
    pairs: Sequence[PairRecord],
    tube: Sequence[TubeRecord],
    start: int,
) -> list[str]:
    """The kinds of one example's tokens; the records' indices count from `start`."""
    kinds = ["answer" if label else "prompt" for label in labelled[: forest.trunk_length]]
    for part in forest.parts:
        kinds += [part.kind] * (part.stop - part.start)
    stretches = [("original", pair.original) for pair in pairs if pair.original]
    for drawn in tube:
        vectors = {"span": (drawn.target,), "three_index": (drawn.source, drawn.target)}.get(drawn.mode, ())
        stretches += [("span", stretch) for vector in vectors for stretch in vector.covered]
    for kind, (first, stop) in stretches:
        kinds[first - start : stop - start] = [kind] * (stop - first)
    for index in np.flatnonzero(_floor(forest)):
        kinds[index] = "isolated"
    for pair in pairs:
        if not pair.apart:
            kinds[pair.source_end.index - start] = "source_end"
    for index in np.flatnonzero(predictor):
        kinds[index] = "predictor"
    return kinds


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level tokenizers (GPT-2's convention) write for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(rest)}
