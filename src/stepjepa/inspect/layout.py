"""From examples to the records of the rows into which training packs them, and what these rows cost.

Rows are laid out by `forest`; here their tokens, segments and pairs get names.

Shapes: L positions of a row, T tokens of one trunk, K predictors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepjepa.data.types import ISOLATED, TRUNK, Batch, Example, Pair, Read
from stepjepa.forest.layout import Forest, build_forest, build_inline, plan_rows, segment_use
from stepjepa.inspect.record import FIELDS, Readout, RowPair, RowRecord, Vector, Views
from stepjepa.objectives.base import VectorNames, objective_of
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.text import counted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Collator = Callable[[Sequence[Example]], Batch]


class Span(NamedTuple):
    """A named stretch [start, stop) of one example's trunk tokens."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Form:
    """How a run lays its examples out.

    Attributes:
        predictor_ids: of the K predictors of every group, in the order in which they stand.
        predictor_names: of the different ones, in the order of their ids.
        vocabulary: entries of the vocabulary; the predictors' ids follow it.
        forward: ``packed``, ``inline`` or ``two_pass``.
        pad_token_id: fills rows.
        max_row_length: longest row to try.
        separate_targets: the targets go through a pass of their own.
        vector_names: of the objective.
    """

    predictor_ids: tuple[int, ...] = ()
    predictor_names: tuple[str, ...] = ()
    vocabulary: int = 0
    forward: str = "packed"
    pad_token_id: int = 0
    max_row_length: int | None = None
    separate_targets: bool = False
    vector_names: VectorNames = VectorNames()

    @classmethod
    def of(cls, method: JEPAOptions, tokenizer: PreTrainedTokenizerBase) -> Form:
        """That of a run with checked options; loads torch."""
        from stepjepa.modeling.extras import predictor_names
        from stepjepa.training.setup import placed_predictors

        objective, size = objective_of(method), len(tokenizer)
        different = (1 if method.same_predictor else objective.predictors) if objective.predictors else 0
        names = predictor_names(different, objective.groups)
        packed = method.forward == "auto" or not objective.makes_pairs
        return cls(
            placed_predictors(range(size, size + len(names)), method, len(objective.groups)),
            tuple(names),
            size,
            "packed" if packed else method.forward,
            tokenizer.pad_token_id or 0,
            method.max_row_length,
            objective.separate_targets,
            objective.vector_names,
        )

    def collator(self, multiple: int = 1) -> Collator:
        """Training's collator, with rows rounded up to a multiple; loads torch."""
        from stepjepa.forest.collate import collator_for

        return collator_for(
            self.forward,
            self.predictor_ids,
            self.pad_token_id,
            row_multiple=multiple,
            max_row_length=self.max_row_length,
            separate_targets=self.separate_targets,
        )


