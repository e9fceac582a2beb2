"""What may be wrong with a data set: counted row by row while it is read, and the warnings that are made of the counts.

Texts are not kept: questions are compared by hashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.counts import Counts
from stepjepa.data.prepare.options import PrepareOptions
from stepjepa.data.prepare.rows import question_key
from stepjepa.data.report import REASONS
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import CharSpan, text_of
from stepjepa.training.options import ExampleOptions
from stepjepa.utils.text import counted, escaped, printable

if TYPE_CHECKING:
    from typing_extensions import Self

    from stepjepa.data.encode import CheckedChat
    from stepjepa.inspect.check.texts import TextStatistics
    from stepjepa.inspect.check.tokens import TokenStatistics

_NAME = Names(ExampleOptions, PrepareOptions)
RowKeys = tuple[int, int]  # hashes of a row's question, and of it with its answer

LONG_STEP = 2000  # characters of a step that is called very long

# A last step that is nothing but the answer: "#### 72", "\boxed{72}", "$\boxed{72}$.", "**\boxed{72}**".
_ANSWER_LINE = re.compile(
    r"\s*(?:####\s*\S+|(?:\*\*)?(?:\$\$?|\\\[|\\\()?\s*\\boxed\{[^{}\n]{0,60}\}\s*(?:\$\$?|\\\]|\\\))?\.?(?:\*\*)?)\s*"
)


@dataclass
class QualityCounts(Counts):
    """Counts over the usable chats of a data set.

    Attributes:
        steps: of answers with two or more.
        one_word_steps, long_steps: those of them that are one word; that are longer than `LONG_STEP` characters.
        longest_step: characters.
        rows_with_answer_line: rows with an answer of several steps whose last one is the final answer alone.
        answer_line_second: those of them in which it is the second step, which ``step_pairs`` first predicts.
        rows_cut_in_thoughts, rows_cut_in_blocks: rows that a plain split at the separator would cut inside a thinking
            block; inside code, display maths or a table.
        rows_with_system: rows that begin with a system message of some text.
        rows_with_empty_answer: rows with an answer that is blank.
        first: name of one of the above -> place of the first such row (of the longest step; the first row without a
            system message under ``rows_without_system``).
    """

    steps: int = 0
    one_word_steps: int = 0
    long_steps: int = 0
    longest_step: int = 0
    rows_with_answer_line: int = 0
    answer_line_second: int = 0
    rows_cut_in_thoughts: int = 0
    rows_cut_in_blocks: int = 0
    rows_with_system: int = 0
    rows_with_empty_answer: int = 0
    first: dict[str, str] = field(default_factory=dict)

    def add(self, more: Self) -> None:
        """See `Counts`."""
        longest = max(self, more, key=lambda one: one.longest_step)
        number, first = longest.longest_step, longest.first
        super().add(more)
        if number:
            self.longest_step, self.first["longest_step"] = number, first["longest_step"]

    def count(self, place: str, chat: CheckedChat, steps: Sequence[list[CharSpan]], separator: str) -> None:
        """Count one chat.

        Args:
            steps: the spans of each answer's steps.
            separator: at which a plain split would cut.
        """
        first, answers = chat.messages[0], chat.answers
        system = first["role"] == "system" and bool(first["content"].strip())
        several = [(answer, spans) for answer, spans in zip(answers, steps, strict=True) if len(spans) > 1]
        views = [answer[start:end] for answer, spans in several for start, end in spans]
        closing = [len(spans) for answer, spans in several if _ANSWER_LINE.fullmatch(answer, *spans[-1])]
        inside = [kind for answer in answers if separator in answer for kind in cut_blocks(answer, separator)]
        longest = max(map(len, views), default=0)
        self.steps += len(views)
        self.answer_line_second += 2 in closing
        for name, number in (
            ("rows_with_system", system),
            ("rows_with_empty_answer", not all(map(str.strip, answers))),
            ("rows_with_answer_line", bool(closing)),
            ("rows_cut_in_thoughts", True in inside),
            ("rows_cut_in_blocks", False in inside),
            ("one_word_steps", sum([len(view.split(None, 1)) == 1 for view in views])),
            ("long_steps", longest > LONG_STEP and sum(len(view) > LONG_STEP for view in views)),
        ):
            if number:
                setattr(self, name, getattr(self, name) + number)
                self.first.setdefault(name, place)
        if not system:
            self.first.setdefault("rows_without_system", place)
        if longest > self.longest_step:
            self.longest_step, self.first["longest_step"] = longest, place


def cut_blocks(text: str, separator: str) -> list[bool]:
    """For each block in which `separator` stands, whether it is one of thoughts, not of code, display maths or a table."""
    source = text_of(text)
    return [span in source.thoughts for span in source.blocks if text.find(separator, *span) >= 0]


def row_keys(question: str, answer: str) -> RowKeys | None:
    """The hashes of a row; None for a blank question, which is no question."""
    if not question.strip():
        return None
    key = question_key(question)
    return key, hash((key, question_key(answer)))


@dataclass
class Repeats:
    """Rows that ask what an earlier row asks (`prepare.rows.question_key`: letter case and white space aside).

    Attributes:
        rows: such rows.
        same_answer: those of them whose answer is that of an earlier row with this question, too.
        first: places of the first such row and of the one that it repeats.
    """

    rows: int = 0
    same_answer: int = 0
    first: tuple[str, str] | None = None
    _questions: dict[int, int] = field(default_factory=dict, repr=False)
    _whole: set[int] = field(default_factory=set, repr=False)

    def count(self, rows: RowSource, number: int, keys: RowKeys) -> None:
        """Count row `number` of `rows`."""
        key, whole = keys
        if key in self._questions:
            self.rows += 1
            self.same_answer += whole in self._whole
            self.first = self.first or (rows.place(self._questions[key]), rows.place(number))
        else:
            self._questions[key] = number
        self._whole.add(whole)

    def find(self, question: str) -> int | None:
        """The number of the first row with this question, None if there is none."""
        return self._questions.get(question_key(question)) if question.strip() else None

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        return {"rows": self.rows, "same_answer": self.same_answer, "first": self.first}


@dataclass
class Leak:
    """Rows of an evaluation file whose question stands in the training file.

    Attributes:
        source: the evaluation file.
        rows, skipped: rows that were compared, and those that cannot be used.
        found: rows with a question of the training file.
        first: place of the first such row, and of the training row.
    """

    source: str
    rows: int = 0
    skipped: int = 0
    found: int = 0
    first: tuple[str, str] | None = None


@dataclass(frozen=True)
class DataWarning:
    """A warning.

    Attributes:
        name: a short key, such as ``one_step``.
        count, total: how many, and of how many.
        text: what was found, with the numbers.
        advice: what it means and what to do.
    """

    name: str
    count: int
    total: int
    text: str
    advice: str


class _Count(NamedTuple):
    """How many of how many there is a warning of, where the share is above a bound; as text ``3 of 12 rows (25.0 %)``."""

    name: str
    number: int
    total: int
    above: float = 0.0
    what: str = "row"

    def __str__(self) -> str:
        share = 100 * self.number / max(self.total, 1)
        return f"{self.number:,} of {counted(self.total, self.what)} ({share:.1f} %)"


_Finding = tuple[_Count, str, str]  # with what was found and what it means


def text_warnings(found: TextStatistics, steps: bool = True) -> list[DataWarning]:
    """What the text of a data set gives reason to warn of; with `steps` also of what matters to objectives with steps."""
    rules = [_of_rows]
    if found.chats and not found.plain_text:
        rules = [*([_of_steps] if steps else []), _of_chats, _of_rows]
    return _warnings(finding for rule in rules for finding in rule(found))


def token_warnings(found: TokenStatistics) -> list[DataWarning]:
    """What the tokenizer and the options of the run make of the data set that a user should know."""
    return _warnings(_of_tokens(found))


def _warnings(findings: Iterator[_Finding]) -> list[DataWarning]:
    return [DataWarning(*count[:3], *texts) for count, *texts in findings if count.number > count.above * count.total]


def _first(found: TextStatistics, *places: str) -> str:
    """Places in the data set, without its name."""
    return printable(f"first: {' and '.join(place.removeprefix(f'{found.source} ') for place in places)}")


def _of_steps(found: TextStatistics) -> Iterator[_Finding]:
    """What matters to objectives with steps alone."""
    signs, steps, splitter, better = found.signs, found.steps, f"--{_NAME.step_splitter}", found.better_splitter

    def first(sign: str) -> str:
        return _first(found, signs.first.get(sign, ""))

    count = _Count("one_step", found.chats - found.rows_with_steps, found.chats, above=0.5)
    remedy = "for step_jepa, separate the steps"
    if better is not None:
        remedy = f"{found.use_better}, which finds two or more in {found.other_splitters[better]:,}"
    yield (
        count,
        f"{count} have one step ({found.found_by})",
        f"they make no pair for step_jepa and train as plain language modelling; {remedy}; llm_jepa needs no steps",
    )
    for reason, unread in steps.unread.items():
        count = _Count(f"own_{reason}", unread, steps.rows)
        where = _first(found, steps.first_unread[reason])
        yield (
            count,
            f"{count} hold steps that cannot be taken: {REASONS[reason]} ({where})",
            f"their answers are split by {splitter} {steps.splitter} instead: the texts of the list must follow each other "
            f"in the answer as they are; or name another --{_NAME.steps_column}",
        )
    count = _Count("other_total_steps", steps.other_totals, steps.rows)
    yield (
        count,
        f"in {count} the number of steps is not what total_steps says ({_first(found, steps.first_other_total)})",
        f"training pairs the steps that are found: choose another {splitter}, or give the rows their steps in a column "
        "(stepjepa prepare writes them)",
    )
    count = _Count("one_word_steps", signs.one_word_steps, signs.steps, above=0.05, what="step")
    yield (
        count,
        f"{count} are one word ({first(count.name)})",
        f"so short a view says little: choose another {splitter}, or let stepjepa prepare --{_NAME.min_step_length} 20 join "
        "short steps to their neighbours",
    )
    count = _Count("long_steps", signs.long_steps, signs.steps, above=0.01, what="step")
    longest = f"{signs.longest_step:,} ({first('longest_step').removeprefix('first: ')})"
    yield (
        count,
        f"{count} are longer than {LONG_STEP:,} characters; the longest has {longest}",
        f"one vector stands for a complete step, and its copy costs as many tokens: choose a finer {splitter}, or take "
        "thinking blocks out with stepjepa prepare",
    )
    count = _Count("answer_line", signs.rows_with_answer_line, found.rows_with_steps, above=0.05)
    pairs = f"--{_NAME.step_pairs}"
    yield (
        count,
        f"in {count} with steps the last step is the final answer alone ({first('rows_with_answer_line')})",
        f"{pairs} first predicts it in {signs.answer_line_second:,} of them, where it is the second step; {pairs} all in "
        "each. stepjepa prepare writes it at the end of the step before",
    )
    published = ", as in the published code," if found.plain_separator == "\n\n" else ""
    for name, rows, where in (
        ("cut_in_blocks", signs.rows_cut_in_blocks, "code, display maths or a table"),
        ("cut_in_thoughts", signs.rows_cut_in_thoughts, "a thinking block"),
    ):
        count = _Count(name, rows, found.chats)
        yield (
            count,
            f"in {count} {escaped(found.plain_separator)} is inside {where} ({first(f'rows_{name}')})",
            f"no step is cut there, so there is nothing to do; a plain split{published} would cut there, and count more "
            "steps",
        )


def _of_chats(found: TextStatistics) -> Iterator[_Finding]:
    signs, prompt = found.signs, f"--{_NAME.system_prompt}"
    without = found.chats - signs.rows_with_system
    if without == found.chats:
        yield (
            _Count("no_system_prompt", without, found.chats),
            f"no row of {found.chats:,} has a system message",
            f"right if the model will be asked without one; else give it with {prompt} TEXT, in training and in use",
        )
    else:
        count = _Count("mixed_system_prompt", without, found.chats)
        where = _first(found, signs.first.get("rows_without_system", "")).replace("first", "first without", 1)
        yield (
            count,
            f"{count} have no system message and the others have one ({where})",
            f"the model learns two kinds of chats: give the one that is missing with {prompt} TEXT, or take it out of all "
            "rows",
        )
    count = _Count("empty_answers", signs.rows_with_empty_answer, found.chats)
    yield (
        count,
        f"{count} have an empty answer ({_first(found, signs.first.get('rows_with_empty_answer', ''))})",
        "they teach the model to say nothing: fill them in, or remove the rows",
    )


def _of_rows(found: TextStatistics) -> Iterator[_Finding]:
    for name, rows, text, advice in found.row_warnings():
        yield _Count(name, rows, found.rows_read), text, advice
    repeats, leak = found.repeats, found.leak
    where = _first(found, *(repeats.first or ()))
    never = "and never split them over training and evaluation"
    if found.plain_text:
        count = _Count("duplicate_texts", repeats.rows, found.rows_usable)
        advice = f"remove them: what is repeated is learnt by heart; {never}"
        yield count, f"{count} repeat the text of an earlier one ({where})", advice
    else:
        count = _Count("duplicate_questions", repeats.rows, found.rows_usable)
        copies = repeats.same_answer == repeats.rows
        remedy = "remove them" if copies else "several answers to a question may be meant, copies hardly are"
        yield (
            count,
            f"{count} repeat the question of an earlier one, {repeats.same_answer:,} of them with the same answer ({where})",
            f"{remedy} (stepjepa prepare --{_NAME.dedup} keeps the first of each); {never}",
        )
    if leak is not None:
        count = _Count("eval_in_train", leak.found, leak.rows)
        where = printable(" and ".join(leak.first or ()))
        yield (
            count,
            f"{count} of {printable(leak.source)} ask what a row of the training file asks (first: {where})",
            "an evaluation on them measures memory: remove them from one of the two files",
        )


def _of_tokens(found: TokenStatistics) -> Iterator[_Finding]:
    data, cut, chats = found.data, found.truncation, 0 if found.plain_text else found.data.rows_kept
    if found.objective.makes_pairs and not data.pairs:
        yield (
            _Count("no_pairs", data.examples, data.examples),
            f"no example of {data.examples:,} has a pair for {found.objective.label}",
            "stepjepa train would stop: see the reasons under Pairs",
        )
    for name, number, total, text, advice in data.prompts.warnings():
        yield _Count(f"prompt_{name}", number, total), printable(text), printable(advice)
    if cut is not None:
        count, longest = _Count("truncated", cut.answers_cut + cut.rows_without_room, data.rows_read), _NAME.max_length
        most, every = cut.holds["99"], cut.holds["100"]
        enough = f"{every:,}, or to {most:,} for 99 % of the rows" if most < every else f"{every:,}"
        yield (
            count,
            f"{count} are cut or skipped at {longest} {cut.max_length:,}",
            f"the model does not learn how such answers end: raise --{longest} to {enough}, or take them out",
        )
    count = _Count("one_token_targets", found.one_token_targets, data.pairs, above=0.05, what="pair")
    yield (
        count,
        f"{count} have a target of a single token",
        "such a target is hardly more than that token's embedding: choose other views, or write short steps at the end of "
        "the step before (stepjepa prepare does)",
    )
    folded_in = counted(data.system_folded, "system message")
    yield (
        _Count("folded_system", data.system_folded, data.rows_read),
        f"the chat template has no system role: {folded_in} are part of the first user message",
        f"nothing to do in training; in use, put it there as well, or choose another --{_NAME.chat_template}",
    )
    unknown = found.unknown_tokens or 0
    yield (
        _Count("unknown_tokens", unknown, data.tokens, above=0.001),
        f"{unknown:,} of {data.tokens:,} tokens ({100 * unknown / data.tokens:.2f} %) are the tokenizer's unknown token",
        "the model cannot read or write them: take a tokenizer that knows these characters (any byte-level one does)",
    )
    end, examples = escaped(found.end_of_turn or ""), counted(chats, "example")
    if found.end_of_turn is None:
        yield (
            _Count("no_end_of_turn", chats, chats),
            "nothing ends an answer: the template writes no special token and the tokenizer has no EOS",
            f"the model is not taught to stop: give the tokenizer an eos_token, or a --{_NAME.chat_template} that ends "
            "turns",
        )
    elif not found.end_labelled:
        yield (
            _Count("end_of_turn_unlabelled", chats, chats),
            f"--{_NAME.labels} reference leaves {end}, the end of turn, out of {examples}",
            f"as the published code does; the model is not taught to stop: leave --{_NAME.labels} out unless that is to be "
            "compared",
        )
    elif "padding" in found.end_is:
        yield (
            _Count("end_of_turn_is_padding", chats, chats),
            f"the end of turn, {end}, is also the {' and '.join(found.end_is)} token, in {examples}",
            "labels go by position here, so it is trained on; code that leaves out padding by its id, as the published code "
            "does, would never teach the model to stop. For such code give the tokenizer another pad_token",
        )
