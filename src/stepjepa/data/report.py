"""The data report: what was read, kept and skipped, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.columns import REASONING, LeftOver, is_trained
from stepjepa.data.options import DataOptions, PromptOptions, StepsOptions
from stepjepa.data.rendered import RenderedChat, quoted
from stepjepa.data.steps import RowSteps, StepRules
from stepjepa.errors import DataError, RowError, no_rows, said
from stepjepa.utils.text import counted, escaped

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self

_NAME = Names(DataOptions, StepsOptions, PromptOptions)
LONGER = "longer_than_max_length"
# What a reason says whose key, with spaces in it, does not say it all.
_REASONS = {
    "not_an_object": "the row is no object with columns",
    LONGER: f"longer than {_NAME.max_length}, left out by {_NAME.drop_longer}",
    "no_known_columns": "none of the columns that make a chat",
    "no_messages": "'messages' is empty or no list of messages",
    "no_steps": "the steps column is missing, or no list of texts",
    "steps_not_found": "the steps in the row do not stand in its answer",
    "no_room_for_answer": f"the prompt alone fills {_NAME.max_length}",
    "nothing_to_learn": "the answer is empty and nothing ends its turn",
    "answer_truncated": f"the answer was cut at {_NAME.max_length}",
    "fewer_than_two_steps": "the answer has fewer than two steps",
    "horizon_beyond_answer": "the horizon reaches beyond the answer's last step",
    "view_refused": "the chat template cannot write a message alone",
    "second_pair": "forward=inline holds one pair an example",
    "pair_truncated": f"the views were cut at {_NAME.max_length}",
    "no_user_message": "no user message before the answer",
    "no_answer_in_text": "the assistant calls tools alone",
    "no_answer_cue": "no '####', '\\boxed{', '<answer>' or 'answer is' before a final answer, or nothing in front of it",
    "no_reference": "nothing that a metric could compare with",
    "no_target_text": "no text in the column of the target views",
    "view_shorter_than_last_token": "a view has fewer tokens than its readout counts back",
    "beyond_positions": "the views need positions that the model has not",
}


def reason_words(reason: str) -> str:
    """What the key of a reason stands for."""
    return _REASONS.get(reason) or reason.replace("_", " ")


# What rows have that is not trained, after their number, and what to do about it.
NOTES = {
    "preference_pairs": (
        "with a rejected answer, which is not read; the other one (messages, answer or chosen) is trained",
        "right for fine-tuning on the preferred answers; a preference loss such as DPO is another method",
    ),
    "ends_on_user": (
        "with a message of the user at the end, which is context; the answers before it are trained",
        "right if the chats were cut there; else add the answer, or remove the message",
    ),
}
_UNREAD_ADVICE = (
    "write it into the question or the answer if the model needs it, or remove it; "
    f"--{_NAME.source_column} and --{_NAME.target_column} name other columns"
)
_SYSTEM_PROMPTS = 8  # kept, however many there are


class Counts:
    """Numbers, counts, first examples and flags that are made chunk by chunk."""

    def add(self, more: Self) -> None:
        """Count in further rows of the same data set: numbers and counts add up; of all else the earlier stays."""
        for name, value in vars(more).items():
            own = getattr(self, name)
            if isinstance(own, Counts):
                own.add(value)
            elif isinstance(own, Counter):
                own.update(value)
            elif isinstance(own, dict):
                setattr(self, name, {**own, **value, **own})  # in order of their first rows
            else:
                setattr(self, name, own + value if type(own) is int else own or value)

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        values = {name: value.to_dict() if isinstance(value, Counts) else value for name, value in vars(self).items()}
        return {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}


@dataclass
class StepCounts(Counts):
    """Where the steps of a data set's rows come from.

    Attributes:
        splitter: name of the splitter that serves rows which do not hold their steps; empty where no steps are looked for.
        looked: whether rows may hold them.
        rows: rows whose steps were looked for, and kept.
        own: those of them whose steps are their own.
        unread: reason -> rows with steps that could not be taken; the splitter served them.
        first_unread: reason -> the first such row's place and what is wrong.
    """

    splitter: str = ""
    looked: bool = False
    rows: int = 0
    own: int = 0
    unread: Counter[str] = field(default_factory=Counter)
    first_unread: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, rules: StepRules) -> StepCounts:
        """Counts of a data set that is read by `rules`, still empty."""
        return cls(rules.name, rules.column is not None)

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
        """Where they come from: the rows themselves, the splitter, or which in how many rows."""
        by = f"found by --{_NAME.step_splitter} {self.splitter}" + (
            ", for each answer" if self.splitter == "auto" else ""
        )
        if not self.looked or (self.rows and not self.own):
            return by
        own = "the row's own" if self.rows == 1 else "the rows' own"
        if not self.rows:
            return f"{own}, else {by}"
        return own if self.own == self.rows else f"{own} in {self.own:,}, {by} in {self.rows - self.own:,}"

    def lines(self) -> list[str]:
        """The counts, one fact a line; none where no steps are looked for."""
        if not self.splitter:
            return []
        lines = [f"steps: {self.words}"]
        for reason, rows in self.unread.most_common():
            why = f"{reason_words(reason)} (first: {self.first_unread[reason]})"
            lines.append(f"own steps not taken in {counted(rows, 'row')}: {why}")
        return lines


# Names the option with which the template has nothing to report; see `ChatRenderer.switch`.
_Switch = Callable[[str, Sequence[Mapping[str, str]]], str]


class PromptWarning(NamedTuple):
    """A warning: the name of its count in `PromptCounts`, how many rows or answers of how many, what is wrong, and what to
    do."""

    name: str
    number: int
    total: int
    text: str
    advice: str


@dataclass
class PromptCounts(Counts):
    """How the answers of a data set begin, and what the chat template leaves out of them.

    Attributes:
        rows: that were counted; `answers`: of them that were compared with their generation prompt.
        written: answers before which the template writes text that the generation prompt does not have.
        opened: answers whose generation prompt has text that the chat does not have.
        endings: `Opening.extra` -> last answers, the most common ones; what a model of this data is asked without.
        left_out: rows with an answer, or thinking of it in a key of its own, of which the template leaves out a part;
            `characters_left_out` of them.
        first: name of one of these counts -> place and texts of the first such row.
        switches: name of one of these counts -> the option with which the template has no such row.
    """

    rows: int = 0
    answers: int = 0
    written: int = 0
    opened: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    characters_left_out: int = 0
    first: dict[str, str] = field(default_factory=dict)
    switches: dict[str, str] = field(default_factory=dict)

    def count(self, place: str, messages: Sequence[Mapping[str, str]], rendered: RenderedChat, switch: _Switch) -> None:
        """Count the answers of a chat that are trained.

        Args:
            rendered: the chat as a `RenderedChat`.
            switch: see `ChatRenderer.switch`.
        """
        self.rows += 1
        answers = [message for message in messages if message["role"] == "assistant"]
        last = ""
        for message, opening in zip(answers, rendered.openings, strict=True):
            if opening is None or not is_trained(message):
                continue
            self.answers += 1
            if opening.written.strip() and REASONING not in message:
                self.written += 1
                self._note("written", f"{place}: {quoted(opening.written)}", messages, switch)
            if opening.apart or opening.extra.strip():
                self.opened += 1
                prompt = quoted(opening.quoted + opening.extra)
                self._note("opened", f"{place}: {quoted(opening.quoted)} and {prompt}", messages, switch)
            last = opening.extra
        self.endings[last] += 1
        if rendered.characters_left_out:
            self.left_out += 1
            self.characters_left_out += rendered.characters_left_out
            self._note("left_out", f"{place}: {quoted(rendered.left_out)}", messages, switch)

    def _note(self, name: str, first: str, messages: Sequence[Mapping[str, str]], switch: _Switch) -> None:
        """Keep the first row of a count, and the template's switch for it."""
        if name not in self.first:
            self.first[name] = first
            self.switches[name] = switch(name, messages)

    def lines(self, warnings: bool = True) -> list[str]:
        """What is trained on that the generation prompt does not have, and the warnings, one fact a line."""
        lines = []
        if self.written:
            switch = self.switches["written"]
            remedy = f"; {switch} puts it into the prompt" if switch else ""
            lines.append(
                f"before {self._share(self.written)} the template writes text that its generation prompt does not have; it "
                f"is trained on as the beginning of the answer{remedy} (first: {self.first['written']})"
            )
        if warnings:
            lines += [f"warning: {one.text}; {one.advice}" for one in self.warnings()]
        return lines

    def warnings(self) -> list[PromptWarning]:
        """What differs between training and use, or is missing in training."""
        warnings = []
        if self.opened:
            text = (
                f"the text before {self._share(self.opened)} is not what the template asks with (first, in training and in "
                f"the generation prompt: {self.first['opened']})"
            )
            switch = f"train on answers with their thinking, or give another --{_NAME.chat_template}"
            if not any(ending.strip() for ending in self.endings):  # those of earlier turns alone
                switch = f"--{_NAME.train_on} last trains the last answers alone"
            advice = (
                f"evaluate and generate ask for a last answer as in training (--{_NAME.prompt_from} training), others do "
                f"not: {self.switches['opened'] or switch}"
            )
            warnings.append(PromptWarning("opened", self.opened, self.answers, text, advice))
        if self.left_out:
            rows, size = counted(self.left_out, "row"), counted(self.characters_left_out, "character")
            first = self.first["left_out"]
            text = f"the template leaves out part of the answer in {rows}, {size} in all (first: {first})"
            switch = (
                f"give a --{_NAME.chat_template} that keeps it, or write thinking of a key of its own into the content, as "
                "<think>...</think>"
            )
            advice = f"the model is not trained on it: {self.switches['left_out'] or switch}"
            warnings.append(PromptWarning("left_out", self.left_out, self.rows, text, advice))
        return warnings

    def _share(self, answers: int) -> str:
        return f"{answers:,} of {counted(self.answers, 'answer')}"


