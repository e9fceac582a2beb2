"""Options of data: which columns are read, how chats are written and cut, how steps are found, how files are mixed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from stepjepa.config.option import Names, Topic, option
from stepjepa.errors import ConfigError, RowError
from stepjepa.utils.text import escaped, lone_surrogate

VIEWS, DATA = "views", "data"
PromptFrom = Literal["training", "template"] | None
_SHOWN_COLUMNS = 20
STEPS_COLUMN = "steps"  # as `stepjepa prepare` writes it
TOTAL_COLUMN = "total_steps"
CHOSEN = "chosen"  # of a preference pair: an answer, or a complete chat
SQUAD_ANSWERS = "answers"  # an object with the list of `text`
_DIALOGUE = "\n\nHuman:"  # how a chat in one text begins (hh-rlhf)


class PairColumns(NamedTuple):
    """The columns that hold the two views, where they are named.

    Attributes:
        source, target: column names; the source becomes the user's message, the target the answer.
        choice: a column with the index of the right one, where the target column holds a list (multiple choice).
    """

    source: str
    target: str
    choice: str | None = None


class Form(NamedTuple):
    """Two columns that hold a question and its answer, and those whose texts come before or after the question."""

    question: str
    answer: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def _form(question: str, answer: str) -> Form:
    """The form of two columns. Dolly's context follows its instruction, SQuAD's precedes its question; Alpaca's input
    follows the instruction."""
    if question == "instruction":
        return Form(question, answer, after=("context", "input"))
    return Form(question, answer, ("context",), () if question == "input" else ("input",))


QUESTION_COLUMNS = ("question", "prompt", "problem", "instruction", "query", "input")
ANSWER_COLUMNS = ("answer", "completion", "solution", "output", "response", "code", CHOSEN, SQUAD_ANSWERS)
# Those that are looked for first; a solution ends in the answer that may stand next to it.
_FIRST_FORMS = (
    ("question", "solution"),
    ("question", "answer"),
    ("prompt", "completion"),
    ("problem", "solution"),
    ("instruction", "output"),
)
FORMS = (
    *(_form(*names) for names in _FIRST_FORMS),
    Form("text", "code"),
    *(_form(question, answer) for question in QUESTION_COLUMNS for answer in ANSWER_COLUMNS),
)
CHAT_COLUMNS = ("messages", "conversations")  # the second one is ShareGPT's
# Names under which a message of the assistant holds its thinking; a checked message has it under the first one.
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
REASONING = REASONING_KEYS[0]
# A column that makes a row a chat, or one that lacks a part; text alone does not.
_CHAT_WORDS = {*CHAT_COLUMNS, *(name for form in FORMS for name in form[:2])} - {"text"}


def as_object(row: object) -> Mapping[str, Any]:
    """A row with columns; RowError for anything else."""
    if not isinstance(row, Mapping):
        raise RowError("not_an_object", f"the row is a {type(row).__name__}, not an object with columns")
    return row


def column_value(row: Mapping[str, object], name: str, default: object = None) -> object:
    """What a column holds, `default` where there is none; ``solution.text`` is ``text`` in the object in ``solution``,
    unless a column has that name itself."""
    if name in row:
        return row[name]
    outer, dot, inner = name.partition(".")
    held = row.get(outer) if dot else None
    return column_value(held, inner, default) if isinstance(held, Mapping) else default


def text_of(value: object) -> str:
    """A cell as text: numbers are written out; empty for what is neither, and for NaN."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value != value:
        return ""
    return str(value)


def listed_columns(row: Mapping[Any, object]) -> str:
    """The names of a row's columns in one line, however many, long or odd they are; of an object those in it."""
    inner = {name: [f"{name}.{one}" for one in held] for name, held in row.items() if isinstance(held, Mapping)}
    names = [" ".join(one.split()) for name in row for one in inner.get(name) or [str(name)]]
    shown = [escaped(name if len(name) <= 80 else f"{name[:80]}...") for name in names[:_SHOWN_COLUMNS]]
    return ", ".join(shown + ["..."] * (len(names) > _SHOWN_COLUMNS)) or "none"


def absent(row: Mapping[str, object], name: str) -> str:
    """What is wrong with a column that has no value."""
    return f"column {name!r} " + ("is null" if name in row else f"is missing (columns found: {listed_columns(row)})")