def row_records(
    examples: Sequence[Example],
    form: Form,
    text_of: Callable[[int], str],
    spans: Sequence[Sequence[Span]] | None = None,
) -> list[RowRecord]:
    """The rows into which training lays a batch, padding included; loads torch.

    Two passes have no packed rows: their one record holds all rows of all examples, each as a segment of its own.

    Args:
        examples: of one batch, at least one, as training samples them.
        text_of: text of a token id below the vocabulary's end.
        spans: names for each example's trunk; without them labelled tokens are called "answer", the others "prompt".
    """
    from stepjepa.forest.collate import ForestCollator

    inline, rows_apart = form.forward == "inline", form.forward == "two_pass"
    build = build_inline if inline else build_forest
    laid_out = [_in_rows_of_their_own(example) if rows_apart else example for example in examples]
    forests = [build(example, form.predictor_ids) for example in laid_out]
    collator = ForestCollator(form.predictor_ids, form.pad_token_id, 1, inline=inline)
    planned: Sequence[Sequence[int]] = [range(len(forests))]
    if not rows_apart:
        planned = plan_rows([len(forest) for forest in forests], collator.attention_length, form.max_row_length)
    packed, starts = collator.pack(forests, planned)
    known = {own: getattr(packed, name) for name, own in FIELDS.items() if getattr(packed, name) is not None}
    predictors = dict(enumerate(form.predictor_names, form.vocabulary))
    records = []
    for row, members in enumerate(planned):
        fields = {own: values[row].numpy() for own, values in known.items()}
        fields.setdefault("floors", np.zeros_like(fields["ids"]))
        texts = tuple(predictors.get(index) or text_of(index) for index in fields["ids"].tolist())
        labelled = np.zeros(len(texts), bool)
        names, kinds, pairs = list[str](), list[str](), list[RowPair]()
        for i in members:
            one = _LaidOut(i, examples[i], forests[i], int(starts[i]) % len(texts), form, spans[i] if spans else ())
            labelled[one.start + one.forest.label_positions + 1] = True
            own_pairs = one.pairs()
            names += one.names()
            kinds += one.kinds(labelled, own_pairs)
            pairs += own_pairs
        padding = ["padding"] * (len(texts) - len(names))
        records.append(
            RowRecord(
                texts=texts,
                **fields,
                names=(*names, *padding),
                kinds=(*kinds, *padding),
                labelled=labelled,
                pairs=tuple(pairs),
                batch=len(examples),
            )
        )
    return records


def _in_rows_of_their_own(example: Example) -> Example:
    """An example whose forest is its rows of the two-pass form: every segment isolated, what it sees copied into it.

        ```
        segment   0                1                          2               3          4
        row       the chat         source 1                   source 2        target 1   target 2
                  [a b c d e f]    [a b c] <p1><p2>           ...             [d e]      ...
        ```

    Causal attention inside a row is what the rule says of isolated segments.
    """
    order = sorted(range(1, len(example.segments) + 1), key=lambda n: segment_use(example, n)[0] == "target")
    place = {TRUNK: TRUNK, **{old: new for new, old in enumerate(order, 1)}}
    seen = [0, *(segment.attach + 1 for segment in example.segments)]  # tokens of the trunk that each segment sees

    def moved(read: Read) -> Read:
        terms = (one._replace(segment=place[one.segment], token=one.token + seen[one.segment]) for one in read.terms)
        return read._replace(terms=tuple(terms))

    segments = [
        segment._replace(
            ids=np.concatenate([example.trunk[:before], segment.ids]).astype(np.int32),
            attach=ISOLATED,
            position=0 if before else segment.position,
            slot=segment.slot + before,
        )
        for segment, before in zip(example.segments, seen[1:], strict=True)
    ]
    pairs = (pair._replace(source=moved(pair.source), target=moved(pair.target)) for pair in example.pairs)
    return example._replace(segments=tuple(segments[old - 1] for old in order), pairs=tuple(pairs))