@dataclass
class RowCounts(Counts):
    """Rows of a data set that were read.

    Attributes:
        source: file or data set, as messages name it.
        rows_read: rows; `rows_skipped`: reason -> those that cannot be used.
        first_skipped: reason -> the first such row's place and what is wrong with it.
        unread: what holds texts that nobody reads (a column, a key of the messages) -> rows.
        other_columns: column of ids, categories, scores and the like -> rows.
        notes: key of `NOTES` -> rows.
    """

    source: str
    rows_read: int = field(default=0, kw_only=True)
    rows_skipped: Counter[str] = field(default_factory=Counter, kw_only=True)
    first_skipped: dict[str, str] = field(default_factory=dict, kw_only=True)
    unread: Counter[str] = field(default_factory=Counter, kw_only=True)
    other_columns: Counter[str] = field(default_factory=Counter, kw_only=True)
    notes: Counter[str] = field(default_factory=Counter, kw_only=True)

    def see_left_over(self, rest: LeftOver) -> None:
        """Count what of a row is not trained."""
        self.unread.update(rest.texts)
        self.other_columns.update(rest.others)
        self.notes.update(rest.notes)

    def row_warnings(self) -> Iterator[tuple[str, int, str, str]]:
        """What of the rows is not trained: a short key, how many rows, what is so, and what to do about it."""
        for what, rows in self.unread.most_common():
            yield "unread", rows, f"{what}: text in {counted(rows, 'row')} that is not read", _UNREAD_ADVICE
        for name, rows in self.notes.most_common():
            what, advice = NOTES[name]
            yield name, rows, f"{counted(rows, 'row')} {what}", advice

    def other_lines(self) -> list[str]:
        """The columns that describe the rows, in one line; none without any."""
        names = sorted(name for name in self.other_columns if f"column {name!r}" not in self.unread)
        return [f"columns not read (ids, categories and the like): {', '.join(map(escaped, names))}"] if names else []

    def skip(self, error: RowError, place: str, strict: bool = False) -> None:
        """Count a row that cannot be used; with `strict` a DataError."""
        # Names of columns and a template's own words may hold line breaks.
        where = f"{place}: {said(error)}"
        if strict:
            raise DataError(f"{where} (--{_NAME.strict_data} stops at the first such row)")
        self.rows_skipped[error.reason] += 1
        self.first_skipped.setdefault(error.reason, where)

    def require(self, usable: object, what: str = "can be used") -> None:
        """Refuse a data set without a usable row, by a DataError whose "none of 3 rows ..." `what` ends."""
        if not self.rows_read:
            raise no_rows(self.source)
        if not usable:
            raise DataError(f"none of {self.rows_read:,} rows {what}; {'; '.join(self.skipped_lines())}")

    def skipped_lines(self) -> list[str]:
        """What was skipped, a line for each reason."""
        return skipped_lines(dict(self.rows_skipped.most_common()), self.first_skipped)


