"""The records that rows become on their way to the loss: plain data, each stage's output and the next one's input.

    chat -> `Example` -> `Batch` -> `ForestOutput` -> `LossParts`

An `Example` holds one chat, ready for any forward: its trunk, what follows the trunk (`Segment`), and which states are
compared (`Pair` of two `Read`s). A state is named by (segment, token): segment 0 is the trunk, segment i the i-th of
`Example.segments`, and its tokens are counted with the predictor tokens in it.

Shapes: T tokens of a trunk, S of a segment, R rows, P pairs, M terms, N labelled positions, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

TRUNK = 0
ISOLATED = -1
MASKED = -1  # in the place of an id: the learned mask token


class Span(NamedTuple):
    """Tokens [start, stop)."""

    start: int
    stop: int


class Segment(NamedTuple):
    """Tokens after the trunk.

    Predictor tokens are no ids yet: `slots` of them stand in front of `ids[slot]`, as predictors 0, 1, ... of their group,
    and a layout fills them in.

    Attributes:
        ids: (S - slots,) int32, those tokens that are of the vocabulary.
        attach: p, the last token of the trunk that they see; `ISOLATED` where they see themselves alone.
        position: of the first token.
        group: of predictor tokens, from 0. Branches of several groups may share an attach.
        slots: K, how many predictor tokens it holds.
        slot: the index in `ids` that they stand in front of.
        origin: where `ids` are copied from, as a token of the trunk; None for text of its own.
        maskable: those of `ids` that a masked view may replace with `MASKED`; None where there are no masks.
    """

    ids: np.ndarray
    attach: int
    position: int
    group: int = 0
    slots: int = 0
    slot: int = 0
    origin: int | None = None
    maskable: Span | None = None

    @property
    def length(self) -> int:
        """S."""
        return len(self.ids) + self.slots

    def tokens(self, predictor_ids: Sequence[int]) -> np.ndarray:
        """All its tokens, (S,) int32.

        Args:
            predictor_ids: of all groups, one group after the other, `slots` of each; where views are masked, that of the
                mask token after them.

        Raises:
            ValueError: there are fewer.
        """
        ids = self.ids
        if self.maskable is not None:
            ids = np.where(ids == MASKED, np.int32(predictor_ids[-1]), ids)
        if not self.slots:
            return ids
        first = self.group * self.slots
        own = np.asarray(predictor_ids[first : first + self.slots], np.int32)
        if len(own) < self.slots:
            raise ValueError(
                f"group {self.group} has {self.slots} predictor tokens, and {len(predictor_ids)} ids are given"
            )
        return np.concatenate([ids[: self.slot], own, ids[self.slot :]])


class Term(NamedTuple):
    """``coefficient`` times each state of a run of `tokens` tokens from `token` on."""

    segment: int
    token: int
    coefficient: float = 1.0
    tokens: int = 1


class Read(NamedTuple):
    """A weighted sum of states: one state, a mean over a view, a difference.

    Attributes:
        terms: its summands.
        layer: after which layer the states are read (0: the embeddings, -2: the last but one); None after the final norm.
    """

    terms: tuple[Term, ...]
    layer: int | None = None

    @classmethod
    def one(cls, segment: int, token: int) -> Read:
        """The state of one token."""
        return cls((Term(segment, token),))

    @classmethod
    def mean(cls, segment: int, view: Span) -> Read:
        """The mean of the states of a segment's tokens [start, stop)."""
        tokens = view.stop - view.start
        return cls((Term(segment, view.start, 1 / tokens, tokens),))

    @property
    def is_state(self) -> bool:
        """Whether it is one state as it is."""
        return len(self.terms) == 1 and self.terms[0][2:] == (1.0, 1)


class Pair(NamedTuple):
    """What predicts, and what it must predict.

    Attributes:
        weight: of the pair in the loss.
        horizon: how many steps lie between them.
        group: whose predictor tokens and predictor head the source has, from 0.
    """

    source: Read
    target: Read
    weight: float = 1.0
    horizon: int = 1
    group: int = 0


