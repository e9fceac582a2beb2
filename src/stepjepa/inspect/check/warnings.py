"""Data quality warnings: what a user should know about a data set before training on it, with numbers and what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepjepa.data.report import REASONS
from stepjepa.data.signs import LONG_STEP
from stepjepa.inspect.check.texts import TextStatistics
from stepjepa.inspect.check.tokens import TokenStatistics, share_of, short_place
from stepjepa.inspect.style import counted
from stepjepa.objectives.base import find_objective
from stepjepa.utils.text import escaped, printable

# Smaller shares are no reason to warn.
_ONE_WORD_SHARE = 0.05  # of the steps
_LONG_SHARE = 0.01  # of the steps
_ANSWER_LINE_SHARE = 0.05  # of the chats with steps
_UNKNOWN_SHARE = 0.001  # of the tokens
_ONE_TOKEN_SHARE = 0.05  # of the pairs


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


def warning_lines(warnings: Sequence[DataWarning], width: int = 100) -> list[str]:
    """The warnings in lines of `width` characters: what was found and what to do about it."""
    lines = [f"Warnings: {len(warnings)}" if warnings else "Warnings: none"]
    for number, warning in enumerate(warnings, 1):
        for mark, text in ((f"{number}.", warning.text), ("", warning.advice)):
            first, rest = f"{mark:>4} ", " " * 5
            sentence = f"{text[:1].upper()}{text[1:]}."
            lines += textwrap.wrap(
                sentence,
                width,
                initial_indent=first,
                subsequent_indent=rest,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return lines


# Name -> what was found, and what it means. {share}: how many of how many; {first}: the first place.
_WORDS = {
    "one_step": (
        "{share} have one step with {chosen}",
        "they make no pair for step_jepa and train as plain language modelling; {remedy}; llm_jepa needs no steps",
    ),
    "other_total_steps": (
        "in {share} the number of steps is not what total_steps says (first: {first})",
        "training pairs the steps that are found: choose another --step_splitter, or give the rows their steps in a column "
        "(stepjepa prepare writes them)",
    ),
    "one_word_steps": (
        "{share} are one word (first: {first})",
        "so short a view says little: choose another --step_splitter, or let stepjepa prepare --min_step_length 20 join "
        "short steps to their neighbours",
    ),
    "long_steps": (
        "{share} are longer than {limit:,} characters; the longest has {longest:,} ({first})",
        "one vector stands for a complete step, and its copy costs as many tokens: choose a finer --step_splitter, or take "
        "thinking blocks out with stepjepa prepare",
    ),
    "answer_line": (
        "in {share} with steps the last step is the final answer alone (first: {first})",
        "--step_pairs first predicts it in {second:,} of them, where it is the second step; --step_pairs all in each. "
        "stepjepa prepare writes it at the end of the step before",
    ),
    "no_system_prompt": (
        "no row of {total:,} has a system message",
        "right if the model will be asked without one; else give it with --system_prompt TEXT, in training and in use",
    ),
    "mixed_system_prompt": (
        "{share} have no system message and the others have one (first without: {first})",
        "the model learns two kinds of chats: give the one that is missing with --system_prompt TEXT, or take it out of all "
        "rows",
    ),
    "empty_answers": (
        "{share} have an empty answer (first: {first})",
        "they teach the model to say nothing: fill them in, or remove the rows",
    ),
    "duplicate_texts": (
        "{share} repeat the text of an earlier one (first: {first})",
        "remove them: what is repeated is learnt by heart; and never split them over training and evaluation",
    ),
    "duplicate_questions": (
        "{share} repeat the question of an earlier one, {same:,} of them with the same answer (first: {first})",
        "{remedy} (stepjepa prepare --dedup keeps the first of each); and never split them over training and evaluation",
    ),
    "eval_in_train": (
        "{share} of {source} ask what a row of the training file asks (first: {first})",
        "an evaluation on them measures memory: remove them from one of the two files",
    ),
    "no_pairs": (
        "no example of {total:,} has a pair for {objective}",
        "stepjepa train would stop: see the reasons under Pairs",
    ),
    "truncated": (
        "{share} are cut or skipped at max_length {limit:,}",
        "the model does not learn how such answers end: raise --max_length to {holds}, or take them out",
    ),
    "one_token_targets": (
        "{share} have a target of a single token",
        "such a target is hardly more than that token's embedding: choose other views, or write short steps at the end of "
        "the step before (stepjepa prepare does)",
    ),
    "folded_system": (
        "the chat template has no system role: {folded} are part of the first user message",
        "nothing to do in training; in use, put it there as well, or choose another --chat_template",
    ),
    "unknown_tokens": (
        "{count:,} of {total:,} tokens ({percent:.2f} %) are the tokenizer's unknown token",
        "the model cannot read or write them: take a tokenizer that knows these characters (any byte-level one does)",
    ),
    "no_end_of_turn": (
        "nothing ends an answer: the template writes no special token and the tokenizer has no EOS",
        "the model is not taught to stop: give the tokenizer an eos_token, or a --chat_template that ends turns",
    ),
    "end_of_turn_unlabelled": (
        "--labels reference leaves {end}, the end of turn, out of {examples}",
        "as the published code does; the model is not taught to stop: leave --labels out unless that is to be compared",
    ),
    "end_of_turn_is_padding": (
        "the end of turn, {end}, is also the padding{too} token, in {examples}",
        "labels go by position here, so it is trained on; code that leaves out padding by its id, as the published code "
        "does, would never teach the model to stop. For such code give the tokenizer another pad_token",
    ),
}
_CUT = (
    "in {share} {separator} is inside {where} (first: {first})",
    "no step is cut there, so there is nothing to do; a plain split{published} would cut there, and count more steps",
)
_OWN = (
    "{share} hold steps that cannot be taken: {why} (first: {first})",
    "their answers are split by --step_splitter {splitter} instead: the texts of the list must follow each other in the "
    "answer as they are; or name another --steps_column",
)


def _warning(name: str, count: int, total: int, what: str = "row", **facts: str | int | float) -> DataWarning:
    text, advice = _WORDS.get(name) or (_CUT if "separator" in facts else _OWN)
    facts |= {"count": count, "total": total, "share": share_of(count, total, what)}
    return DataWarning(name, count, total, text.format(**facts), advice.format(**facts))


def text_warnings(found: TextStatistics, steps: bool = True) -> list[DataWarning]:
    """What the text of a data set gives reason to warn of.

    Args:
        steps: also of what matters to ``step_jepa`` alone.
    """
    chats = bool(found.chats) and not found.plain_text
    about_steps = _about_steps(found) if chats and steps else ()
    return [*about_steps, *(_about_chats(found) if chats else ()), *_about_repeats(found)]


def _about_steps(found: TextStatistics) -> Iterator[DataWarning]:
    signs, chats, steps, with_steps = found.signs, found.chats, found.steps, found.rows_with_steps
    if 2 * (chats - with_steps) > chats:
        better, remedy = found.better_splitter, "for step_jepa, separate the steps"
        if better is not None:
            usual = "leave out --step_separator" if better == found.splitter else f"use --step_splitter {better}"
            remedy = f"{usual}, which finds two or more in {found.other_splitters[better]:,}"
        yield _warning("one_step", chats - with_steps, chats, chosen=found.chosen(), remedy=remedy)
    for reason, rows in steps.unread.items():
        first = short_place(steps.first_unread[reason], found.source)
        yield _warning(f"own_{reason}", rows, steps.rows, why=REASONS[reason], first=first, splitter=steps.splitter)
    if steps.other_totals:
        first = short_place(steps.first_other_total, found.source)
        yield _warning("other_total_steps", steps.other_totals, steps.rows, first=first)
    if signs.one_word_steps > _ONE_WORD_SHARE * signs.steps:
        first = _first(found, "one_word_steps")
        yield _warning("one_word_steps", signs.one_word_steps, signs.steps, "step", first=first)
    if signs.long_steps > _LONG_SHARE * signs.steps:
        longest, first = signs.longest_step, _first(found, "longest_step")
        yield _warning(
            "long_steps", signs.long_steps, signs.steps, "step", limit=LONG_STEP, longest=longest, first=first
        )
    if signs.rows_with_answer_line > _ANSWER_LINE_SHARE * with_steps:
        first, second = _first(found, "rows_with_answer_line"), signs.answer_line_second
        yield _warning("answer_line", signs.rows_with_answer_line, with_steps, first=first, second=second)
    separator = found.separator if found.splitter in ("separator", "lines") else "\n\n"
    cut, published = escaped(separator), ", as in the published code," * (separator == "\n\n")
    for name, rows, where in (
        ("cut_in_blocks", signs.rows_cut_in_blocks, "code, display maths or a table"),
        ("cut_in_thoughts", signs.rows_cut_in_thoughts, "a thinking block"),
    ):
        if rows:
            first = _first(found, f"rows_{name}")
            yield _warning(name, rows, chats, separator=cut, published=published, where=where, first=first)


def _about_chats(found: TextStatistics) -> Iterator[DataWarning]:
    signs, chats = found.signs, found.chats
    missing = chats - signs.rows_with_system
    if missing == chats:
        yield _warning("no_system_prompt", missing, chats)
    elif missing:
        yield _warning("mixed_system_prompt", missing, chats, first=_first(found, "rows_without_system"))
    if signs.rows_with_empty_answer:
        first = _first(found, "rows_with_empty_answer")
        yield _warning("empty_answers", signs.rows_with_empty_answer, chats, first=first)


def _about_repeats(found: TextStatistics) -> Iterator[DataWarning]:
    repeats, leak = found.repeats, found.leak
    if repeats.first is not None:
        first = " and ".join(short_place(place, found.source) for place in repeats.first)
        name = "duplicate_texts" if found.plain_text else "duplicate_questions"
        copies = repeats.same_answer == repeats.rows
        remedy = "remove them" if copies else "several answers to a question may be meant, copies hardly are"
        same = repeats.same_answer
        yield _warning(name, repeats.rows, found.rows_usable, first=first, same=same, remedy=remedy)
    if leak is not None and leak.first is not None:
        first = " and ".join(map(printable, leak.first))
        yield _warning("eval_in_train", leak.found, leak.rows, source=printable(leak.source), first=first)


def _first(found: TextStatistics, name: str) -> str:
    return short_place(found.signs.first[name], found.source)


def token_warnings(found: TokenStatistics) -> Iterator[DataWarning]:
    """What the tokenizer and the options of the run make of the data set that a user should know."""
    data, cut, rows = found.data, found.truncation, found.data.rows_kept
    if not data.pairs and find_objective(found.objective).makes_pairs:
        yield _warning("no_pairs", data.examples, data.examples, objective=found.objective)
    if cut is not None and cut.answers_cut + cut.rows_without_room:
        every, most = cut.holds["100"], cut.holds["99"]
        holds = f"{every:,}" + (f", or to {most:,} for 99 % of the rows" if most < every else "")
        count = cut.answers_cut + cut.rows_without_room
        yield _warning("truncated", count, data.rows_read, limit=cut.max_length, holds=holds)
    if found.one_token_targets > _ONE_TOKEN_SHARE * data.pairs:
        yield _warning("one_token_targets", found.one_token_targets, data.pairs, "pair")
    if data.system_folded:
        folded = counted(data.system_folded, "system message")
        yield _warning("folded_system", data.system_folded, data.rows_read, folded=folded)
    unknown = found.unknown_tokens
    if unknown is not None and unknown > _UNKNOWN_SHARE * data.tokens:
        yield _warning("unknown_tokens", unknown, data.tokens, percent=100 * unknown / data.tokens)
    if found.plain_text:
        return
    end, examples = escaped(found.end_of_turn or ""), counted(rows, "example")
    if found.end_of_turn is None:
        yield _warning("no_end_of_turn", rows, rows)
    elif not found.end_labelled:
        yield _warning("end_of_turn_unlabelled", rows, rows, end=end, examples=examples)
    elif "padding" in found.end_is:
        too = " and EOS" * ("EOS" in found.end_is)
        yield _warning("end_of_turn_is_padding", rows, rows, end=end, examples=examples, too=too)
