"""What goes to a generator and what comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Request:
    """One chat to answer.

    Attributes:
        row: number of the question's row.
        messages: the chat up to where the model answers.
        temperature: 0 is greedy.
        seed: of the sampling, see `seed_of`.
    """

    row: int
    messages: Sequence[Mapping[str, str]]
    temperature: float
    seed: int


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

        A group is stored as a unit, or asked for again. `done` is an argument of its own, so that a generator that forms
        batches forms the same ones when it resumes in the middle.
        """
        ...


def seed_of(seed: int, *parts: int) -> int:
    """A seed below 2**31 for (seed, row, attempt) or any other numbers, different for all others."""
    text = ":".join(map(str, (seed, *parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def mended(text: str) -> str:
    """A response without halves of characters, which no file could hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def refuse_long(
    requests: Sequence[Request], prompts: Mapping[int, Sequence[int]], longest: int | None, done: Collection[int]
) -> tuple[list[Reply], list[Request]]:
    """Refusals of the prompts that the model has no room for and that are not done yet, and the requests that fit.

    Args:
        prompts: row -> token ids.
        longest: tokens that a prompt may have; None for any number.
    """
    refused, fitting = [], []
    for request in requests:
        size = len(prompts[request.row])
        if longest is None or size <= longest:
            fitting.append(request)
        elif request.row not in done:
            why = f"the prompt has {size} tokens, and the model has room for {longest}"
            refused.append(Reply(request.row, "", stopped=False, refused=why))
    return refused, fitting