class Example(NamedTuple):
    """One tokenised chat or text.

    Attributes:
        trunk: (T,) int32, the chat as the template writes it.
        labels: spans that the LM loss is computed on.
        segments: what follows the trunk.
        pairs: empty trains as plain language modelling.
        view_spans: source and target views on the trunk that an objective draws pairs from every epoch.
        replayed: an example that was trained on earlier, whose pairs are trained again next to this one.
    """

    trunk: np.ndarray
    labels: tuple[Span, ...]
    segments: tuple[Segment, ...] = ()
    pairs: tuple[Pair, ...] = ()
    view_spans: tuple[tuple[Span, Span], ...] = ()
    replayed: Example | None = None

    @property
    def view_pairs(self) -> int:
        """Pairs of views: those that are compared, or that pairs are drawn from."""
        return len(self.pairs) or len(self.view_spans)

    def plain(self) -> Example:
        """It as plain fine-tuning sees it."""
        return Example(self.trunk, self.labels)

    def without_labels(self) -> Example:
        """Its pairs alone, on the part of the trunk that their states have seen."""
        seen = max(self.sees(read) for pair in self.pairs for read in pair[:2])
        return self._replace(trunk=self.trunk[: max(seen, 0) + 1], labels=())

    def with_pairs(self, pairs: Sequence[Pair]) -> Example:
        """It with some of its pairs, and of its segments those that these read."""
        used = sorted({term.segment for pair in pairs for read in pair[:2] for term in read.terms} - {TRUNK})
        if len(used) == len(self.segments):
            return self._replace(pairs=tuple(pairs))
        number = {TRUNK: TRUNK, **{old: new for new, old in enumerate(used, 1)}}

        def renumbered(read: Read) -> Read:
            return read._replace(terms=tuple(term._replace(segment=number[term.segment]) for term in read.terms))

        return self._replace(
            segments=tuple(self.segments[old - 1] for old in used),
            pairs=tuple(
                pair._replace(source=renumbered(pair.source), target=renumbered(pair.target)) for pair in pairs
            ),
        )

    def sees(self, read: Read) -> int:
        """The last token of the trunk that a read's states have seen; `ISOLATED` for none."""
        return max(
            term.token + term.tokens - 1 if term.segment == TRUNK else self.segments[term.segment - 1].attach
            for term in read.terms
        )

    def reach(self, pair: Pair, positions: bool) -> int:
        """Positions that the views of a pair take, counted from 0; of what stands on the trunk without `positions` the
        tokens that it takes there, whatever stands before it in the forest."""
        reach = 0
        for term in (*pair.source.terms, *pair.target.terms):
            if term.segment == TRUNK:
                reach = max(reach, term.token + term.tokens)
                continue
            segment = self.segments[term.segment - 1]
            if positions:
                end = segment.position + segment.length
            elif segment.origin is not None:
                end = segment.origin + len(segment.ids)
            else:
                end = segment.length if segment.attach == ISOLATED else segment.attach + 1
            reach = max(reach, end)
        return reach

    def segment(self, read: Read) -> Segment | None:
        """The segment of a read's first state; None for the trunk."""
        number = read.terms[0].segment
        return None if number == TRUNK else self.segments[number - 1]

    def view_on_trunk(self, read: Read) -> Span | None:
        """The view that a read stands for where it also stands on the trunk: the copied tokens, or all before its branch or
        state; None for text of its own."""
        segment = self.segment(read)
        if segment is not None and segment.origin is not None:
            return Span(segment.origin, segment.origin + len(segment.ids))
        if segment is None or segment.attach != ISOLATED:
            return Span(0, self.sees(read) + 1)
        return None


class PairsFound(NamedTuple):
    """What an objective makes of one chat.

    Attributes:
        segments, pairs, view_spans: see `Example`.
        reason: why there are none, a key of `data.report.reason_words`; None where there are some.
    """

    segments: tuple[Segment, ...] = ()
    pairs: tuple[Pair, ...] = ()
    view_spans: tuple[tuple[Span, Span], ...] = ()
    reason: str | None = None


class Turn(NamedTuple):
    """One assistant turn in tokens.

    Attributes:
        user: content of the user message before it, None if there is none.
        user_close: tokens [.., stop) up to the user's end-of-turn token, so that ``last_token`` can count from there.
        answer: content of the answer.
        label_stop: end of the labelled tokens: after the end-of-turn token.
        steps: spans of the answer's steps, none unless the objective needs them. A step whose last character was merged
            into the next one's first token may be left without a token (start == stop).
        cue: of the answer, what announces its final answer; None unless the objective finds one (`Objective.cue_of`).
    """

    user: Span | None
    user_close: int
    answer: Span
    label_stop: int
    steps: tuple[Span, ...] = ()
    cue: Span | None = None


class OnDevice:
    """A dataclass of tensors that moves between devices as one tensor does."""

    def _each(self, method: str, *args: Any, **kwargs: Any) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        moved = {name: getattr(v, method)(*args, **kwargs) for name, v in values.items() if hasattr(v, method)}
        return replace(self, **moved)  # type: ignore[type-var]

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """As `torch.Tensor.to`, of all its tensors."""
        return self._each("to", *args, **kwargs)

    def pin_memory(self) -> Self:
        """As `torch.Tensor.pin_memory`, of all its tensors."""
        return self._each("pin_memory")


