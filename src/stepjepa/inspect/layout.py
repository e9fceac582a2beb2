"""From examples to the records of the rows into which they are packed.

No other module of this package reads an `Example`, its pairs or its layout. Rows are laid out by `forest`, none here.

Shapes: L positions of a row, T tokens of one trunk, K predictors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stepjepa.data.types import ISOLATED, TRUNK, Example
from stepjepa.data.types import Span as TokenSpan
from stepjepa.forest.layout import (
    Forest,
    Part,
    build_forest,
    build_inline,
    label_indices,
    read_terms,
    segment_use,
)
from stepjepa.forest.packing import plan_rows
from stepjepa.inspect.record import (
    FIELDS,
    SAMPLED_TUBES,
    Form,
    PairRecord,
    Readout,
    RowRecord,
    Span,
    TubeRecord,
    Vector,
)

# Mode of the semantic tube -> what its sources and its targets are called.
_TUBE_SIDES = {
    "span": ("T - P", "P"),
    "three_index": ("r to t", "s to r"),
    "e2e": ("user", "answer"),
    "mean": ("user", "answer"),
    "curvature": ("before", "after"),
}


class _Placed(NamedTuple):
    """An example laid out in a row: its number in the batch, where it begins, and the row's texts.

    `predictor` is (L of the forest,) bool.
    """

    number: int
    example: Example
    forest: Forest
    start: int
    texts: Sequence[str]
    predictor: np.ndarray


def row_records(
    examples: Sequence[Example],
    form: Form,
    text_of: Callable[[int], str],
    *,
    vocabulary: int,
    pad_token_id: int = 0,
    max_row_length: int | None = None,
    tube_mode: str = "span",
    spans: Sequence[Sequence[Span]] | None = None,
) -> list[RowRecord]:
    """The rows into which `forest.collate.ForestCollator` lays a batch, padding included; loads torch.

    Two passes have no packed rows: their one record holds all rows of all examples, each as a segment of its own.

    Args:
        examples: of one batch, at least one, as training samples them.
        text_of: text of a token id below `vocabulary`.
        vocabulary: entries of the vocabulary; the predictors' ids follow it.
        pad_token_id: fills rows.
        max_row_length: longest row to try.
        tube_mode: mode of the examples' tubes.
        spans: names for each example's trunk; without them labelled tokens are called "answer", the others "prompt".
    """
    from stepjepa.forest.collate import ForestCollator

    ids = form.predictor_ids(vocabulary)
    shown = {index: f"<|predictor_{index - vocabulary + 1}|>" for index in ids}
    build = {"packed": build_forest, "inline": build_inline, "two_pass": _two_pass_forest}[form.forward]
    forests = [build(example, ids) for example in examples]
    collator = ForestCollator(ids, pad_token_id, 1, max_row_length=max_row_length, inline=form.forward == "inline")
    planned: Sequence[Sequence[int]] = [range(len(forests))]
    if form.forward != "two_pass":
        planned = plan_rows([len(forest) for forest in forests], collator.attention_length, max_row_length)
    packed, begins = collator.pack(forests, planned)
    starts = (begins % packed.input_ids.shape[1]).tolist()
    records = []
    for row, members in enumerate(planned):
        known = {own: getattr(packed, name) for name, own in FIELDS.items()}
        fields = {own: field[row].numpy() for own, field in known.items() if field is not None}
        fields.setdefault("floors", np.zeros_like(fields["ids"]))
        texts = tuple(shown.get(index) or text_of(index) for index in fields["ids"].tolist())
        labelled = np.zeros(len(texts), bool)
        names: list[str] = []
        kinds: list[str] = []
        pairs: list[PairRecord] = []
        tube: list[TubeRecord] = []
        for index in members:
            forest = forests[index]
            placed = _Placed(index, examples[index], forest, starts[index], texts, np.isin(forest.input_ids, ids))
            labelled[placed.start + forest.label_positions + 1] = True
            own_pairs, own_tube = _pairs(placed), _tube(placed, tube_mode)
            names += _names(placed, spans[index] if spans else ())
            kinds += _kinds(placed, labelled, own_pairs, own_tube)
            pairs += own_pairs
            tube += own_tube
        padding = ["padding"] * (len(texts) - len(names))
        records.append(
            RowRecord(
                texts=texts,
                **fields,
                names=(*names, *padding),
                kinds=(*kinds, *padding),
                labelled=labelled,
                pairs=tuple(pairs),
                tube=tuple(tube),
                batch=len(examples),
            )
        )
    return records


def one_token_targets(example: Example) -> int:
    """Pairs whose target view is a single token."""
    segments = (example.segment(pair.target) for pair in example.pairs)
    return sum(segment is not None and segment.length == 1 for segment in segments)


def tokens_in_views(example: Example, spans: Sequence[Span], both_sides: bool) -> np.ndarray | None:
    """(T,) bool: trunk tokens that belong to a view of a pair, as target or as the step that ends a source.

    None where it cannot be said: views are encoded standalone, and only some answers have a pair.

    Args:
        spans: the answers' messages or steps.
        both_sides: source and target together make up the text, so every token belongs to one of them.
    """
    length = len(example.input_ids)
    standalone = any(example.view_on_trunk(pair.source) is None for pair in example.pairs)
    if standalone and len(example.pairs) < len(spans):
        return None
    found = np.full(length, bool(example.pairs) and (standalone or both_sides))
    ends = {example.sees(pair.source) + 1 for pair in example.pairs}
    targets = [example.view_on_trunk(pair.target) for pair in example.pairs]
    for target in [*targets, *(target for _, target in example.view_spans)]:
        if target is not None:
            found[target.start : target.stop] = True
    for span in spans:
        found[span.start : span.stop] |= span.stop in ends
    return found


def _two_pass_forest(example: Example, predictor_ids: Sequence[int]) -> Forest:
    """The rows of the two-pass form, every row a segment of its own, so that one picture shows them all.

        ```
        segment   0                1                          2               3          4
        row       the chat         source 1                   source 2        target 1   target 2
                  [a b c d e f]    [a b c] <p1><p2>           ...             [d e]      ...
        ```

    Causal attention inside a row is what `visibility.visible` says of isolated segments.
    """
    from stepjepa.forest.layout import segment_row

    numbers = range(1, len(example.segments) + 1)
    order = sorted(numbers, key=lambda number: segment_use(example, number)[0] == "target")  # sources first
    rows = [(np.asarray(example.trunk, np.int32), 0), *(segment_row(example, n, predictor_ids) for n in order)]
    edges = np.cumsum([0, *(len(ids) for ids, _ in rows)]).tolist()
    row_starts, starts = [0] * (1 + len(numbers)), [0] * (1 + len(numbers))
    for row, number in enumerate(order, 1):
        row_starts[number] = edges[row]
        starts[number] = edges[row] + example.segments[number - 1].attach + 1  # of its own tokens
    segment = np.repeat(np.arange(len(rows), dtype=np.int32) + TRUNK, np.diff(edges))
    label_positions, label_ids = label_indices(example)
    return _TwoPassRows(
        example,
        np.concatenate([ids for ids, _ in rows]),
        np.concatenate([np.arange(first, first + len(ids), dtype=np.int32) for ids, first in rows]),
        segment,
        np.concatenate([np.arange(len(ids), dtype=np.int32) for ids, _ in rows]),
        np.full(len(segment), ISOLATED, np.int32),
        label_positions,
        label_ids,
        read_terms([pair.source for pair in example.pairs], starts),
        read_terms([pair.target for pair in example.pairs], starts),
        tuple(row_starts),
        edges[1],
    )


class _TwoPassRows(Forest):
    """A forest whose every segment is a row of its own, what it sees of the trunk included."""

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The rows after the first, in order."""
        found = []
        for number, start in sorted(enumerate(self.starts), key=lambda item: item[1])[1:]:
            own, (kind, pair) = self.example.segments[number - 1], segment_use(self.example, number)
            found.append(Part("source" if kind == "branch" else kind, pair, start, start + own.attach + 1 + own.length))
        return tuple(found)


