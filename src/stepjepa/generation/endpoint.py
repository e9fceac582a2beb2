"""A server with OpenAI's chat completions as a generator: a few requests at a time through `huggingface_hub`'s client."""

from __future__ import annotations

import asyncio
import queue
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from huggingface_hub import AsyncInferenceClient
from huggingface_hub.errors import HfHubHTTPError, InferenceTimeoutError

from stepjepa.config.option import Names
from stepjepa.data.columns import TRAINED
from stepjepa.errors import ConfigError
from stepjepa.generation.options import GenerateOptions
from stepjepa.generation.output import Reply, Request, mended
from stepjepa.utils.text import one_line

TIMEOUT = 600.0  # seconds without an answer until a request is given up and sent again
MAX_RETRIES = 6  # how often a request is sent again
FIRST_DELAY = 1.0  # seconds before the first retry; doubled with each further one
_LONGEST_BACKOFF = 60.0
_LONGEST_WAIT = 600.0  # a server that asks for more is out of quota, not busy
_LOOK = 0.1  # seconds between two looks whether the work has ended, while a request waits
_LONGEST_MESSAGE = 300
_MOST_REFUSALS = 5  # so many and no response: the request itself is wrong, not the questions
_PATH = "/chat/completions"
_TRANSIENT, _REFUSALS = {408, 409, 425, 429}, {400, 413, 422}
_NAME = Names(GenerateOptions)
_ADDRESS = f"--{_NAME.base_url}"
_ADVICE = f"check {_ADDRESS}, --{_NAME.api_key_env} and --{_NAME.model_name}"
_RESUME = "what is done is kept, and the same command resumes from it"


class _Client(AsyncInferenceClient):
    async def _get_async_client(self) -> Any:
        client: Any = await super()._get_async_client()
        # What is right for the Hub is not for any server: HF_HUB_OFFLINE must not cut off one on this machine, and no
        # redirect may carry the key to another address.
        client.event_hooks, client.follow_redirects = {"response": [_refuse_redirect]}, False
        return client


async def _refuse_redirect(response: Any) -> None:
    if 300 <= response.status_code < 400:
        where = one_line(str(response.headers.get("Location")), _LONGEST_MESSAGE)
        what = f"{response.request.url} answers {response.status_code}; it moved to {where}"
        raise ConfigError(f"{what}, so {_ADDRESS} must change; {_RESUME}")


class _Trouble(Exception):
    """What may pass by itself; `wait` is how many seconds the server asks to wait."""

    def __init__(self, message: str, wait: float | None = None):
        super().__init__(message)
        self.wait = wait


