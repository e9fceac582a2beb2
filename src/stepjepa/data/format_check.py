"""The format check: what a data file holds and whether its answers have steps, found out without a tokenizer.

It counts what can be seen in the text alone. What a tokenizer makes of it is counted by `inspect.feeding`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stepjepa.data.chat import RowError
from stepjepa.data.encoder import chat_of
from stepjepa.data.format_report import SHOWN_CHARACTERS, FormatReport, RowSample
from stepjepa.data.options import EncodeOptions
from stepjepa.data.report import StepCounts
from stepjepa.data.signs import Leak, question_of
from stepjepa.data.sources import PairColumns, RowSource, row_to_messages
from stepjepa.data.steps import RowSteps, StepRules, StepSplitter, make_splitter, rules_for, steps_of
from stepjepa.data.streams import is_stream, stream_ids
from stepjepa.errors import ConfigError, DataError
from stepjepa.utils.text import printable

__all__ = ["check_format", "excerpt"]

_Chat = list[dict[str, str]]
_EXCERPT = 160  # characters of a row that is skipped
# What is tried beside the chosen splitter; of those that find about as many the first is named.
_CANDIDATES = ("separator", "numbered", "headings", "connectives", "lines")


class _AnyTokenizer:
    """Stands in for a tokenizer where `stream_ids` is asked whether a row is one at all."""

    eos_token_id = None

    def __len__(self) -> int:
        return 2**31

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": []}


def check_format(
    source: Any,
    splitter: str = "separator",
    separator: str = "\\n\\n",
    *,
    show: int = 1,
    strict: bool = False,
    split: str = "train",
    columns: PairColumns | None = None,
    steps_column: str = "steps",
    system_prompt: str | None = None,
    eval_file: Any = None,
    eval_split: str = "test",
) -> FormatReport:
    r"""Read a whole data set and count its messages and steps, and what there is to warn of.

    As in training, the first row decides whether the data set is one of chats or of plain text.

    Args:
        source: what `RowSource` takes.
        splitter, separator, steps_column: how steps are found, as `rules_for` takes them.
        show: how many usable rows to keep as samples.
        strict: a row that cannot be used is an error instead of a count.
        split: the split of a Hub data set.
        columns: the two columns that make a chat, None for the known names.
        system_prompt: put in front of chats that have no system message.
        eval_file: a second data set, whose questions are looked for in this one; `eval_split` is its split.

    Raises:
        DataError: a source is missing, empty or broken, or has no usable row; with ``strict`` the first bad row.
        ConfigError: an unknown splitter, an empty separator, or a negative `show`.
    """
    if show < 0:
        raise ConfigError(f"show is {show}; give how many rows to show, 0 or more")
    rows = source if isinstance(source, RowSource) else RowSource(source, split)
    rules = rules_for(rows, splitter, separator, steps_column, columns)
    counter = _Counter(rows, rules, separator, columns, system_prompt)
    report = counter.report
    for number, row in rows:
        if not report.rows_read:
            report.plain_text = columns is None and is_stream(row)
        report.rows_read += 1
        try:
            sample = counter.count(number, row, len(report.samples) < show)
        except RowError as error:
            where = f"{rows.place(number)}: {error}"
            if strict:
                raise DataError(f"{printable(where)} (--strict_data stops at the first such row)") from None
            report.rows_skipped[error.reason] += 1
            report.first_skipped.setdefault(error.reason, where)
            report.skipped_texts.setdefault(error.reason, excerpt(row))
            continue
        report.rows_usable += 1
        if sample is not None:
            report.samples.append(sample)
    _need_rows(rows, report.rows_read, report.rows_usable, report.skipped())
    if eval_file is not None:
        report.leak = find_leak(report, rows, RowSource(eval_file, eval_split), columns)
    return report


def find_leak(report: FormatReport, rows: RowSource, others: RowSource, columns: PairColumns | None = None) -> Leak:
    """Count the rows of `others` whose question stands in `rows`, on which `report` is.

    Raises:
        DataError: `others` is empty or broken, or has no usable row.
    """
    leak = Leak(others.name)
    skipped = ""
    for number, row in others:
        try:
            question, _ = _asked(row, report.plain_text, columns)
        except RowError as error:
            leak.skipped += 1
            skipped = skipped or printable(f"{others.place(number)}: {error}")
            continue
        leak.rows += 1
        known = report.repeats.find(question)
        if known is not None:
            leak.found += 1
            leak.first = leak.first or (others.place(number), rows.place(known))
    _need_rows(others, leak.rows + leak.skipped, leak.rows, [f"first: {skipped}"])
    return leak


def _need_rows(rows: RowSource, read: int, usable: int, skipped: list[str]) -> None:
    if not read:
        raise DataError(f"{rows.name}: the file or data set is empty; it needs at least one row")
    if not usable:
        message = f"{rows.name}: none of {read:,} rows can be used; {'; '.join(skipped)}"
        if "columns found" in message:
            message += "; any two columns make a chat with --source_column and --target_column"
        raise DataError(message)


def _asked(row: Any, plain_text: bool, columns: PairColumns | None) -> tuple[str, str]:
    """What a row asks, and the answers to it; of plain text the text itself.

    Raises:
        RowError: the row cannot be used.
    """
    if plain_text and is_stream(row):
        ids = stream_ids(row, _AnyTokenizer())
        return (" ".join(map(str, ids.tolist())) if len(ids) else row["text"]), ""
    messages = row_to_messages(row, None, columns)
    return question_of(messages), "\n".join(m["content"] for m in messages if m["role"] == "assistant")


class _Counter:
    """Counts the rows of a data set one by one into a report."""

    def __init__(
        self,
        rows: RowSource,
        rules: StepRules,
        separator: str,
        columns: PairColumns | None,
        system_prompt: str | None,
    ):
        self.rows, self.columns = rows, columns
        self.options = EncodeOptions(
            "step_jepa",
            rules.splitter,
            system_prompt=system_prompt,
            columns=columns,
            steps_column=rules.column,
            steps_required=rules.required,
        )
        name = rules.name
        self.auto = make_splitter("auto", separator if name in ("separator", "auto") else "\n\n")
        self.others = {
            other.name: other for other in map(make_splitter, _CANDIDATES) if rules.required or other != rules.splitter
        }
        shown = "\n" if rules.required else getattr(rules.splitter, "separator", separator if name == "regex" else "\n")
        self.sentences = make_splitter("sentence")
        counted = dict.fromkeys([*self.others, *(["sentence"] if name != "sentence" else [])], 0)
        counts = StepCounts.of(rules)
        self.report = FormatReport(rows.name, name, shown, rows.files, other_splitters=counted, steps=counts)
        self.plain_cut = shown if name in ("separator", "lines") else "\n\n"

    def count(self, number: int, row: Any, sample: bool) -> RowSample | None:
        """Count a row; how it is shown, where a sample is wanted.

        Raises:
            RowError: the row cannot be used; nothing was counted.
        """
        if self.report.plain_text and is_stream(row):
            shown = self._count_stream(number, row)
            return RowSample(self.rows.place(number), (), None, _cut(shown), 0, None) if sample else None
        messages = chat_of(row, self.options)
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        steps = steps_of(row, answers, self.options.rules)
        self._count_chat(number, messages, answers, steps)
        return self._sample(self.rows.place(number), messages, steps) if sample else None

    def _count_stream(self, number: int, row: Mapping[str, Any]) -> str:
        report = self.report
        text, _ = _asked(row, True, None)
        if row.get("input_ids") is not None:
            report.id_rows += 1
            report.ids += len(row["input_ids"])
        else:
            report.text_rows += 1
            report.characters += len(text)
        report.repeats.count(self.rows, number, text, "")
        return text

    def _count_chat(self, number: int, messages: _Chat, answers: list[str], found: RowSteps) -> None:
        report, spans = self.report, found.spans
        report.steps.count(self.rows.place(number), found)
        report.message_counts[len(messages)] += 1
        report.role_orders[", ".join(message["role"] for message in messages)] += 1
        steps = [len(found) for found in spans]
        report.step_counts[max(steps)] += 1
        report.pairs_first += sum(count >= 2 for count in steps)
        report.pairs_all += sum(max(count - 1, 0) for count in steps)
        finding = [name for name, other in self.others.items() if _finds_steps(other, answers)]
        if max(steps) < 2:
            if not found.own and _finds_steps(self.auto, answers):
                report.auto_rows += 1
                report.first_auto = report.first_auto or self.rows.place(number)
            if not finding and "sentence" in report.other_splitters and _finds_steps(self.sentences, answers):
                finding = ["sentence"]
        for name in finding:
            report.other_splitters[name] += 1
        report.rows_with_question += _asks(messages)
        report.repeats.count(self.rows, number, question_of(messages), "\n".join(answers))
        report.signs.count(self.rows.place(number), messages, spans, self.plain_cut)

    def _sample(self, place: str, messages: _Chat, steps: RowSteps) -> RowSample:
        user = next((message["content"] for message in messages if message["role"] == "user"), None)
        answer = next(message["content"] for message in messages if message["role"] == "assistant")
        separators, separator = None, self.report.separator
        if self.report.splitter in ("separator", "lines") and not steps.own:
            # A blank line is one in files with Windows line ends too.
            separators = (answer if separator.strip("\n") else answer.replace("\r\n", "\n")).count(separator)
        return RowSample(
            place=place,
            roles=tuple(message["role"] for message in messages),
            user=None if user is None else _cut(user),
            answer=_cut(answer),
            steps=len(steps.spans[0]),
            separators=separators,
        )


def _finds_steps(splitter: StepSplitter, answers: list[str]) -> bool:
    return any(len(splitter.spans(answer)) >= 2 for answer in answers)


def _asks(messages: _Chat) -> bool:
    """Whether a filled user message stands before a filled answer."""
    asked = False
    for message in messages:
        filled = bool(message["content"].strip())
        if message["role"] == "assistant" and asked and filled:
            return True
        asked = filled if message["role"] == "user" else asked
    return False


def excerpt(row: Any) -> str:
    """How a row begins, in one line."""
    try:
        text = json.dumps(row, ensure_ascii=False, default=str) if not isinstance(row, str) else row
    except (ValueError, RecursionError, TypeError):
        text = repr(type(row))
    text = " ".join(text[: 4 * _EXCERPT].split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
