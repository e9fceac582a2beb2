"""The record of what a model will see of a data set (`feeding`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from stepjepa.data.examples import Example
from stepjepa.data.report import DataReport
from stepjepa.inspect.padding import Padding
from stepjepa.inspect.readouts import ReadoutText
from stepjepa.inspect.spans import TrunkSpan


class Sampled(NamedTuple):
    """An example and, of a chat, where its messages and steps stand."""

    example: Example
    spans: tuple[TrunkSpan, ...]


@dataclass
class Truncation:
    """What `max_length` takes away from chats.

    Attributes:
        max_length: in tokens.
        answers_cut: examples whose answer is cut.
        rows_without_room: rows that are skipped, because the prompt alone fills `max_length`.
        tokens: of all chats that can be tokenised, before anything is cut.
        tokens_lost: those of them that no example holds; a chat without room is lost whole.
        holds: ``100``, ``99``, ``95`` -> the `max_length` that holds so many of a hundred chats whole.
    """

    max_length: int
    answers_cut: int = 0
    rows_without_room: int = 0
    tokens: int = 0
    tokens_lost: int = 0
    holds: dict[str, int] = field(default_factory=dict)


@dataclass
class Coverage:
    """How much of the answers takes part in a pair, in the sample.

    Attributes:
        answer_tokens: tokens of the answers' contents, without end of turn, as far as they are kept.
        in_views: those of them that lie in a view, source or target, of a pair. For ``step_jepa`` a source is its step,
            although the model sees what stands before it.
    """

    answer_tokens: int = 0
    in_views: int = 0


@dataclass
class FeedingReport:
    """What a model will see of a data set.

    Attributes:
        tokenizer: its name; `vocabulary`: its entries.
        method: the objective and its form, in words; `objective` alone.
        data: training's own report: rows, pairs, lengths, labels.
        skipped_texts: reason -> how the first row begins that is skipped for it.
        plain_text: whether the data set is plain text; then nothing is truncated, and `coverage` and `truncation` are None.
        truncation: what is cut.
        sampled: examples in the sample; the following are of these alone.
        sampled_all: whether the sample is all examples.
        coverage: see there.
        segments: kind of token -> tokens: ``template`` (markup, end of turn), ``system``, ``user``, ``assistant``, or
            ``text`` for plain text; ``predictors``, ``source copies`` and ``target copies``.
        padding: what batches cost.
        readouts: the first pairs of the data set (not of the sample).
        unknown_tokens: tokens of all examples that are the tokenizer's unknown token; None if it has none.
        one_token_targets: pairs of all examples whose target is a single token.
        end_of_turn: the token that ends an answer, None where there is none; `end_is`: ``padding`` and ``EOS``, where it is
            these; `end_labelled`: whether it is trained on.
    """

    tokenizer: str
    vocabulary: int
    method: str
    objective: str
    data: DataReport
    skipped_texts: dict[str, str] = field(default_factory=dict)
    plain_text: bool = False
    truncation: Truncation | None = None
    sampled: int = 0
    sampled_all: bool = True
    coverage: Coverage | None = None
    segments: dict[str, int] = field(default_factory=dict)
    padding: Padding | None = None
    readouts: list[ReadoutText] = field(default_factory=list)
    unknown_tokens: int | None = None
    one_token_targets: int = 0
    end_of_turn: str | None = None
    end_is: tuple[str, ...] = ()
    end_labelled: bool = True

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        parts = {name: getattr(self, name) for name in ("truncation", "coverage", "padding")}
        return {
            **vars(self),
            "data": self.data.to_dict(),
            "readouts": [readout._asdict() for readout in self.readouts],
            **{name: None if part is None else asdict(part) for name, part in parts.items()},
        }