def is_stream(row: object) -> bool:
    """Whether a row is plain text or token ids, without a chat's columns."""
    if not isinstance(row, Mapping) or any(row.get(name) is not None for name in _CHAT_WORDS):
        return False
    return row.get("text") is not None or row.get("input_ids") is not None


def listed_steps(row: object, name: str) -> list[str]:
    """The steps that a column holds.

    Raises:
        RowError: it is missing, or no list of texts.
    """
    row = as_object(row)
    value = column_value(row, name)
    if value is None:
        raise RowError("no_steps", f"{absent(row, name)}; {_NAME.step_splitter}=list reads the steps there")
    if not isinstance(value, (list, tuple)) or not all(isinstance(step, str) for step in value):
        raise RowError("no_steps", f"column {name!r} is no list of texts")
    return list(value)


def target_text(row: object, name: str) -> str | RowError:
    """The text that a column holds for the target view, or what is wrong with it."""
    row = as_object(row)
    value = column_value(row, name)
    if isinstance(value, str) and value.strip() and lone_surrogate(value) is None:
        return value
    return RowError("no_target_text", absent(row, name) if value is None else f"column {name!r} holds no text")


def chat_column(row: Mapping[str, object]) -> str | None:
    """The column that holds a row's chat as messages, None without one."""
    name = next((name for name in CHAT_COLUMNS if row.get(name) is not None), None)
    chosen = row.get(CHOSEN)
    if name is None and isinstance(chosen, str) and chosen.startswith(_DIALOGUE):
        return CHOSEN
    if name is None and isinstance(chosen, list) and not isinstance(row.get("prompt"), list):
        return CHOSEN
    return name


def answer_column(row: Mapping[str, object]) -> str:
    """The column that holds a row's answer, or its chat."""
    return chat_column(row) or form_of(row).answer


def form_of(row: Mapping[str, object]) -> Form:
    """The first form of which a row fills both columns; without one the first that it has, whose question it fills, of all.

    A data set of mixed rows fills the columns that a row does not have with None.
    """

    def fit(form: Form) -> tuple[bool, bool]:
        return form.question in row and form.answer in row, row.get(form.question) is not None

    filled = (form for form in FORMS if row.get(form.question) is not None and row.get(form.answer) is not None)
    return next(filled, None) or max((_form("question", "answer"), *FORMS), key=fit)


def asked_in(row: Mapping[str, object], form: Form) -> object:
    """The question of a row, with the texts that belong to it, a blank line between them."""
    asked = column_value(row, form.question)
    if not isinstance(asked, str):
        return asked
    before = [column_value(row, name) for name in form.before]
    after = [column_value(row, name) for name in form.after]
    texts = [text for text in (*before, asked, *after) if isinstance(text, str) and text.strip()]
    return "\n\n".join(texts) or asked


@dataclass
class ColumnOptions(Topic):
    """Which columns hold a pair."""

    source_column: str | None = option(None, "Column with the source text, for data sets of pairs.", VIEWS)
    target_column: str | None = option(None, "Column with the target text.", VIEWS)
    choice_column: str | None = option(
        None, "Column with the index of the right text, where target_column holds a list (multiple choice).", VIEWS
    )

    @property
    def columns(self) -> PairColumns | None:
        """The columns that are named; None for the known names."""
        if not self.source_column or not self.target_column:
            return None
        return PairColumns(self.source_column, self.target_column, self.choice_column)

    def check(self) -> None:
        """As `Topic.check`; raises ConfigError."""
        columns = f"{_NAME.source_column} and {_NAME.target_column}"
        if (self.source_column is None) != (self.target_column is None):
            raise ConfigError(f"{columns} go together; give both")
        if self.choice_column is not None and self.target_column is None:
            raise ConfigError(f"{_NAME.choice_column} picks a text of {_NAME.target_column}; give {columns} too")


@dataclass
class TemplateOptions(Topic):
    """How chats are written."""

    plain: bool = option(False, "No chat template: the messages' contents, a line break between them.", DATA)
    chat_template: str | None = option(None, "File with a Jinja chat template to use instead of the tokenizer's.", DATA)
    chat_template_kwargs: dict[str, Any] | None = option(
        None, "What the chat template takes besides the messages, as in '{\"enable_thinking\": false}'.", DATA
    )

    def check(self) -> None:
        """As `Topic.check`; raises ConfigError."""
        for name in (_NAME.chat_template, _NAME.chat_template_kwargs):
            if self.plain and getattr(self, name):
                raise ConfigError(f"plain means no chat template, and {name} is for one; leave one of them out")