def _pairs(placed: _Placed) -> list[PairRecord]:
    """The pairs of one example."""
    example, forest, start = placed.example, placed.forest, placed.start
    if combined(example):
        return []
    on_trunk = np.flatnonzero(~placed.predictor[: forest.trunk_length]) + start  # of each token of the trunk

    def readout(index: int) -> Readout:
        return Readout(index, placed.texts[index])

    def on_row(view: TokenSpan) -> tuple[int, int]:
        return int(on_trunk[view.start]), int(on_trunk[view.stop - 1]) + 1

    records = []
    # The inline form has the first pair only.
    read = zip(example.pairs, forest.source_readouts.tolist(), forest.target_readouts.tolist(), strict=False)
    for number, (pair, source, target) in enumerate(read, 1):
        segment = next((p for p in forest.parts if p.kind == "source" and p.start <= source < p.stop), None)
        end, view = example.sees(pair.source), example.segment(pair.target)
        original = example.view_on_trunk(pair.target)
        copy = start + target - pair.target.terms[0].token
        records.append(
            PairRecord(
                example=placed.number,
                number=number,
                source_end=readout(start + segment.stop - 1 if end < 0 and segment else int(on_trunk[end])),
                source=readout(start + source),
                target=readout(start + target),
                source_segment=(start + segment.start, start + segment.stop) if segment else None,
                original=None if original is None else on_row(original),
                copy=(copy, copy + (0 if view is None else view.length)),
                standalone=end < 0,
            )
        )
    return records


