"""Statistics of a data set as a model will see it: pairs, coverage, truncation, lengths, tokens by kind, padding.

Everything is counted from the examples that training would make; what needs more than the examples (which tokens are whose,
how batches are laid out) from a sample of the rows.

Shapes: T tokens of a trunk, N chats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from stepjepa.config.option import Names
from stepjepa.data.encode import RowEncoder
from stepjepa.data.report import DataReport
from stepjepa.data.types import Example
from stepjepa.inspect.layout import Form, Padding, Span, measure_padding, row_records
from stepjepa.inspect.rows import encoder_for, row_spans
from stepjepa.objectives.base import Objective, objective_of
from stepjepa.training.options import JEPAOptions, summary
from stepjepa.utils.text import counted, printable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from stepjepa.inspect.check import FileOptions
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
class Coverage:
    """How much of the sampled answers takes part in a pair.

    Attributes:
        answer_tokens: tokens of the answers' contents, without end of turn, as far as they are kept.
        in_views: those of them in a view of a pair. Of an objective with steps a source is its step, although the model sees
            all that precedes it.
    """

    answer_tokens: int = 0
    in_views: int = 0


@dataclass
class TokenStatistics:
    """What a model will see of a data set.

    Attributes:
        tokenizer: its name; `vocabulary`: its entries.
        method: the objective and its form; `objective`: the objective itself, of which the record has the name.
        data: training's own report: rows, pairs, lengths, labels.
        plain_text: whether the data set is plain text; then nothing is truncated, and `coverage` and `truncation` are None.
        sampled: examples in the sample; `coverage`, `segments` and `padding` are of these alone.
        sampled_all: whether the sample is all examples.
        segments: kind of token -> tokens.
        unknown_tokens: tokens of all examples that are the tokenizer's unknown token; None if it has none.
        one_token_targets: pairs of all examples whose target is a single token.
        end_of_turn: the token that ends an answer, None where there is none; `end_is`: ``padding`` and ``EOS``, where it is
            these; `end_labelled`: whether it is trained on.
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
    coverage: Coverage | None = None
    segments: dict[str, int] = field(default_factory=dict)
    padding: Padding | None = None
    unknown_tokens: int | None = None
    one_token_targets: int = 0
    end_of_turn: str | None = None
    end_is: tuple[str, ...] = ()
    end_labelled: bool = True

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        parts = {"truncation": self.truncation, "coverage": self.coverage, "padding": self.padding}
        return {
            **vars(self),
            "objective": self.objective.label,
            "data": self.data.to_dict(),
            **{name: None if part is None else asdict(part) for name, part in parts.items()},
        }

    def lines(self) -> list[str]:
        """The statistics, one fact a line: first what training prints of the data. What comes from the file is made
        `printable`."""
        name = f"{printable(self.tokenizer)} ({self.vocabulary:,} entries)"
        lines = [f"What a model will see: tokenizer {name}, {self.method}"]
        lines += [f"  {printable(line)}" for line in self.data.lines(warnings=False)]
        cut, found, total = self.truncation, self.coverage, sum(self.segments.values())
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
        if found is not None and self.objective.makes_pairs and found.answer_tokens:
            view = "a step that is the source or the target" if self.objective.needs_steps else "a view"
            share = f"{100 * found.in_views / found.answer_tokens:.1f} % of the answers' {found.answer_tokens:,} tokens"
            lines.append(f"  Coverage: {share} lie in {view} of a pair ({which})")
        lines.append(f"  Tokens by kind ({which}):")
        for kind, tokens in self.segments.items():
            if tokens:
                lines.append(f"    {_KINDS[kind]:<22} {tokens:>12,} {100 * tokens / total:>6.1f} %")
        if self.padding is not None:
            lines += ["", *padding_lines(self.padding, "texts" if self.plain_text else "chats")]
        return lines


def padding_lines(padding: Padding, trunks: str = "chats") -> list[str]:
    """The positions of a batch in a table; `trunks` are ``chats`` or ``texts``."""
    batches = counted(padding.batches, "batch", "batches")
    rows = [(f"{trunks} alone, a row each", padding.fixed_chats, padding.longest_chats, f"the {trunks}")]
    if padding.sequences > padding.batch_size:
        both = f"{trunks} and views"
        rows.append((f"{both}, a row each", padding.fixed_views, padding.longest_views, both))
    _, fixed, longest, what = rows[-1]
    empty = 100 * (1 - padding.tokens / padding.packed)
    published = ", as the published code pads," if trunks == "chats" else ""
    return [
        f"Positions in a batch of {padding.batch_size:,} (mean of {batches}):",
        f"  {'padded to':<29}{f'{_LENGTH} {padding.max_length:,}':>18}{'the longest':>14}",
        *(f"  {name:<29}{one:>18,.0f}{other:>14,.0f}" for name, one, other, _ in rows),
        f"  {'as stepjepa lays them out':<29}{'':>18}{padding.packed:>14,.0f}",
        f"  That is {padding.packed_rows:,.1f} rows with {empty:.1f} % padding: {100 * padding.packed / fixed:.1f} % of the "
        f"positions of {what} padded to {_LENGTH}{published} and {100 * padding.packed / longest:.1f} % of those padded "
        "to the longest",
    ]


