"""Statistics of a data set as a model will see it: pairs, truncation, lengths, tokens by kind.

Everything is counted from the examples that training would make; which tokens are whose needs more than the examples and is
counted in a sample of the rows.

Shapes: T tokens of a trunk, N chats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepjepa.config.option import Names
from stepjepa.data.encode import PlacedRow, RowEncoder
from stepjepa.data.report import DataReport
from stepjepa.data.types import Example
from stepjepa.inspect.layout import Form, Span, row_records
from stepjepa.inspect.rows import encoder_for, row_spans
from stepjepa.objectives.base import Objective, objective_of
from stepjepa.training.options import JEPAOptions, summary
from stepjepa.utils.text import counted, printable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from stepjepa.inspect.check.texts import TextReader

SAMPLE_ROWS = 2000
_LENGTH = Names(JEPAOptions).max_length
_UNLIMITED = 2**31 - 1
_KINDS = {
    "template": "template and markup",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "text": "plain text",
    "predictors": "predictor tokens",
    "source copies": "standalone sources",
    "target copies": "copies of targets",
}


@dataclass
class Truncation:
    """What `max_length` takes away from chats.

    Attributes:
        max_length: in tokens.
        answers_cut: examples whose answer is cut.
        rows_without_room: rows that are skipped, because the prompt alone fills `max_length`.
        tokens: of all chats that can be tokenised, before anything is cut; `tokens_lost`: those that no example holds.
        holds: ``100``, ``99``, ``95`` -> the `max_length` that holds so many of a hundred chats in full.
    """

    max_length: int
    answers_cut: int
    rows_without_room: int
    tokens: int
    tokens_lost: int
    holds: dict[str, int]


@dataclass
class TokenStatistics:
    """What a model will see of a data set.

    Attributes:
        tokenizer: its name; `vocabulary`: its entries.
        method: the objective and its form; `objective`: the objective itself, of which the record has the name.
        data: training's own report: rows, pairs, lengths, labels.
        plain_text: whether the data set is plain text; then nothing is truncated, and `truncation` is None.
        sampled: examples in the sample; `segments` is of these alone.
        sampled_all: whether the sample is all examples.
        segments: kind of token -> tokens.
    """

    tokenizer: str
    vocabulary: int
    method: str
    objective: Objective
    data: DataReport
    plain_text: bool = False
    truncation: Truncation | None = None
    sampled: int = 0
    sampled_all: bool = True
    segments: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        return {
            **vars(self),
            "objective": self.objective.label,
            "data": self.data.to_dict(),
            "truncation": None if self.truncation is None else asdict(self.truncation),
        }

    def lines(self) -> list[str]:
        """The statistics, one fact a line: first what training prints of the data. What comes from the file is made
        `printable`."""
        name = f"{printable(self.tokenizer)} ({self.vocabulary:,} entries)"
        lines = [f"What a model will see: tokenizer {name}, {self.method}"]
        lines += [f"  {printable(line)}" for line in self.data.lines(warnings=False)]
        cut, total = self.truncation, sum(self.segments.values())
        if cut is not None:
            holds = f"99 % fit into {cut.holds['99']:,}, 95 % into {cut.holds['95']:,}"
            if not cut.tokens_lost:
                holds = f"none; the longest has {cut.holds['100']:,}, {holds}"
            else:
                holds = (
                    f"{counted(cut.answers_cut, 'answer')} cut, {counted(cut.rows_without_room, 'row')} skipped for a "
                    f"prompt that fills it; {cut.tokens_lost:,} of {cut.tokens:,} tokens lost "
                    f"({100 * cut.tokens_lost / cut.tokens:.1f} %); all chats fit into {cut.holds['100']:,}, {holds}"
                )
            lines.append(f"  Truncation at {_LENGTH} {cut.max_length:,}: {holds}")
        which = f"all {self.sampled:,} examples" if self.sampled_all else f"{self.sampled:,} examples sampled at random"
        lines.append(f"  Tokens by kind ({which}):")
        for kind, tokens in self.segments.items():
            if tokens:
                lines.append(f"    {_KINDS[kind]:<22} {tokens:>12,} {100 * tokens / total:>6.1f} %")
        return lines


def read_tokens(
    texts: TextReader,
    tokenizer: PreTrainedTokenizerBase,
    method: JEPAOptions,
    name: str,
    seed: int = 42,
    processes: int = 1,
) -> TokenStatistics:
    """Encode a data set as training does and count what a model will see of it; loads torch.

    Args:
        texts: reads the rows, and counts what is in their text.
        method: options of a run, checked.
        name: of the tokenizer.
        seed: of the sampled rows.
        processes: that count and tokenise rows.

    Raises:
        DataError: no row can be trained on, or with ``strict_data`` the first one that would be skipped or cut.
        ConfigError: the tokenizer or the template cannot be used.
    """
    from stepjepa.training.batches import ExampleDraw

    rows, objective = texts.rows, objective_of(method)
    encoder = encoder_for(rows, tokenizer, method)
    tokenizer, streams, max_length = encoder.tokenizer, encoder.streams, encoder.options.max_length
    settings = replace(encoder.options, max_length=_UNLIMITED, objective=None, strict_data=False)
    unlimited = RowEncoder(rows.name, tokenizer, encoder.renderer, settings, streams)
    rng = np.random.default_rng(seed)
    sample: dict[int, PlacedRow] = {}
    data = DataReport(rows.name)
    found = TokenStatistics(name, len(tokenizer), summary(method), objective, data, streams)
    kept, full = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]  # lengths of examples, and of chats before any cut
    first = 0
    for chunk, encoded in texts.read(processes, encoder):
        data.add(encoded.report)
        placed = [(rows.place(label), row) for label, row in chunk]
        # Every row so far is in the sample with the same probability, however many there are (Vitter 1985, algorithm R).
        numbers = np.arange(first, first + len(chunk))
        slots = np.where(numbers < SAMPLE_ROWS, numbers, rng.integers(numbers + 1)).tolist()
        sample |= {slot: row for slot, row in zip(slots, placed, strict=True) if slot < SAMPLE_ROWS}
        first += len(chunk)

        lengths = encoded.store.lengths.astype(np.int64)
        kept.append(lengths)
        if not streams:
            full.append(lengths[lengths < max_length])
            stops = np.cumsum(encoded.counts).tolist()
            ends = zip(placed, encoded.counts, stops, strict=True)
            cut = [row for row, parts, stop in ends if not parts or lengths[stop - 1] >= max_length]
            full += [unlimited(cut).store.lengths] if cut else []
    data.require(data.examples)
    data.set_lengths(np.concatenate(kept))

    sampled_rows = list(sample.values())
    encoded = encoder(sampled_rows)
    examples = list(encoded.store)
    of_example = (row for (_, row), parts in zip(sampled_rows, encoded.counts, strict=True) for _ in range(parts))
    spans = [row_spans(row, example, encoder) for row, example in zip(of_example, examples, strict=True)]
    found.sampled, found.sampled_all = len(examples), first <= SAMPLE_ROWS
    if not streams:
        wanted, lengths = (100, 99, 95), np.concatenate(full)
        holds = np.percentile(lengths, wanted, method="inverted_cdf")  # the least length that holds so many
        found.truncation = Truncation(
            max_length,
            answers_cut=data.answers_truncated,
            rows_without_room=data.rows_skipped["no_room_for_answer"],
            tokens=int(lengths.sum()),
            tokens_lost=int(lengths.sum()) - data.tokens,
            holds={str(share): int(length) for share, length in zip(wanted, holds, strict=True)},
        )
    draw = ExampleDraw(objective, seed, method.jepa_ratio)
    sampled = [draw(example, 0, number) for number, example in enumerate(examples)]
    found.segments = _tokens_by_kind(sampled, spans, Form.of(method, tokenizer))
    return found


def _tokens_by_kind(examples: Iterable[Example], spans: Iterable[Sequence[Span]], form: Form) -> dict[str, int]:
    names: Counter[tuple[str, str]] = Counter()
    for example, own in zip(examples, spans, strict=True):
        for record in row_records([example], form, lambda _: "", [own]):
            names.update(zip(record.names, record.kinds, strict=True))
    found = dict.fromkeys(_KINDS, 0)
    for (name, kind), tokens in names.items():
        word = name.removeprefix("trunk: ").split(" ")[0]
        of = {"source": "source copies", "target": "target copies", "answer": "assistant", "step": "assistant"}
        called = "predictors" if kind == "predictor" else of.get(word, word)
        found[called if called in found else "template"] += tokens
    return found
