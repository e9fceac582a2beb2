"""What a model will see of a whole data set: pairs, coverage, truncation and lengths; `padding` says what batches cost.

Everything is counted from the examples that training would make. What needs more than the examples (which tokens are whose,
how batches are laid out) is counted from a sample of the rows.

Shapes: T tokens of a trunk, N chats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from stepjepa.data.encode import CHUNK_ROWS, make_encoder, nothing_kept
from stepjepa.data.encoder import Encoded, PlacedRow, RowEncoder, read_chat
from stepjepa.data.examples import Example
from stepjepa.data.format_check import excerpt
from stepjepa.data.options import EncodeOptions
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.streams import is_stream
from stepjepa.inspect.feeding_report import Coverage, FeedingReport, Sampled, Truncation
from stepjepa.inspect.padding import Form
from stepjepa.inspect.readouts import readout_texts
from stepjepa.inspect.spans import trunk_spans

SAMPLE_ROWS = 2000
SHOWN_PAIRS = 3
_UNLIMITED = 2**31 - 1


def read_feeding(
    rows: RowSource,
    tokenizer: Any,
    renderer: Any,
    settings: EncodeOptions,
    report: FeedingReport,
    form: Form,
    *,
    count: int,
    sample_rows: int = SAMPLE_ROWS,
    seed: int = 42,
) -> list[Sampled]:
    """Encode a data set and fill in `report`, but for `segments` and `padding`.

    Args:
        renderer: as for `encode_dataset`.
        form: how views are read.
        count: rows of the data set, of which `sample_rows` are drawn at random.

    Returns:
        The examples of the sampled rows, in the order of the file.

    Raises:
        DataError: as `encode_dataset`.
        ConfigError: as `encode_dataset`.
    """
    encoder = make_encoder(rows, tokenizer, renderer, settings)
    whole = RowEncoder(
        rows.name,
        tokenizer,
        renderer,
        replace(settings, max_length=_UNLIMITED, objective="regular", strict=False),
        encoder.streams,
    )
    chosen = set(range(count))
    if count > sample_rows:
        chosen = set(np.random.default_rng(seed).choice(count, sample_rows, replace=False).tolist())
    unknown = _unknown_id(tokenizer)
    report.plain_text, report.unknown_tokens = encoder.streams, None if unknown is None else 0
    sampled: list[Sampled] = []
    kept, full = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    first = 0
    for chunk in _chunks(rows):
        encoded = encoder(chunk)
        _add(report, chunk, encoded, unknown)
        starts = np.cumsum([0, *encoded.counts]).tolist()
        for number, (place, row) in enumerate(chunk):
            examples = range(starts[number], starts[number + 1])
            if len(report.readouts) < SHOWN_PAIRS and settings.objective != "semantic_tube":
                for index in examples:
                    report.readouts += readout_texts(place, encoded.store[index], tokenizer, form)
            if first + number in chosen:
                sampled += _sampled(tokenizer, encoder, settings, row, [encoded.store[index] for index in examples])
        kept.append(encoded.store.lengths)
        if not encoder.streams:
            full.append(_full_lengths(whole, chunk, encoded, settings.max_length))
        first += len(chunk)
    del report.readouts[SHOWN_PAIRS:]
    if not report.data.examples:
        raise nothing_kept(report.data)
    lengths = np.concatenate(kept)
    report.data.set_lengths(lengths)
    report.sampled, report.sampled_all = len(sampled), count <= sample_rows
    if not encoder.streams:
        report.truncation = _truncation(report.data, np.concatenate(full), settings.max_length)
        report.coverage = coverage(sampled, settings.objective)
        _end_of_turn(report, tokenizer, settings.labels)
    return sampled


def _chunks(rows: RowSource) -> Iterator[list[PlacedRow]]:
    placed = ((rows.place(number), row) for number, row in rows)
    while chunk := list(islice(placed, CHUNK_ROWS)):
        yield chunk


def _add(report: FeedingReport, chunk: Sequence[PlacedRow], encoded: Encoded, unknown: int | None) -> None:
    """Count a chunk."""
    report.data.add(encoded.report)
    for reason, where in encoded.report.first_skipped.items():
        if reason not in report.skipped_texts:
            row = next((row for place, row in chunk if where.startswith(f"{place}: ")), None)
            report.skipped_texts[reason] = excerpt(row)
    arrays = encoded.store.arrays()
    if report.unknown_tokens is not None:
        report.unknown_tokens += int((arrays["ids"] == unknown).sum())
    pairs = arrays["pairs"]  # columns: the fields of `Pair`
    report.one_token_targets += int((pairs[:, 3] - pairs[:, 2] == 1).sum())


def _sampled(
    tokenizer: Any, encoder: RowEncoder, settings: EncodeOptions, row: Any, examples: Sequence[Example]
) -> Iterator[Sampled]:
    """A row's examples, apart from the chunk's arrays, which would stay in memory with them."""
    for example in examples:
        own = example._replace(input_ids=example.input_ids.copy(), views=example.views.copy())
        if encoder.streams and is_stream(row):
            yield Sampled(own, ())
            continue
        chat = read_chat(row, encoder.chats, settings)
        yield Sampled(own, trunk_spans(tokenizer, chat.rendered, chat.steps and chat.steps.spans, own.input_ids))


def _full_lengths(whole: RowEncoder, chunk: Sequence[PlacedRow], encoded: Encoded, max_length: int) -> np.ndarray:
    """Tokens of every chat of a chunk that can be tokenised, cut or not."""
    lengths = encoded.store.lengths.astype(np.int64)
    refused = bool(encoded.report.rows_skipped["no_room_for_answer"])
    if not refused and not (lengths >= max_length).any():
        return lengths
    places = (np.cumsum(encoded.counts) - 1).tolist()
    cut = [
        row
        for row, count, place in zip(chunk, encoded.counts, places, strict=True)
        if (refused if count == 0 else lengths[place] >= max_length)
    ]
    return np.concatenate([lengths[lengths < max_length], whole(cut).store.lengths])


def _truncation(data: DataReport, full: np.ndarray, max_length: int) -> Truncation:
    shares = (100, 99, 95)
    values = np.percentile(full, shares, method="inverted_cdf")  # the least length that holds so many
    return Truncation(
        max_length,
        answers_cut=data.answers_truncated,
        rows_without_room=data.rows_skipped["no_room_for_answer"],
        tokens=int(full.sum()),
        tokens_lost=int(full.sum()) - data.tokens,
        holds={str(share): int(value) for share, value in zip(shares, values, strict=True)},
    )


def coverage(sampled: Sequence[Sampled], objective: str) -> Coverage:
    """How many of the answers' tokens lie in a view.

    Where views are encoded apart, an answer is a view whole or not at all; chats in which only some answers have a pair are
    left out then.
    """
    found = Coverage()
    for example, spans in sampled:
        length = len(example.input_ids)
        answers = [span for span in spans if span.name.startswith(("answer", "step")) and span.start < length]
        in_view = np.zeros(length, bool)
        apart = any(pair.source_start >= length for pair in example.pairs)
        if apart and len(example.pairs) < len(answers):
            continue
        if example.pairs and (apart or objective == "split"):
            in_view[:] = True
        elif objective == "step_jepa":
            ends = {pair.source_end + 1 for pair in example.pairs}
            targets = {(pair.target_start, pair.target_end) for pair in example.pairs}
            for _, start, stop in answers:
                in_view[start:stop] = stop in ends or (start, stop) in targets
        else:
            for pair in example.pairs:
                in_view[pair.target_start : pair.target_end] = True
        for _, start, stop in answers:
            found.answer_tokens += min(stop, length) - start
            found.in_views += int(in_view[start:stop].sum())
    return found


def _unknown_id(tokenizer: Any) -> int | None:
    """The unknown token, unless it is also something else (GPT-2's is its end of text)."""
    unknown = tokenizer.unk_token_id
    others = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    return None if unknown in others else unknown


def _end_of_turn(report: FeedingReport, tokenizer: Any, labels: str) -> None:
    words = report.data.end_of_turn
    if words.startswith("none"):
        report.end_labelled = False
        return
    report.end_of_turn = words.partition(" (the tokenizer's EOS")[0]
    named = (("padding", tokenizer.pad_token or tokenizer.eos_token), ("EOS", tokenizer.eos_token))
    report.end_is = tuple(name for name, token in named if token == report.end_of_turn)
    report.end_labelled = labels != "reference"