class _LaidOut(NamedTuple):
    """An example in its row: its number in the batch, its forest and where that begins."""

    number: int
    example: Example
    forest: Forest
    start: int
    form: Form
    spans: Sequence[Span]

    @property
    def inserted(self) -> np.ndarray:
        """(L of the forest,) bool, the predictor tokens."""
        return np.isin(self.forest.input_ids, self.form.predictor_ids)

    def pairs(self) -> list[RowPair]:
        """Its pairs that are laid out (the inline form has the first one only)."""
        forest, found = self.forest, list[RowPair]()
        for number, (pair, laid_out) in enumerate(zip(self.example.pairs, forest.example.pairs, strict=False)):
            source, target = self._states(laid_out.source), self._states(laid_out.target)
            views = self._views(pair, source[0].token, target[0].token)
            names = VectorNames("", "", "") if views else self.form.vector_names
            first, second = _vector(names.source, source), _vector(names.target, target)
            bounds = (*second.terms[:1], *second.terms[-1:], *first.terms[-1:]) if second.terms else ()
            ends = tuple((name, bound.token) for name, bound in zip(names.ends, bounds, strict=False))
            if views:
                ends = ("source", source[-1].token), ("target", target[-1].token)
            total = _vector(names.total, [*source, *target]) if names.total else None
            more = names.kind, pair.weight, total, pair.source.layer
            found.append(RowPair(self.number, number + 1, first, second, ends, views, *more))
        return found

    def _states(self, read: Read) -> list[Readout]:
        """The states that are summed for one side of a pair."""
        starts, terms = self.forest.starts, read.terms
        places = ((self.start + starts[one.segment] + one.token, one) for one in terms)
        return [Readout(place + more, one.coefficient) for place, one in places for more in range(one.tokens)]

    def _views(self, pair: Pair, source: int, target: int) -> Views | None:
        """The views of a pair whose first states are `source` and `target`; None for sums of states."""
        segment, forest = self.example.segment(pair.target), self.forest
        if not segment or len(pair.source.terms) + len(pair.target.terms) > 2:
            return None
        on_trunk = np.flatnonzero(~self.inserted[: forest.trunk_length]) + self.start  # of each token of the trunk
        own = next((part for part in forest.parts if part.start <= source - self.start < part.stop), None)
        row = (self.start + own.start, self.start + own.stop) if own and own.kind == "source" else None
        end, original = self.example.sees(pair.source), self.example.view_on_trunk(pair.target)
        last = row[1] - 1 if end < 0 and row else int(on_trunk[end])
        copy = target - pair.target.terms[0].token
        return Views(
            source_end=last,
            source_segment=row,
            original=original and (int(on_trunk[original.start]), int(on_trunk[original.stop - 1]) + 1),
            copy=(copy, copy + segment.length),
            standalone=end < 0,
        )

    def names(self) -> list[str]:
        """A name for each token."""
        trunk = iter(trunk_names(self.example, self.spans))
        found = ["predictors" if one else next(trunk) for one in self.inserted[: self.forest.trunk_length]]
        for part in self.forest.parts:
            found += [f"{part.kind} {part.pair + 1}"] * (part.stop - part.start)
        return found

    def kinds(self, labelled: np.ndarray, pairs: Iterable[RowPair]) -> list[str]:
        """The kind of each token; `labelled` is the row's."""
        forest, start = self.forest, self.start
        kinds = ["answer" if label else "prompt" for label in labelled[start : start + forest.trunk_length]]
        for part in forest.parts:
            kinds += ["source" if part.kind == "branch" else part.kind] * (part.stop - part.start)
        ends = []
        for pair in pairs:
            views = pair.views
            if views:
                kind, stretches = "original", [views.original] if views.original else []
                ends += [] if views.standalone else [views.source_end - start]
            else:  # of two ends the target's tokens are the sampled ones, of three the source's as well
                vectors = (pair.target, pair.source)[: max(len(pair.ends) - 1, 0)]
                kind, stretches = "span", [stretch for vector in vectors for stretch in vector.covered]
            for first, stop in stretches:
                kinds[first - start : stop - start] = [kind] * (stop - first)
        for kind, indices in (
            ("isolated", () if forest.floor is None else np.flatnonzero(forest.floor)),
            ("source_end", ends),
            ("predictor", np.flatnonzero(self.inserted)),
        ):
            for index in indices:
                kinds[index] = kind
        return kinds


