"""What every generator takes and gives: a `Request` is a chat to answer, a `Reply` what the model answered."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from stepjepa.data.tokens import Prompter


@dataclass(frozen=True)
class Request:
    """One chat to answer.

    Attributes:
        row: number of the question.
        messages: the chat up to where the model answers.
        temperature: 0 is greedy.
        seed: of the sampling, see `seed_of`.
        template_kwargs: what the chat template gets for this chat alone.
    """

    row: int
    messages: Sequence[Mapping[str, str]]
    temperature: float
    seed: int
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What the model answered.

    Attributes:
        row: that of the request.
        text: the response; empty where the request was refused.
        stopped: True when the model ended by itself, False when it was cut off.
        prompt_tokens, new_tokens: counts, 0 where they are unknown.
        refused: why this one request cannot be answered (a prompt that is too long, a content filter).
        reasoning: thoughts that a server returns in a field of their own.
    """

    row: int
    text: str
    stopped: bool = True
    prompt_tokens: int = 0
    new_tokens: int = 0
    refused: str | None = None
    reasoning: str | None = None


class Generator(Protocol):
    """Whatever answers requests."""

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """Answer all requests but those of the rows in `done`, a group at a time and in any order.

        A group is stored as a unit. `done` is an argument of its own, so that a generator that forms batches forms the same
        ones when it resumes in the middle.
        """
        ...


def seed_of(seed: int, *parts: int) -> int:
    """A seed below 2**31 for (seed, row, attempt) or any other numbers, different for all others."""
    text = ":".join(map(str, (seed, *parts)))
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def mended(text: str) -> str:
    """A response without halves of characters, which no file could hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def with_room(
    prompter: Prompter, requests: Sequence[Request], longest: int | None, done: Collection[int]
) -> tuple[dict[int, list[int]], list[Reply]]:
    """Row -> token ids of the prompts that the model has room for, and refusals of the others that are not done yet."""
    prompts = dict[int, list[int]]()
    refused = list[Reply]()
    for request in requests:
        ids = prompter.ids(request.messages, request.template_kwargs)
        if longest is None or len(ids) <= longest:
            prompts[request.row] = ids
        elif request.row not in done:
            reason = f"the prompt has {len(ids)} tokens, and the model has room for {longest}"
            refused.append(Reply(request.row, "", stopped=False, refused=reason))
    return prompts, refused