def read_tokens(
    texts: TextReader,
    tokenizer: PreTrainedTokenizerBase,
    method: JEPAOptions,
    asked: FileOptions,
) -> TokenStatistics:
    """Encode a data set as training does and count what a model will see of it; loads torch.

    Args:
        texts: reads the rows, and counts what is in their text.
        tokenizer: that `asked` names.
        method: options of a run, checked; so is `asked`.

    Raises:
        DataError: no row can be trained on, or with ``strict_data`` the first one that would be skipped or cut.
        ConfigError: the tokenizer or the template cannot be used.
    """
    from stepjepa.training.sampling import DrawnExamples, EpochSampler

    rows, objective = texts.rows, objective_of(method)
    encoder = encoder_for(rows, tokenizer, method)
    tokenizer, streams, max_length = encoder.tokenizer, encoder.streams, encoder.options.max_length
    settings = replace(encoder.options, max_length=_UNLIMITED, objective=None, strict_data=False)
    unlimited = RowEncoder(rows.name, tokenizer, encoder.renderer, settings, streams)
    rng = np.random.default_rng(asked.seed)
    sample: dict[int, tuple[int, object, list[Example]]] = {}  # number of the row, row, its examples
    data = DataReport(rows.name)
    found = TokenStatistics(str(asked.model_name), len(tokenizer), summary(method), objective, data, streams)
    unknown = tokenizer.unk_token_id
    if unknown in (None, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id):
        unknown = None  # GPT-2's is its end of text
    found.unknown_tokens = None if unknown is None else 0
    kept, full = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]  # lengths of examples, and of chats before any cut
    first = 0
    for chunk, encoded in texts.read(asked.num_proc, encoder):
        data.add(encoded.report)
        store, stop = encoded.store, 0
        if unknown is not None:
            found.unknown_tokens = (found.unknown_tokens or 0) + int((store.arrays["ids"] == unknown).sum())
        single = np.flatnonzero(store.arrays["segments"][:, 0] == 1)  # segments of one token
        short = set((np.searchsorted(store.arrays["segments_edges"], single, "right") - 1).tolist())
        cut = []  # the chats that may be longer than their examples
        # Every row so far is in the sample with the same probability, however many there are (Vitter 1985, algorithm R).
        numbers = np.arange(first, first + len(chunk))
        slots = np.where(numbers < SAMPLE_ROWS, numbers, rng.integers(numbers + 1)).tolist()
        for number, (slot, (label, row), parts) in enumerate(zip(slots, chunk, encoded.counts, strict=True), first):
            start, stop, taken = stop, stop + parts, list[Example]()
            for index in range(start, stop):
                if index not in short and slot >= SAMPLE_ROWS:
                    continue
                example = store[index]
                targets = (example.segment(pair.target) for pair in example.pairs)
                found.one_token_targets += sum(target is not None and target.length == 1 for target in targets)
                # Copies, so that the chunk's arrays do not stay in memory.
                segments = tuple(segment._replace(ids=segment.ids.copy()) for segment in example.segments)
                taken.append(example._replace(trunk=example.trunk.copy(), segments=segments))
            if slot < SAMPLE_ROWS:
                sample[slot] = (number, row, taken)
            if not parts or store.lengths[stop - 1] >= max_length:
                cut.append((rows.place(label), row))
        kept.append(encoded.store.lengths.astype(np.int64))
        if not streams:
            full.append(kept[-1][kept[-1] < max_length])
            full += [unlimited(cut).store.lengths] if cut else []
        first += len(chunk)
    data.require(data.examples)
    data.set_lengths(np.concatenate(kept))
    drawn = [(row, example) for _, row, several in sorted(sample.values(), key=itemgetter(0)) for example in several]
    examples = [example for _, example in drawn]
    spans = [row_spans(row, example, encoder) for row, example in drawn]
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
        found.coverage = coverage(examples, spans, objective)
        found.end_of_turn = data.end_token
        ends = (("padding", tokenizer.pad_token or tokenizer.eos_token), ("EOS", tokenizer.eos_token))
        found.end_is = tuple(name for name, token in ends if token and token == data.end_token)
        found.end_labelled = data.end_token is not None and encoder.options.labels != "reference"
    draw = DrawnExamples(examples, objective, asked.seed, method.jepa_ratio)
    order = list(EpochSampler(len(examples), 1, asked.seed))
    sampled, form = [draw[index] for index in order], Form.of(method, tokenizer)
    found.segments = _tokens_by_kind(sampled, [spans[index.row] for index in order], form)
    found.padding = measure_padding(sampled, form, asked.per_device_train_batch_size, method.max_length)
    return found


def coverage(examples: Sequence[Example], spans: Sequence[Sequence[Span]], objective: Objective) -> Coverage:
    """How many of the answers' tokens lie in a view."""
    found = Coverage()
    for example, own in zip(examples, spans, strict=True):
        length = len(example.trunk)
        answers = [span for span in own if span.name.startswith(("answer", "step")) and span.start < length]
        standalone = any(example.view_on_trunk(pair.source) is None for pair in example.pairs)
        if standalone and len(example.pairs) < len(answers):
            continue  # which of the answers have a pair is not known
        in_view = np.full(length, bool(example.pairs) and (standalone or objective.halves))
        ends = {example.sees(pair.source) + 1 for pair in example.pairs}
        targets = [example.view_on_trunk(pair.target) for pair in example.pairs]
        for target in (*targets, *(target for _, target in example.view_spans)):
            if target is not None:
                in_view[target.start : target.stop] = True
        for _, start, stop in answers:
            in_view[start:stop] |= stop in ends
            found.answer_tokens += min(stop, length) - start
            found.in_views += int(in_view[start:stop].sum())
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
