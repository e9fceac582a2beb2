"""The columns of a row: those that make it a chat, a piece of text or steps; what else it says (switches, a system message,
earlier turns, tools); and what of it nobody reads.

Every command reads these columns through `stepjepa.data.chat`. What is left over is reported, never dropped in silence.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.options import STEPS_COLUMN, StepsOptions
from stepjepa.errors import RowError
from stepjepa.utils.files import parse_json
from stepjepa.utils.text import escaped, lone_surrogate

_NAME = Names(StepsOptions)
_SHOWN_COLUMNS = 20
TOTAL_COLUMN = "total_steps"
CHOSEN = "chosen"  # of a preference pair: an answer, or a complete chat
SQUAD_ANSWERS = "answers"  # an object with the list of `text`
_DIALOGUE = "\n\nHuman:"  # how a chat in one text begins (hh-rlhf)


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


# What else a row says

TRAINED = "trained"  # False in a checked message that is context alone
TOOL = "tool"  # the role of a tool's result
TOOL_CALLS, FUNCTION_CALL = "tool_calls", "function_call"  # in a message of the assistant; the second one is the older
TOOL_KEYS = ("name", "tool_call_id")  # in a tool's result
CALL, RESULT = "tool call", "tool result"  # names of messages
SYSTEM_COLUMNS = ("system", "system_prompt")
HISTORY, TOOLS, TEMPLATE_KWARGS = "history", "tools", "chat_template_kwargs"
REJECTED = "rejected"
MASKS = ("completion_mask", "assistant_masks", "loss_mask")  # of token ids: 1 where a token is labelled
# Keys of a message that say whether it is trained: OpenAI's and ShareGPT's weight, Axolotl's, LLaMA-Factory's and others.
_SWITCHES = (TRAINED, "weight", "train", "training", "loss", "loss_mask", "trainable")
_MESSAGE_KEYS = {"role", "content", "from", "value", *REASONING_KEYS, *_SWITCHES, TOOL_CALLS, FUNCTION_CALL, *TOOL_KEYS}
# Columns that other parts of the library read.
_READ_ELSEWHERE = {STEPS_COLUMN, TOTAL_COLUMN, "ground_truth", TOOLS, TEMPLATE_KWARGS, CHOSEN, REJECTED}
# Columns that describe a row; a sentence in one of them is no text to train on.
_DESCRIPTIONS = set(
    "answer author categories category created dataset date difficulty domain extra_info generator hash id ids idx index "
    "info label labels lang language level license link meta metadata model name path provenance rating score scores "
    "source split subject tag tags task timestamp title topic topics type url uuid".split()
)
_SENTENCE = 5  # words; a text of no more is a label
_UNSPACED = 30  # characters of a text in a script that writes no spaces


class LeftOver(NamedTuple):
    """What of a row is not trained.

    Attributes:
        texts: columns, and keys of messages, that hold texts which nobody reads, as a warning names them.
        others: columns that hold ids, categories, scores and the like.
        notes: keys of `report.NOTES`.
    """

    texts: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def switched_on(message: Mapping[str, Any], where: str) -> bool:
    """Whether a message is trained, as its own switches say; RowError for one that is neither on nor off."""
    switches = {name: message[name] for name in _SWITCHES if message.get(name) is not None}
    for name, value in switches.items():
        if value not in (0, 1):
            raise RowError("unknown_switch", f"{where} has {name} {value!r}; known are 0 and 1, or false and true")
    return all(switches.values())


def is_trained(message: Mapping[str, Any]) -> bool:
    """Whether a checked message is trained, as far as its role is."""
    return message.get(TRAINED, True)


def trained_turns(messages: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Whether each message of the assistant in a checked chat is trained."""
    return [is_trained(message) for message in messages if message["role"] == "assistant"]


def is_answer(message: Mapping[str, Any]) -> bool:
    """Whether a checked message is an answer, which has steps and views: one of the assistant that calls no tool."""
    return message["role"] == "assistant" and TOOL_CALLS not in message


