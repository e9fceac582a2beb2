"""From an example to the record of its row in training.

`forest` lays the row out; this module names its tokens, segments and pairs.

Shapes: L positions of a row, T tokens of the trunk, K predictors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepjepa.data.types import ISOLATED, Example, Pair, Read
from stepjepa.forest.layout import Forest, build_forest, build_inline
from stepjepa.inspect.record import FIELDS, Readout, RowPair, RowRecord, Views
from stepjepa.objectives.base import objective_of
from stepjepa.training.options import JEPAOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The text shown for a masked token.
MASK = "<|mask|>"


class NamedSpan(NamedTuple):
    """A named span [start, stop) of the trunk's tokens."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class RowForm:
    """How a run lays out an example.

    Attributes:
        predictor_ids: ids of the K predictors of every group, in the order of the row.
        predictors: the texts of learned tokens, by id.
        inline: whether predictor tokens are inserted into the chat.
        vector_names: the objective's names for the two sides of a pair.
    """

    predictor_ids: tuple[int, ...] = ()
    predictors: Mapping[int, str] = field(default_factory=dict)
    inline: bool = False
    vector_names: tuple[str, str] = ("source", "target")

    @classmethod
    def of(cls, method: JEPAOptions, tokenizer: PreTrainedTokenizerBase) -> RowForm:
        """The form of a run with checked options; loads torch."""
        from stepjepa.modeling.extras import placed_predictors, predictor_names

        # The ids of learned tokens follow the tokenizer's; the last of them is that of the masked token.
        objective, size = objective_of(method), len(tokenizer)
        names = dict(enumerate(predictor_names(objective.learned_tokens, objective.groups), size))
        if objective.mask_ratio:
            names[max(names)] = MASK
        ids = placed_predictors(list(names), method, len(objective.groups))
        inline = method.forward == "inline" and objective.makes_pairs
        return cls(ids, names, inline, objective.vector_names)


def row_record(
    example: Example, form: RowForm, text_of: Callable[[int], str], spans: Sequence[NamedSpan]
) -> RowRecord:
    """The record of an example's row in training; loads torch.

    Args:
        example: as training samples it.
        text_of: the text of a token id of the tokenizer.
        spans: names for the trunk.
    """
    from stepjepa.forest.collate import ForestCollator

    build = build_inline if form.inline else build_forest
    forest = build(example, form.predictor_ids)
    packed, _ = ForestCollator(form.predictor_ids, 0, 1, inline=form.inline).pack([forest], [[0]])
    # The collator's tensors are (1, L); fields that the layout does not need are None, and 0 for every token here.
    fields = {}
    for name, of_record in FIELDS.items():
        values = getattr(packed, name)
        fields[of_record] = np.zeros(len(forest), np.int64) if values is None else values[0].numpy()

    pairs = [
        _row_pair(number, example, pair, forest, placed, form)
        for number, (pair, placed) in enumerate(
            zip(example.pairs, forest.example.pairs, strict=False), 1
        )
    ]
    # A label position is that of the predicting state; the predicted token is the next one.
    labelled = np.zeros(len(forest), bool)
    labelled[forest.label_positions + 1] = True
    return RowRecord(
        texts=tuple(
            form.predictors.get(token) or text_of(token) for token in forest.input_ids.tolist()
        ),
        **fields,
        names=_names(forest, form, trunk_names(example, spans)),
        kinds=_kinds(forest, form, labelled, pairs),
        labelled=labelled,
        pairs=tuple(pairs),
    )


def _inserted(forest: Forest, form: RowForm) -> np.ndarray:
    """(L,) bool, True for predictor tokens."""
    # A mask has a learned id, too, but replaces a token of the chat.
    ids = [token for token, name in form.predictors.items() if name != MASK]
    return np.isin(forest.input_ids, ids)


class _Part(NamedTuple):
    """A segment after the trunk: tokens [start, stop) of the forest.

    Attributes:
        kind: ``branch``, ``source`` (an isolated source view) or ``target``.
        pair: index of the first pair that reads it.
    """

    kind: str
    pair: int
    start: int
    stop: int


def _parts(forest: Forest) -> Iterable[_Part]:
    """The segments after the trunk, each once."""
    parts = dict[int, _Part]()
    for index, pair in enumerate(forest.example.pairs):
        for kind, read in (("source", pair.source), ("target", pair.target)):
            segment, number = forest.example.segment(read), read.terms[0].segment
            if segment is None or number in parts:
                continue
            start = forest.starts[number]
            kind = kind if segment.attach == ISOLATED else "branch"
            parts[number] = _Part(kind, index, start, start + segment.length)
    return parts.values()


