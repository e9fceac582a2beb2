"""The data report: how many rows were read, kept and skipped, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.columns import REASONING, Chat, has_output, is_trained
from stepjepa.data.options import DataOptions, PromptOptions, StepsOptions
from stepjepa.data.rendered import RenderedChat, quoted, switch_hint
from stepjepa.data.steps import RowSteps
from stepjepa.errors import DataError, RowError, no_rows, said
from stepjepa.utils.text import counted

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self

_NAME = Names(DataOptions, StepsOptions, PromptOptions)
LONGER = "longer_than_max_length"
# Key of a reason -> its wording, if the key with spaces in place of underscores is not clear enough.
_REASONS = {
    "not_an_object": "the row is not an object with columns",
    LONGER: f"longer than {_NAME.max_length}, left out by {_NAME.drop_longer}",
    "no_known_columns": "none of the columns of a chat",
    "no_messages": "'messages' is empty or not a list of messages",
    "no_steps": "the steps column is missing, or is not a list of texts",
    "steps_not_found": "the steps in the row are not in its answer",
    "no_room_for_answer": f"the prompt alone fills {_NAME.max_length}",
    "not_text_alone": "images, sound or video next to the text",
    "nothing_to_learn": "no token to train on",
    "answer_truncated": f"the answer was cut at {_NAME.max_length}",
    "fewer_than_two_steps": "the answer has fewer than two steps",
    "horizon_beyond_answer": "the horizon reaches beyond the answer's last step",
    "view_refused": "the chat template cannot render a message on its own",
    "second_pair": "forward=inline holds one pair per example",
    "pair_truncated": f"the views were cut at {_NAME.max_length}",
    "no_user_message": "no user message before the answer",
    "no_answer_in_text": "the assistant only calls tools",
    "no_answer_cue": "no '####', '\\boxed{', '<answer>' or 'answer is' before a final answer, or no text before that cue",
    "no_reference": "no reference answer that a metric could use",
    "no_target_text": "no text in the column of the target views",
    "view_shorter_than_last_token": "a view has fewer tokens than its readout counts back",
    "beyond_positions": "the views need positions that the model does not have",
}


def reason_words(reason: str) -> str:
    """Return the words for the key of a reason."""
    return _REASONS.get(reason) or reason.replace("_", " ")


_UNREAD_ADVICE = (
    "move it into the question or the answer if the model needs it, or remove it; "
    f"--{_NAME.source_column} and --{_NAME.target_column} select other columns"
)
# The largest number of system prompts in a report, since a data set may have one per row.
_SYSTEM_PROMPTS = 8


class Counts:
    """Numbers, counts, first examples and flags that add up chunk by chunk."""

    def add(self, later: Self) -> None:
        """Add the counts of later rows of the same data set: numbers and counters add up; of other values, the
        earlier one is kept."""
        for name, value in vars(later).items():
            total = getattr(self, name)
            if isinstance(total, Counts):
                total.add(value)
            elif isinstance(total, Counter):
                total.update(value)
            elif isinstance(total, dict):
                # Earlier keys come first, and keep their values.
                setattr(self, name, {**total, **value, **total})
            else:
                # `type`, not `isinstance`: a flag is an int, too.
                setattr(self, name, total + value if type(total) is int else total or value)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as a plain record for JSON."""
        return {
            name: value.to_dict() if isinstance(value, Counts) else copy(value)
            for name, value in vars(self).items()
        }

    def read(self, record: Mapping[str, Any]) -> Self:
        """Set the counts to those of a record of `to_dict`, and return them. Further entries, which other versions may have
        written, are ignored."""
        for name, value in vars(self).items():
            recorded = record.get(name)
            if recorded is None:
                continue
            if isinstance(value, Counts):
                value.read(recorded)
            else:
                setattr(self, name, Counter(recorded) if isinstance(value, Counter) else recorded)
        return self