@dataclass
class PromptOptions(Topic):
    """Which prompt a model is asked with."""

    prompt_from: PromptFrom = option(
        None,
        "The end of a prompt where the chat template's generation prompt has text that its chats do not have, such as an "
        "opened thinking block: as the training data had it (training), or the generation prompt (template). Default: "
        "training for a model with a record of its training, else template.",
        DATA,
        needs={"backend": ("transformers", "vllm")},
    )


@dataclass
class DataOptions(TemplateOptions, ColumnOptions):
    """How rows become chats and tokens."""

    labels: Literal["assistant", "all", "reference"] | None = option(
        None,
        "Tokens of the LM loss: answers and their end of turn (assistant, the default), all (default of split and plain "
        "text), or what the published code really trains on (reference).",
        DATA,
    )
    max_length: int = option(
        1024, "Longest chat in tokens; longer ones are cut on the right and counted.", DATA, at_least=2
    )
    train_on: Literal["all", "last"] = option(
        "all",
        "Answers that are trained: all of a chat, or the last one alone; the others are context. Messages that a row "
        "switches off (weight 0, train false) are context too.",
        DATA,
    )
    drop_longer: bool = option(
        False, "Leave out rows that are longer than max_length, and count them, instead of cutting them.", DATA
    )
    system_prompt: str | None = option(None, "System message for chats that have none.", DATA)
    strict_data: bool = option(
        False, "Stop at the first row that cannot be used, instead of counting it.", DATA, resume=True
    )


@dataclass
class StepsOptions(Topic):
    """How the steps of an answer are found, for objectives that need them."""

    step_splitter: Literal["auto", "separator", "lines", "numbered", "sentence", "regex", "list"] = option(
        "auto",
        "How steps are found in an answer; auto takes the steps that a row holds, and for other rows the one of separator, "
        "numbered, lines that serves most of them, or what serves each answer where none does. list: every row holds its "
        "steps.",
        VIEWS,
    )
    step_separator: str = option(
        "\\n\\n",
        "The string between steps for step_splitter=separator; the pattern that opens a step for regex.",
        VIEWS,
        needs={"step_splitter": ("auto", "separator", "regex")},
    )
    steps_column: str = option(
        STEPS_COLUMN,
        "Column with the list of steps of the (last) answer, for auto and list.",
        VIEWS,
        needs={"step_splitter": ("list", "auto")},
    )

    def fill_in(self) -> None:
        """See `Topic.fill_in`: who names a separator wants to split there."""
        if self.step_splitter == "auto" and self.step_separator != StepsOptions.step_separator:
            self.step_splitter = "separator"


@dataclass
class ReadingOptions(Topic):
    """How the training data is read: mixing, streaming, tokenising."""

    mixing_weights: list[float] | None = option(
        None,
        "One weight for every train_file: examples are sampled in this proportion. Default: each file once.",
        DATA,
        above=0,
    )
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] = option(
        "all_exhausted",
        "mixing_weights: an epoch ends when all of the first file was used, or of the last one (the others are used again "
        "meanwhile).",
        DATA,
        needs={"mixing_weights": True, "streaming": False},
    )
    streaming: bool = option(
        False, "Read the training data as it is needed instead of once before; needs max_steps.", DATA
    )
    shuffle_buffer: int = option(
        10_000,
        "streaming: examples that are read ahead and shuffled together; no more than the data has.",
        DATA,
        needs={"streaming": True},
        at_least=1,
    )
    dataset_num_proc: int = option(
        1,
        "Processes that tokenise. More than one pay off from some 50,000 rows on.",
        DATA,
        resume=True,
        identity=False,
        at_least=1,
    )


def check_split_name(split: str, option: str = "dataset_split") -> None:
    """Refuse a share in place of a split's name; raises ConfigError."""
    with suppress(ValueError):
        float(split)
        raise ConfigError(
            f"--{option} {split}: is a number, and the name of a data set's split is expected; to hold rows back, run "
            "stepjepa prepare FILE --valid_ratio SHARE, and evaluate on the second file that it writes"
        )


_NAME = Names(DataOptions, StepsOptions)
