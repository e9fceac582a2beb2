"""The columns of a row: its chat, its text or its steps; further information (switches, a system message, earlier turns,
tools); and the columns that are not read.

Every command reads these columns through `stepjepa.data.chat`. Columns that are not read are reported, never silently
ignored.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.options import STEPS_COLUMN, StepsOptions
from stepjepa.errors import RowError
from stepjepa.utils.files import Record, parse_json
from stepjepa.utils.text import lone_surrogate, one_line

_NAME = Names(StepsOptions)
# A row of a data set by its columns, a message of a chat by its keys, and the messages of a chat.
Row = Mapping[str, Any]
Message = Mapping[str, Any]
Chat = Sequence[Message]
# The messages of a checked chat, see `chat.check_messages`.
Messages = list[dict[str, str]]
TOTAL_COLUMN = "total_steps"
# The preferred side of a preference pair: an answer, or a complete chat.
CHOSEN = "chosen"
# SQuAD's answers: an object with a list `text`.
SQUAD_ANSWERS = "answers"
# The beginning of a chat that is stored as a single text (hh-rlhf).
_DIALOGUE = "\n\nHuman:"


class Form(NamedTuple):
    """The columns of a question and its answer, and those whose texts come before or after the question."""

    question: str
    answer: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def _form(question: str, answer: str) -> Form:
    """The form of two columns. Dolly's context and Alpaca's input follow the instruction; SQuAD's context precedes the
    question."""
    if question == "instruction":
        return Form(question, answer, after=("context", "input"))
    return Form(question, answer, ("context",), () if question == "input" else ("input",))


QUESTION_COLUMNS = ("question", "prompt", "problem", "instruction", "query", "input")
ANSWER_COLUMNS = (
    "answer",
    "completion",
    "solution",
    "output",
    "response",
    "code",
    CHOSEN,
    SQUAD_ANSWERS,
)
# The preferred forms. A solution takes precedence over an answer, since it ends in the answer that another column may
# repeat.
_FIRST_FORMS = (
    ("question", "solution"),
    ("question", "answer"),
    ("prompt", "completion"),
    ("problem", "solution"),
    ("instruction", "output"),
)
# Every question with every answer. To support two other columns, add their form here and to `_PAIRS` in chat.py.
FORMS = (
    *(_form(*names) for names in _FIRST_FORMS),
    Form("text", "code"),
    *(_form(question, answer) for question in QUESTION_COLUMNS for answer in ANSWER_COLUMNS),
)
# The second name is ShareGPT's, the third LMSYS-Chat's.
CHAT_COLUMNS = ("messages", "conversations", "conversation")
# Keys of the thinking in an assistant message; a checked message uses the first one.
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
REASONING = REASONING_KEYS[0]


# The columns of a chat. A row with any of them is a chat, perhaps an incomplete one, and not plain text.
_CHAT_WORDS = {*CHAT_COLUMNS, *(name for form in FORMS for name in form[:2])} - {"text"}


def as_object(row: object) -> Row:
    """Return a row that has columns; RowError for anything else."""
    if not isinstance(row, Mapping):
        raise RowError(
            "not_an_object",
            f"the row has type {type(row).__name__}; it must be an object",
        )
    return row


def column_value(row: Mapping[str, object], name: str, default: object = None) -> object:
    """Return the value of a column, or `default` if the row does not have it. ``solution.text`` is the key ``text`` of the
    object in ``solution``, unless a column has this very name."""
    if name in row:
        return row[name]
    outer, dot, inner = name.partition(".")
    value = row.get(outer) if dot else None
    return column_value(value, inner, default) if isinstance(value, Mapping) else default


def listed_columns(row: Mapping[Any, object]) -> str:
    """List the names of a row's columns in a short printable line; for a column that holds an object, the names of its
    keys."""
    names: list[str] = []
    for name, value in row.items():
        keys = value if isinstance(value, Mapping) else ()
        names += [f"{name}.{key}" for key in keys] or [str(name)]
    return one_line(", ".join(names)) or "none"


def absent(row: Mapping[str, object], name: str) -> str:
    """Say why a column has no value."""
    return f"column {name!r} " + (
        "is null" if name in row else f"is missing (columns found: {listed_columns(row)})"
    )


def refuse_half_characters(text: str, where: str) -> None:
    """Raise a RowError for a text with a lone surrogate, which no tokenizer can encode."""
    half = lone_surrogate(text)
    if half is not None:
        raise RowError(
            "broken_text",
            f"{where} contains the lone surrogate {half}, which is not a character; remove it",
        )


def is_stream(row: object) -> bool:
    """Whether a row is plain text or token ids, without the columns of a chat."""
    if not isinstance(row, Mapping) or first_filled(row, _CHAT_WORDS) is not None:
        return False
    return first_filled(row, ("text", "input_ids")) is not None


def listed_steps(row: Mapping[str, object], name: str) -> list[str]:
    """Return the steps that a column lists.

    Raises:
        RowError: the column is missing, or is not a list of texts.
    """
    value = column_value(row, name)
    if value is None:
        raise RowError(
            "no_steps", f"{absent(row, name)}; {_NAME.step_splitter}=list reads the steps from it"
        )
    if not isinstance(value, (list, tuple)) or not all(isinstance(step, str) for step in value):
        raise RowError("no_steps", f"column {name!r} is not a list of texts")
    return list(value)


def target_text(row: Mapping[str, object], name: str) -> str | RowError:
    """Return the text of the target view in a column, or the error that says why there is none."""
    value = column_value(row, name)
    if isinstance(value, str) and value.strip() and lone_surrogate(value) is None:
        return value
    return RowError(
        "no_target_text", absent(row, name) if value is None else f"column {name!r} has no text"
    )


def first_filled(row: Mapping[Any, object], names: Iterable[str]) -> str | None:
    """Return the first of these columns or keys that has a value, or None."""
    return next((name for name in names if row.get(name) is not None), None)


def chat_column(row: Mapping[str, object]) -> str | None:
    """Return the name of the column of messages, or None."""
    name = first_filled(row, CHAT_COLUMNS)
    # A preferred answer that is a list is a complete chat, unless it answers the text or the messages in `prompt`.
    chosen, prompt = row.get(CHOSEN), row.get("prompt")
    if name is None and isinstance(chosen, str) and chosen.startswith(_DIALOGUE):
        return CHOSEN
    answers = isinstance(prompt, list) or (prompt is not None and _begins_with_answer(chosen))
    if name is None and isinstance(chosen, list) and not answers:
        return CHOSEN
    return name


def _begins_with_answer(messages: object) -> bool:
    """Whether the first of some messages is the assistant's."""
    return isinstance(messages, list) and role_of(next(iter(messages), None)) == "assistant"


