"""From examples to the records of the rows into which training packs them.

Rows are laid out by `forest`; here their tokens, segments and pairs get names.

Shapes: L positions of a row, T tokens of one trunk, K predictors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepjepa.data.tokens import byte_letters
from stepjepa.data.types import ISOLATED, TRUNK, Example, Pair, Read
from stepjepa.forest.layout import Forest, build_forest, build_inline, plan_rows, segment_use
from stepjepa.inspect.record import FIELDS, Readout, RowPair, RowRecord, Vector, Views, edges_of
from stepjepa.objectives.base import VectorNames, objective_of
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.text import counted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class NamedSpan(NamedTuple):
    """A named stretch [start, stop) of one example's trunk tokens."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class RowForm:
    """How a run lays its examples out.

    Attributes:
        predictor_ids: of the K predictors of every group, in the order in which they stand.
        predictor_names: of the different ones, in the order of their ids.
        vocabulary: entries of the vocabulary; the predictors' ids follow it.
        forward: ``packed``, ``inline`` or ``two_pass``.
        pad_token_id: fills rows.
        max_row_length: longest row to try.
        vector_names: of the objective.
    """

    predictor_ids: tuple[int, ...] = ()
    predictor_names: tuple[str, ...] = ()
    vocabulary: int = 0
    forward: str = "packed"
    pad_token_id: int = 0
    max_row_length: int | None = None
    vector_names: VectorNames = VectorNames()

    @classmethod
    def of(cls, method: JEPAOptions, tokenizer: PreTrainedTokenizerBase) -> RowForm:
        """That of a run with checked options; loads torch."""
        from stepjepa.modeling.extras import placed_predictors, predictor_names

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
            objective.vector_names,
        )