@dataclass
class StepCounts(Counts):
    """The origin of the steps of a data set.

    Attributes:
        splitter: name of the splitter for rows that do not list their steps; empty if the objective needs no steps.
        rows: kept rows whose steps were read.
        own: those among them that list their steps.
        unread: reason -> rows whose listed steps could not be used, so the splitter was used.
        first_unread: reason -> place of the first such row, and what is wrong.
    """

    splitter: str = ""
    rows: int = 0
    own: int = 0
    unread: Counter[str] = field(default_factory=Counter)
    first_unread: dict[str, str] = field(default_factory=dict)

    def count(self, place: str, steps: RowSteps) -> None:
        """Count one row."""
        self.rows += 1
        self.own += steps.own
        if steps.unread is not None:
            reason, what = steps.unread
            self.unread[reason] += 1
            self.first_unread.setdefault(reason, f"{place}: {what}")

    @property
    def words(self) -> str:
        """The origin of the steps in words: the rows themselves, the splitter, or the number of rows for each."""
        by_splitter = f"found by --{_NAME.step_splitter} {self.splitter}"
        if not self.own:
            return by_splitter
        if self.own == self.rows:
            return "listed in the rows"
        return f"listed in {self.own:,} of {counted(self.rows, 'row')}, else {by_splitter}"

    def lines(self) -> list[str]:
        """The counts, one fact per line; empty without a splitter."""
        if not self.splitter:
            return []
        lines = [f"steps: {self.words}"]
        for reason, rows in self.unread.most_common():
            why = f"{reason_words(reason)} (first: {self.first_unread[reason]})"
            lines.append(f"listed steps not used in {counted(rows, 'row')}: {why}")
        return lines


class DataWarning(NamedTuple):
    """A data quality warning.

    Attributes:
        name: a short key, such as ``one_step``.
        count, total: the number of rows, answers or examples that the warning concerns, and the number of all of them.
        text: the problem, with the numbers.
        advice: what it means and what to do.
    """

    name: str
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    total: int
    text: str
    advice: str


@dataclass
class PromptCounts(Counts):
    """How the answers of a data set begin, and which parts of them the chat template leaves out.

    Attributes:
        rows: rows that were counted; `answers`: their answers that were compared with the generation prompt.
        written: answers before which the template writes text that the generation prompt does not have.
        opened: answers whose generation prompt has text that the chat does not have.
        endings: `Opening.extra` -> last answers. Prompts for a model trained on this data omit the most common one.
        left_out: rows in which the template leaves out a part of an answer, or of thinking next to its content.
        empty: rows without any text, thinking or calls in the trained answers.
        first: name of one of these counts -> place and texts of the first such row.
        variables: `ChatRenderer.switches`.
    """

    rows: int = 0
    answers: int = 0
    written: int = 0
    opened: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    empty: int = 0
    first: dict[str, str] = field(default_factory=dict)
    variables: str = ""

    def count(
        self,
        place: str,
        messages: Chat,
        rendered: RenderedChat,
        variables: str,
    ) -> None:
        """Count the trained answers of a chat.

        Args:
            rendered: the chat as a `RenderedChat`.
            variables: `ChatRenderer.switches`.
        """
        self.rows += 1
        self.variables = variables
        answers = [message for message in messages if message["role"] == "assistant"]
        if not any(is_trained(message) and has_output(message) for message in answers):
            self.empty += 1
            self.first.setdefault("empty", place)
        # Users prompt for the next answer in a chat, so only the opening of the last answer counts in `endings`.
        last = ""
        for message, opening in zip(answers, rendered.openings, strict=True):
            if opening is None or not is_trained(message):
                continue
            self.answers += 1
            # If the row has thinking, the text before the answer is that thinking.
            if opening.written.strip() and REASONING not in message:
                self.written += 1
                self.first.setdefault("written", f"{place}: {quoted(opening.written)}")
            if opening.apart or opening.extra.strip():
                self.opened += 1
                extra = quoted(opening.extra) if opening.extra else "earlier in the chat"
                self.first.setdefault("opened", f"{place}: {extra}")
            last = opening.extra
        self.endings[last] += 1
        if rendered.left_out:
            self.left_out += 1
            self.first.setdefault("left_out", f"{place}: {quoted(rendered.left_out)}")

    def lines(self, warnings: bool = True) -> list[str]:
        """The trained text that the generation prompt does not have, and the warnings, one fact per line."""
        lines = []
        if self.written:
            lines.append(
                f"before {self._share(self.written)} the template writes text that its generation prompt does not have; it "
                f"is trained on as the beginning of the answer (first: {self.first['written']}){switch_hint(self.variables)}"
            )
        if warnings:
            lines += [f"warning: {warning.text}; {warning.advice}" for warning in self.warnings()]
        return lines

    def warnings(self) -> list[DataWarning]:
        """The differences between training and use, and the text that is missing in training."""
        warnings = []
        if self.opened:
            text = (
                f"the text before {self._share(self.opened)} differs from the generation prompt (first, what only the "
                f"generation prompt has: {self.first['opened']})"
            )
            remedy = (
                f"train on answers with their thinking, or give another --{_NAME.chat_template}"
            )
            # Only earlier turns differ: templates often drop their thinking.
            if not any(ending.strip() for ending in self.endings):
                remedy = f"--{_NAME.train_on} last trains only on the last answers"
            advice = (
                f"evaluate and generate prompt for a last answer as in training (--{_NAME.prompt_from} training), but other "
                f"programs do not: {remedy}{switch_hint(self.variables)}"
            )
            warnings.append(DataWarning("prompt_opened", self.opened, self.answers, text, advice))
        if self.left_out:
            rows = counted(self.left_out, "row")
            first = self.first["left_out"]
            text = f"the template leaves out part of the answer in {rows} (first: {first})"
            remedy = (
                f"give a --{_NAME.chat_template} that keeps it, or write thinking where this template reads it: in a key of "
                "its own (reasoning_content), or in the content, as <think>...</think>"
            )
            advice = f"the model is not trained on it: {remedy}{switch_hint(self.variables)}"
            warnings.append(DataWarning("prompt_left_out", self.left_out, self.rows, text, advice))
        if self.empty:
            text = f"the answer is empty in {counted(self.empty, 'row')} (first: {self.first['empty']})"
            advice = "such rows teach the model to stop at once: remove them"
            warnings.append(DataWarning("empty_answer", self.empty, self.rows, text, advice))
        return warnings

    def _share(self, answers: int) -> str:
        return f"{answers:,} of {counted(self.answers, 'answer')}"