def answer_column(row: Mapping[str, object]) -> str:
    """Return the name of the column of the answer, or of the chat."""
    return chat_column(row) or form_of(row).answer


def form_of(row: Mapping[str, object]) -> Form:
    """Return the first form whose two columns are filled in a row, else the first whose columns exist, else one with a
    question.

    A data set of mixed rows has None, or an empty text, in the columns that a row does not use.
    """

    def has(name: str) -> bool:
        value = row.get(name)
        return value is not None and not (isinstance(value, str) and not value.strip())

    def fit(form: Form) -> tuple[bool, bool]:
        return form.question in row and form.answer in row, row.get(form.question) is not None

    filled = (form for form in FORMS if has(form.question) and has(form.answer))
    return next(filled, None) or max((_form("question", "answer"), *FORMS), key=fit)


def asked_in(row: Mapping[str, object], form: Form) -> object:
    """Return the question of a row, joined by blank lines with the texts that belong to it."""
    asked = row.get(form.question)
    if not isinstance(asked, str):
        return asked
    return "\n\n".join(texts_in(row, (*form.before, form.question, *form.after))) or asked


def texts_in(row: Mapping[str, object], names: Iterable[str]) -> list[str]:
    """Return the texts in some columns, without blank ones."""
    values = [row.get(name) for name in names]
    return [value for value in values if isinstance(value, str) and value.strip()]


# Further information in a row

