"""Data options: the columns, the form and length of chats, the steps of answers, the mixing of files, and the preparation
of raw rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from stepjepa.config.option import Names, Topic, check_fields, option
from stepjepa.errors import ConfigError

# Headings of the help.
VIEWS, DATA = "views", "data"
PromptFrom = Literal["training", "template"] | None
# The column into which `stepjepa prepare` writes the steps.
STEPS_COLUMN = "steps"
# The splitters that `choose_splitter` chooses from; if several are equally good, the first one wins.
SPLITTERS = ("separator", "numbered", "lines")
# All splitters that `make_splitter` knows.
STYLES = (*SPLITTERS, "sentence", "regex", "auto")


class PairColumns(NamedTuple):
    """The columns of the two views, if the user names them.

    Attributes:
        source, target: column names; the source becomes the user's message, the target the answer.
        choice: a column with the index of the correct answer, if the target column has a list (multiple choice).
    """

    source: str
    target: str
    choice: str | None = None


def text_of(value: object) -> str:
    """Return a cell as text: a number becomes what `str` returns; NaN and all other values become an empty string."""
    # NaN, the empty cell of a pandas table, is the value that differs from itself.
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value != value:
        return ""
    return str(value)


@dataclass
class ColumnOptions(Topic):
    """The columns of a pair of views."""

    source_column: str | None = option(
        None, "Column with the source text, for data sets of pairs.", VIEWS
    )
    target_column: str | None = option(None, "Column with the target text.", VIEWS)
    choice_column: str | None = option(
        None,
        "Column with the index or the letter of the correct text, if target_column has a list (multiple choice).",
        VIEWS,
    )

    @property
    def columns(self) -> PairColumns | None:
        """The columns that the user names; None for the columns that the library knows."""
        if not self.source_column or not self.target_column:
            return None
        return PairColumns(self.source_column, self.target_column, self.choice_column)

    def check(self) -> None:
        """As `Topic.check`; raises ConfigError."""
        # The two views are one pair: a named source has no use without a named target.
        columns = f"{_NAME.source_column} and {_NAME.target_column}"
        if (self.source_column is None) != (self.target_column is None):
            raise ConfigError(f"{columns} go together; give both")
        if self.choice_column is not None and self.target_column is None:
            raise ConfigError(
                f"{_NAME.choice_column} picks a text from {_NAME.target_column}; give {columns} too"
            )


@dataclass
class TemplateOptions(Topic):
    """How chats become text."""

    plain: bool = option(
        False,
        "Use no chat template: the contents of the messages are joined with line breaks.",
        DATA,
    )
    chat_template: str | None = option(
        None, "File with a Jinja chat template to use instead of the tokenizer's.", DATA
    )
    chat_template_kwargs: dict[str, Any] | None = option(
        None,
        "Further arguments for the chat template, such as '{\"enable_thinking\": false}'.",
        DATA,
    )

    def check(self) -> None:
        """As `Topic.check`; raises ConfigError."""
        for name in (_NAME.chat_template, _NAME.chat_template_kwargs):
            if self.plain and getattr(self, name):
                raise ConfigError(
                    f"plain uses no chat template, so {name} would have no effect; give only one of them"
                )


@dataclass
class PromptOptions(Topic):
    """The end of the prompts that a model answers."""

    prompt_from: PromptFrom = option(
        None,
        "How a prompt ends if the template's generation prompt adds text that rendered chats lack, such as an opening "
        "thinking tag: as in the training data (training) or as in the generation prompt (template). Default: training for "
        "a model with a record of its training, else template.",
        DATA,
        needs={"backend": ("transformers", "vllm")},
    )


@dataclass
class DataOptions(TemplateOptions, ColumnOptions):
    """How rows become chats and tokens."""

    labels: Literal["assistant", "all", "reference"] | None = option(
        None,
        "Tokens in the LM loss: answers and their end of turn (assistant, the default), all tokens (all, the default for "
        "objective split and for plain text), or those that the published code actually trains on (reference).",
        DATA,
    )
    max_length: int = option(
        1024,
        "Longest chat in tokens; longer chats are cut on the right and counted.",
        DATA,
        at_least=2,
    )
    train_on: Literal["all", "last"] = option(
        "all",
        "Answers to train on: all in a chat, or only the last; the others are context. Messages that a row "
        "switches off (weight 0, train false) are context, too.",
        DATA,
    )
    drop_longer: bool = option(
        False,
        "Leave out and count rows that are longer than max_length, instead of cutting them.",
        DATA,
    )
    system_prompt: str | None = option(None, "System message for chats that have none.", DATA)
    strict_data: bool = option(
        False,
        "Stop at the first row that cannot be used, instead of counting it.",
        DATA,
        resume=True,
    )


@dataclass
class StepsOptions(Topic):
    """How an answer is split into steps, for objectives that need them."""

    step_splitter: Literal[
        "auto", "separator", "lines", "numbered", "sentence", "regex", "list"
    ] = option(
        "auto",
        "How an answer is split into steps. auto uses the steps that a row lists; for other rows, whichever of separator, "
        "numbered, lines fits most of them or, if none does, whichever fits each answer. list: every row lists its steps.",
        VIEWS,
    )
    step_separator: str = option(
        "\\n\\n",
        "The string between steps for step_splitter=separator; the pattern at which a step begins for regex.",
        VIEWS,
        needs={"step_splitter": ("auto", "separator", "regex")},
    )
    steps_column: str = option(
        STEPS_COLUMN,
        "Column with the list of steps of the (last) answer, for step_splitter=auto and list.",
        VIEWS,
        needs={"step_splitter": ("list", "auto")},
    )

    def fill_in(self) -> None:
        """See `Topic.fill_in`: a separator implies the splitter that uses it."""
        if self.step_splitter == "auto" and self.step_separator != StepsOptions.step_separator:
            self.step_splitter = "separator"


@dataclass
class ReadingOptions(Topic):
    """How the training data are read: mixing, streaming, tokenising."""

    mixing_weights: list[float] | None = option(
        None,
        "One weight for every train_file: examples are sampled in these proportions. Default: each file once.",
        DATA,
        above=0,
    )
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] = option(
        "all_exhausted",
        "With mixing_weights, an epoch ends when the first file is exhausted, or only when the last one is (files that run "
        "out sooner are repeated).",
        DATA,
        needs={"mixing_weights": True, "streaming": False},
    )
    streaming: bool = option(
        False,
        "Read the training data on demand instead of all at once before training; needs max_steps.",
        DATA,
    )
    shuffle_buffer: int = option(
        10_000,
        "With streaming, the number of examples that are read ahead and shuffled together, at most one pass over the data.",
        DATA,
        needs={"streaming": True},
        at_least=1,
    )
    dataset_num_proc: int = option(
        1,
        "Number of processes that tokenise; more than one pays off above about 50,000 rows.",
        DATA,
        resume=True,
        identity=False,
        at_least=1,
    )


# The system message of the published data, which `stepjepa generate` also gives to its model.
SYSTEM_PROMPT = (
    "Please solve the problem step by step (separate steps with double newlines), but keep it short and put your final "
    "answer (do not include any other text or units) within \\boxed{}."
)
RESPONSE_COLUMN = "deepseek_response"
# The published preparation drops pieces of 20 characters or fewer.
PUBLISHED_LENGTH = 21

# Headings of the help of `stepjepa prepare`.
_FORMAT, _STEPS, _ROWS, _OUTPUT = "input", "steps", "rows", "output"


@dataclass
class PrepareOptions:
    """All options of ``stepjepa prepare``: the input, the steps, the rows to keep and the output."""

    file: str | None = option(
        None,
        "The raw rows: a file, or a Hub data set's name; usually written without --file.",
        _FORMAT,
    )
    format: Literal["auto", "gsm8k", "teacher", "columns"] = option(
        "auto",
        "Format of the raw rows; auto recognises it from the first rows and prints it.",
        _FORMAT,
    )
    question_column: str | None = option(
        None, "Column with the question. Default: question.", _FORMAT
    )
    response_column: str | None = option(
        None,
        f"Column with the response to split into steps. Default: {RESPONSE_COLUMN} for teacher, else that of the answer.",
        _FORMAT,
    )
    ground_truth_column: str | None = option(
        None,
        "Column with the final answer. Default: ground_truth; without it, the final answer is read from the answer.",
        _FORMAT,
    )
    dataset_split: str = option("train", "Split of a Hub data set.", _FORMAT)
    step_splitter: str = option(
        "auto",
        "How a response is split into steps. auto uses lines for gsm8k, and otherwise decides for each response.",
        _STEPS,
        choices=STYLES,
    )
    step_separator: str = option(
        "\\n\\n",
        "The string between steps for step_splitter=separator and auto, the pattern for regex.",
        _STEPS,
    )
    min_step_length: int | None = option(
        None,
        f"Minimum number of characters per step (a Chinese character counts as four); shorter pieces are joined. Default: "
        f"{PUBLISHED_LENGTH} for teacher and columns, 1 for gsm8k.",
        _STEPS,
        at_least=0,
    )
    drop_short: bool = option(
        False,
        "Drop pieces that are too short, instead of joining them (never a piece with the final answer).",
        _STEPS,
    )
    keep_thinking: bool = option(
        False,
        "Keep the text between <think> tags as steps, without the tags, as in the published data; otherwise it is dropped.",
        _STEPS,
    )
    system_prompt: str | None = option(
        SYSTEM_PROMPT,
        "System message for chats without one; none adds no message. The default asks for a boxed answer, and is added only "
        "to rows whose answer has a box.",
        _STEPS,
    )
    min_steps: int = option(2, "Rows with fewer steps are dropped.", _ROWS, at_least=1)
    require_correct: bool = option(
        False, "Drop rows whose response does not end in the ground truth.", _ROWS
    )
    dedup: bool = option(
        False,
        "Keep only the first of several rows with the same question (ignoring letter case and spaces).",
        _ROWS,
    )
    strict_data: bool = option(
        False, "Stop at the first row that cannot be read or used, instead of counting it.", _ROWS
    )
    output_file: str | None = option(None, "The JSONL file to write.", _OUTPUT)
    valid_ratio: float = option(
        0.0,
        "Share of the questions that goes to OUT.valid.jsonl, by a hash of the question.",
        _OUTPUT,
        at_least=0,
        below=1,
    )
    num_proc: int = option(1, "Number of processes that prepare rows.", _OUTPUT, at_least=1)
    overwrite: bool = option(
        False,
        "Replace output files that exist, once the new ones are complete.",
        _OUTPUT,
        aliases=("overwrite_output_dir",),
    )

    def check(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value that cannot be used.
        """
        if not self.output_file:
            raise ConfigError(f"--{_NAME.output_file} must be given: the JSONL file to write")
        check_fields(self)


# Defined after the classes that it names; their checks run later.
_NAME = Names(DataOptions, StepsOptions, PrepareOptions)
