"""The records on the way from rows to the loss: plain data, each the output of a stage and the input of the next.

    chat -> `Example` -> `Batch` -> `ForestOutput` -> `LossParts`

An `Example` is a chat that is ready for any forward: its trunk, the segments after the trunk (`Segment`), and the states to
compare (`Pair` of two `Read`s). The address of a state is (segment, token): segment 0 is the trunk, segment i the i-th of
`Example.segments`, and its tokens include the predictor tokens in it.

Shapes: T tokens of a trunk, S of a segment, R rows, P pairs, M terms, N labelled positions, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

# The trunk's segment number.
TRUNK = 0
# The value of `Segment.attach` for a segment that sees no token of the trunk.
ISOLATED = -1
# A placeholder for the id of the learned mask token.
MASKED = -1


class Span(NamedTuple):
    """Tokens [start, stop)."""

    start: int
    stop: int


class Segment(NamedTuple):
    """Tokens after the trunk.

    Predictor tokens have no ids yet: `slots` of them come before `ids[slot]`, as predictors 0, 1, ... of their group, and a
    layout fills them in.

    Attributes:
        ids: (S - slots,) int32, the segment's tokens without its predictor tokens.
        attach: p, the last token of the trunk that the segment sees; `ISOLATED` if the segment sees only itself.
        position: position of the first token.
        group: group of the predictor tokens, from 0. Segments of different groups may have the same attach.
        slots: K, the number of predictor tokens.
        slot: the index in `ids` that the predictor tokens precede.
        origin: the token of the trunk from which `ids` are copied; None for text that is not on the trunk.
        maskable: the span of `ids` that a masked view may replace with `MASKED`; None without masks.
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
        """Return all tokens, (S,) int32.

        Args:
            predictor_ids: the ids of all groups, one group after the other, `slots` of each; for masked views, the id of the
                mask token comes last.

        Raises:
            ValueError: there are too few ids.
        """
        ids = self.ids
        if self.maskable is not None:
            ids = np.where(ids == MASKED, np.int32(predictor_ids[-1]), ids)
        if not self.slots:
            return ids
        first = self.group * self.slots
        predictors = np.asarray(predictor_ids[first : first + self.slots], np.int32)
        if len(predictors) < self.slots:
            raise ValueError(
                f"group {self.group} has {self.slots} predictor tokens, but {len(predictor_ids)} ids are given"
            )
        return np.concatenate([ids[: self.slot], predictors, ids[self.slot :]])


class Term(NamedTuple):
    """The states of `tokens` consecutive tokens of a segment, the first of them `token`, each multiplied by
    ``coefficient``."""

    segment: int
    token: int
    coefficient: float = 1.0
    tokens: int = 1


class Read(NamedTuple):
    """A weighted sum of states: one state, a mean over a view, a difference.

    Attributes:
        terms: the summands.
        layer: the layer whose output is read (0: the embeddings, -2: the last but one); None for the output of the final
            norm.
    """

    terms: tuple[Term, ...]
    layer: int | None = None

    @classmethod
    def one(cls, segment: int, token: int) -> Read:
        """Read the state of one token."""
        return cls((Term(segment, token),))

    @classmethod
    def mean(cls, segment: int, view: Span) -> Read:
        """Read the mean of the states of a segment's tokens [start, stop)."""
        tokens = view.stop - view.start
        return cls((Term(segment, view.start, 1 / tokens, tokens),))

    @property
    def is_state(self) -> bool:
        """Whether the read is a single unweighted state."""
        return len(self.terms) == 1 and self.terms[0][2:] == (1.0, 1)