# The key of a checked message whose value is False if the message is only context.
TRAINED = "trained"
# The role of a tool's result.
TOOL = "tool"
# Keys of the tool calls in an assistant message: OpenAI's current and its older one.
TOOL_CALLS, FUNCTION_CALL = "tool_calls", "function_call"
# Keys of a tool's result.
TOOL_KEYS = ("name", "tool_call_id")
# Keys of every message: OpenAI's, then ShareGPT's.
ROLE_KEYS = ("role", "from")
CONTENT_KEYS = ("content", "value")
ROLES = ("system", "user", "assistant")
_SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", FUNCTION_CALL: "assistant"}
_RESULT_ROLES = dict.fromkeys(("ipython", "function", "observation"), TOOL)
# The last one is OpenAI's name of the system message for models that think.
_OTHER_ROLES = {**_SHAREGPT_ROLES, **_RESULT_ROLES, "developer": "system"}
# Printed names of messages with tool calls and results.
CALL, RESULT = "tool call", "tool result"
SYSTEM_COLUMNS = ("system", "system_prompt")
HISTORY, TOOLS, TEMPLATE_KWARGS = "history", "tools", "chat_template_kwargs"
# Columns next to token ids: 1 for a labelled token.
MASKS = ("completion_mask", "assistant_masks", "loss_mask")
# Keys that switch training on a message on or off: OpenAI's and ShareGPT's weight, Axolotl's, LLaMA-Factory's, others.
_SWITCHES = (TRAINED, "weight", "train", "training", "loss", "loss_mask", "trainable")
_MESSAGE_KEYS = {
    *ROLE_KEYS,
    *CONTENT_KEYS,
    *REASONING_KEYS,
    *_SWITCHES,
    TOOL_CALLS,
    FUNCTION_CALL,
    *TOOL_KEYS,
}
# Columns that other parts of the library read.
_READ_ELSEWHERE = {
    STEPS_COLUMN,
    TOTAL_COLUMN,
    "ground_truth",
    TOOLS,
    TEMPLATE_KWARGS,
    CHOSEN,
}
# Columns that describe a row; a sentence in such a column is not meant for training, so it causes no warning.
_DESCRIPTIONS = set(
    "answer author categories category created dataset date difficulty domain extra_info generator hash id ids idx index "
    "info label labels lang language level license link meta metadata model name path provenance rating score scores "
    "source split subject tag tags task timestamp title topic topics type url uuid".split()
)
# A text with more words than this is a sentence, not a label; in a script without spaces, one with more characters.
_SENTENCE = 5
_UNSPACED = 30


def role_of(message: object) -> object:
    """Return the role of an unchecked message in OpenAI's words; None if it has none."""
    role = message.get(first_filled(message, ROLE_KEYS)) if isinstance(message, Mapping) else None
    return _OTHER_ROLES.get(role, role) if isinstance(role, str) else role


def switched_on(message: Message, where: str) -> bool:
    """Whether the switches of a message leave it switched on for training; RowError for a switch that is neither on nor
    off."""
    switches = {name: message[name] for name in _SWITCHES if message.get(name) is not None}
    for name, value in switches.items():
        if value not in (0, 1):
            raise RowError(
                "unknown_switch",
                f"{where} has {name} {value!r}; use 0 or 1, or false or true",
            )
    return all(switches.values())


def is_trained(message: Message) -> bool:
    """Whether a checked message is trained on, provided that its role is."""
    return message.get(TRAINED, True)


def has_output(message: Message) -> bool:
    """Whether a checked message is the assistant's, with text, thinking or tool calls."""
    written = message["content"].strip() or REASONING in message or TOOL_CALLS in message
    return message["role"] == "assistant" and bool(written)


def trained_turns(messages: Chat) -> list[bool]:
    """Return whether each assistant message in a checked chat is trained on."""
    return [is_trained(message) for message in messages if message["role"] == "assistant"]


def is_answer(message: Message) -> bool:
    """Whether a checked message is an answer, which has steps and views: an assistant message without tool calls."""
    return message["role"] == "assistant" and TOOL_CALLS not in message


def answers_in(messages: Sequence[Record]) -> list[Record]:
    """Return the answers of a checked chat; empty if every assistant message calls tools."""
    return [message for message in messages if is_answer(message)]


def turn_name(message: Message) -> str:
    """Return the printed name of a checked message: its role, or a tool's call or result."""
    if message["role"] == TOOL:
        return RESULT
    return CALL if TOOL_CALLS in message else message["role"]


def last_trained(messages: Sequence[Record]) -> list[Record]:
    """Return a checked chat in which only the last assistant message is trained on."""
    *_, last = (turn for turn in messages if turn["role"] == "assistant")
    return [turn if turn is last else as_context(turn) for turn in messages]


def as_context(message: Record) -> Record:
    """Return a checked message without training on it, if it is the assistant's."""
    return {**message, TRAINED: False} if message["role"] == "assistant" else message


def system_of(row: Row) -> str | None:
    """Return the system message in a column of a row, or None."""
    return next(iter(texts_in(row, SYSTEM_COLUMNS)), None)


def history_of(row: Row) -> list[Record]:
    """Return the turns before the question of a row, from its history of (question, answer) pairs. A history in any other
    form is not read."""
    turns = parsed(row.get(HISTORY))
    if not isinstance(turns, (list, tuple)) or not all(
        isinstance(turn, (list, tuple)) and len(turn) == 2 for turn in turns
    ):
        return []
    roles = ("user", "assistant")
    return [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(roles, turn, strict=True)
    ]


