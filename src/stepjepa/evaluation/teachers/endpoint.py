"""A teacher behind an OpenAI-compatible server: a few requests at a time, each answered on its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from stepjepa.evaluation.teachers.client import ChatClient
from stepjepa.evaluation.teachers.completion import Refused, Stopped
from stepjepa.evaluation.teachers.requests import Reply, Request, tidy


class EndpointTeacher:
    """Asks a server.

    Args:
        client: sends a request and brings the answer.
        model: the name that the server knows.
        max_new_tokens, top_p: of the sampling.
        concurrency: requests at a time.
        extra_body: further fields of the request; None takes one out.
    """

    def __init__(
        self,
        client: ChatClient,
        model: str,
        max_new_tokens: int,
        top_p: float = 1.0,
        concurrency: int = 8,
        extra_body: dict[str, Any] | None = None,
    ):
        self._client, self._concurrency = client, concurrency
        self._fields = {"model": model, "max_tokens": max_new_tokens, "top_p": top_p}
        self._extra = extra_body or {}

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """Replies as they come in.

        After an error no further request is sent; those under way are waited for and given out before it is raised.

        Raises:
            ConfigError: the server cannot be asked.
        """
        todo: queue.SimpleQueue[Request] = queue.SimpleQueue()
        for request in requests:
            if request.row not in done:
                todo.put(request)
        found: queue.SimpleQueue[Reply | BaseException | None] = queue.SimpleQueue()
        # Threads of a kind that do not keep an interrupted process waiting for answers.
        workers = [
            threading.Thread(target=self._work, args=(todo, found), daemon=True)
            for _ in range(min(self._concurrency, todo.qsize()))
        ]
        error: BaseException | None = None
        self._client.stop.clear()
        try:
            for worker in workers:
                worker.start()
            running = len(workers)
            while running:
                group: list[Reply] = []
                for item in _at_least_one(found):
                    if item is None:
                        running -= 1
                    elif isinstance(item, Reply):
                        group.append(item)
                    else:
                        error = error or item
                        self._client.stop.set()
                if group:
                    yield group
        finally:
            self._client.stop.set()
        if error is not None:
            raise error

    def body(self, request: Request) -> dict[str, Any]:
        """The fields of a request."""
        asked = {"messages": request.messages, "temperature": request.temperature, "seed": request.seed}
        fields = {**self._fields, **asked, **self._extra}
        return {name: value for name, value in fields.items() if value is not None}

    def _work(self, todo: queue.SimpleQueue[Request], found: queue.SimpleQueue[Reply | BaseException | None]) -> None:
        try:
            while not self._client.stop.is_set():
                found.put(self._ask(todo.get_nowait()))
        except (queue.Empty, Stopped):
            pass
        except BaseException as error:
            found.put(error)
        finally:
            found.put(None)

    def _ask(self, request: Request) -> Reply:
        try:
            answer = self._client.complete(self.body(request))
        except Refused as refusal:
            return Reply(request.row, "", stopped=False, refused=str(refusal))
        return Reply(
            request.row,
            tidy(answer.text),
            answer.stopped,
            answer.prompt_tokens,
            answer.new_tokens,
            reasoning=tidy(answer.reasoning) if answer.reasoning else None,
        )


def _at_least_one(items: queue.SimpleQueue[Any]) -> list[Any]:
    """Wait for an item, and take those along that are there as well."""
    taken = [items.get()]
    while not items.empty():
        taken.append(items.get())
    return taken
