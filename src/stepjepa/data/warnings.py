"""What a user should know about a data set before training on it: each with a number, and what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepjepa.data.format_report import FormatReport, counted, short_place
from stepjepa.data.report import REASONS
from stepjepa.data.signs import LONG_STEP
from stepjepa.utils.text import escaped, printable

# Smaller shares are no reason to warn.
ONE_WORD_SHARE = 0.05  # of the steps
LONG_SHARE = 0.01  # of the steps
ANSWER_LINE_SHARE = 0.05  # of the chats with steps


@dataclass(frozen=True)
class Caution:
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


def of_all(count: int, total: int, what: str) -> str:
    """``3 of 1,200 rows (0.2 %)``."""
    return f"{count:,} of {counted(total, what)} ({100 * count / max(total, 1):.1f} %)"


def warning_lines(cautions: Sequence[Caution], width: int = 100) -> list[str]:
    """The warnings in words, in lines of `width` characters: what was found and what to do about it."""
    lines = [f"Warnings: {len(cautions)}" if cautions else "Warnings: none"]
    for number, caution in enumerate(cautions, 1):
        for mark, text in ((f"{number}.", caution.text), ("", caution.advice)):
            lines += textwrap.wrap(
                _sentence(text),
                width,
                initial_indent=f"{mark:>4} ",
                subsequent_indent=" " * 5,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return lines


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def format_warnings(report: FormatReport, steps: bool = True) -> list[Caution]:
    """What the format check found to warn of.

    Args:
        steps: also of what matters to ``step_jepa`` alone.
    """
    found = []
    if report.chats and not report.plain_text:
        found += [*(_about_steps(report) if steps else ()), *_about_chats(report)]
    return [*found, *_about_repeats(report)]


def _about_steps(report: FormatReport) -> Iterator[Caution]:
    signs, chats = report.signs, report.chats
    alone = chats - report.rows_with_steps
    if 2 * alone > chats:
        better, advice = report.better_splitter, "for step_jepa, separate the steps"
        if better is not None:
            usual = "leave out --step_separator" if better == report.splitter else f"use --step_splitter {better}"
            advice = f"{usual}, which finds two or more in {report.other_splitters[better]:,}"
        yield Caution(
            "one_step",
            alone,
            chats,
            f"{of_all(alone, chats, 'row')} have one step with {report.chosen()}",
            f"they make no pair for step_jepa and train as plain language modelling; {advice}; llm_jepa needs no steps",
        )
    yield from _about_own_steps(report)
    if signs.one_word_steps > ONE_WORD_SHARE * signs.steps:
        yield Caution(
            "one_word_steps",
            signs.one_word_steps,
            signs.steps,
            f"{of_all(signs.one_word_steps, signs.steps, 'step')} are one word (first: {_first(report, 'one_word_steps')})",
            "so short a view says little: choose another --step_splitter, or let stepjepa prepare --min_step_length 20 "
            "join short steps to their neighbours",
        )
    if signs.long_steps > LONG_SHARE * signs.steps:
        yield Caution(
            "long_steps",
            signs.long_steps,
            signs.steps,
            f"{of_all(signs.long_steps, signs.steps, 'step')} are longer than {LONG_STEP:,} characters; the longest has "
            f"{signs.longest_step:,} ({_first(report, 'longest_step')})",
            "one vector stands for a whole step, and its copy costs as many tokens: choose a finer --step_splitter, or "
            "take thinking blocks out with stepjepa prepare",
        )
    with_steps, lines = report.rows_with_steps, signs.rows_with_answer_line
    if lines > ANSWER_LINE_SHARE * with_steps:
        yield Caution(
            "answer_line",
            lines,
            with_steps,
            f"in {of_all(lines, with_steps, 'row')} with steps the last step is the final answer alone "
            f"(first: {_first(report, 'rows_with_answer_line')})",
            f"--step_pairs first predicts it in {signs.answer_line_second:,} of them, where it is the second step; "
            "--step_pairs all in each. stepjepa prepare writes it at the end of the step before",
        )
    yield from _about_cuts(report)


def _about_own_steps(report: FormatReport) -> Iterator[Caution]:
    steps = report.steps
    for reason, rows in steps.unread.items():
        yield Caution(
            f"own_{reason}",
            rows,
            steps.rows,
            f"{of_all(rows, steps.rows, 'row')} hold steps that cannot be taken: {REASONS[reason]} (first: "
            f"{short_place(steps.first_unread[reason], report.source)})",
            f"their answers are split by --step_splitter {steps.splitter} instead: let the texts of the list stand in the "
            "answer as they are, one behind the other, or name another --steps_column",
        )
    if steps.other_totals:
        yield Caution(
            "other_total_steps",
            steps.other_totals,
            steps.rows,
            f"in {of_all(steps.other_totals, steps.rows, 'row')} the number of steps is not what total_steps says "
            f"(first: {short_place(steps.first_other_total, report.source)})",
            "training pairs the steps that are found: choose another --step_splitter, or give the rows their steps in a "
            "column (stepjepa prepare writes them)",
        )


def _about_cuts(report: FormatReport) -> Iterator[Caution]:
    signs, separator = report.signs, report.separator if report.splitter in ("separator", "lines") else "\n\n"
    published = ", as in the published code," if separator == "\n\n" else ""
    for name, where in (
        ("rows_cut_in_blocks", "code, display maths or a table"),
        ("rows_cut_in_thoughts", "a thinking block"),
    ):
        rows = getattr(signs, name)
        if rows:
            yield Caution(
                name.removeprefix("rows_"),
                rows,
                report.chats,
                f"in {of_all(rows, report.chats, 'row')} {escaped(separator)} stands inside {where} "
                f"(first: {_first(report, name)})",
                f"no step is cut there, so there is nothing to do; a plain split{published} would cut there, and count "
                "more steps",
            )


def _about_chats(report: FormatReport) -> Iterator[Caution]:
    signs, chats = report.signs, report.chats
    missing = chats - signs.rows_with_system
    if missing == chats:
        yield Caution(
            "no_system_prompt",
            missing,
            chats,
            f"no row of {chats:,} has a system message",
            "right if the model will be asked without one; else give it with --system_prompt TEXT, in training and "
            "in use",
        )
    elif missing:
        yield Caution(
            "mixed_system_prompt",
            missing,
            chats,
            f"{of_all(missing, chats, 'row')} have no system message and the others have one (first without: "
            f"{_first(report, 'rows_without_system')})",
            "the model learns two kinds of chats: give the one that is missing with --system_prompt TEXT, or take it out "
            "of all rows",
        )
    if signs.rows_with_empty_answer:
        yield Caution(
            "empty_answers",
            signs.rows_with_empty_answer,
            chats,
            f"{of_all(signs.rows_with_empty_answer, chats, 'row')} have an empty answer "
            f"(first: {_first(report, 'rows_with_empty_answer')})",
            "they teach the model to say nothing: fill them in, or remove the rows",
        )


def _about_repeats(report: FormatReport) -> Iterator[Caution]:
    repeats, leak = report.repeats, report.leak
    if repeats.first is not None:
        places = " and ".join(short_place(place, report.source) for place in repeats.first)
        start = of_all(repeats.rows, report.rows_usable, "row")
        if report.plain_text:
            name, text = "duplicate_texts", f"{start} repeat the text of an earlier one (first: {places})"
            advice = "remove them: what is repeated is learnt by heart"
        else:
            name = "duplicate_questions"
            text = (
                f"{start} repeat the question of an earlier one, {repeats.same_answer:,} of them with the same answer "
                f"(first: {places})"
            )
            copies = repeats.same_answer == repeats.rows
            advice = "remove them" if copies else "several answers to a question may be meant, copies hardly are"
            advice += " (stepjepa prepare --dedup keeps the first of each)"
        advice += "; and never split them over training and evaluation"
        yield Caution(name, repeats.rows, report.rows_usable, text, advice)
    if leak is not None and leak.first is not None:
        places = " and ".join(map(printable, leak.first))
        yield Caution(
            "eval_in_train",
            leak.found,
            leak.rows,
            f"{of_all(leak.found, leak.rows, 'row')} of {printable(leak.source)} ask what a row of the training file asks "
            f"(first: {places})",
            "an evaluation on them measures memory: remove them from one of the two files",
        )


def _first(report: FormatReport, name: str) -> str:
    return short_place(report.signs.first[name], report.source)