def row_records(
    examples: Sequence[Example],
    form: RowForm,
    text_of: Callable[[int], str],
    spans: Sequence[Sequence[NamedSpan]] | None = None,
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
    form: RowForm
    spans: Sequence[NamedSpan]

    @property
    def inserted(self) -> np.ndarray:
        """(L of the forest,) bool, the predictor tokens."""
        return np.isin(self.forest.input_ids, self.form.predictor_ids)

    def pairs(self) -> list[RowPair]:
        """Its pairs that are laid out (the inline form has the first one only)."""
        placed = zip(self.example.pairs, self.forest.example.pairs, strict=False)
        return [self._pair(number, pair, one) for number, (pair, one) in enumerate(placed, 1)]

    def _pair(self, number: int, pair: Pair, placed: Pair) -> RowPair:
        """A pair of the example; `placed` is the same pair on the forest's segments."""
        source = self._states(placed.source)
        target = self._states(placed.target)
        views = self._views(pair, source[0].token, target[0].token)
        names = VectorNames("", "", "") if views else self.form.vector_names
        row_pair = RowPair(
            self.number,
            number,
            _vector(names.source, source),
            _vector(names.target, target),
            views=views,
            kind=names.kind,
            weight=pair.weight,
        )
        if views:
            ends = ("source", source[-1].token), ("target", target[-1].token)
            return replace(row_pair, ends=ends)
        bounds = [*row_pair.target.terms[:1], *row_pair.target.terms[-1:]]  # of what was sampled
        if bounds:
            bounds += row_pair.source.terms[-1:]
        sampled = tuple((name, bound.token) for name, bound in zip(names.ends, bounds, strict=False))
        total = _vector(names.total, [*source, *target]) if names.total else None
        return replace(row_pair, ends=sampled, total=total)

    def _states(self, read: Read) -> list[Readout]:
        """The states that are summed for one side of a pair."""
        states = []
        for term in read.terms:
            place = self.start + self.forest.starts[term.segment] + term.token
            states += [Readout(place + more, term.coefficient) for more in range(term.tokens)]
        return states

    def _views(self, pair: Pair, source: int, target: int) -> Views | None:
        """The views of a pair whose first states are `source` and `target`; None for sums of states."""
        segment = self.example.segment(pair.target)
        if not segment:
            return None
        if len(pair.source.terms) > 1 or len(pair.target.terms) > 1:
            return None
        tokens = ~self.inserted[: self.forest.trunk_length]
        on_trunk = (np.flatnonzero(tokens) + self.start).tolist()  # where each token of the trunk is
        source_segment = None
        for part in self.forest.parts:
            begin = self.start + part.start
            stop = self.start + part.stop
            if part.kind == "source" and begin <= source < stop:
                source_segment = begin, stop
        end = self.example.sees(pair.source)
        standalone = end < 0
        source_end = on_trunk[end]
        if standalone and source_segment:
            source_end = source_segment[1] - 1
        original = None
        view = self.example.view_on_trunk(pair.target)
        if view:
            original = on_trunk[view.start], on_trunk[view.stop - 1] + 1
        begin = target - pair.target.terms[0].token
        copy = begin, begin + segment.length
        return Views(source_end, source_segment, original, copy, standalone)

    def names(self) -> list[str]:
        """A name for each token."""
        trunk = iter(trunk_names(self.example, self.spans))
        sections = ["predictors" if one else next(trunk) for one in self.inserted[: self.forest.trunk_length]]
        for part in self.forest.parts:
            sections += [f"{part.kind} {part.pair + 1}"] * (part.stop - part.start)
        return sections

    def kinds(self, labelled: np.ndarray, pairs: Iterable[RowPair]) -> list[str]:
        """The kind of each token; `labelled` is the row's."""
        forest, start = self.forest, self.start
        kinds = ["answer" if label else "prompt" for label in labelled[start : start + forest.trunk_length]]
        for part in forest.parts:
            kinds += ["source" if part.kind == "branch" else part.kind] * (part.stop - part.start)
        source_ends = []
        for pair in pairs:
            if pair.views is None:
                # Of two ends the target's tokens are the sampled ones, of three the source's as well.
                for vector in (pair.target, pair.source)[: max(len(pair.ends) - 1, 0)]:
                    for stretch in vector.covered:
                        _mark(kinds, range(*stretch), start, "span")
                continue
            if pair.views.original:
                _mark(kinds, range(*pair.views.original), start, "original")
            if not pair.views.standalone:
                source_ends.append(pair.views.source_end)
        if forest.floor is not None:
            _mark(kinds, np.flatnonzero(forest.floor), 0, "isolated")
        _mark(kinds, source_ends, start, "source_end")
        _mark(kinds, np.flatnonzero(self.inserted), 0, "predictor")
        return kinds


def _mark(kinds: list[str], indices: Iterable[int], start: int, kind: str) -> None:
    """Set the kind of tokens, whose indices count from `start` positions before the first of `kinds`."""
    for index in indices:
        kinds[index - start] = kind


def _vector(name: str, terms: Iterable[Readout]) -> Vector:
    """A sum of states, equal ones put together; a mean covers its tokens, a displacement those after its start."""
    total = defaultdict[int, float](float)
    for index, coefficient in terms:
        total[index] += coefficient
    kept = tuple(Readout(index, total[index]) for index in sorted(total) if total[index])
    indices = [term.token for term in kept]
    signs = [term.coefficient for term in kept]
    covered: list[tuple[int, int]] = []
    if all(sign > 0 for sign in signs):
        marks = np.zeros(max(indices, default=0) + 1, bool)
        marks[indices] = True
        edges = edges_of(marks)
        covered = list(zip(edges[::2], edges[1::2], strict=True))
    elif signs == [-1, 1] * (len(signs) // 2):
        starts, ends = indices[::2], indices[1::2]
        covered = [(start + 1, end + 1) for start, end in zip(starts, ends, strict=True)]
    return Vector(kept, name, tuple(covered))


def trunk_names(example: Example, spans: Sequence[NamedSpan] = ()) -> list[str]:
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


def packing_line(examples: Sequence[Example], records: Sequence[RowRecord], forward: str) -> str:
    """How many rows and positions a batch takes as it is laid out in `records`."""
    names = {"packed": "packing", "two_pass": "two passes"}
    name = names.get(forward, forward)
    rows = len(records)
    if forward == "two_pass":
        # The one record holds a row for every chat and every view.
        views = [len(example.segments) for example in examples]
        rows = len(examples) + sum(views)
    positions = sum(map(len, records))
    padding = 0
    for record in records:
        padding += record.kinds.count("padding")
    filled = "no padding"
    if padding:
        filled = f"{padding:,} of them padding ({padding / positions:.1%})"
    batch = f"{counted(len(examples), 'example')} in {counted(rows, 'row')}"
    return f"{name}: {batch}, {positions:,} positions, {filled}"


def token_text(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], str]:
    r"""A function from a token id to its text; bytes that are no complete character are written ``\xf0``."""
    letters = byte_letters()  # of byte-level tokenizers

    def text(index: int) -> str:
        piece = tokenizer.convert_ids_to_tokens(index)
        if piece is None:
            return f"<id {index}>"
        decoded = str(tokenizer.decode([index], skip_special_tokens=False, clean_up_tokenization_spaces=False))
        if "\ufffd" in decoded and all(letter in letters for letter in piece):
            return "".join(f"\\x{letters[c]:02x}" if letters[c] > 126 else chr(letters[c]) for c in piece)
        if str(piece).startswith("\u2581") and not decoded.startswith(" "):
            return f" {decoded}"  # SentencePiece's decoder drops the first space of a text
        return str(piece) if decoded == "" or "\ufffd" in decoded else decoded

    return text