class Pair(NamedTuple):
    """A source, and the target that it must predict.

    Attributes:
        weight: weight in the loss.
        horizon: the number of steps from source to target.
        group: group of the source's predictor tokens and predictor head, from 0.
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
        labels: spans of the LM loss.
        segments: the tokens after the trunk.
        pairs: pairs of states; without pairs, the example is used only for language modelling.
        view_spans: source and target views on the trunk, from which an objective samples pairs in every epoch.
        replayed: an earlier example whose pairs are trained on again, together with this example.
    """

    trunk: np.ndarray
    labels: tuple[Span, ...]
    segments: tuple[Segment, ...] = ()
    pairs: tuple[Pair, ...] = ()
    view_spans: tuple[tuple[Span, Span], ...] = ()
    replayed: Example | None = None

    @property
    def view_pairs(self) -> int:
        """The number of pairs of views, either to compare or to sample pairs from."""
        return len(self.pairs) or len(self.view_spans)

    def plain(self) -> Example:
        """Return the example for plain fine-tuning."""
        return Example(self.trunk, self.labels)

    def without_labels(self) -> Example:
        """Return the example without labels, its trunk cut after the last token that the states of its pairs see."""
        # Later tokens change none of these states, and would cost time.
        seen = max(self.sees(read) for pair in self.pairs for read in pair[:2])
        return self._replace(trunk=self.trunk[: max(seen, 0) + 1], labels=())

    def with_pairs(self, pairs: Sequence[Pair]) -> Example:
        """Return the example with some of its pairs, and only the segments that these read."""
        used = sorted(
            {term.segment for pair in pairs for read in pair[:2] for term in read.terms} - {TRUNK}
        )
        if len(used) == len(self.segments):
            return self._replace(pairs=tuple(pairs))
        # Old number of a segment -> its new one: terms address segments by number.
        number = {TRUNK: TRUNK, **{old: new for new, old in enumerate(used, 1)}}

        def renumbered(read: Read) -> Read:
            return read._replace(
                terms=tuple(term._replace(segment=number[term.segment]) for term in read.terms)
            )

        return self._replace(
            segments=tuple(self.segments[old - 1] for old in used),
            pairs=tuple(
                pair._replace(source=renumbered(pair.source), target=renumbered(pair.target))
                for pair in pairs
            ),
        )

    def sees(self, read: Read) -> int:
        """Return the last token of the trunk that the states of a read see; `ISOLATED` if they see no token of it."""
        return max(
            term.token + term.tokens - 1
            if term.segment == TRUNK
            else self.segments[term.segment - 1].attach
            for term in read.terms
        )

    def reach(self, pair: Pair, positions: bool) -> int:
        """Return the number of positions that the views of a pair need, from 0 on.

        Args:
            positions: True measures a segment by its positions in the forest; False, by the trunk tokens that its view
                occupies.
        """
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
        """Return the segment of a read's first state; None for the trunk."""
        number = read.terms[0].segment
        return None if number == TRUNK else self.segments[number - 1]

    def view_on_trunk(self, read: Read) -> Span | None:
        """Return the view of a read as a span of the trunk: the copied tokens, or all tokens up to its branch or state; None
        for text that is not on the trunk."""
        segment = self.segment(read)
        if segment is not None and segment.origin is not None:
            return Span(segment.origin, segment.origin + len(segment.ids))
        if segment is None or segment.attach != ISOLATED:
            return Span(0, self.sees(read) + 1)
        return None


class PairsFound(NamedTuple):
    """The output of an objective for one chat.

    Attributes:
        segments, pairs, view_spans: see `Example`.
        reason: why there are no pairs, a key that `data.report.reason_words` puts into words; None if there are some.
    """

    segments: tuple[Segment, ...] = ()
    pairs: tuple[Pair, ...] = ()
    view_spans: tuple[tuple[Span, Span], ...] = ()
    reason: str | None = None


class Turn(NamedTuple):
    """One assistant turn in tokens.

    Attributes:
        user: content of the user message before it; None without one.
        user_close: end of the user's turn, after its end-of-turn token; the option ``last_token`` counts back from it.
        answer: content of the answer.
        label_stop: end of the labelled tokens: after the end-of-turn token.
        steps: spans of the answer's steps, empty unless the objective needs them. A step has no token (start == stop) if the
            tokenizer merges its last character into the first token of the next step.
        cue: the words that announce the final answer; None unless the objective finds a cue (`Objective.cue_of`).
    """

    user: Span | None
    user_close: int
    answer: Span
    label_stop: int
    steps: tuple[Span, ...] = ()
    cue: Span | None = None