def combined(example: Example) -> bool:
    """Whether its pairs are vectors combined from the trunk's own states, which nothing is copied for."""
    return bool(example.pairs) and not example.segments


def _tube(placed: _Placed, mode: str) -> list[TubeRecord]:
    """The semantic tube's pairs of vectors of one example."""
    records = list[TubeRecord]()
    if not combined(placed.example):
        return records

    def vector(name: str, terms: Iterable[tuple[int, float]]) -> Vector:
        total: dict[int, float] = defaultdict(float)
        for index, coefficient in terms:
            total[placed.start + index] += coefficient
        kept = tuple(Readout(index, placed.texts[index], total[index]) for index in sorted(total) if total[index])
        return Vector(name, kept, _covered(kept))

    for number, pair in enumerate(placed.example.pairs, 1):
        sides = [[(term.token, term.coefficient) for term in read.terms] for read in (pair.source, pair.target)]
        source, target = map(vector, _TUBE_SIDES[mode], sides)
        ends: list[tuple[str, Readout]] = []
        if mode in SAMPLED_TUBES and target.terms:
            ends = [("s", target.terms[0]), ("t", target.terms[-1])]
        if mode == "three_index" and source.terms and ends:
            ends[1:] = [("r", target.terms[-1]), ("t", source.terms[-1])]
        total = vector("T", [*sides[0], *sides[1]]) if mode == "span" else None
        records.append(TubeRecord(placed.number, number, mode, pair.weight, source, target, total, tuple(ends)))
    return records


def _covered(terms: Sequence[Readout]) -> tuple[tuple[int, int], ...]:
    """For a mean the runs of its tokens; for displacements the tokens after each start up to its end."""
    indices = [term.index for term in terms]
    if all(term.coefficient > 0 for term in terms):
        starts = [index for index in indices if index - 1 not in indices]
        stops = [index + 1 for index in indices if index + 1 not in indices]
        return tuple(zip(starts, stops, strict=True))
    if [term.coefficient for term in terms] != [-1, 1] * (len(terms) // 2):
        return ()
    return tuple((low + 1, high + 1) for low, high in zip(indices[::2], indices[1::2], strict=True))


def _names(placed: _Placed, spans: Sequence[Span]) -> list[str]:
    trunk = iter(trunk_names(placed.example, spans))
    inserted = placed.predictor[: placed.forest.trunk_length]
    names = ["predictors" if predictor else next(trunk) for predictor in inserted]
    for part in placed.forest.parts:
        names += [f"{part.kind} {part.pair + 1}"] * (part.stop - part.start)
    return names


def trunk_names(example: Example, spans: Sequence[Span] = ()) -> list[str]:
    """A name for each of the T tokens of the trunk; see `row_records`. Tokens in no span are the template's."""
    length = len(example.input_ids)
    names = ["trunk: template" if spans else "trunk: prompt"] * length
    answers = {span.start for span in spans if span.name.startswith(("answer", "step"))}
    for start, stop in example.label_spans:
        if not spans:
            names[start:stop] = ["trunk: answer"] * (stop - start)
        elif start in answers:  # labels of an answer, which reach to the end of its turn
            names[start:stop] = ["trunk: end of turn"] * (stop - start)
    for name, start, stop in spans:
        stop = min(stop, length)
        names[start:stop] = [f"trunk: {name}"] * (stop - start)
    return names


def _kinds(placed: _Placed, labelled: np.ndarray, pairs: Sequence[PairRecord], tube: Sequence[TubeRecord]) -> list[str]:
    """The kinds of one example's tokens."""
    forest, start = placed.forest, placed.start
    kinds = ["answer" if label else "prompt" for label in labelled[start : start + forest.trunk_length]]
    for part in forest.parts:
        kinds += [part.kind] * (part.stop - part.start)
    stretches = [("original", pair.original) for pair in pairs if pair.original]
    for sampled in tube:
        vectors = {"span": (sampled.target,), "three_index": (sampled.source, sampled.target)}.get(sampled.mode, ())
        stretches += [("span", stretch) for vector in vectors for stretch in vector.covered]
    for kind, (first, stop) in stretches:
        kinds[first - start : stop - start] = [kind] * (stop - first)
    for index in () if forest.floor is None else np.flatnonzero(forest.floor):
        kinds[index] = "isolated"
    for pair in pairs:
        if not pair.standalone:
            kinds[pair.source_end.index - start] = "source_end"
    for index in np.flatnonzero(placed.predictor):
        kinds[index] = "predictor"
    return kinds