def skipped_lines(skipped: Mapping[str, int], first: Mapping[str, str]) -> list[str]:
    """Skipped rows, a line for each reason; the arguments are those of `RowCounts`."""
    return [f"skipped {rows:,}: {reason_words(one)} (first: {first[one]})" for one, rows in skipped.items()]


@dataclass
class DataReport(RowCounts):
    """Counts of one data set; every row is counted once as kept or skipped.

    Attributes:
        rows_kept: rows that are trained on.
        examples: what they became; more than rows where long texts are cut into blocks.
        examples_without_pairs: reason -> kept rows that train as plain language modelling only.
        first_without_target: the first row without a text in the column of the target views, and what is wrong with it.
        pairs: source/target pairs in the kept rows.
        pairs_dropped: reason -> pairs of the kept rows that were found but cannot be used.
        answers_truncated: kept rows whose answer was cut at max_length.
        system_folded: rows whose system message was put into the user message (template without a system role).
        steps: where the steps come from; empty for objectives that need none.
        prompts: how the answers begin, and what the template leaves out of them.
        system_prompts: the most common system messages -> chats that begin with them.
        without_system_prompt, other_system_prompts: chats that have none, or one that is not among those.
        end_of_turn: what ends an answer, as it is printed; `end_token`: the token, None where there is none.
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
    end_of_turn: str = ""
    end_token: str | None = None
    fingerprint: str = ""
    tokens: int = 0
    labelled_tokens: int = 0
    steps: StepCounts = field(default_factory=StepCounts)
    prompts: PromptCounts = field(default_factory=PromptCounts)
    token_length: dict[str, int] = field(default_factory=dict)

    def see_system_prompt(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Count the system message of a chat that is kept."""
        if messages[0]["role"] == "system":
            self.system_prompts[messages[0]["content"]] += 1
        else:
            self.without_system_prompt += 1

    def add(self, more: Self) -> None:
        """See `Counts`; the system prompts are cut to the most common."""
        if self.end_token is None and more.end_token is not None:
            self.end_of_turn = more.end_of_turn
        super().add(more)
        for text, count in self.system_prompts.most_common()[_SYSTEM_PROMPTS:]:
            del self.system_prompts[text]
            self.other_system_prompts += count

    def set_lengths(self, lengths: np.ndarray) -> None:
        """Token-length percentiles of the kept rows; `lengths` is (R,) int."""
        import numpy as np  # not before tokens are counted

        self.tokens = int(lengths.sum())
        if lengths.size:
            names = ("min", "p50", "p90", "p99", "max")
            values = np.percentile(lengths, (0, 50, 90, 99, 100), method="nearest")
            self.token_length = {name: int(value) for name, value in zip(names, values, strict=True)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> DataReport:
        """The report that a record holds."""
        parts = {"steps": StepCounts, "prompts": PromptCounts}
        counts = {name: kind(**_known(kind, record.get(name) or {})) for name, kind in parts.items()}
        return cls(**{**_known(cls, record), **counts})

    def lines(self, warnings: bool = True) -> list[str]:
        """The report, one fact a line, with or without what `check` prints of the text: columns, steps and warnings."""
        rows = f"{counted(self.rows_read, 'row')} read, {self.rows_kept:,} kept"
        skipped = self.rows_skipped.total()
        lines = self._unusual(warnings)
        if warnings:
            lines += self.other_lines()
            lines += self.steps.lines()[:1]
        if self.token_length:
            lengths = ", ".join(f"{name} {value:,}" for name, value in self.token_length.items())
            lines.append(f"tokens a row: {lengths}; {self.tokens:,} in all, {self.labelled_tokens:,} labelled")
            if self.end_of_turn:
                lines.append(f"end of turn: {self.end_of_turn}")
        first = f"{self.source}: {rows}, {skipped:,} skipped, {counted(self.pairs, 'pair')}"
        return [first, *(f"  {line}" for line in lines)]

    def brief(self, details: bool = True) -> list[str]:
        """What a run prints at its start: a line of counts, `details`, and a line for everything unusual."""
        counts = [counted(self.rows_read, "row")]
        skipped = self.rows_skipped.total()
        if skipped:
            counts.append(f"{skipped:,} skipped")
        counts.append(counted(self.pairs, "pair"))
        tokens = f"{self.tokens:,} tokens, {self.labelled_tokens:,} labelled"
        lines = [f"{self.source}: {', '.join(counts)}; {tokens}"]
        if details and self.token_length:
            longest = f"rows of up to {self.token_length['max']:,} tokens"
            if self.end_of_turn:
                longest += f", end of turn {self.end_of_turn}"
            lines.append(longest)
            lines += self.steps.lines()[:1]
        return [*lines, *self._unusual()]

    def _unusual(self, warnings: bool = True) -> list[str]:
        """What is skipped, cut, left out or read in another way than most rows, one fact a line."""
        lines = []
        if self.examples > self.rows_kept:
            lines.append(f"{self.examples:,} examples: texts are cut into blocks of {_NAME.max_length}")
        lines += self.skipped_lines()
        if warnings:
            lines += [f"warning: {text}: {advice}" for _, _, text, advice in self.row_warnings()]
            lines += self.steps.lines()[1:]
        for reason, count in self.examples_without_pairs.most_common():
            first = f" (first: {self.first_without_target})" if reason == "no_target_text" else ""
            lines.append(f"{count:,} without a pair (plain language modelling): {reason_words(reason)}{first}")
            if reason == "fewer_than_two_steps" and 2 * count > self.rows_kept:
                lines.append("most answers have one step: llm_jepa needs no steps")
        for reason, count in self.pairs_dropped.most_common():
            lines.append(f"{counted(count, 'pair')} dropped: {reason_words(reason)}")
        if self.answers_truncated:
            lines.append(f"{counted(self.answers_truncated, 'answer')} cut at {_NAME.max_length}")
        if self.system_folded:
            folded = counted(self.system_folded, "system message")
            lines.append(f"{folded} put into the user message (template has no system role)")
        return lines + self.prompts.lines(warnings)


def _known(kind: Any, record: Mapping[str, Any]) -> dict[str, Any]:
    """What of a record are fields of a dataclass, counts as such."""
    kinds = {one.name: str(one.type) for one in fields(kind)}
    return {
        name: Counter(value) if "Counter" in kinds[name] else value for name, value in record.items() if name in kinds
    }


def trained_ending(counts: Iterable[Mapping[str, Any]]) -> str | None:
    """What the generation prompt has that the training data did not have, by the `PromptCounts` of a run's data sets as
    records hold them; None where they do not say."""
    endings: Counter[str] = Counter()
    for prompts in counts:
        for ending, answers in (prompts.get("endings") or {}).items():
            endings[ending] += answers
    return endings.most_common(1)[0][0] if endings else None


def recorded_ending(reports: Mapping[str, Any]) -> str | None:
    """`trained_ending` by the data reports of a run, as its ``data_report.json`` has them."""
    training = (one for name, one in reports.items() if name.startswith("train") and isinstance(one, dict))
    return trained_ending(one.get("prompts") or {} for one in training)