def answers_in(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers of a checked chat; none where the assistant calls tools alone."""
    return [message for message in messages if is_answer(message)]


def trained_answers(messages: Sequence[dict[str, Any]]) -> list[bool]:
    """Whether each answer of a checked chat is trained."""
    return [is_trained(message) for message in answers_in(messages)]


def turn_name(message: Mapping[str, Any]) -> str:
    """What a checked message is: its role, or a tool's call or result."""
    if message["role"] == TOOL:
        return RESULT
    return CALL if TOOL_CALLS in message else message["role"]


def last_trained(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A checked chat of which the last answer alone is trained."""
    *_, last = (message for message in messages if message["role"] == "assistant")
    return [one if one is last or one["role"] != "assistant" else {**one, TRAINED: False} for one in messages]


def system_of(row: Mapping[str, Any]) -> str | None:
    """The system message in a column of a row, None without one."""
    texts = [row.get(name) for name in SYSTEM_COLUMNS]
    return next((text for text in texts if isinstance(text, str) and text.strip()), None)


def history_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The turns before the question of a row, which are pairs of a question and its answer; none in any other form, which is
    left over."""
    held = parsed(row.get(HISTORY))
    if not isinstance(held, (list, tuple)):
        return []
    if not all(isinstance(turn, (list, tuple)) and len(turn) == 2 for turn in held):
        return []
    roles = ("user", "assistant")
    return [{"role": role, "content": text} for turn in held for role, text in zip(roles, turn, strict=True)]


def template_kwargs_of(row: object) -> dict[str, Any]:
    """What the chat template gets for one row: its `chat_template_kwargs` and its tools; empty for most rows.

    Raises:
        RowError: they are no object, or no list.
    """
    if not isinstance(row, Mapping):
        return {}
    kwargs, tools = (parsed(row.get(name)) for name in (TEMPLATE_KWARGS, TOOLS))
    if not isinstance(kwargs or {}, Mapping) or not isinstance(tools or [], list):
        raise RowError(
            "bad_template_kwargs", f"{TEMPLATE_KWARGS!r} must be an object, and {TOOLS!r} a list of functions"
        )
    arguments = dict(kwargs) if isinstance(kwargs, Mapping) else {}
    if tools:
        arguments[TOOLS] = without_nulls(tools)
    return arguments


def squad_answer(value: object) -> object:
    """The first text of an object of SQuAD's answers; RowError where it has none."""
    if not isinstance(value, Mapping):
        return value
    texts = value.get("text")
    if not isinstance(texts, (list, tuple)) or not texts:
        raise RowError("no_answer", f"{SQUAD_ANSWERS!r} holds no text; leave out questions without an answer")
    return texts[0]


def dialogue(value: object) -> object:
    """The messages of a chat that is one text, as hh-rlhf writes it; any other value as it is."""
    if not isinstance(value, str):
        return value
    _, *parts = re.split(r"\n\n(Human|Assistant):", value)
    turns = zip(parts[::2], parts[1::2], strict=True)
    return [{"role": "user" if who == "Human" else "assistant", "content": text.strip()} for who, text in turns]


def as_list(held: object) -> object:
    """Undo two ways in which a table stores a list: as text of JSON (CSV), and as an object of lists."""
    held = parsed(held)
    if isinstance(held, Mapping):
        lists = list(held.values())
        if all(isinstance(one, list) and len(one) == len(lists[0]) for one in lists):
            return [dict(zip(held, values, strict=True)) for values in zip(*lists, strict=True)]
    return held


def left_over(
    row: Mapping[str, Any], messages: Sequence[Mapping[str, str]], also: Iterable[str | None] = ()
) -> LeftOver:
    """What is not trained of a row that became a chat, or is plain text, which has no messages.

    Args:
        also: columns that options name.
    """
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
    texts, others = list[str](), list[str]()
    for name, value in row.items():
        if name in read or value is None or (isinstance(value, (str, list, Mapping)) and not value):
            continue
        if str(name).lower() in _DESCRIPTIONS or not _is_text(value):
            others.append(name)
        elif not any(isinstance(value, str) and value.strip() in message["content"] for message in messages):
            texts.append(f"column {name!r}")
    for message in _messages_in(row, columns):
        keys = (name for name in message if name not in _MESSAGE_KEYS and _is_text(message[name]))
        texts += [f"key {name!r} of messages" for name in keys]
    notes = ["preference_pairs"] if row.get(REJECTED) is not None else []
    if messages and messages[-1]["role"] == "user":
        notes.append("ends_on_user")
    return LeftOver(tuple(dict.fromkeys(texts)), tuple(others), tuple(notes))


def _messages_in(row: Mapping[str, Any], columns: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """The messages in columns that hold lists of them."""
    for name in columns:
        held = as_list(row.get(name))
        yield from (one for one in held if isinstance(one, Mapping)) if isinstance(held, list) else ()


def _is_text(value: object) -> bool:
    """Whether a value is a sentence or more, or holds one; not an id, a label, a number, a link."""
    if isinstance(value, str):
        long = len(value.split(None, _SENTENCE)) > _SENTENCE
        return long or (not value.isascii() and len(value) > _UNSPACED)
    if isinstance(value, Mapping):
        return any(map(_is_text, value.values()))
    if isinstance(value, (list, tuple)):
        return _is_text(" ".join(one for one in value if isinstance(one, str))) or any(map(_is_text, value))
    return False


def parsed(value: object) -> object:
    """A value that a table stores as a text of JSON; the text where it is none."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):
            return parse_json(value)
    return value


def without_nulls(value: object) -> object:
    """A value without the keys that a table has filled up with null."""
    if isinstance(value, Mapping):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value
