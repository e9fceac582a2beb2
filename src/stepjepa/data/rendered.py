"""A rendered chat: where its messages are, and how the text before an answer differs from the generation prompt.

A chat template writes a chat in one way and asks for an answer in another, and the two need not agree:

    generation prompt   <|user|>Q<|end|><|assistant|><think>
    rendered chat       <|user|>Q<|end|><|assistant|><|final|>A<|end|>
                                                     |        |
                                        the opening begins    the answer's text

What follows the common text is `Opening.written` in the chat, which the model has to write itself and is trained on, and
`Opening.extra` in the generation prompt, without which the model is asked for what it was trained on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from os.path import commonprefix
from typing import Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.options import TemplateOptions

_NAME = Names(TemplateOptions)
_UNFINISHED_TAG = re.compile(r"<[^<>\s]*$")
_QUOTED = 60  # characters of a text that a message quotes


class MessageSpan(NamedTuple):
    """Where a message's content is in the rendered text: characters [start, end).

    Attributes:
        close: of a message with tool calls, where its calls and its end of turn end; None for other messages. Where the
            template writes no content of such a message, the model begins to write at `start`.
    """

    role: str
    start: int
    end: int
    close: int | None = None

    @property
    def stop(self) -> int:
        """The end of what the message says: of its content, or of its calls."""
        return self.end if self.close is None else self.close


class Opening(NamedTuple):
    """How the text before an answer differs from the generation prompt for the same messages.

    Attributes:
        written: what the template writes between the common text and the answer's text.
        extra: how the generation prompt goes on after the common text; empty where the chat has that text too.
        quoted: the last characters of the common text.
        apart: whether the two differ before the end of the last message. Then `written` and `extra` compare what follows
            that message, and are empty where this is not known.
    """

    written: str = ""
    extra: str = ""
    quoted: str = ""
    apart: bool = False


def opening_of(text: str, answer: int, last_message: int, prompt: str) -> Opening:
    """The opening of an answer.

    Args:
        text: the rendered chat.
        answer: where the answer's text begins in it.
        last_message: where the content of the message before the answer ends.
        prompt: the generation prompt for the messages before the answer.
    """
    common = len(commonprefix([text, prompt]))
    if common < last_message:
        return Opening(quoted=text[:common][-_QUOTED:], apart=True)
    extra = ""
    if common < len(prompt):
        unfinished = _UNFINISHED_TAG.search(text, last_message, common)
        common = min(unfinished.start() if unfinished else common, answer)
        extra = prompt[common:]
    common = min(common, answer)
    return Opening(text[common:answer], extra, text[last_message:common][-_QUOTED:])


def left_out(content: str, shown: str) -> tuple[int, str]:
    """How many characters of a message its template leaves out, white space not counted, and the text that is missing."""
    if shown == content:
        return 0, ""
    missing = len("".join(content.split())) - len("".join(shown.split()))
    if missing <= 0:
        return 0, ""
    begin = len(commonprefix([content, shown]))
    end = len(common_end(content[begin:], shown[begin:]))
    return missing, content[begin : len(content) - end]


def common_end(first: str, second: str) -> str:
    """The longest text that both end with."""
    return commonprefix([first[::-1], second[::-1]])[::-1]


def quoted(text: str) -> str:
    """A text in quotation marks, its beginning where it is long."""
    return repr(text if len(text) <= _QUOTED else f"{text[:_QUOTED]}...")


def switch_words(kwargs: Mapping[str, Any]) -> str:
    """The option that gives these values to the template."""
    return f"--{_NAME.chat_template_kwargs} '{json.dumps(kwargs)}'"


class RenderedChat(NamedTuple):
    """A rendered chat.

    Attributes:
        text: what the template wrote.
        spans: one span per message, in order; a system message that the template does not show has none.
        folded_system: whether the system message had to be put into the first user message.
        openings: one per message of the assistant, in order; None where the template has no generation prompt for it.
        characters_left_out: of the answers and their thinking, white space not counted; `left_out` is the first such text.
    """

    text: str
    spans: tuple[MessageSpan, ...]
    folded_system: bool = False
    openings: tuple[Opening | None, ...] = ()
    characters_left_out: int = 0
    left_out: str = ""

    @property
    def turns(self) -> list[MessageSpan]:
        """The spans of the assistant's messages."""
        return [span for span in self.spans if span.role == "assistant"]

    @property
    def begins(self) -> list[int]:
        """For each message of the assistant the character where what the model writes begins: the first of its content, or
        one before it."""
        pairs = zip(self.turns, self.openings, strict=True)
        return [span.start - len(opening.written) if opening else span.start for span, opening in pairs]
