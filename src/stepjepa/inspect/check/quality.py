"""Data quality warnings: what of a data set a user has to decide about before training on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stepjepa.config.option import Names
from stepjepa.data.prepare.options import PrepareOptions
from stepjepa.data.report import REASONS
from stepjepa.inspect.check.texts import TextStatistics
from stepjepa.inspect.check.tokens import TokenStatistics
from stepjepa.training.options import ExampleOptions
from stepjepa.utils.text import counted, printable

_NAME = Names(ExampleOptions, PrepareOptions)


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


def text_warnings(found: TextStatistics, steps: bool = True) -> list[DataWarning]:
    """What the text of a data set gives reason to warn of; with `steps` also of what matters to objectives with steps."""
    warnings = list[DataWarning]()
    if steps and found.chats and not found.plain_text:
        warnings += _of_steps(found)
    warnings += _of_rows(found)
    return warnings


def _of_steps(found: TextStatistics) -> Iterator[DataWarning]:
    """What matters to objectives with steps alone."""
    one_step = found.chats - found.rows_with_steps
    if 2 * one_step > found.chats:
        yield DataWarning(
            "one_step",
            one_step,
            found.chats,
            f"{_share(one_step, found.chats)} have one step ({found.found_by})",
            f"they make no pair for step_jepa and train as plain language modelling; {found.remedy}",
        )
    steps = found.steps
    for reason, unread in steps.unread.items():
        where = _first(found, steps.first_unread[reason])
        yield DataWarning(
            f"own_{reason}",
            unread,
            steps.rows,
            f"{_share(unread, steps.rows)} hold steps that cannot be taken: {REASONS[reason]} ({where})",
            f"their answers are split by --{_NAME.step_splitter} {steps.splitter} instead: the texts of the list must "
            f"follow each other in the answer as they are; or name another --{_NAME.steps_column}",
        )


def _of_rows(found: TextStatistics) -> Iterator[DataWarning]:
    """Columns and keys that are not read, questions that occur twice, and those of the evaluation file."""
    for name, rows, text, advice in found.row_warnings():
        yield DataWarning(name, rows, found.rows_read, text, advice)
    repeats, leak = found.repeats, found.leak
    if repeats.rows:
        what, remedy = "text", "remove them"
        if not found.plain_text:
            what = "question"
            remedy = f"several answers may be meant; of copies stepjepa prepare --{_NAME.dedup} keeps the first"
        share = _share(repeats.rows, found.rows_usable)
        yield DataWarning(
            f"duplicate_{what}s",
            repeats.rows,
            found.rows_usable,
            f"{share} repeat the {what} of an earlier one ({_first(found, *repeats.first)})",
            f"{remedy}; never split them over training and evaluation",
        )
    if leak is not None and leak.found:
        where = printable(" and ".join(leak.first))
        yield DataWarning(
            "eval_in_train",
            leak.found,
            leak.rows,
            f"{_share(leak.found, leak.rows)} of {printable(leak.source)} ask what a row of the training file asks "
            f"(first: {where})",
            "an evaluation on them measures memory: remove them from one of the two files",
        )


def token_warnings(found: TokenStatistics) -> list[DataWarning]:
    """What the tokenizer and the options of the run make of the data set that a user should know."""
    data, warnings = found.data, list[DataWarning]()
    if found.objective.makes_pairs and not data.pairs:
        text = f"no example of {data.examples:,} has a pair for {found.objective.label}"
        advice = "stepjepa train would stop: see the reasons under Pairs"
        warnings.append(DataWarning("no_pairs", data.examples, data.examples, text, advice))
    for name, number, total, text, advice in data.prompts.warnings():
        warnings.append(DataWarning(f"prompt_{name}", number, total, printable(text), printable(advice)))
    cut = found.truncation
    rows_cut = cut.answers_cut + cut.rows_without_room if cut is not None else 0
    if cut is not None and rows_cut:
        most, every = cut.holds["99"], cut.holds["100"]
        enough = f"{every:,}, or to {most:,} for 99 % of the rows" if most < every else f"{every:,}"
        text = f"{_share(rows_cut, data.rows_read)} are cut or skipped at {_NAME.max_length} {cut.max_length:,}"
        advice = (
            f"the model does not learn how such answers end: raise --{_NAME.max_length} to {enough}, or take them out"
        )
        warnings.append(DataWarning("truncated", rows_cut, data.rows_read, text, advice))
    if data.rows_kept and not found.plain_text and data.end_token is None:
        text = "nothing ends an answer: the template writes no special token and the tokenizer has no EOS"
        advice = (
            "the model is not taught to stop: give the tokenizer an eos_token, or a "
            f"--{_NAME.chat_template} that ends turns"
        )
        warnings.append(DataWarning("no_end_of_turn", data.rows_kept, data.rows_kept, text, advice))
    return warnings


def _share(rows: int, total: int) -> str:
    """As text: ``3 of 12 rows (25.0 %)``."""
    return f"{rows:,} of {counted(total, 'row')} ({100 * rows / total:.1f} %)"


def _first(found: TextStatistics, *places: str) -> str:
    """Places in the data set, without its name."""
    return printable(f"first: {' and '.join(place.removeprefix(f'{found.source} ') for place in places)}")