@dataclass
class RowCounts(Counts):
    """The rows that were read from a data set.

    Attributes:
        source: file or data set, as messages name it.
        rows_read: all rows; `rows_skipped`: reason -> rows that cannot be used.
        first_skipped: reason -> place of the first such row, and what is wrong with it.
        unread: column, or key of messages, with text that is not read -> rows.
    """

    source: str
    _: KW_ONLY
    rows_read: int = 0
    rows_skipped: Counter[str] = field(default_factory=Counter)
    first_skipped: dict[str, str] = field(default_factory=dict)
    unread: Counter[str] = field(default_factory=Counter)

    def row_warnings(self) -> Iterator[DataWarning]:
        """Yield a warning for each part of rows that is not trained on."""
        total = self.rows_read
        for what, rows in self.unread.most_common():
            number = counted(rows, "row")
            text = f"the text of {what} is not read in {number}"
            yield DataWarning("unread", rows, total, text, _UNREAD_ADVICE)

    def skip(self, error: RowError, place: str, strict: bool = False) -> None:
        """Count a row that cannot be used; with `strict`, raise a DataError."""
        # Names of columns and messages of a template may contain line breaks.
        where = f"{place}: {said(error)}"
        if strict:
            raise DataError(f"{where} (--{_NAME.strict_data} stops at the first such row)")
        self.rows_skipped[error.reason] += 1
        self.first_skipped.setdefault(error.reason, where)

    def require(self, usable: object, what: str = "can be used") -> None:
        """Raise a DataError for a data set without a usable row: "none of 3 rows" and `what`."""
        if not self.rows_read:
            raise no_rows(self.source)
        if not usable:
            raise DataError(
                f"none of {self.rows_read:,} rows {what}; {'; '.join(self.skipped_lines())}"
            )

    def skipped_lines(self) -> list[str]:
        """The skipped rows, one line per reason."""
        return skipped_lines(dict(self.rows_skipped.most_common()), self.first_skipped)


def skipped_lines(skipped: Mapping[str, int], first: Mapping[str, str]) -> list[str]:
    """List skipped rows, one line per reason; for the arguments, see `RowCounts`."""
    return [
        f"skipped {rows:,}: {reason_words(reason)} (first: {first[reason]})"
        for reason, rows in skipped.items()
    ]