class EndpointGenerator:
    """Asks a server. The key is sent as a bearer token and is in no message; without one no token of the Hub is sent either.

    Args:
        options: the server's address, the name that it knows the model by, and how it is asked.
        say: takes lines about longer waits.

    Attributes:
        url: where requests go.
    """

    def __init__(self, options: GenerateOptions, say: Callable[[str], None]):
        self.url = str(options.base_url).rstrip("/").removesuffix(_PATH) + _PATH
        self._options, self._key, self._say = options, options.api_key(), say
        self._answers, self._stopped = 0, False

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """Replies as they come in.

        After an error no further request is sent; the answers under way are given out before it is raised.

        Raises:
            ConfigError: the server cannot be asked, or refuses every request.
        """
        todo = [request for request in requests if request.row not in done]
        replies: queue.SimpleQueue[Reply | Exception | None] = queue.SimpleQueue()
        self._stopped = False
        # A loop in a thread: a notebook has one running in its own, and an interrupted process need not wait for answers.
        threading.Thread(target=asyncio.run, args=(self._ask_all(todo, replies),), daemon=True).start()
        answered = bool(done)
        refused: list[Reply] = []  # those before the first answer, which are not stored yet
        error: Exception | None = None
        try:
            for _ in todo:
                reply = replies.get()
                if isinstance(reply, Exception):
                    error = error or reply
                elif reply is not None and reply.refused is not None and not answered:
                    refused.append(reply)
                    if len(refused) == _MOST_REFUSALS:
                        break
                elif reply is not None:
                    answered = True
                    yield [*refused, reply]
                    refused = []
        finally:
            self._stopped = True
        if error is not None and len(refused) < _MOST_REFUSALS:
            raise error  # what was not asked because of it might have been answered
        if refused:
            raise ConfigError(f"the model refuses every request: {refused[0].refused}")

    async def _ask_all(self, requests: Sequence[Request], replies: queue.SimpleQueue[Any]) -> None:
        """Put a reply, an error or (once the work has ended) None for each request."""
        slots = asyncio.Semaphore(self._options.concurrency)

        async def ask(client: _Client, request: Request) -> None:
            async with slots:
                try:
                    replies.put(await self._until_answered(client, request))
                except Exception as error:
                    self._stopped = True
                    replies.put(error)

        # Without a key of the user's the client would send the Hub's token, which is none of this server's business.
        async with _Client(base_url=self.url, api_key=self._key or "none", timeout=TIMEOUT) as client:
            await asyncio.gather(*(ask(client, request) for request in requests))

    async def _until_answered(self, client: _Client, request: Request) -> Reply | None:
        """Send a request until it is answered, at most `MAX_RETRIES` times again; None where nothing more is to be sent."""
        answers, tries = self._answers, 0
        while not self._stopped:
            tries += 1
            try:
                reply = await self._once(client, request)
                self._answers += reply.refused is None
                return reply
            except _Trouble as error:
                what, wait = self._clean(str(error)), error.wait
            if tries > MAX_RETRIES:
                if self._answers > answers:  # others were answered: it is this one's fault
                    return Reply(request.row, "", stopped=False, refused=f"{what}, tried {tries} times")
                raise ConfigError(f"{self.url} {what} (tried {tries} times); {_RESUME}")
            if wait is None:
                wait = min(_LONGEST_BACKOFF, FIRST_DELAY * 2 ** (tries - 1)) * random.uniform(0.5, 1.0)
            elif wait > _LONGEST_WAIT:
                raise ConfigError(f"{self.url} {what}; the server asks to wait {wait:.0f} s; {_RESUME}")
            elif wait > 1:
                self._say(f"{self.url} {what}; waiting {wait:.0f} s as it asks")
            answers, until = self._answers, time.monotonic() + wait
            while not self._stopped and time.monotonic() < until:
                await asyncio.sleep(min(_LOOK, wait))
        return None

    async def _once(self, client: _Client, request: Request) -> Reply:
        """The reply to a request. Raises _Trouble: it may pass; ConfigError: it ends the run."""
        options = self._options
        fields = {
            "max_tokens": options.max_new_tokens,
            _NAME.top_p: options.top_p,
            _NAME.temperature: request.temperature,
            _NAME.seed: request.seed,
            **(options.extra_body or {}),
        }
        body = {name: value for name, value in fields.items() if value is not None}
        messages = [{key: one[key] for key in one if key != TRAINED} for one in request.messages]
        try:
            answer = await client.chat_completion(messages, model=options.model_name, extra_body=body)
            return _reply_in(answer, request.row)
        except ConfigError:
            raise
        except HfHubHTTPError as error:
            return self._refusal(request.row, error.response)
        except InferenceTimeoutError:
            raise _Trouble(f"gave no answer in {TIMEOUT:g} s") from None
        except (ValueError, TypeError, LookupError, AttributeError):
            raise _Trouble("sends no chat completion") from None
        except Exception as error:  # the HTTP library's own, and which one that is depends on huggingface_hub
            why = self._clean(str(error) or type(error).__name__)
            if self._answers:
                raise _Trouble(f"lost the connection ({why})") from None
            raise ConfigError(f"{self.url} cannot be reached ({why}); {_ADVICE}") from None

    def _refusal(self, row: int, response: Any) -> Reply:
        """The reply that an error status is, where only this request is refused; errors as those of `_once`."""
        status = response.status_code
        what = f"answers {status} ({response.text})"
        if status in _REFUSALS:
            return Reply(row, "", stopped=False, refused=self._clean(what))
        transient = status in _TRANSIENT or status >= 500
        if transient and "insufficient_quota" not in what:
            wait = response.headers.get("Retry-After", "")
            is_number = wait.replace(".", "", 1).isdecimal()
            seconds = float(wait) if is_number else None
            raise _Trouble(what, seconds)
        raise ConfigError(f"{self.url} {self._clean(what)}; {_ADVICE}; {_RESUME}") from None

    def _clean(self, text: str) -> str:
        """A text of others in one line that a terminal can show, without the key."""
        return one_line(text.replace(self._key, "***") if self._key else text, _LONGEST_MESSAGE)


def _reply_in(answer: Any, row: int) -> Reply:
    """The reply in a chat completion; a ValueError, TypeError, LookupError or AttributeError where it is none."""
    choice, usage = answer.choices[0], answer.usage
    if choice.finish_reason == "content_filter":
        return Reply(row, "", stopped=False, refused="its content filter cut the response")
    message = choice.message
    text = mended(message.content or "").strip()
    stopped = choice.finish_reason != "length"
    tokens = (usage.prompt_tokens or 0, usage.completion_tokens or 0) if usage else (0, 0)
    for name in ("reasoning_content", "reasoning"):  # the name differs by server
        thoughts = message.get(name)
        if isinstance(thoughts, str) and thoughts:
            return Reply(row, text, stopped, *tokens, reasoning=mended(thoughts).strip())
    return Reply(row, text, stopped, *tokens)
