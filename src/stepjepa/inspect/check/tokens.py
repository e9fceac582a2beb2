"""Statistics of a data set as a model will see it: pairs, truncation, lengths, tokens by kind.

Everything is counted from the examples that training would make; which tokens are whose needs more than the examples and is
counted in the first rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepjepa.config.option import Names
from stepjepa.data.encode import PlacedRow, RowEncoder
from stepjepa.data.report import DataReport
from stepjepa.inspect.check.reader import TextReader
from stepjepa.inspect.layout import RowForm, row_records
from stepjepa.inspect.rows import encoder_for, row_spans
from stepjepa.objectives.base import Objective, objective_of
from stepjepa.training.options import JEPAOptions, summary
from stepjepa.utils.text import counted, printable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLE_ROWS = 2000  # whose tokens are counted by kind
_LENGTH = Names(JEPAOptions).max_length
_UNLIMITED = 2**31 - 1
_SHARES = (100, 99, 95)  # percent of the chats
_KINDS = {  # first word of a token's name -> what it is counted as; all other tokens are the template's
    "template": "template and markup",
    "system": "system",
    "user": "user",
    "answer": "assistant",
    "step": "assistant",
    "text": "plain text",
    "predictors": "predictor tokens",
    "source": "standalone sources",
    "target": "copies of targets",
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

    def line(self) -> str:
        """What is lost, and which length would hold the chats."""
        longest, most, many = (self.holds[str(share)] for share in _SHARES)
        start = f"Truncation at {_LENGTH} {self.max_length:,}:"
        shares = f"99 % fit into {most:,}, 95 % into {many:,}"
        if not self.tokens_lost:
            return f"{start} none; the longest has {longest:,}, {shares}"
        answers = counted(self.answers_cut, "answer")
        rows = counted(self.rows_without_room, "row")
        percent = 100 * self.tokens_lost / self.tokens
        lost = f"{self.tokens_lost:,} of {self.tokens:,} tokens lost ({percent:.1f} %)"
        cut = f"{answers} cut, {rows} skipped for a prompt that fills it"
        return f"{start} {cut}; {lost}; all chats fit into {longest:,}, {shares}"


@dataclass
class TokenStatistics:
    """What a model will see of a data set.

    Attributes:
        tokenizer: its name; `vocabulary`: its entries.
        method: the objective and its form; `objective`: the objective itself, of which the record has the name.
        data: training's own report: rows, pairs, lengths, labels.
        plain_text: whether the data set is plain text; then nothing is truncated, and `truncation` is None.
        sampled: examples whose tokens are counted by kind, the first ones.
        segments: kind of token -> tokens of these.
    """

    tokenizer: str
    vocabulary: int
    method: str
    objective: Objective
    data: DataReport
    plain_text: bool = False
    truncation: Truncation | None = None
    sampled: int = 0
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
        if self.truncation is not None:
            lines.append(f"  {self.truncation.line()}")
        which = "all" if self.sampled == self.data.examples else "the first"
        lines.append(f"  Tokens by kind ({which} {self.sampled:,} examples):")
        total = sum(self.segments.values())
        for kind, tokens in self.segments.items():
            percent = 100 * tokens / total
            lines.append(f"    {kind:<22} {tokens:>12,} {percent:>6.1f} %")
        return lines


def _count_kinds(
    found: TokenStatistics, rows: Sequence[PlacedRow], encoder: RowEncoder, method: JEPAOptions, seed: int
) -> None:
    """Count the kinds of tokens in the examples of `rows`, as training samples them in epoch 0."""
    from stepjepa.training.sampling import ExampleDraw

    encoded = encoder(rows)
    row_of_each = list[object]()
    for (_, row), parts in zip(rows, encoded.counts, strict=True):
        row_of_each += [row] * parts
    draw = ExampleDraw(found.objective, seed, method.jepa_ratio)
    form = RowForm.of(method, encoder.tokenizer)
    counts: Counter[str] = Counter()
    for number, (row, example) in enumerate(zip(row_of_each, encoded.store, strict=True)):
        sampled = draw(example, 0, number)
        spans = row_spans(row, example, encoder)
        (record,) = row_records([sampled], form, lambda _: "", [spans])
        for name, kind in zip(record.names, record.kinds, strict=True):
            word = name.removeprefix("trunk: ").split(" ")[0]
            if kind == "predictor":
                word = "predictors"
            counts[_KINDS.get(word, _KINDS["template"])] += 1
    found.sampled = len(row_of_each)
    found.segments = {kind: counts[kind] for kind in _KINDS.values() if counts[kind]}


def read_tokens(
    reader: TextReader,
    tokenizer: PreTrainedTokenizerBase,
    method: JEPAOptions,
    name: str,
    seed: int = 42,
    processes: int = 1,
) -> TokenStatistics:
    """Encode a data set as training does and count what a model will see of it; loads torch.

    Args:
        reader: reads the rows, and counts what is in their text.
        method: options of a run, checked.
        name: of the tokenizer.
        seed: of what is sampled every epoch.
        processes: that count and tokenise rows.

    Raises:
        DataError: no row can be trained on, or with ``strict_data`` the first one that would be skipped or cut.
        ConfigError: the tokenizer or the template cannot be used.
    """
    rows, objective = reader.rows, objective_of(method)
    encoder = encoder_for(rows, tokenizer, method)
    tokenizer, max_length = encoder.tokenizer, encoder.options.max_length
    settings = replace(encoder.options, max_length=_UNLIMITED, objective=None, strict_data=False)
    unlimited = RowEncoder(rows.name, tokenizer, encoder.renderer, settings, encoder.streams)
    data, sample = DataReport(rows.name), list[PlacedRow]()
    kept, full = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]  # lengths of examples, and of chats before any cut
    for chunk, encoded in reader.read(processes, encoder):
        placed = [(rows.place(label), row) for label, row in chunk]
        data.add(encoded.report)
        sample += placed[: SAMPLE_ROWS - len(sample)]
        lengths = encoded.store.lengths.astype(np.int64)
        kept.append(lengths)
        if not encoder.streams:
            # A chat without an example, or with one that is full, is tokenised again for its own length.
            full.append(lengths[lengths < max_length])
            stops = np.cumsum(encoded.counts).tolist()
            ends = zip(placed, encoded.counts, stops, strict=True)
            cut = [row for row, parts, stop in ends if not parts or lengths[stop - 1] >= max_length]
            full += [unlimited(cut).store.lengths] if cut else []
    data.require(data.examples)
    data.set_lengths(np.concatenate(kept))

    found = TokenStatistics(name, len(tokenizer), summary(method), objective, data, encoder.streams)
    if not encoder.streams:
        lengths = np.concatenate(full)
        holds = np.percentile(lengths, _SHARES, method="inverted_cdf")  # the least length that holds so many
        tokens = int(lengths.sum())
        found.truncation = Truncation(
            max_length,
            answers_cut=data.answers_truncated,
            rows_without_room=data.rows_skipped["no_room_for_answer"],
            tokens=tokens,
            tokens_lost=tokens - data.tokens,
            holds={str(share): int(length) for share, length in zip(_SHARES, holds, strict=True)},
        )
    _count_kinds(found, sample, encoder, method, seed)
    return found
