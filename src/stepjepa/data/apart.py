"""Views that are encoded apart from the trunk: each message rendered alone by the chat template (``--views standalone``).

This is the paper's form (LLM-JEPA, arXiv:2509.14252, Section 3.1, and its published code): the user's message and the
assistant's message are two texts of their own, with all the markup that the template writes around a single message, and
the predictors stand inside the source's content, at its end or at its front.

    source    [BOS][user header] content <p> .. <p> [end of turn]
    target    [BOS][assistant header] content [end of turn]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stepjepa.data.chat import ChatRenderer, RowError
from stepjepa.data.examples import NO_VIEWS
from stepjepa.data.tokens import encode_apart, encode_texts, token_span
from stepjepa.data.views import Pair

# Stands where the predictors go while the template writes the message; templates trim contents, but not around this.
_MARK = "@@stepjepa:predictors@@"

Message = dict[str, str]


class ApartOptions(NamedTuple):
    """How views are encoded apart.

    Attributes:
        predictors: K.
        front: predictors in front of the source's content instead of behind it.
        reverse: the answer predicts the question.
        last_token: None reads the last predictor (the content's last token where there is none behind it); a negative
            offset counts from the end of the rendered view, its end-of-turn token included, as the published code does.
    """

    predictors: int = 0
    front: bool = False
    reverse: bool = False
    last_token: int | None = None


class View(NamedTuple):
    """Token ids of one view and the index of the token that stands for it."""

    ids: np.ndarray
    readout: int


def standalone_pairs(
    tokenizer: Any, renderer: ChatRenderer, messages: Sequence[Message], trunk: int, options: ApartOptions
) -> tuple[list[Pair], np.ndarray, str | None]:
    """User message -> assistant message for every turn, both encoded apart.

    Args:
        messages: the chat.
        trunk: tokens of the trunk; the views' indices go on behind it.

    Returns:
        The pairs, the tokens of their views (V,) int32, and where there are none, the reason.
    """
    pairs: list[Pair] = []
    pieces: list[np.ndarray] = []
    reason, start = "no_user_message", trunk
    user: Message | None = None
    for message in messages:
        if message["role"] == "user":
            user = message
        if message["role"] != "assistant" or user is None:
            continue
        left, right = (message, user) if options.reverse else (user, message)
        try:
            source = source_view(tokenizer, renderer, left, options)
            target = target_view(tokenizer, renderer, right, options.last_token)
        except RowError as error:
            reason = error.reason
            continue
        middle = start + len(source.ids)
        end = middle + len(target.ids)
        pairs.append(Pair(middle - 1, start + source.readout, middle, end, middle + target.readout, start))
        pieces += [source.ids, target.ids]
        start = end
    return pairs, np.concatenate(pieces) if pieces else NO_VIEWS, None if pairs else reason


def source_view(tokenizer: Any, renderer: ChatRenderer, message: Message, options: ApartOptions) -> View:
    """The view that predicts, its predictors as ``-1 .. -K``.

    Raises:
        RowError: the template refuses the message alone, it is empty, or it is shorter than `last_token` asks.
    """
    if not options.predictors:
        return target_view(tokenizer, renderer, message, options.last_token)
    if not message["content"].strip():
        raise RowError("empty_view", "the message is empty")
    content = _MARK + message["content"] if options.front else message["content"] + _MARK
    before, found, behind = _alone(renderer, {**message, "content": content}).partition(_MARK)
    if not found:
        raise RowError("view_refused", "the chat template does not show the message when it stands alone")
    (first, _), (second, last) = encode_texts(tokenizer, [before, behind])
    predictors = -1 - np.arange(options.predictors, dtype=np.int32)
    ids = np.concatenate([first, predictors, second])
    readout = len(first) + len(predictors) - 1
    if options.front:
        shown = message["content"] if behind.startswith(message["content"]) else message["content"].strip()
        end = behind.find(shown) + len(shown)
        readout += token_span(last, 0, end)[1]
    return View(ids, _readout(len(ids), readout, options.last_token))


def target_view(tokenizer: Any, renderer: ChatRenderer, message: Message, last_token: int | None) -> View:
    """A view without predictors.

    Raises:
        RowError: as `source_view`.
    """
    text = _alone(renderer, message)
    start, end = _content(renderer, message, text)
    ((ids, last),) = encode_texts(tokenizer, [text])
    first, stop = token_span(last, start, end)
    if start < end and (first == stop or last[stop - 1] != end - 1):
        # The content's end was merged with the template's text behind it, which no end of turn keeps apart.
        ids, last = encode_apart(tokenizer, text, [end])
        first, stop = token_span(last, start, end)
    if first == stop:
        raise RowError("empty_view", "the message has no tokens")
    return View(ids, _readout(len(ids), stop - 1, last_token))


def _alone(renderer: ChatRenderer, message: Message) -> str:
    """What the template writes for one message. Templates that refuse an answer without a question (Gemma's, Mistral's) get
    it in the user's role."""
    try:
        return renderer.apply([message])
    except Exception as error:  # jinja2 raises its own and the template's errors
        if message["role"] != "user":
            return _alone(renderer, {**message, "role": "user"})
        raise RowError("view_refused", f"the chat template refuses a message alone: {error}") from None


def _content(renderer: ChatRenderer, message: Message, text: str) -> tuple[int, int]:
    """Characters [start, end) of the content in the text that the template writes for the message alone."""
    before, found, behind = _alone(renderer, {**message, "content": _MARK}).partition(_MARK)
    if not found or not text.startswith(before) or not text.endswith(behind):
        raise RowError("view_refused", "the chat template does not show the message when it stands alone")
    return len(before), len(text) - len(behind)


def _readout(length: int, by_name: int, last_token: int | None) -> int:
    if last_token is None:
        return by_name
    if length + last_token < 0:
        raise RowError("view_shorter_than_last_token", "the view is shorter than last_token")
    return length + last_token
