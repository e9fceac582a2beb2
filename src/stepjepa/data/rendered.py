"""A rendered chat: the spans of its messages, and how the text before an answer differs from the generation prompt.

A chat template renders a chat and a generation prompt, and the text before the answer may differ between the two:

    generation prompt   <|user|>Q<|end|><|assistant|><think>
    rendered chat       <|user|>Q<|end|><|assistant|><|final|>A<|end|>
                                                     |        |
                                        the opening begins    the answer's text

In the chat, `Opening.written` follows the common text: the model must write it itself, and is trained on it. In the
generation prompt, `Opening.extra` follows the common text: without it, the prompt is the one that the model was trained on.
"""

from __future__ import annotations

import re
from os.path import commonprefix
from typing import NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.options import TemplateOptions

_NAME = Names(TemplateOptions)
_UNFINISHED_TAG = re.compile(r"<[^<>\s]*$")
# The most characters that a message quotes from a text.
_QUOTED = 60


class MessageSpan(NamedTuple):
    """The content of a message in the rendered text: characters [start, end).

    Attributes:
        number: the number of the message in the chat, from 0, without a folded system message.
        close: the end of the calls and of the turn, for a message with tool calls; None for any other. If the template does
            not write the content of such a message, `start` is where the model begins to write.
    """

    number: int
    role: str
    start: int
    end: int
    close: int | None = None

    @property
    def stop(self) -> int:
        """The end of the content or of the calls."""
        return self.end if self.close is None else self.close


class Opening(NamedTuple):
    """How the text before an answer differs from the generation prompt for the same messages.

    Attributes:
        written: the chat's text between the common text and the answer.
        extra: the rest of the generation prompt after the common text; empty if the chat has that text, too.
        apart: whether the two differ before the end of the last message. If so, `written` and `extra` come only from the
            text after that message, and are empty if the prompt's text after it is unknown.
    """

    written: str = ""
    extra: str = ""
    apart: bool = False


def opening_of(text: str, answer: int, last_message: int, prompt: str) -> Opening:
    """Compare a rendered chat with the generation prompt before an answer.

    Args:
        text: the rendered chat.
        answer: the start of the answer's text in it.
        last_message: the end of the content of the message before the answer.
        prompt: the generation prompt for the messages before the answer.
    """
    common = len(commonprefix([text, prompt]))
    if common < last_message:
        return Opening(apart=True)
    extra = ""
    if common < len(prompt):
        # "<think>" and "<tool>" agree in their first characters: go back to where the tags begin.
        unfinished = _UNFINISHED_TAG.search(text, last_message, common)
        common = min(unfinished.start() if unfinished else common, answer)
        extra = prompt[common:]
    common = min(common, answer)
    return Opening(text[common:answer], extra)


def left_out(content: str, shown: str) -> str:
    """Return the text of a message that its template leaves out; empty if that is only white space."""
    # Templates trim and re-wrap white space, which is no loss.
    if len("".join(content.split())) <= len("".join(shown.split())):
        return ""
    begin = len(commonprefix([content, shown]))
    end = len(common_end(content[begin:], shown[begin:]))
    return content[begin : len(content) - end]


def common_end(first: str, second: str) -> str:
    """Return the longest common suffix."""
    return commonprefix([first[::-1], second[::-1]])[::-1]


def quoted(text: str) -> str:
    """Quote a text, shortened if it is long."""
    return repr(text if len(text) <= _QUOTED else f"{text[:_QUOTED]}...")


def switch_hint(switches: str) -> str:
    """The end of a message about text that an argument of the template may change; empty without `ChatRenderer.switches`."""
    hint = f"; --{_NAME.chat_template_kwargs} may change this (the template reads {switches})"
    return hint if switches else ""


class RenderedChat(NamedTuple):
    """A rendered chat.

    Attributes:
        text: the output of the template.
        spans: one per message, in order; a system message that the template moves or drops has none.
        folded_system: whether the system message had to be put into the first user message.
        openings: one per assistant message, in order; None if the template has no generation prompt for it.
        left_out: the first text of answers and thinking that is missing in `text`, except white space.
    """

    text: str
    spans: tuple[MessageSpan, ...]
    folded_system: bool = False
    openings: tuple[Opening | None, ...] = ()
    left_out: str = ""

    @property
    def turns(self) -> list[MessageSpan]:
        """The spans of the assistant's messages."""
        return [span for span in self.spans if span.role == "assistant"]

    @property
    def begins(self) -> list[int]:
        """The first character that the model writes for each assistant message: that of its content, or of the opening."""
        pairs = zip(self.turns, self.openings, strict=True)
        return [
            span.start - len(opening.written) if opening else span.start for span, opening in pairs
        ]