@dataclass
class DataReport(RowCounts):
    """Counts of one data set; every row is counted once as kept or skipped.

    Attributes:
        rows_kept: rows that are trained on.
        examples: examples of these rows; more than rows if long texts are cut into blocks.
        examples_without_pairs: reason -> kept rows that are used only for language modelling.
        first_without_target: the first row without a text in the column of the target views, and what is wrong with it.
        pairs: source/target pairs in the kept rows.
        pairs_dropped: reason -> pairs of the kept rows that cannot be used.
        answers_truncated: kept rows whose answer was cut at max_length.
        system_folded: rows whose system message was put into the user message (the template has no system role).
        steps: origin of the steps; empty for objectives without steps.
        prompts: how the answers begin, and which parts of them the template leaves out.
        system_prompts: the most common system messages -> chats that begin with them.
        without_system_prompt, other_system_prompts: chats with no system message, or with a less common one.
        end_token: the token that ends an answer: of the template, or the tokenizer's EOS, appended; None if no token does.
    """

    rows_kept: int = 0
    examples: int = 0
    examples_without_pairs: Counter[str] = field(default_factory=Counter)
    first_without_target: str = ""
    pairs: int = 0
    pairs_dropped: Counter[str] = field(default_factory=Counter)
    answers_truncated: int = 0
    system_folded: int = 0
    system_prompts: Counter[str] = field(default_factory=Counter)
    without_system_prompt: int = 0
    other_system_prompts: int = 0
    end_token: str | None = None
    fingerprint: str = ""
    tokens: int = 0
    labelled_tokens: int = 0
    steps: StepCounts = field(default_factory=StepCounts)
    prompts: PromptCounts = field(default_factory=PromptCounts)
    token_length: dict[str, int] = field(default_factory=dict)

    def add(self, later: Self) -> None:
        """Add as `Counts` does, and keep only the most common system prompts."""
        super().add(later)
        for text, count in self.system_prompts.most_common()[_SYSTEM_PROMPTS:]:
            del self.system_prompts[text]
            self.other_system_prompts += count

    def set_lengths(self, lengths: np.ndarray) -> None:
        """Set the token-length percentiles of the kept rows; `lengths` is (R,) int."""
        # `stepjepa prepare` loads this module, but needs no NumPy, which is slow to import.
        import numpy as np

        self.tokens = int(lengths.sum())
        if lengths.size:
            names = ("min", "p50", "p90", "p99", "max")
            values = np.percentile(lengths, (0, 50, 90, 99, 100), method="nearest")
            self.token_length = dict(zip(names, map(int, values), strict=True))

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> DataReport:
        """Return the report that a record holds."""
        return cls("").read(record)

    def lines(self, warnings: bool = True) -> list[str]:
        """The report, one fact per line. Without `warnings`, the distribution of the lengths takes the place of the lines on
        columns, steps and warnings, which `check` prints elsewhere."""
        skipped = self.rows_skipped.total()
        rows = (
            f"{counted(self.rows_read, 'row')} read, {self.rows_kept:,} kept, {skipped:,} skipped"
        )
        lines = [f"{self.source}: {rows}, {counted(self.pairs, 'pair')}"]
        if self.token_length:
            # Plain text has no turns.
            ending = f"; end of turn: {self.end_token or 'none'}" if self.prompts.rows else ""
            longest = f"up to {self.token_length['max']:,} per row"
            lines.append(
                f"{self.tokens:,} tokens, {self.labelled_tokens:,} labelled, {longest}{ending}"
            )
        if warnings:
            lines += self.steps.lines()
            lines += [f"warning: {text}: {advice}" for *_, text, advice in self.row_warnings()]
        elif self.token_length:
            lengths = ", ".join(f"{name} {value:,}" for name, value in self.token_length.items())
            lines.append(f"tokens per row: {lengths}")
        if self.examples > self.rows_kept:
            lines.append(
                f"{self.examples:,} examples: texts are cut into blocks of {_NAME.max_length}"
            )
        lines += self.skipped_lines()
        for reason, count in self.examples_without_pairs.most_common():
            first = f" (first: {self.first_without_target})" if reason == "no_target_text" else ""
            lines.append(
                f"{count:,} without a pair (plain language modelling): {reason_words(reason)}{first}"
            )
            if reason == "fewer_than_two_steps" and 2 * count > self.rows_kept:
                lines.append(
                    "most answers have only one step; the objective llm_jepa needs no steps"
                )
        for reason, count in self.pairs_dropped.most_common():
            lines.append(f"{counted(count, 'pair')} dropped: {reason_words(reason)}")
        if self.answers_truncated:
            lines.append(f"{counted(self.answers_truncated, 'answer')} cut at {_NAME.max_length}")
        if self.system_folded:
            folded = counted(self.system_folded, "system message")
            lines.append(f"{folded} put into the user message (the template has no system role)")
        return lines + self.prompts.lines(warnings)


def recorded_ending(reports: Mapping[str, Any]) -> str | None:
    """Return the end of the generation prompt that the training data did not have, from the data reports in a run's
    ``data_report.json``; None if no report has endings."""
    endings: Counter[str] = Counter()
    for name, report in reports.items():
        if name.startswith("train") and isinstance(report, dict):
            prompts = report.get("prompts") or {}
            endings.update(prompts.get("endings") or {})
    return endings.most_common(1)[0][0] if endings else None
