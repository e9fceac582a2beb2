"""Chats: from a row to its checked messages.

A row's chat is a column of messages, or a question and its answer in two columns: those of a known form (`FORMS`), or those
that options name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

from stepjepa.config.option import Names
from stepjepa.data.columns import (
    ANSWER_COLUMNS,
    CHAT_COLUMNS,
    CHOSEN,
    CONTENT_KEYS,
    FUNCTION_CALL,
    QUESTION_COLUMNS,
    REASONING,
    REASONING_KEYS,
    ROLE_KEYS,
    ROLES,
    TOOL,
    TOOL_CALLS,
    TOOL_KEYS,
    TRAINED,
    Chat,
    Message,
    Messages,
    Row,
    as_context,
    as_list,
    as_object,
    asked_in,
    chat_column,
    column_value,
    dialogue,
    first_filled,
    form_of,
    history_of,
    listed_columns,
    parsed,
    refuse_half_characters,
    role_of,
    squad_answer,
    switched_on,
    system_of,
    texts_in,
    turn_name,
    without_nulls,
)
from stepjepa.data.options import ColumnOptions, PairColumns
from stepjepa.errors import RowError
from stepjepa.utils.files import Record

_NAME = Names(ColumnOptions)
_CALL_FORM = "[{'function': {'name': ..., 'arguments': {...}}}]"
# Columns next to a chat that a text-only model cannot read.
_MEDIA = {"image", "images", "video", "videos", "audio", "audios"}
_FLAGS = f"--{_NAME.source_column} and --{_NAME.target_column}"
_PAIRS = f"a question ({', '.join(QUESTION_COLUMNS)}) with an answer ({', '.join(ANSWER_COLUMNS)}), text with code"
KNOWN_CHATS = f"{', '.join(CHAT_COLUMNS)}, {_PAIRS}, or two columns named with {_FLAGS}"


def row_to_messages(
    row: object, system_prompt: str | None = None, columns: PairColumns | None = None
) -> Messages:
    """Return the checked chat of one row. A chat without a system message gets that of the row's system column, else
    `system_prompt`.

    Raises:
        RowError: the row has no known column, or has images, video or sound next to the chat, or `check_messages` refuses
            the chat.
    """
    row = as_object(row)
    messages = _known_chat(row) if columns is None else _from_named(row, columns)
    if messages[0]["role"] == "system":
        return messages
    system = system_of(row) or system_prompt
    if not system:
        return messages
    refuse_half_characters(system, "message 1 (system)")
    return [{"role": "system", "content": system}, *messages]


def one_turn(messages: Chat) -> tuple[str | None, str, str]:
    """Return the system message (or None), the question and the answer of a checked chat; RowError for other turns."""
    system = messages[0]["content"] if messages[0]["role"] == "system" else None
    turns = messages if system is None else messages[1:]
    if [turn_name(turn) for turn in turns] != ["user", "assistant"]:
        raise RowError(
            "several_turns",
            "the chat is not one question with one answer; stepjepa train reads longer chats without preparation",
        )
    return system, turns[0]["content"], turns[1]["content"]


def _known_chat(row: Row) -> Messages:
    # In a data set with media, a row without media has empty columns.
    for name in sorted(_MEDIA.intersection(row)):
        media = row[name]
        if media is not None and not (isinstance(media, (str, list)) and not media):
            raise RowError(
                "not_text_alone",
                f"column {name!r} belongs to the chat, but models are trained only on text; leave such rows out, or "
                "remove the column",
            )
    column = chat_column(row)
    if column is not None:
        return check_messages(
            dialogue(row[column]) if column == CHOSEN else as_list(row[column]), column
        )
    form = form_of(row)
    if form.question in row and form.answer in row:
        if form.answer == "completion" and row.get("label") is False:
            raise RowError(
                "rejected_answer",
                "label is false, which marks a completion as a bad answer; only good answers are trained on",
            )
        asked, answer = asked_in(row, form), squad_answer(row[form.answer])
        question = [{"role": "user", "content": asked}]
        # TRL's conversational form: completion, or both, are lists of messages. Answers in the prompt are context.
        if isinstance(answer, list):
            prompt = asked if isinstance(asked, list) else question
            messages = check_messages([*prompt, *answer])
            return [*map(as_context, messages[: len(prompt)]), *messages[len(prompt) :]]
        return check_messages(
            [*history_of(row), *question, {"role": "assistant", "content": answer}]
        )
    # An error about an empty column of messages is clearer than a list of the known columns.
    if any(name in row for name in CHAT_COLUMNS):
        return check_messages(None)
    raise RowError(
        "no_known_columns", f"columns found: {listed_columns(row)}; expected {KNOWN_CHATS}"
    )


def _from_named(row: Row, columns: PairColumns) -> Messages:
    values: Record = {name: column_value(row, name) for name in columns if name is not None}
    for name, value in values.items():
        if value is None:
            raise RowError(
                "no_known_columns", f"no column {name!r} (columns found: {listed_columns(row)})"
            )
    target = values[columns.target]
    if columns.choice is not None:
        choice = values[columns.choice]
        target = _chosen(target, choice)
        if target is None:
            raise RowError(
                "no_such_choice",
                f"{columns.choice}={choice!r} is neither the index nor the letter of a text in {columns.target!r}",
            )
    question = {"role": "user", "content": values[columns.source]}
    return check_messages([question, {"role": "assistant", "content": target}])


def _chosen(choices: Any, choice: Any) -> object:
    """The correct text of a multiple-choice row; None if there is none.

    Args:
        choices: a list of texts, or ARC's object with lists `text` and `label`.
        choice: the index of the correct text, its label or, without labels, its letter.
    """
    labels: Any = ascii_uppercase
    if isinstance(choices, Mapping):
        choices, labels = choices.get("text"), choices.get("label")
    if not isinstance(choices, (list, tuple)):
        return None
    try:
        names = list(labels)
        index = names.index(choice) if choice in names else int(choice)
        return choices[index] if index >= 0 else None
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def check_messages(messages: object, name: str = CHAT_COLUMNS[0]) -> Messages:
    """Check the chat in the column `name`, and return it as a list of ``{"role", "content"}``.

    A returned assistant message has the thinking next to its content under `REASONING`, and its tool calls under
    `TOOL_CALLS` in OpenAI's form, with the arguments as an object if they can be parsed as an object. A tool's result has
    the role `TOOL`, and keeps its `TOOL_KEYS`. A message that the row switches off has the key ``trained``, which is False.

    The messages may also have ShareGPT's keys ``{"from", "value"}``, and content may be a list of parts of type ``text``.

    Raises:
        RowError: not a list of messages, an unknown role, a tool call without a name, content that is not text, or no
            assistant message.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise RowError(
            "no_messages",
            f"{name!r} is not a non-empty list; give [{{'role': ..., 'content': ...}}, ...]",
        )
    checked = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise RowError(
                "no_messages", f"message {number} is not an object with 'role' and 'content'"
            )
        role, content = role_of(message), message.get(first_filled(message, CONTENT_KEYS))
        # In a ShareGPT turn with this role, the content is the call: read it as a message with the call under its own key.
        calling = message
        if message.get(first_filled(message, ROLE_KEYS)) == FUNCTION_CALL:
            calling, content = {TOOL_CALLS: None, FUNCTION_CALL: content or [{}]}, ""
        if role not in (*ROLES, TOOL):
            known = ", ".join((*ROLES, TOOL))
            raise RowError(
                "unknown_role", f"message {number} has role {role!r}; known roles: {known}"
            )
        where = f"message {number} ({role})"
        calls = _tool_calls(calling, where) if role == "assistant" else []
        # OpenAI writes null as the content of a message that only calls tools.
        if calls and content is None:
            content = ""
        content = _joined(content)
        if not isinstance(content, str):
            kind = type(content).__name__
            raise RowError(
                "content_not_text",
                f"{where} has content of type {kind}; it must be text, or parts of type 'text'",
            )
        # Further keys are set only if needed: a chat with only roles and contents takes the renderer's fast path.
        turn: Record = {"role": role, "content": content}
        thoughts = texts_in(message, REASONING_KEYS) if role == "assistant" else []
        thinking = "".join(thoughts[:1])
        refuse_half_characters(content + thinking, where)
        if thinking:
            turn[REASONING] = thinking
        if calls:
            turn[TOOL_CALLS] = calls
        if role == TOOL:
            turn |= {key: message[key] for key in TOOL_KEYS if isinstance(message.get(key), str)}
        if not switched_on(message, where):
            turn[TRAINED] = False
        checked.append(turn)
    if all(message["role"] != "assistant" for message in checked):
        raise RowError(
            "no_assistant_message",
            "no message has the role 'assistant', so there is no answer to learn",
        )
    return checked


