"""Names for the tokens of a trunk: where messages and steps stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from stepjepa.data.chat import RenderedChat
from stepjepa.data.examples import Example
from stepjepa.data.steps import CharSpan
from stepjepa.data.tokens import encode_apart, encode_texts, token_span


class TrunkSpan(NamedTuple):
    """A named stretch [start, stop) of one example's trunk tokens."""

    name: str
    start: int
    stop: int


def trunk_spans(
    tokenizer: Any,
    chat: RenderedChat,
    steps: Sequence[Sequence[CharSpan]] | None = None,
    trunk: np.ndarray | None = None,
) -> tuple[TrunkSpan, ...]:
    """Where a chat's messages, and the answers' steps, stand among its tokens.

    Names are the roles, and "step 1" .. for an answer's steps ("answer 2, step 1" where there are several answers).
    Empty stretches are left out. What stands between, the template's own tokens, has no span.

    Args:
        chat: rendered.
        steps: of each answer, in characters of the answer; None names the answers as wholes.
        trunk: (T,) the tokens that were made of the chat. The spans are places in these, and there are none if no way to
            tokenise the chat leads to them.
    """
    last = next((last for ids, last in _tokenised(tokenizer, chat) if trunk is None or _agrees(ids, trunk)), None)
    if last is None:
        return ()
    several = sum(span.role == "assistant" for span in chat.spans) > 1
    answers = 0
    found: list[TrunkSpan] = []
    for span in chat.spans:
        name, pieces = span.role, [(0, span.end - span.start)]
        if span.role == "assistant":
            if steps is not None:
                pieces = list(steps[answers])
            answers += 1
            name = f"answer {answers}" if several else "answer"
            if steps is not None:
                name = f"{name}, step" if several else "step"
        for number, (start, end) in enumerate(pieces, 1):
            first, stop = token_span(last, span.start + start, span.start + end)
            if first < stop:
                found.append(TrunkSpan(f"{name} {number}" if name.endswith("step") else name, first, stop))
    return tuple(found)


def trunk_names(example: Example, spans: Sequence[TrunkSpan] = ()) -> list[str]:
    """A name for each token of the trunk; T of them.

    Args:
        spans: as `trunk_spans` finds them; without any, labelled tokens are called "answer", the others "prompt".
    """
    length = len(example.input_ids)
    if not spans:
        names = ["trunk: prompt"] * length
        for start, stop in example.label_spans:
            names[start:stop] = ["trunk: answer"] * (stop - start)
        return names
    names = ["trunk: template"] * length
    answers = {span.start for span in spans if span.name.startswith(("answer", "step"))}
    for start, stop in example.label_spans:
        if start in answers:  # labels of an answer, which reach to the end of its turn
            names[start:stop] = ["trunk: end of turn"] * (stop - start)
    for name, start, stop in spans:
        stop = min(stop, length)
        names[start:stop] = [f"trunk: {name}"] * (stop - start)
    return names


def _tokenised(tokenizer: Any, chat: RenderedChat) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Token ids and last characters in every way in which `data.encode` may tokenise a chat.

    Where the template ends no turn, what it writes behind the last answer is left out, and no token reaches over the end
    of an answer.
    """
    for text in (chat.text, chat.text[: chat.spans[-1].end]):
        yield encode_texts(tokenizer, [text])[0]
        ends = [span.end for span in chat.spans if span.role == "assistant" and span.start < span.end < len(text)]
        yield encode_apart(tokenizer, text, ends)


def _agrees(ids: np.ndarray, trunk: np.ndarray) -> bool:
    """Whether `trunk` is `ids`, cut on the right or with one token (an EOS) behind them."""
    common = min(len(ids), len(trunk))
    return len(trunk) <= len(ids) + 1 and np.array_equal(ids[:common], trunk[:common])
