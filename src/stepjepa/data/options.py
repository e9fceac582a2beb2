"""Options of data: which columns are read, how chats are written and cut, how steps are found, how files are mixed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from stepjepa.config.option import Names, Topic, option
from stepjepa.errors import ConfigError

VIEWS, DATA = "views", "data"
PromptFrom = Literal["training", "template"] | None
STEPS_COLUMN = "steps"  # as `stepjepa prepare` writes it


class PairColumns(NamedTuple):
    """The columns that hold the two views, where they are named.

    Attributes:
        source, target: column names; the source becomes the user's message, the target the answer.
        choice: a column with the index of the right one, where the target column holds a list (multiple choice).
    """

    source: str
    target: str
    choice: str | None = None


def text_of(value: object) -> str:
    """A cell as text: numbers are written out; empty for what is neither, and for NaN."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value != value:
        return ""
    return str(value)


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