@dataclass(frozen=True)
class Rows(OnDevice):
    """The rows of one call of the backbone, packed or padded; int64.

    Attributes:
        input_ids, position_ids: (R, T).
        attention_mask: (R, T), 1 = token, 0 = padding; of padded rows alone.
        example: (R, T), which example of the batch; -1 for padding. This and the following of packed rows alone.
        segment: (R, T), 0 = trunk.
        order: (R, T), index inside the segment.
        attach: (R, T), see `forest.visibility.visible`.
        floor: (R, T), the same; only for `inline`.
        forests: (B, 2), start and end of each forest in the one row; only for attention by segments.
        read_positions: (M,), indices into the flattened (R * T) states, each once; others need not be right.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    attention_mask: torch.Tensor | None = None
    example: torch.Tensor | None = None
    segment: torch.Tensor | None = None
    order: torch.Tensor | None = None
    attach: torch.Tensor | None = None
    floor: torch.Tensor | None = None
    forests: torch.Tensor | None = None
    read_positions: torch.Tensor | None = None

    @property
    def filled(self) -> torch.Tensor:
        """(R, T) bool, True where there is no padding."""
        return self.attention_mask == 1 if self.example is None else self.example >= 0  # type: ignore[return-value]


@dataclass(frozen=True)
class StateReads(OnDevice):
    """P vectors, each a weighted sum of states.

    Attributes:
        positions: (M,) int64, indices into the flattened states.
        vectors: (M,) int64, which vector the term adds to; None where each vector is one state, and M = P.
        coefficients: (M,) float32; None with `vectors`.
        order: (P,) int64, the vector that each pair gets; None for its own.
        count: P.
        layers: those whose states are read, see `Read`.
        layer_of: (M,) int64, which of several layers each position is in; None for one.
    """

    positions: torch.Tensor
    vectors: torch.Tensor | None = None
    coefficients: torch.Tensor | None = None
    order: torch.Tensor | None = None
    count: int = 0
    layers: tuple[int | None, ...] = (None,)
    layer_of: torch.Tensor | None = None


@dataclass(frozen=True)
class Batch(OnDevice):
    """A collated micro-batch.

    States are addressed by their index in those of `rows`, flattened (R * T), and after them those of `views`.

    Attributes:
        rows: the packed forests; in the two-pass form the padded chats.
        label_positions: (N,) int64, the states that predict a label.
        label_ids: (N,) int64, the token that each of these must predict.
        sources, targets: the vectors of all pairs. With `target_rows` the targets count in those rows' states.
        weights: (P,) float32, of the pairs in the loss; None where all are 1.
        groups: (P,) int64, see `Pair`; None where all are 0.
        views: rows of the two-pass form, one a segment, those that sources are read from first.
        branches: how many these are.
        target_rows: rows of targets that need no gradient, in a pass of their own; None where there is no such pass.
        idle: nobody reads that pass; it is there because other processes have one.
        replayed: how many of the pairs are replayed; they come last.
    """

    rows: Rows
    label_positions: torch.Tensor
    label_ids: torch.Tensor
    sources: StateReads
    targets: StateReads
    weights: torch.Tensor | None = None
    groups: torch.Tensor | None = None
    views: Rows | None = None
    branches: int = 0
    target_rows: Rows | None = None
    idle: bool = False
    replayed: int = 0

    @property
    def pairs(self) -> int:
        """P."""
        return self.sources.count

    @property
    def current(self) -> int:
        """Pairs that are not replayed."""
        return self.pairs - self.replayed

    @property
    def weight(self) -> torch.Tensor | int:
        """Sum of the weights of the pairs that are not replayed, () or a number."""
        return self.current if self.weights is None else self.weights[: self.current].sum()

    @property
    def replayed_weight(self) -> torch.Tensor | int:
        """Sum of the weights of the replayed pairs, () or a number."""
        return self.replayed if self.weights is None else self.weights[self.current :].sum()

    def untrimmed(self) -> Batch:
        """It with every state computed to the end, whoever reads it."""
        rows = self.rows
        targets = self.target_rows
        targets = None if targets is None else replace(targets, read_positions=None)
        return replace(self, rows=replace(rows, read_positions=None), target_rows=targets)

    @property
    def every_rows(self) -> list[Rows]:
        """The rows of every call of the backbone."""
        return [rows for rows in (self.rows, self.views, self.target_rows) if rows is not None]


class LossPart(NamedTuple):
    """One term of the loss over one micro-batch: the loss is ``weight * sum / count``, with the counts of all
    micro-batches and processes of the optimizer step.

    Attributes:
        sum: () float32, with its graph.
        count: what it is divided by, () or a number.
        weight: its constant factor.
    """

    sum: torch.Tensor
    count: torch.Tensor | int | float  # type: ignore[assignment]  # a tuple has a method of this name
    weight: float = 1.0


# By the names of the log: ``lm_loss``, ``jepa_loss``, ...
LossParts = Mapping[str, LossPart]
LM = "lm_loss"
# In the place of a token's id: it is no label. The number that transformers and torch's cross-entropy leave out.
NOT_LABELLED = -100


@dataclass
class ForestOutput:
    """What one forward returns.

    Attributes:
        parts: the terms of the loss.
        source_states: (P, D), the states that stand for the source views, after the predictor head if there is one.
        target_states: (P, D), those that the loss compares them with.
        predicted_ids: (N,) int64, the most likely token after each labelled position; None unless asked for.
        token_sums: (2,) float32, how many of the N labels are the most likely token, and the sum of the entropies (nats);
            None unless asked for.
    """

    parts: dict[str, LossPart]
    source_states: torch.Tensor
    target_states: torch.Tensor
    predicted_ids: torch.Tensor | None = None
    token_sums: torch.Tensor | None = None

    @property
    def lm_loss_sum(self) -> torch.Tensor:
        """() float32, cross-entropy summed over the N labelled positions."""
        return self.parts[LM].sum