class OnDevice:
    """A dataclass of tensors that moves between devices like a single tensor."""

    def _each(self, method: str, *args: Any, **kwargs: Any) -> Self:
        moved = {
            name: getattr(value, method)(*args, **kwargs)
            for name, value in vars(self).items()
            if hasattr(value, method)
        }
        return replace(self, **moved)  # type: ignore[type-var]

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Apply `Tensor.to` to all tensors."""
        return self._each("to", *args, **kwargs)

    def pin_memory(self) -> Self:
        """Apply `Tensor.pin_memory` to all tensors."""
        return self._each("pin_memory")


@dataclass(frozen=True)
class Rows(OnDevice):
    """The rows of one call of the backbone, packed or padded; int64.

    Attributes:
        input_ids, position_ids: (R, T).
        attention_mask: (R, T), 1 = token, 0 = padding; only for padded rows.
        example: (R, T), number of the example in the batch; -1 for padding. This and the following tensors exist only for
            packed rows.
        segment: (R, T), 0 = trunk.
        order: (R, T), index inside the segment.
        attach: (R, T), see `forest.visibility.visible`.
        floor: (R, T), see `forest.visibility.visible`, too; only for `inline`.
        forests: (B, 2), start and end of each forest in the single row; only for attention by segments.
        read_positions: (M,), unique indices into the flattened (R * T) states. The other states need not be correct.
    """

    input_ids: Tensor
    position_ids: Tensor
    attention_mask: Tensor | None = None
    example: Tensor | None = None
    segment: Tensor | None = None
    order: Tensor | None = None
    attach: Tensor | None = None
    floor: Tensor | None = None
    forests: Tensor | None = None
    read_positions: Tensor | None = None

    @property
    def filled(self) -> Tensor:
        """(R, T) bool, True for tokens, False for padding."""
        return self.attention_mask == 1 if self.example is None else self.example >= 0  # type: ignore[return-value]


@dataclass(frozen=True)
class StateReads(OnDevice):
    """P vectors, each a weighted sum of states.

    Attributes:
        positions: (M,) int64, indices into the flattened states.
        vectors: (M,) int64, the vector to which each term adds; None if each vector is a single state, and so M = P.
        coefficients: (M,) float32; None if `vectors` is None.
        count: P.
        layers: the layers whose states are read; see `Read`.
        layer_of: (M,) int64, which of several layers each position is in; None for a single layer.
    """

    positions: Tensor
    vectors: Tensor | None = None
    coefficients: Tensor | None = None
    count: int = 0
    layers: tuple[int | None, ...] = (None,)
    layer_of: Tensor | None = None


@dataclass(frozen=True)
class Batch(OnDevice):
    """A collated micro-batch.

    The address of a state is its index among all flattened states: first those of `rows` (R * T), then those of `views`.

    Attributes:
        rows: the packed forests; in the two-pass form the padded chats.
        label_positions: (N,) int64, the states that predict a label.
        label_ids: (N,) int64, the token that each of these states must predict.
        sources, targets: the vectors of all pairs. With `target_rows`, targets address the states of those rows.
        weights: (P,) float32, weights of the pairs in the loss; None if all are 1.
        groups: (P,) int64, see `Pair`; None if all are 0.
        views: rows of the two-pass form, one for each segment.
        target_rows: rows of targets that need no gradient, for a separate pass; None without such a pass.
        idle: whether that pass has no targets, and runs only because other processes have targets.
        replayed: the number of replayed pairs, which come last.
    """

    rows: Rows
    label_positions: Tensor
    label_ids: Tensor
    sources: StateReads
    targets: StateReads
    weights: Tensor | None = None
    groups: Tensor | None = None
    views: Rows | None = None
    target_rows: Rows | None = None
    idle: bool = False
    replayed: int = 0

    @property
    def pairs(self) -> int:
        """P."""
        return self.sources.count

    @property
    def current(self) -> int:
        """The number of pairs that are not replayed."""
        return self.pairs - self.replayed

    @property
    def weight(self) -> Tensor | int:
        """Sum of the weights of the pairs that are not replayed, () or a number."""
        return self.current if self.weights is None else self.weights[: self.current].sum()

    @property
    def replayed_weight(self) -> Tensor | int:
        """Sum of the weights of the replayed pairs, () or a number."""
        return self.replayed if self.weights is None else self.weights[self.current :].sum()

    def untrimmed(self) -> Batch:
        """Return the batch in a form for which the forward computes every state completely, read or not."""
        rows = self.rows
        targets = self.target_rows
        targets = None if targets is None else replace(targets, read_positions=None)
        return replace(self, rows=replace(rows, read_positions=None), target_rows=targets)

    @property
    def every_rows(self) -> list[Rows]:
        """The rows of every call of the backbone."""
        return [rows for rows in (self.rows, self.views, self.target_rows) if rows is not None]


class LossPart(NamedTuple):
    """A term of the loss over a micro-batch: the loss is ``weight * sum / count``, with the counts of all micro-batches and
    processes of the optimizer step.

    Attributes:
        sum: () float32, with its graph.
        count: the divisor, () or a number.
        weight: the constant factor.
    """

    sum: Tensor
    count: Tensor | int | float  # type: ignore[assignment]  # a tuple has a method of this name
    weight: float = 1.0


# Name in the log (``lm_loss``, ``jepa_loss``, ...) -> term of the loss.
LossParts = Mapping[str, LossPart]
LM = "lm_loss"
# The label of a token that is not labelled, which transformers and torch's cross-entropy ignore.
NOT_LABELLED = -100


@dataclass
class ForestOutput:
    """The output of a forward.

    Attributes:
        parts: the terms of the loss.
        source_states: (P, D), the states of the source views, after the predictor head if there is one.
        target_states: (P, D), the states that the loss compares them with.
        predicted_ids: (N,) int64, the most likely token for each label; None unless requested.
        token_sums: (2,) float32, the number of labels that are the most likely token, and the sum of the entropies (nats);
            None unless requested.
    """

    parts: dict[str, LossPart]
    source_states: Tensor
    target_states: Tensor
    predicted_ids: Tensor | None = None
    token_sums: Tensor | None = None

    @property
    def lm_loss_sum(self) -> Tensor:
        """() float32, cross-entropy summed over the N labelled positions."""
        return self.parts[LM].sum