def _tool_calls(message: Message, where: str) -> list[Record]:
    """The tool calls of an assistant message in OpenAI's form; empty if there are none."""
    calls = as_list(message.get(TOOL_CALLS))
    # OpenAI's older key holds a single call.
    if not calls:
        call = parsed(message.get(FUNCTION_CALL))
        calls = [call] if isinstance(call, Mapping) else call
    if not calls:
        return []
    if not isinstance(calls, list):
        raise RowError(
            "bad_tool_call", f"{where} has tool calls that are not a list; give {_CALL_FORM}"
        )
    checked = [_tool_call(call, where) for call in calls]
    refuse_half_characters(json.dumps(checked, ensure_ascii=False, default=str), where)
    return checked


def _tool_call(call: object, where: str) -> Record:
    """Check a tool call, and drop the arguments that a table filled with null."""
    outer = call if isinstance(call, Mapping) else {}
    # Some data sets leave out OpenAI's outer object.
    function = outer.get("function", outer)
    function = function if isinstance(function, Mapping) else {}
    name, raw = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name.strip():
        raise RowError(
            "bad_tool_call", f"{where} has a tool call without a function name; give {_CALL_FORM}"
        )
    # OpenAI writes the arguments as JSON in a string; most templates expect an object.
    as_object_of_text = parsed(raw)
    arguments = as_object_of_text if isinstance(as_object_of_text, Mapping) else raw
    # No table fills text with nulls, so those in it are the model's.
    if not isinstance(raw, str):
        arguments = without_nulls(arguments)
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}
    identity = {"id": outer["id"]} if isinstance(outer.get("id"), str) else {}
    return {
        **identity,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _joined(content: object) -> object:
    """The text of content in parts, OpenAI's form for several modalities; any other content unchanged."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str) or part.get("type") not in (None, "text"):
            return content
        texts.append(text)
    return "".join(texts) if texts else content
