"""`check`: read a data set, report its contents and what a model will see of it, and warn (``stepjepa check``)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepjepa.config.option import Names, check_fields, option, options_of
from stepjepa.data.options import ColumnOptions, PrepareOptions, StepsOptions
from stepjepa.data.report import DataReport, DataWarning, reason_words
from stepjepa.data.sources import RowSource
from stepjepa.inspect.statistics import FEW_STEPS, TextReader, TextStatistics
from stepjepa.inspect.view import encoder_for, method_from, pop_options, tokenizer_of
from stepjepa.objectives.base import Objective, built_in, find_objective, objective_of
from stepjepa.training.options import ExampleOptions, JEPAOptions, method_line, without_effect
from stepjepa.utils.text import counted, printable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from typing_extensions import Unpack

    from stepjepa.keywords import CheckKeywords


@dataclass
class FileOptions:
    """Options of ``stepjepa check`` only: what it reads and shows."""

    file: str | None = option(None, "The data file; usually written without --file.", "check")
    dataset_split: str = option("train", "Split of a Hub data set.", "check")
    eval_file: str | None = option(
        None,
        "A second file or data set; the report counts its questions that are also in the first.",
        "check",
    )
    eval_split: str = option("test", "Split of a Hub data set given as eval_file.", "check")
    model_name: str | None = option(
        None,
        "Tokenizer: a Hub id, a local folder, or a preset (micro, tiny, mini: trained on the file). With a tokenizer, the "
        "report also shows what a model will see of the file in training.",
        "check",
    )
    num_proc: int = option(
        1, "Number of processes that count and tokenise rows.", "check", at_least=1
    )
    json: bool = option(False, "Print the report as one JSON object.", "check")


@dataclass
class CheckOptions(ExampleOptions, FileOptions):
    """All options of ``stepjepa check``; the training options mean the same as in ``stepjepa train``."""


_NAME = Names(CheckOptions, PrepareOptions)
# The options that the text statistics read, without a tokenizer and for every objective.
_READ = {
    _NAME.objective,
    _NAME.system_prompt,
    _NAME.strict_data,
    *options_of(StepsOptions),
    *options_of(ColumnOptions),
}


@dataclass
class TokenStatistics:
    """What a model will see of a data set.

    Attributes:
        tokenizer: the name of the tokenizer.
        vocabulary: the number of its entries.
        method: the objective and its loss in words.
        objective: the objective itself, which the record stores by name.
        data: the data report of training: rows, pairs, lengths, labels.
        longest: the smallest `max_length` at which no chat is cut; 0 for plain text, which is never truncated.
    """

    tokenizer: str
    vocabulary: int
    method: str
    objective: Objective
    data: DataReport
    longest: int

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        return {
            **vars(self),
            "objective": self.objective.options.objective,
            "data": self.data.to_dict(),
        }

    def lines(self) -> list[str]:
        """The statistics, one fact per line: first the data report of training."""
        name = f"{self.tokenizer} ({self.vocabulary:,} entries)"
        lines = [f"What a model will see: tokenizer {name}, {self.method}"]
        lines += [f"  {line}" for line in self.data.lines(warnings=False)]
        if self.longest:
            lines.append(f"  all chats fit into {_NAME.max_length} {self.longest:,}")
        return lines


@dataclass(frozen=True)
class CheckReport:
    """What `check` returns; ``print`` it.

    Attributes:
        texts: statistics of the text.
        tokens: statistics of what a model will see; None without a tokenizer.
        warnings: data quality warnings.
        notes: remarks on the options.
    """

    texts: TextStatistics
    tokens: TokenStatistics | None
    warnings: list[DataWarning]
    notes: list[str]

    def __str__(self) -> str:
        lines = self.texts.lines()
        if self.tokens is not None:
            lines += ["", *self.tokens.lines()]
        lines += ["", *warning_lines(self.warnings), *(f"Note: {note}" for note in self.notes)]
        lines += ["", f"Verdict: {self.texts.verdict}"]
        # Only here is text from the file made safe to print.
        return printable("\n".join(lines))

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        record = self.texts.to_dict()
        # The key is older than the class, and readers of the JSON depend on it.
        if self.tokens is not None:
            record["feeding"] = self.tokens.to_dict()
        record["warnings"] = [warning._asdict() for warning in self.warnings]
        record["notes"] = self.notes
        return record


def check(
    data: object,
    tokenizer: str | os.PathLike[str] | None = None,
    *,
    eval_file: object = None,
    **options: Unpack[CheckKeywords],
) -> CheckReport:
    """Read a data set and report its messages, steps, unusable rows and warnings; with a tokenizer also what a model sees.

    Args:
        data: a file, the name of a data set on the Hub, a `datasets.Dataset`, or a list of rows.
        tokenizer: the Hub id or folder of a tokenizer, or a preset, whose tokenizer is trained on `data`.
        eval_file: a second data set, in one of these forms, whose questions are looked for in the first.
        options: the options of ``stepjepa check`` by name, and those of the method, as for `JEPAConfig`. Without
            ``objective``, plain text is read as for ``split``.

    Raises:
        ConfigError: an option, the tokenizer or the template cannot be used.
        DataError: the data cannot be read, no row can be used, or, with ``strict_data``, a row cannot be used.

    Examples:
        >>> print(check("train.jsonl", "mini", objective="step_jepa"))
    """
    name = None if tokenizer is None else str(tokenizer)
    of_method: dict[str, Any] = {**options}
    # Not options here: the files and the tokenizer are arguments, and the result has both a text and a JSON form.
    arguments = (_NAME.file, _NAME.eval_file, _NAME.model_name, _NAME.json)
    file_options = FileOptions(**pop_options(FileOptions, of_method, *arguments))
    check_fields(file_options)
    method, names_objective = method_from(of_method), _NAME.objective in of_method
    # Without an objective, the file may be meant for any objective, so missing steps are worth a warning.
    needs_steps = find_objective(method.objective)(method).needs_steps or not names_objective
    rows = RowSource(data, file_options.dataset_split)
    eval_rows = None if eval_file is None else RowSource(eval_file, file_options.eval_split)
    reader, tokens = TextReader(rows, method), None
    if name is None:
        # The reader counts the rows that it yields; only the tokenizer needs its chunks.
        for _ in reader.read(file_options.num_proc):
            pass
        adds = "adds what a model will see: pairs, lengths, truncation"
        notes = [f"--{_NAME.model_name} NAME {adds}"]
    else:
        # The default objective needs chats, so plain text is encoded for the first objective that can make pairs of it.
        if reader.texts.plain_text and not names_objective:
            takes_text = (
                label for label, cls in built_in().items() if cls.takes_text and cls.makes_pairs
            )
            method = method_from({**of_method, _NAME.objective: next(takes_text)})
        tokens = read_tokens(
            reader, tokenizer_of(rows, name, method), method, name, file_options.num_proc
        )
        notes = without_effect(method, set(of_method) - _READ)
    # Last, because the comparison needs the questions of all rows.
    if eval_rows is not None:
        reader.compare(eval_rows)
    warnings = text_warnings(reader.texts, needs_steps)
    if tokens is not None:
        warnings += token_warnings(tokens)
    return CheckReport(reader.texts, tokens, warnings, notes)


def read_tokens(
    reader: TextReader,
    tokenizer: PreTrainedTokenizerBase,
    method: JEPAOptions,
    name: str,
    processes: int = 1,
) -> TokenStatistics:
    """Encode a data set as training does and count what a model will see of it; loads torch.

    Args:
        reader: reads the rows and counts their text.
        method: checked options of a run.
        name: of the tokenizer.
        processes: the number of processes that count and tokenise rows.

    Raises:
        DataError: no row can be trained on, or, with ``strict_data``, a row would be skipped or cut.
        ConfigError: the tokenizer or the template cannot be used.
    """
    encoder = encoder_for(reader.rows, tokenizer, method)
    data = DataReport(reader.rows.name)
    # Lengths of the examples by chunk, and of the longest chat before any cut. The examples themselves are dropped.
    lengths, longest = [], 0
    for chunk in reader.read(processes, encoder):
        assert chunk.encoded is not None
        data.add(chunk.encoded.report)
        lengths.append(chunk.encoded.store.lengths)
        longest = max(longest, chunk.longest)
    data.require(data.examples)
    data.set_lengths(np.concatenate(lengths))
    vocabulary = len(encoder.tokenizer)
    objective = objective_of(method)
    return TokenStatistics(name, vocabulary, method_line(method), objective, data, longest)


def text_warnings(statistics: TextStatistics, steps: bool = True) -> list[DataWarning]:
    """Warnings about the text of a data set; with `steps` also those that matter to objectives with steps."""
    warnings = list[DataWarning]()
    if steps and statistics.chats and not statistics.plain_text:
        warnings += _step_warnings(statistics)
    warnings += _row_warnings(statistics)
    return warnings


def _step_warnings(statistics: TextStatistics) -> Iterator[DataWarning]:
    """Warnings that matter only to objectives with steps."""
    one_step = statistics.chats - statistics.rows_with_steps
    # Some rows without steps are normal; more than half of all rows suggest that the splitter is wrong.
    if 2 * one_step > statistics.chats:
        yield DataWarning(
            "one_step",
            one_step,
            statistics.chats,
            f"{_share(one_step, statistics.chats)} have fewer than two steps ({statistics.steps.words})",
            f"they make no pair for step_jepa and are used for plain language modelling only; {FEW_STEPS}",
        )
    # Rows with a list of steps that does not fit their answer: the list is ignored, which the user should know.
    steps = statistics.steps
    for reason, unread in steps.unread.items():
        where = _first(steps.first_unread[reason])
        yield DataWarning(
            f"own_{reason}",
            unread,
            steps.rows,
            f"{_share(unread, steps.rows)} have steps that cannot be used: {reason_words(reason)} ({where})",
            f"their answers are split by --{_NAME.step_splitter} {steps.splitter} instead: the texts of the list must "
            f"occur unchanged and in order in the answer; or name another --{_NAME.steps_column}",
        )


def _row_warnings(statistics: TextStatistics) -> Iterator[DataWarning]:
    """Warnings about unread columns and keys, repeated questions, and questions of the evaluation file."""
    yield from statistics.row_warnings()
    repeats, leak = statistics.repeats, statistics.leak
    if repeats:
        what, remedy = "text", "remove them"
        if not statistics.plain_text:
            what = "question"
            remedy = f"if several answers are not intended, stepjepa prepare --{_NAME.dedup} keeps the first"
        share = _share(repeats, statistics.rows_usable)
        yield DataWarning(
            f"duplicate_{what}s",
            repeats,
            statistics.rows_usable,
            f"{share} repeat the {what} of an earlier one ({_first(*statistics.first_repeat)})",
            f"{remedy}; never split them between training and evaluation",
        )
    if leak is not None and leak.found:
        yield DataWarning(
            "eval_in_train",
            leak.found,
            leak.rows,
            f"{_share(leak.found, leak.rows)} of {leak.source} repeat questions of the training file "
            f"({_first(*leak.first)})",
            "an evaluation on them measures memorisation: remove them from one of the two files",
        )


def token_warnings(statistics: TokenStatistics) -> list[DataWarning]:
    """Warnings about the data set as the tokenizer and the options of the run see it."""
    data, warnings = statistics.data, list[DataWarning]()
    if statistics.objective.makes_pairs and not data.pairs:
        text = f"no pair for {statistics.objective.options.objective} in {counted(data.examples, 'example')}"
        advice = "stepjepa train would stop: see the reasons under Pairs"
        warnings.append(DataWarning("no_pairs", data.examples, data.examples, text, advice))
    warnings += data.prompts.warnings()
    # The rest concerns chats.
    if not statistics.longest:
        return warnings
    rows_cut = data.answers_truncated + data.rows_skipped["no_room_for_answer"]
    if rows_cut:
        text = f"{_share(rows_cut, data.rows_read)} are cut or skipped at {_NAME.max_length}"
        raised = f"raise --{_NAME.max_length} to {statistics.longest:,}, or remove them"
        advice = f"the model does not learn how such answers end: {raised}"
        warnings.append(DataWarning("truncated", rows_cut, data.rows_read, text, advice))
    if data.rows_kept and data.end_token is None:
        text = "nothing ends an answer: the template writes no special token and the tokenizer has no EOS"
        remedy = (
            f"give the tokenizer an eos_token, or name a --{_NAME.chat_template} that ends turns"
        )
        advice = f"the model is not taught to stop: {remedy}"
        warnings.append(DataWarning("no_end_of_turn", data.rows_kept, data.rows_kept, text, advice))
    return warnings


def _share(rows: int, total: int) -> str:
    """A share in words: ``3 of 12 rows (25.0 %)``."""
    return f"{rows:,} of {counted(total, 'row')} ({100 * rows / total:.1f} %)"


def _first(*places: str) -> str:
    """The places of the first case, in words."""
    return f"first: {' and '.join(places)}"


def warning_lines(warnings: Sequence[DataWarning]) -> list[str]:
    """The warnings, one per line: each problem and what to do about it."""
    lines = [f"Warnings: {len(warnings) or 'none'}"]
    for number, warning in enumerate(warnings, 1):
        lines.append(f"  {number}. {warning.text}; {warning.advice}")
    return lines
