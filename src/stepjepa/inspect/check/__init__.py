"""`check`: read a data set, count what is in it and what a model will see of it, and warn (``stepjepa check``)."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from stepjepa.config.option import Names, Unread, check_fields, option, options_of, unread_options
from stepjepa.data.options import ColumnOptions, StepsOptions
from stepjepa.data.prepare.options import PrepareOptions
from stepjepa.data.report import REASONS
from stepjepa.data.sources import RowSource
from stepjepa.inspect.check.quality import LONG_STEP
from stepjepa.inspect.check.texts import TextStatistics, read_texts
from stepjepa.inspect.check.tokens import TokenStatistics, read_tokens, share_of
from stepjepa.inspect.rows import tokenizer_of
from stepjepa.objectives.base import OBJECTIVES, find_objective
from stepjepa.training.options import ExampleOptions, JEPAOptions, without_effect
from stepjepa.utils.text import counted, escaped, printable

_WIDTH = 100


@dataclass
class FileOptions:
    """What ``stepjepa check`` reads and shows."""

    file: str | None = option(None, "The data file; usually written without --file.", "check")
    dataset_split: str = option("train", "Split of a Hub data set.", "check")
    eval_file: str | None = option(
        None, "A second file or data set, whose questions are looked for in the first.", "check"
    )
    eval_split: str = option("test", "Split of a Hub data set given as eval_file.", "check")
    model_name: str | None = option(
        None,
        "Tokenizer: a Hub id, a local folder, or a preset (tiny, mini: trained on the file). With one, the report says what "
        "a model will see of the file under the options of training.",
        "check",
    )
    per_device_train_batch_size: int = option(
        8, "Examples of a batch, for the padding.", "check", needs={"model_name": True}, at_least=1
    )
    seed: int = option(42, "Seed of the sampled rows.", "check", needs={"model_name": True})
    show: int = option(1, "How many rows to show.", "check", at_least=0)
    json: bool = option(False, "Print the report as one JSON object.", "check")


@dataclass
class CheckOptions(ExampleOptions, FileOptions):
    """All options of ``stepjepa check``; those of training mean what they mean there."""


_NAME = Names(CheckOptions, PrepareOptions)
# The options that the text statistics read, without a tokenizer and whatever the objective is.
_READ = {_NAME.objective, _NAME.system_prompt, _NAME.strict_data, *options_of(StepsOptions), *options_of(ColumnOptions)}


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


@dataclass(frozen=True)
class CheckReport:
    """What `check` returns; ``print`` it.

    Attributes:
        texts: statistics of the text.
        tokens: statistics as a model will see the data set; None without a tokenizer.
        warnings: data quality warnings.
        notes: what there is to say about the options.
    """

    texts: TextStatistics
    tokens: TokenStatistics | None
    warnings: list[DataWarning]
    notes: list[str]

    def __str__(self) -> str:
        lines = self.texts.lines()
        if self.tokens is not None:
            lines += ["", *self.tokens.lines(self.texts.rows_skipped)]
        lines += ["", *warning_lines(self.warnings), *(f"Note: {note}" for note in self.notes)]
        return printable("\n".join(folded(lines)))

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        tokens = {} if self.tokens is None else {"feeding": self.tokens.to_dict()}
        warnings = [asdict(warning) for warning in self.warnings]
        return {**self.texts.to_dict(), **tokens, "warnings": warnings, "notes": self.notes}


def check(
    data: Any,
    tokenizer: str | os.PathLike[str] | None = None,
    *,
    dataset_split: str = "train",
    eval_file: Any = None,
    eval_split: str = "test",
    per_device_train_batch_size: int = 8,
    seed: int = 42,
    show: int = 1,
    **options: Any,
) -> CheckReport:
    """Read a data set and report its messages, steps, unusable rows and warnings; with a tokenizer also what a model sees.

    Args:
        data: a file, a Hub data set's name, a `datasets.Dataset`, or a list of rows; `dataset_split` of a Hub data set.
        tokenizer: the Hub id or folder of a tokenizer, or a preset, whose tokenizer is trained on `data`.
        eval_file: a second data set, whose questions are looked for in `data`; `eval_split` of a Hub data set.
        per_device_train_batch_size: examples of a batch, for the padding.
        seed: of the rows that are sampled.
        show: how many rows to show.
        options: the method's, as for `JEPAConfig`. Without ``objective``, plain text is read as for ``split``.

    Raises:
        ConfigError: an option that cannot be used, or a tokenizer or template that cannot.
        DataError: the data cannot be read, no row can be used, or with ``strict_data`` the first row that cannot.

    Examples:
        >>> print(check("train.jsonl", "mini", objective="step_jepa"))
    """
    name = None if tokenizer is None else str(tokenizer)
    own = FileOptions(
        model_name=name, per_device_train_batch_size=per_device_train_batch_size, seed=seed, show=show
    )  # fmt: skip
    check_fields(own)
    method = JEPAOptions(**options)
    method.check()
    rows = RowSource(data, dataset_split)
    texts = read_texts(rows, method, show, None if eval_file is None else RowSource(eval_file, eval_split))
    asked = _NAME.objective in options
    warnings = text_warnings(texts, steps=find_objective(method.objective).needs_steps or not asked)
    if name is None:
        changed = [one for one, known in options_of(FileOptions).items() if getattr(own, one) != known.default]
        unread = [Unread(one, f"without --{_NAME.model_name}") for one in options if one not in _READ]
        notes = sorted(map(str, [*unread, *unread_options(own, changed)]))
        notes.append(
            f"--{_NAME.model_name} NAME adds what a model will see: pairs, truncation, tokens by kind, padding"
        )
        return CheckReport(texts, None, warnings, notes)
    if texts.plain_text and not asked:
        known = {one: find_objective(one) for one in OBJECTIVES}
        takes_text = next(one for one, about in known.items() if about.takes_text and about.makes_pairs)
        method = JEPAOptions(**{**options, _NAME.objective: takes_text})
        method.check()
    tokens = read_tokens(
        rows,
        tokenizer_of(rows, name, method),
        name,
        method,
        count=texts.rows_read,
        batch_size=per_device_train_batch_size,
        seed=seed,
    )
    notes = [str(one) for one in without_effect(method, set(options) - _READ)]
    return CheckReport(texts, tokens, [*warnings, *token_warnings(tokens)], notes)


def folded(lines: Sequence[str]) -> list[str]:
    """`lines` with those that are longer than a page is wide broken, indented further where they continue."""
    out = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        short = len(line) <= _WIDTH or len(line.split()) < 4
        out += [line] if short else _wrapped(line, _WIDTH, "", indent)
    return out


def warning_lines(warnings: Sequence[DataWarning], width: int = _WIDTH) -> list[str]:
    """The warnings in lines of `width` characters: what was found and what to do about it."""
    lines = [f"Warnings: {len(warnings)}" if warnings else "Warnings: none"]
    for number, warning in enumerate(warnings, 1):
        for mark, text in ((f"{number}.", warning.text), ("", warning.advice)):
            lines += _wrapped(f"{text[:1].upper()}{text[1:]}.", width, f"{mark:>4} ", " " * 5)
    return lines


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


class _Count(NamedTuple):
    """How many of how many there is a warning of, where the share is above a bound; as text ``3 of 12 rows (25.0 %)``."""

    name: str
    number: int
    total: int
    above: float = 0.0
    what: str = "row"

    def __str__(self) -> str:
        return share_of(self.number, self.total, self.what)


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

    count = _Count("one_step", found.rows_with_one_step, found.chats, above=0.5)
    remedy = "for step_jepa, separate the steps"
    if better is not None:
        remedy = f"{found.use_better}, which finds two or more in {found.other_splitters[better]:,}"
    yield (
        count,
        f"{count} have one step with {found.chosen}",
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
    signs, prompt, without = found.signs, f"--{_NAME.system_prompt}", found.rows_without_system
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
    data, cut, chats = found.data, found.truncation, found.chats
    if found.objective.makes_pairs and not data.pairs:
        yield (
            _Count("no_pairs", data.examples, data.examples),
            f"no example of {data.examples:,} has a pair for {found.objective.label}",
            "stepjepa train would stop: see the reasons under Pairs",
        )
    if cut is not None:
        count, longest = _Count("truncated", cut.chats, data.rows_read), _NAME.max_length
        yield (
            count,
            f"{count} are cut or skipped at {longest} {cut.max_length:,}",
            f"the model does not learn how such answers end: raise --{longest} to {cut.enough}, or take them out",
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
