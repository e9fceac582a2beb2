"""`check`: read a data set, count what is in it and what a model will see of it, and warn (``stepjepa check``)."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from string import Formatter
from typing import Any, NamedTuple

from stepjepa.data.report import REASONS
from stepjepa.data.signs import LONG_STEP
from stepjepa.data.sources import RowSource
from stepjepa.errors import ConfigError
from stepjepa.inspect.check.texts import TextStatistics, read_texts
from stepjepa.inspect.check.tokens import TokenStatistics, read_tokens, share_of
from stepjepa.inspect.record import counted
from stepjepa.inspect.rows import tokenizer_of
from stepjepa.objectives.base import OBJECTIVES, find_objective
from stepjepa.training.options import JEPAOptions, without_effect
from stepjepa.utils.text import escaped, printable

_WIDTH = 100
# The options that the text statistics read, without a tokenizer and whatever the objective is.
_READ = frozenset(
    "objective step_splitter step_separator steps_column source_column target_column choice_column system_prompt "
    "strict_data".split()
)


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
    method = JEPAOptions(**options)
    method.check()
    if per_device_train_batch_size < 1:
        raise ConfigError(f"per_device_train_batch_size is {per_device_train_batch_size}; it must be at least 1")
    rows = RowSource(data, dataset_split)
    texts = read_texts(rows, method, show, None if eval_file is None else RowSource(eval_file, eval_split))
    asked = "objective" in options
    warnings = text_warnings(texts, steps=find_objective(method.objective).needs_steps or not asked)
    if tokenizer is None:
        names = set(options) - _READ
        names |= {"per_device_train_batch_size"} if per_device_train_batch_size != 8 else set()
        names |= {"seed"} if seed != 42 else set()
        notes = [f"--{name} has no effect without --model_name" for name in sorted(names)]
        notes.append("--model_name NAME adds what a model will see: pairs, truncation, tokens by kind, padding")
        return CheckReport(texts, None, warnings, notes)
    if texts.plain_text and not asked:
        known = {name: find_objective(name) for name in OBJECTIVES}
        name = next(name for name, one in known.items() if one.takes_text and one.makes_pairs)
        method = JEPAOptions(**{**options, "objective": name})
        method.check()
    loaded = tokenizer_of(rows, str(tokenizer), method)
    tokens = read_tokens(
        rows, loaded, str(tokenizer), method, count=texts.rows_read, batch_size=per_device_train_batch_size, seed=seed
    )
    notes = [str(unread) for unread in without_effect(method, set(options) - _READ)]
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


class _Rule(NamedTuple):
    """When to warn, and of what. Fields of the statistics are named as in a format string.

    Attributes:
        counts: how many, and of how many: two fields.
        text, advice: what was found and what it means: formats of the statistics ``f``, ``share`` (how many of how many),
            ``count``, ``total``, ``first`` and `facts`.
        above: a share that is no reason to warn.
        what: is counted.
        first: the first place, as a field.
        when: another condition.
        facts: of the statistics -> other facts.
    """

    counts: str
    text: str
    advice: str
    above: float = 0.0
    what: str = "row"
    first: str = ""
    when: Callable[[Any], bool] = bool
    facts: Callable[[Any], Mapping[str, Any]] = lambda f: {}


def _one_step(f: TextStatistics) -> dict[str, str]:
    better = f.better_splitter
    if better is None:
        return {"remedy": "for step_jepa, separate the steps"}
    return {"remedy": f"{f.use_better}, which finds two or more in {f.other_splitters[better]:,}"}


def _own(reason: str) -> _Rule:
    """Steps that rows hold and that cannot be taken."""
    return _Rule(
        f"steps.unread[{reason}] / steps.rows",
        f"{{share}} hold steps that cannot be taken: {REASONS[reason]} (first: {{first}})",
        "their answers are split by --step_splitter {f.steps.splitter} instead: the texts of the list must follow each "
        "other in the answer as they are; or name another --steps_column",
        first=f"steps.first_unread[{reason}]",
    )


def _inside(sign: str, where: str) -> _Rule:
    """A separator inside of what no step is cut in."""
    return _Rule(
        f"signs.{sign} / chats",
        f"in {{share}} {{separator}} is inside {where} (first: {{first}})",
        "no step is cut there, so there is nothing to do; a plain split{published} would cut there, and count more steps",
        first=f"signs.first[{sign}]",
        facts=lambda f: {
            "separator": escaped(f.plain_separator),
            "published": ", as in the published code," * (f.plain_separator == "\n\n"),
        },
    )


_STEPS = {  # what matters to objectives with steps alone
    "one_step": _Rule(
        "rows_with_one_step / chats",
        "{share} have one step with {f.chosen}",
        "they make no pair for step_jepa and train as plain language modelling; {remedy}; llm_jepa needs no steps",
        above=0.5,
        facts=_one_step,
    ),
    "own_no_steps": _own("no_steps"),
    "own_steps_not_found": _own("steps_not_found"),
    "other_total_steps": _Rule(
        "steps.other_totals / steps.rows",
        "in {share} the number of steps is not what total_steps says (first: {first})",
        "training pairs the steps that are found: choose another --step_splitter, or give the rows their steps in a column "
        "(stepjepa prepare writes them)",
        first="steps.first_other_total",
    ),
    "one_word_steps": _Rule(
        "signs.one_word_steps / signs.steps",
        "{share} are one word (first: {first})",
        "so short a view says little: choose another --step_splitter, or let stepjepa prepare --min_step_length 20 join "
        "short steps to their neighbours",
        above=0.05,
        what="step",
        first="signs.first[one_word_steps]",
    ),
    "long_steps": _Rule(
        "signs.long_steps / signs.steps",
        f"{{share}} are longer than {LONG_STEP:,} characters; the longest has {{f.signs.longest_step:,}} ({{first}})",
        "one vector stands for a complete step, and its copy costs as many tokens: choose a finer --step_splitter, or take "
        "thinking blocks out with stepjepa prepare",
        above=0.01,
        what="step",
        first="signs.first[longest_step]",
    ),
    "answer_line": _Rule(
        "signs.rows_with_answer_line / rows_with_steps",
        "in {share} with steps the last step is the final answer alone (first: {first})",
        "--step_pairs first predicts it in {f.signs.answer_line_second:,} of them, where it is the second step; --step_pairs"
        " all in each. stepjepa prepare writes it at the end of the step before",
        above=0.05,
        first="signs.first[rows_with_answer_line]",
    ),
    "cut_in_blocks": _inside("rows_cut_in_blocks", "code, display maths or a table"),
    "cut_in_thoughts": _inside("rows_cut_in_thoughts", "a thinking block"),
}
_CHATS = {
    "no_system_prompt": _Rule(
        "rows_without_system / chats",
        "no row of {total:,} has a system message",
        "right if the model will be asked without one; else give it with --system_prompt TEXT, in training and in use",
        when=lambda f: f.rows_without_system == f.chats,
    ),
    "mixed_system_prompt": _Rule(
        "rows_without_system / chats",
        "{share} have no system message and the others have one (first without: {first})",
        "the model learns two kinds of chats: give the one that is missing with --system_prompt TEXT, or take it out of all "
        "rows",
        first="signs.first[rows_without_system]",
        when=lambda f: f.rows_without_system < f.chats,
    ),
    "empty_answers": _Rule(
        "signs.rows_with_empty_answer / chats",
        "{share} have an empty answer (first: {first})",
        "they teach the model to say nothing: fill them in, or remove the rows",
        first="signs.first[rows_with_empty_answer]",
    ),
}
_ROWS = {
    "duplicate_texts": _Rule(
        "repeats.rows / rows_usable",
        "{share} repeat the text of an earlier one (first: {first})",
        "remove them: what is repeated is learnt by heart; and never split them over training and evaluation",
        first="repeats.first",
        when=lambda f: f.plain_text,
    ),
    "duplicate_questions": _Rule(
        "repeats.rows / rows_usable",
        "{share} repeat the question of an earlier one, {f.repeats.same_answer:,} of them with the same answer "
        "(first: {first})",
        "{remedy} (stepjepa prepare --dedup keeps the first of each); and never split them over training and evaluation",
        first="repeats.first",
        when=lambda f: not f.plain_text,
        facts=lambda f: {
            "remedy": "remove them"
            if f.repeats.same_answer == f.repeats.rows
            else "several answers to a question may be meant, copies hardly are"
        },
    ),
    "eval_in_train": _Rule(
        "leak.found / leak.rows",
        "{share} of {source} ask what a row of the training file asks (first: {places})",
        "an evaluation on them measures memory: remove them from one of the two files",
        when=lambda f: f.leak is not None,
        facts=lambda f: {"source": printable(f.leak.source), "places": printable(" and ".join(f.leak.first))},
    ),
}
_TOKENS = {
    "no_pairs": _Rule(
        "data.examples / data.examples",
        "no example of {total:,} has a pair for {f.objective.label}",
        "stepjepa train would stop: see the reasons under Pairs",
        when=lambda f: f.objective.makes_pairs and not f.data.pairs,
    ),
    "truncated": _Rule(
        "truncation.chats / data.rows_read",
        "{share} are cut or skipped at max_length {f.truncation.max_length:,}",
        "the model does not learn how such answers end: raise --max_length to {f.truncation.enough}, or take them out",
        when=lambda f: f.truncation is not None,
    ),
    "one_token_targets": _Rule(
        "one_token_targets / data.pairs",
        "{share} have a target of a single token",
        "such a target is hardly more than that token's embedding: choose other views, or write short steps at the end of "
        "the step before (stepjepa prepare does)",
        above=0.05,
        what="pair",
    ),
    "folded_system": _Rule(
        "data.system_folded / data.rows_read",
        "the chat template has no system role: {folded} are part of the first user message",
        "nothing to do in training; in use, put it there as well, or choose another --chat_template",
        facts=lambda f: {"folded": counted(f.data.system_folded, "system message")},
    ),
    "unknown_tokens": _Rule(
        "unknown_tokens / data.tokens",
        "{count:,} of {total:,} tokens ({percent:.2f} %) are the tokenizer's unknown token",
        "the model cannot read or write them: take a tokenizer that knows these characters (any byte-level one does)",
        above=0.001,
        when=lambda f: f.unknown_tokens is not None,
    ),
    "no_end_of_turn": _Rule(
        "chats / chats",
        "nothing ends an answer: the template writes no special token and the tokenizer has no EOS",
        "the model is not taught to stop: give the tokenizer an eos_token, or a --chat_template that ends turns",
        when=lambda f: f.end_of_turn is None,
    ),
    "end_of_turn_unlabelled": _Rule(
        "chats / chats",
        "--labels reference leaves {end}, the end of turn, out of {examples}",
        "as the published code does; the model is not taught to stop: leave --labels out unless that is to be compared",
        when=lambda f: f.end_of_turn is not None and not f.end_labelled,
        facts=lambda f: {"end": escaped(f.end_of_turn), "examples": counted(f.chats, "example")},
    ),
    "end_of_turn_is_padding": _Rule(
        "chats / chats",
        "the end of turn, {end}, is also the {tokens} token, in {examples}",
        "labels go by position here, so it is trained on; code that leaves out padding by its id, as the published code "
        "does, would never teach the model to stop. For such code give the tokenizer another pad_token",
        when=lambda f: f.end_labelled and "padding" in f.end_is,
        facts=lambda f: {
            "end": escaped(f.end_of_turn),
            "tokens": " and ".join(f.end_is),
            "examples": counted(f.chats, "example"),
        },
    ),  # fmt: skip
}


def text_warnings(found: TextStatistics, steps: bool = True) -> list[DataWarning]:
    """What the text of a data set gives reason to warn of.

    Args:
        steps: also of what matters to objectives with steps alone.
    """
    chats = bool(found.chats) and not found.plain_text
    return _warnings(found, {**(_STEPS if chats and steps else {}), **(_CHATS if chats else {}), **_ROWS})


def token_warnings(found: TokenStatistics) -> list[DataWarning]:
    """What the tokenizer and the options of the run make of the data set that a user should know."""
    return _warnings(found, _TOKENS)


def _warnings(found: Any, rules: Mapping[str, _Rule]) -> list[DataWarning]:
    def field(name: str) -> Any:
        return Formatter().get_field(f"f.{name}", (), {"f": found})[0]

    warnings = []
    for name, rule in rules.items():
        count, total = map(field, rule.counts.split(" / ")) if rule.when(found) else (0, 0)
        if count <= rule.above * total:
            continue
        places = field(rule.first) if rule.first else ()
        places = [places] if isinstance(places, str) else places
        facts = {
            "f": found,
            "count": count,
            "total": total,
            "share": share_of(count, total, rule.what),
            "percent": 100 * count / total,
            "first": printable(" and ".join(place.removeprefix(f"{found.source} ") for place in places)),
            **rule.facts(found),
        }
        warnings.append(DataWarning(name, count, total, rule.text.format(**facts), rule.advice.format(**facts)))
    return warnings