def _names(forest: Forest, form: RowForm, of_trunk: Sequence[str]) -> tuple[str, ...]:
    """The segment name of each token; `of_trunk` are the names of the chat's tokens."""
    names = np.full(len(forest), "predictors", object)
    length = len(forest.example.trunk)
    of_chat = ~_inserted(forest, form)[:length]
    names[:length][of_chat] = of_trunk
    for part in _parts(forest):
        names[part.start : part.stop] = f"{part.kind} {part.pair + 1}"
    return tuple(names)


def _kinds(
    forest: Forest, form: RowForm, labelled: np.ndarray, pairs: Sequence[RowPair]
) -> tuple[str, ...]:
    """The kind of each token; where several apply, the last assignment wins."""
    kinds = np.where(labelled, "answer", "prompt").astype(object)
    for part in _parts(forest):
        kinds[part.start : part.stop] = "source" if part.kind == "branch" else part.kind
    views = [pair.views for pair in pairs if pair.views]
    for view in views:
        if view.original:
            kinds[slice(*view.original)] = "original"
    if forest.floor is not None:
        kinds[forest.floor > 0] = "isolated"
    # A source may end inside another pair's target.
    kinds[[view.source_end for view in views if not view.source_segment]] = "source_end"
    kinds[_inserted(forest, form)] = "predictor"
    return tuple(kinds)


def _row_pair(
    number: int, example: Example, pair: Pair, forest: Forest, placed: Pair, form: RowForm
) -> RowPair:
    """The record of a pair; `placed` is the same pair on the forest's segments."""
    source, target = _states(forest, placed.source), _states(forest, placed.target)
    # Index of a chat token -> index in the row, which differ after inserted predictors.
    on_trunk = np.flatnonzero(~_inserted(forest, form)[: len(forest.example.trunk)]).tolist()
    copy = example.segment(pair.target)
    # Sums of states on the trunk, as in the semantic tube, have no views.
    if not copy or len(pair.source.terms) > 1 or len(pair.target.terms) > 1:
        return RowPair(number, source, target, form.vector_names, weight=pair.weight)

    segment = example.segment(pair.source)
    source_segment = None
    if segment is None or not len(segment.ids):
        source_end = on_trunk[example.sees(pair.source)]
    else:
        # The source view is in a separate segment.
        begin = forest.starts[pair.source.terms[0].segment]
        source_segment = begin, begin + segment.length
        source_end = source_segment[1] - 1
    original = None
    view = example.view_on_trunk(pair.target)
    if view:
        original = on_trunk[view.start], on_trunk[view.stop - 1] + 1
    # The copy's first token, from the token that is read and its index in the segment.
    begin = target[0].token - pair.target.terms[0].token
    views = Views(source_end, source_segment, original, (begin, begin + copy.length))
    return RowPair(number, source, target, views=views, weight=pair.weight)


def _states(forest: Forest, read: Read) -> tuple[Readout, ...]:
    """The states whose sum is one side of a pair, by token; terms of the same token are added up."""
    total = defaultdict[int, float](float)
    for term in read.terms:
        first = forest.starts[term.segment] + term.token
        for index in range(first, first + term.tokens):
            total[index] += term.coefficient
    return tuple(Readout(index, total[index]) for index in sorted(total) if total[index])


def trunk_names(example: Example, spans: Sequence[NamedSpan]) -> list[str]:
    """A name for each of the T tokens of the trunk. Tokens outside all spans are the template's."""
    length = len(example.trunk)
    # From general to specific: each loop overwrites the names of the one before.
    names = ["trunk: template"] * length
    for start, stop in example.labels:
        inside = [span for span in spans if start <= span.start < stop]
        if inside and all(span.name.startswith(("answer", "step")) for span in inside):
            # The labels of an answer extend to the end of its turn.
            first = inside[0].start
            names[first:stop] = ["trunk: end of turn"] * (stop - first)
    for name, start, stop in spans:
        stop = min(stop, length)
        names[start:stop] = [f"trunk: {name}"] * (stop - start)
    return names


def token_text(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], str]:
    """A function from a token id to its text; bytes that form no complete character are shown as in the vocabulary."""

    def text(index: int) -> str:
        piece = tokenizer.convert_ids_to_tokens(index)
        if piece is None:
            return f"<id {index}>"
        decoded = str(
            tokenizer.decode([index], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )
        if decoded == "" or "\ufffd" in decoded:
            return str(piece)
        # SentencePiece's decoder drops the first space of a text.
        if str(piece).startswith("\u2581") and not decoded.startswith(" "):
            return f" {decoded}"
        return decoded

    return text
