"""The user's message predicts the assistant's (LLM-JEPA, arXiv:2509.14252, Eq. 2).

    gamma * LM + lambda * d(u, v)           u: state of the question, v: state of the answer

In context, the predictors branch off the chat after the user's content, and the answer is an isolated copy. Standalone is
the paper's form (Section 3.1, and its published code): each message is a separate text, with all the markup that the
template puts around a single message, and the predictors are at the end or at the front of the source's content.

    source    [BOS][user header] content <p> .. <p> [end of turn]
    target    [BOS][assistant header] content [end of turn]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepjepa.config.option import Names, Topic, option
from stepjepa.data.columns import Message, answers_in, is_answer, is_trained
from stepjepa.data.options import VIEWS
from stepjepa.data.tokens import encode_apart, encode_cut, encode_texts, token_span
from stepjepa.data.types import ISOLATED, Pair, PairsFound, Segment, Span
from stepjepa.errors import ConfigError, RowError
from stepjepa.objectives.base import Objective
from stepjepa.objectives.options import (
    Defaults,
    MaskOptions,
    PredictorOptions,
    ReplayOptions,
    TargetOptions,
)
from stepjepa.objectives.pairs import question_and_answer

if TYPE_CHECKING:
    from stepjepa.data.encode import TokenChat

# Marks the place of the predictors while the template renders the message. Templates trim contents, but a marker protects
# the white space next to it.
_MARK = "@@stepjepa:predictors@@"


@dataclass
class LLMJEPAOptions(Topic):
    """Options of objective `llm_jepa`."""

    views: Literal["in_context", "standalone"] | None = option(
        None,
        "llm_jepa: the source within the chat and a copy of the answer (in_context, the default), or each message rendered "
        "separately by the template, as published (standalone; the default with front_pred or reverse_pred).",
        VIEWS,
    )
    front_pred: bool = option(
        False, "standalone: predictors in front of the source's content.", VIEWS
    )
    reverse_pred: bool = option(False, "standalone: the answer predicts the question.", VIEWS)

    def fill_in(self) -> None:
        """See `Topic.fill_in`."""
        if self.views is None:
            self.views = "standalone" if self.front_pred or self.reverse_pred else "in_context"

    def check(self) -> None:
        """As `Topic.check`; raises ConfigError."""
        for name in (_NAME.front_pred, _NAME.reverse_pred):
            if getattr(self, name) and self.views == "in_context":
                raise ConfigError(
                    f"{name} needs {_NAME.views}=standalone: on the chat itself the answer follows the question"
                )
        if self.views == "standalone" and self.objective != LLMJEPA.name:
            raise ConfigError(
                f"{_NAME.views}=standalone renders whole messages separately, and {self.objective} has no such views; "
                f"use it with objective {LLMJEPA.name}"
            )
        if self.front_pred and not self.predictors:
            raise ConfigError(
                f"{_NAME.front_pred} puts predictors in front of the content, and {_NAME.predictors} is 0; give "
                f"--{_NAME.predictors} 1"
            )


_NAME = Names(LLMJEPAOptions, PredictorOptions, TargetOptions)


class LLMJEPA(Objective):
    """``--objective llm_jepa``, for every turn of a chat.

    ``last_token`` counts from the end of a turn, including its end-of-turn token, as in the published code: -1 is the end of
    turn, -2 the last token of the content. By default, a view is read at its last predictor or at the last token of its
    content, whichever comes later.
    """

    name = "llm_jepa"
    reads = (*Objective.reads, TargetOptions, MaskOptions, ReplayOptions)
    forwards = ("packed", "two_pass", "inline")
    defaults = Defaults(predictor_order="descending")
    Options = LLMJEPAOptions

    def check(self) -> None:
        """As `Objective.check`; raises ConfigError."""
        super().check()
        if self.options.forward == "inline" and self.options.views == "standalone":
            raise ConfigError(
                f"forward=inline isolates a view inside the chat, where {_NAME.views}=standalone has none; use "
                f"{_NAME.views}=in_context, or forward packed"
            )
        if self.options.reverse_pred and self.target_column:
            raise ConfigError(
                f"{_NAME.reverse_pred} makes the question the target, and {_NAME.jepa_target_column} a column's text; leave "
                "one of them out"
            )

    def pairs_of(self, chat: TokenChat) -> PairsFound:
        """See the class."""
        if self.options.views == "standalone":
            return self._standalone(chat)
        turns, reason = question_and_answer(chat.turns)
        builder = self.builder(chat.ids, chat.target_ids)
        for turn in turns:
            user, answer = turn.user, turn.answer
            assert user is not None
            # `last_token` counts from the end of turn, so the copy must include it.
            if builder.last_token is not None:
                answer = Span(answer.start, turn.label_stop)
            if not builder.pair(user, answer, turn.user_close):
                reason = "view_shorter_than_last_token"
        return builder.found(reason)

    def _standalone(self, chat: TokenChat) -> PairsFound:
        # The views are rendered from the messages, not cut out of the chat's tokens.
        builder = self.builder(chat.ids)
        reason = "no_user_message"
        user: Message | None = None
        answers = answers_in(chat.messages)
        for message in chat.messages:
            if message["role"] == "user":
                user = message
            if not is_answer(message) or user is None or not is_trained(message):
                continue
            answer: Message = message
            # The text of a target column replaces the last answer; earlier answers have no such text and so no pair.
            if chat.target is not None:
                if message is not answers[-1]:
                    continue
                answer = {**message, "content": chat.target}
            source_message, target_message = user, answer
            if self.options.reverse_pred:
                source_message, target_message = answer, user
            try:
                source, source_view, content = self._view(chat, source_message, self.predictors)
                target, target_view, _ = self._view(chat, target_message)
            except RowError as error:
                reason = error.reason
                continue
            source_token = builder.readout_token(source_view, source.length)
            target_token = builder.readout_token(target_view, target.length)
            if source_token is None or target_token is None:
                reason = "view_shorter_than_last_token"
                continue
            if self.mask_ratio:
                source = source._replace(maskable=content)
            source_read = builder.alone(source, source_token)
            target_read = builder.alone(target, target_token)
            builder.pairs.append(Pair(source_read, target_read))
        return builder.found(reason)

    def _view(
        self, chat: TokenChat, message: Message, slots: int = 0
    ) -> tuple[Segment, Span, Span]:
        """A message as a separate text, with `slots` predictor tokens at the end or at the front of its content.

        Returns:
            The segment, the span of its tokens up to the one that is read, and the span of its ids that are the content.

        Raises:
            RowError: the template refuses to render this message by itself, or the message is empty.
        """
        content = message["content"]
        front = slots > 0 and self.options.front_pred
        marked = content
        if slots:
            marked = _MARK + content if front else content + _MARK
        text = _alone(chat, {**message, "content": marked}).replace(_MARK, "")
        # A second rendering, with the marker as content, shows where the template's markup ends and begins again.
        markup = _alone(chat, {**message, "content": _MARK})
        before, mark, after = markup.partition(_MARK)
        if not mark or not text.startswith(before) or not text.endswith(after):
            raise RowError(
                "view_refused", "the chat template does not show a message that is the only one"
            )
        start = len(before)
        end = len(text) - len(after)
        if slots:
            # The texts before and after the predictors are tokenised separately, as special tokens would divide them.
            ids, ends = encode_cut(chat.tokenizer, text, [start if front else end])
        else:
            # A token may span the end of the content and the markup, if no end-of-turn token is between them.
            (tokens,) = encode_texts(chat.tokenizer, [text])
            ids, ends = encode_apart(chat.tokenizer, text, tokens, [end])
        first, stop = token_span(ends, start, end)
        if first == stop or not content.strip():
            raise RowError("empty_view", "the message has no tokens")
        slot = first if front else stop
        segment = Segment(ids, ISOLATED, 0, slots=slots, slot=slot)
        return segment, Span(0, stop + slots), Span(first, stop)


def _alone(chat: TokenChat, message: Message) -> str:
    """The template's text for a single message. Templates that refuse an answer without a question (Gemma's, Mistral's) get
    the answer in the user's role."""
    try:
        return chat.renderer.apply([message])
    except RowError as error:
        if message["role"] != "user":
            return _alone(chat, {**message, "role": "user"})
        raise RowError("view_refused", str(error)) from None
