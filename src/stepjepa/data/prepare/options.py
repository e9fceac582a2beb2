r"""Options of ``stepjepa prepare``, with their help texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stepjepa.config.option import Names, check_fields, option
from stepjepa.data.sources import JSON_SUFFIXES
from stepjepa.data.steps import LISTED, STYLES, make_splitter
from stepjepa.errors import ConfigError

# The published data were prepared with it; a generator is asked with it, too.
SYSTEM_PROMPT = (
    "Please solve the problem step by step (separate steps with double newlines), but keep it short and put your final "
    "answer (do not include any other text or units) within \\boxed{}."
)
RESPONSE_COLUMN = "deepseek_response"
PUBLISHED_LENGTH = 21  # the published preparation drops pieces of 20 characters or fewer

_FORMAT, _STEPS, _ROWS, _OUTPUT = "input", "steps", "rows", "output"


@dataclass
class PrepareOptions:
    """What to read, how to find the steps, which rows to keep and where to write them."""

    file: str | None = option(
        None, "The raw rows: a file, or a Hub data set's name; usually written without --file.", _FORMAT
    )
    format: Literal["auto", "gsm8k", "teacher", "columns", "chats"] = option(
        "auto", "Format of the raw rows; auto recognises it from the first ones and prints it.", _FORMAT
    )
    question_column: str | None = option(None, "Column with the question. Default: question.", _FORMAT)
    answer_column: str | None = option(None, "Column with the data set's own answer. Default: answer.", _FORMAT)
    response_column: str | None = option(
        None,
        f"Column with the response in which steps are found. Default: {RESPONSE_COLUMN} for teacher, else the answer's.",
        _FORMAT,
    )
    ground_truth_column: str | None = option(
        None, "Column with the final answer. Default: ground_truth, else it is taken from the answer.", _FORMAT
    )
    dataset_split: str = option("train", "Split of a Hub data set.", _FORMAT)
    step_splitter: str = option(
        "auto",
        "How steps are found in a response; auto takes lines for gsm8k, and otherwise decides for each response. list: "
        "the response column holds a list of steps.",
        _STEPS,
        choices=(*STYLES, LISTED),
    )
    step_separator: str = option(
        "\\n\\n", "The string between steps for step_splitter=separator and auto, the pattern for regex.", _STEPS
    )
    min_step_length: int | None = option(
        None,
        f"Characters that a step has at least (a Chinese one counts as four); shorter pieces join a neighbour. Default: "
        f"{PUBLISHED_LENGTH} for teacher and columns, 1 for gsm8k and lists.",
        _STEPS,
        at_least=0,
    )
    drop_short: bool = option(
        False, "Drop pieces that are too short instead (never one with the final answer).", _STEPS
    )
    keep_thinking: bool = option(
        False,
        "Keep what stands between <think> marks as steps, without the marks, as published; else it is dropped.",
        _STEPS,
    )
    calculator_marks: Literal["drop", "keep"] = option("drop", "GSM8K's <<48/2=24>> marks.", _STEPS)
    final_answer: Literal["boxed", "keep"] = option(
        "boxed", "Write a final '#### 72' as \\boxed{72}, or keep it.", _STEPS
    )
    system_prompt: str | None = option(
        SYSTEM_PROMPT,
        "System message of chats without one; none for no message. The default asks for a box, and only rows whose "
        "answer has one get it.",
        _STEPS,
    )
    min_steps: int = option(2, "Rows with fewer steps are dropped.", _ROWS, at_least=1)
    max_steps: int | None = option(None, "Rows with more steps are dropped.", _ROWS)
    require_correct: bool = option(False, "Drop rows whose response does not end in the ground truth.", _ROWS)
    dedup: bool = option(
        False, "Keep the first of the rows with the same question (letter case and spaces aside).", _ROWS
    )
    max_examples: int | None = option(None, "Stop when so many rows are kept.", _ROWS, at_least=1)
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
    num_proc: int = option(1, "Processes that prepare rows.", _OUTPUT, at_least=1)
    overwrite: bool = option(
        False,
        "Replace output files that exist, once the new ones are complete.",
        _OUTPUT,
        aliases=("overwrite_output_dir",),
    )

    def check(self) -> None:
        """Check the values.

        Raises:
            ConfigError: one that cannot be used.
        """
        if not self.output_file:
            raise ConfigError(f"--{_NAME.output_file} must be given: the JSONL file to write")
        if Path(self.output_file).suffix.lower() not in JSON_SUFFIXES:
            raise ConfigError(
                f"{_NAME.output_file} is {self.output_file!r}; rows are written as JSONL, so end it in .jsonl"
            )
        check_fields(self)
        if self.max_steps is not None and self.max_steps < self.min_steps:
            raise ConfigError(f"{_NAME.max_steps} is {self.max_steps}; it must be at least {self.min_steps}")
        if self.step_splitter != LISTED:
            make_splitter(self.step_splitter, self.step_separator)


_NAME = Names(PrepareOptions)