def _vector(name: str, terms: Iterable[Readout]) -> Vector:
    """A sum of states, equal ones put together; a mean covers its tokens, a displacement those after its start."""
    total: dict[int, float] = {}
    for index, coefficient in terms:
        total[index] = total.get(index, 0.0) + coefficient
    kept = tuple(Readout(index, total[index]) for index in sorted(total) if total[index])
    indices, signs = [term.token for term in kept], [term.coefficient for term in kept]
    covered: Iterable[tuple[int, int]] = ()
    if all(sign > 0 for sign in signs):
        starts = [index for index in indices if index - 1 not in indices]
        covered = zip(starts, [index + 1 for index in indices if index + 1 not in indices], strict=True)
    elif signs == [-1, 1] * (len(signs) // 2):
        covered = ((low + 1, high + 1) for low, high in zip(indices[::2], indices[1::2], strict=True))
    return Vector(kept, name, tuple(covered))


def trunk_names(example: Example, spans: Sequence[Span] = ()) -> list[str]:
    """A name for each of the T tokens of the trunk; see `row_records`. Tokens in no span are the template's."""
    length = len(example.trunk)
    names = ["trunk: template" if spans else "trunk: prompt"] * length
    for start, stop in example.labels:
        if not spans:
            names[start:stop] = ["trunk: answer"] * (stop - start)
            continue
        inside = [span for span in spans if start <= span.start < stop]
        if inside and all(span.name.startswith(("answer", "step")) for span in inside):
            # Labels of an answer, which reach to the end of its turn.
            first = inside[0].start
            names[first:stop] = ["trunk: end of turn"] * (stop - first)
    for name, start, stop in spans:
        stop = min(stop, length)
        names[start:stop] = [f"trunk: {name}"] * (stop - start)
    return names


@dataclass
class Padding:
    """Positions that a batch takes, padding included; means over the batches.

    Attributes:
        batch_size: examples of a batch; `batches`: number of batches.
        max_length: in tokens.
        sequences: rows of a batch with every chat and every view a row of its own.
        fixed_chats, fixed_views: all rows padded to `max_length`: the chats alone; chats and views.
        longest_chats, longest_views: the same, padded to the batch's longest chat, and longest view.
        packed: as training lays the batch out; `packed_rows`: its rows.
        tokens: those of them that are no padding.
    """

    batch_size: int
    batches: int
    max_length: int
    sequences: float
    fixed_chats: float
    fixed_views: float
    longest_chats: float
    longest_views: float
    packed: float
    packed_rows: float
    tokens: float


def measure_padding(
    examples: Sequence[Example], form: Form, batch_size: int, max_length: int = 1, multiple: int = 8
) -> Padding:
    """Lay out batches of `batch_size` examples in their order; a last batch that is not full counts only if it is alone."""
    collator = form.collator(multiple)
    rows_apart = replace(form, forward="two_pass", separate_targets=False).collator()
    count = max(len(examples) // batch_size, 1)
    sums = np.zeros(8)
    for number in range(count):
        batch = examples[number * batch_size : (number + 1) * batch_size]
        packed, shapes = collator(batch).every_rows, [one.input_ids.shape for one in rows_apart(batch).every_rows]
        rows, areas = sum(height for height, _ in shapes), [height * width for height, width in shapes]
        sums += (
            rows,
            shapes[0][0] * max_length,
            rows * max_length,
            areas[0],
            sum(areas),
            sum(one.input_ids.numel() for one in packed),
            sum(len(one.input_ids) for one in packed),
            sum(int(one.filled.sum()) for one in packed),
        )
    return Padding(min(batch_size, len(examples)), count, max_length, *(sums / count).tolist())


def packing_line(examples: Sequence[Example], form: Form) -> str:
    """How many positions a batch takes as it is laid out, and in the other form; loads torch."""
    measured = measure_padding(examples, form, len(examples), multiple=1)
    positions, two_pass = int(measured.packed), form.forward == "two_pass"
    padding, rows = positions - int(measured.tokens), counted(int(measured.packed_rows), "row")
    filled = f"{padding:,} of them padding ({100 * padding / positions:.1f} %)" if padding else "no padding"
    name = {"packed": "packing", "two_pass": "two passes"}.get(form.forward, form.forward)
    line = f"{name}: {counted(len(examples), 'example')} in {rows}, {positions:,} positions, {filled}"
    if form.separate_targets and measured.packed_rows > 1:
        line += " (targets in rows of their own, without gradient)"
    if two_pass:
        packed = measure_padding(examples, replace(form, forward="packed"), len(examples), multiple=1)
        return f"{line}; packed into forests they take {int(packed.packed):,}"
    if measured.sequences > len(examples):
        times = measured.longest_views / measured.packed
        apart = f"takes {int(measured.longest_views):,}, {times:.1f} times as many"
        line += f"; every chat and view in a row of its own (two passes) {apart}"
    return line