def template_kwargs_of(row: Mapping[str, object]) -> Record:
    """Return the template arguments of a row: its `chat_template_kwargs` and its tools; empty for most rows.

    Raises:
        RowError: the arguments are not an object, or the tools are not a list.
    """
    kwargs = parsed(row.get(TEMPLATE_KWARGS)) or {}
    tools = parsed(row.get(TOOLS)) or []
    if not isinstance(kwargs, Mapping) or not isinstance(tools, list):
        raise RowError(
            "bad_template_kwargs",
            f"{TEMPLATE_KWARGS!r} must be an object, and {TOOLS!r} a list of functions",
        )
    return {**kwargs, TOOLS: without_nulls(tools)} if tools else dict(kwargs)


def squad_answer(value: object) -> object:
    """Return the first text of SQuAD's answers, and any other value unchanged; RowError for answers without a text."""
    if not isinstance(value, Mapping):
        return value
    texts = value.get("text")
    if not isinstance(texts, (list, tuple)) or not texts:
        raise RowError(
            "no_answer",
            "the answer is an object without a list 'text', as in SQuAD for a question without an answer; leave it out",
        )
    return texts[0]


def dialogue(value: object) -> object:
    """Return the messages of a chat that is stored as a single text, as in hh-rlhf; any other value unchanged."""
    if not isinstance(value, str):
        return value
    _, *parts = re.split(r"\n\n(Human|Assistant):", value)
    # ShareGPT's roles have the same names.
    turns = zip(parts[::2], parts[1::2], strict=True)
    return [{"role": who.lower(), "content": text.strip()} for who, text in turns]


def as_list(value: object) -> object:
    """Undo two ways in which a table stores a list: as JSON text (CSV), and as an object of lists."""
    value = parsed(value)
    if not isinstance(value, Mapping):
        return value
    lists = list(value.values())
    if not all(isinstance(column, list) and len(column) == len(lists[0]) for column in lists):
        return value
    return [dict(zip(value, cells, strict=True)) for cells in zip(*lists, strict=True)]


def left_over(row: Row, messages: Chat, also: Iterable[str | None] = ()) -> list[str]:
    """Name the columns and keys of messages that have text which is not trained on.

    Args:
        messages: the row's checked chat; empty for plain text.
        also: columns that options name.
    """
    # The columns that are read, and those among them that may be lists of messages.
    chat = chat_column(row)
    read, columns = {*_READ_ELSEWHERE, *also, chat}, [chat or ""]
    if not messages:
        read.add("text")
        if row.get("input_ids") is not None:
            read |= {"input_ids", "labels", "attention_mask", *MASKS}
    elif chat is None:
        form = form_of(row)
        contexts = (name for name in (*form.before, *form.after) if isinstance(row.get(name), str))
        columns = [form.question, form.answer]
        read |= {*columns, *contexts, HISTORY if history_of(row) else None}
    if messages:
        read |= {name for name in SYSTEM_COLUMNS if row.get(name) == messages[0]["content"]}
    # Every other column describes the row, or has text that is not read, unless a message contains that text.
    shown = [message.get(key, "") for message in messages for key in ("content", REASONING)]
    texts = list[str]()
    for name, value in row.items():
        if name in read or value is None or (isinstance(value, (str, list, Mapping)) and not value):
            continue
        if str(name).lower() in _DESCRIPTIONS or not _is_text(value):
            continue
        if not any(isinstance(value, str) and value.strip() in text for text in shown):
            texts.append(f"column {name!r}")
    for column in columns:
        entries = as_list(row.get(column))
        for message in entries if isinstance(entries, list) else ():
            if isinstance(message, Mapping):
                keys = (key for key in message if key not in _MESSAGE_KEYS)
                texts += [f"key {key!r} of messages" for key in keys if _is_text(message[key])]
    return list(dict.fromkeys(texts))


def _is_text(value: object) -> bool:
    """Whether a value is or contains at least a sentence, rather than an id, a label, a number or a link."""
    if isinstance(value, str):
        is_sentence = len(value.split(None, _SENTENCE)) > _SENTENCE
        return is_sentence or (not value.isascii() and len(value) > _UNSPACED)
    if isinstance(value, Mapping):
        return any(map(_is_text, value.values()))
    if isinstance(value, (list, tuple)):
        # A list of words is a text, too.
        joined = " ".join(part for part in value if isinstance(part, str))
        return _is_text(joined) or any(map(_is_text, value))
    return False


def parsed(value: object) -> object:
    """Parse a value that a table stores as JSON text; any other value is returned unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):
            return parse_json(value)
    return value


def without_nulls(value: object) -> object:
    """Drop the keys that a table filled with null, at every depth."""
    if isinstance(value, Mapping):
        return {key: without_nulls(entry) for key, entry in value.items() if entry is not None}
    return [without_nulls(entry) for entry in value] if isinstance(value, list) else value
