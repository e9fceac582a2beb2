"""An OpenAI-compatible chat-completions server as a generator; `huggingface_hub`'s client sends several requests at a
time."""

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
from stepjepa.errors import ConfigError
from stepjepa.generation.options import GenerateOptions
from stepjepa.generation.output import Reply, Request, mended
from stepjepa.utils.text import one_line

# Seconds without an answer after which a request is sent again.
TIMEOUT = 600.0
# Maximum number of times that a request is sent again.
MAX_RETRIES = 6
# Seconds before the first retry; each further one waits twice as long, up to the limit.
FIRST_DELAY = 1.0
_LONGEST_BACKOFF = 60.0
# Longest wait, in seconds, that a server may ask for; a server that asks for more is out of quota, not busy.
_LONGEST_WAIT = 600.0
# While a request waits: seconds between two checks of whether the work has ended.
_POLL = 0.1
# Longest message of a server, in characters.
_LONGEST_MESSAGE = 300
# After this many refusals without any response, the request itself is wrong, not the questions.
_MOST_REFUSALS = 5
_PATH = "/chat/completions"
# Status codes of temporary errors, and of errors that concern only one request.
_TRANSIENT, _REFUSALS = {408, 409, 425, 429}, {400, 413, 422}
_NAME = Names(GenerateOptions)
_ADVICE = f"check --{_NAME.base_url}, --{_NAME.api_key_env} and --{_NAME.model_name}"
_RESUME = "completed work is kept, and the same command resumes from it"


class _Client(AsyncInferenceClient):
    async def _get_async_client(self) -> Any:
        client: Any = await super()._get_async_client()
        # Two rules of the Hub's client do not suit other servers: HF_HUB_OFFLINE must not cut off a server on this
        # machine, and no redirect may carry the key to another address.
        client.event_hooks, client.follow_redirects = {"response": [_refuse_redirect]}, False
        return client


async def _refuse_redirect(response: Any) -> None:
    if response.is_redirect:
        where = one_line(response.headers["Location"], _LONGEST_MESSAGE)
        what = f"{response.request.url} answers {response.status_code}; it moved to {where}"
        raise ConfigError(f"{what}, so --{_NAME.base_url} must change; {_RESUME}")


class _TransientError(Exception):
    """A temporary error.

    Args:
        message: what the server did.
        wait: number of seconds that the server asks to wait, or None.
        too_many: whether the server's rate limit was exceeded.
    """

    def __init__(self, message: str, wait: float | None = None, too_many: bool = False):
        super().__init__(message, wait, too_many)


class EndpointGenerator:
    """Sends chats to a server. The key is sent as a bearer token, and never appears in a message.

    Args:
        options: the server's address, its name for the model, and the settings of the requests.
        say: prints a line about a long wait.

    Attributes:
        url: address of the requests.
    """

    def __init__(self, options: GenerateOptions, say: Callable[[str], None]):
        self.url = str(options.base_url).rstrip("/").removesuffix(_PATH) + _PATH
        self._options, self._key, self._say = options, options.api_key(), say
        self._answers, self._stopped = 0, False

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """Yield replies as they arrive.

        After an error no further request is sent; replies to requests under way are yielded before the error is raised.

        Raises:
            ConfigError: the server cannot be used, or refuses every request.
        """
        todo = [request for request in requests if request.row not in done]
        replies: queue.SimpleQueue[Reply | Exception | None] = queue.SimpleQueue()
        self._stopped = False
        # An event loop in a thread: a notebook already runs one in the main thread, and an interrupted process need not
        # wait for a daemon thread.
        threading.Thread(
            target=asyncio.run, args=(self._ask_all(todo, replies),), daemon=True
        ).start()
        answered = bool(done)
        # Refusals before the first answer are held back: if the request itself is wrong, they must not be stored.
        held: list[Reply] = []
        error: Exception | None = None
        try:
            for _ in todo:
                reply = replies.get()
                if isinstance(reply, Exception):
                    error = error or reply
                elif reply is not None:
                    held.append(reply)
                    answered = answered or reply.refused is None
                if answered and held:
                    yield held
                    held = []
                if len(held) == _MOST_REFUSALS:
                    break
        finally:
            self._stopped = True
        # With fewer refusals, the requests that the error prevented might have been answered.
        if error is not None and len(held) < _MOST_REFUSALS:
            raise error
        if held:
            raise ConfigError(f"the model refuses every request: {held[0].refused}")

    async def _ask_all(self, requests: Sequence[Request], replies: queue.SimpleQueue[Any]) -> None:
        """Put a reply, an error or, once the work has ended, None into the queue for each request."""
        slots = asyncio.Semaphore(self._options.concurrency)

        async def ask(client: _Client, request: Request) -> None:
            async with slots:
                try:
                    replies.put(await self._send_with_retries(client, request))
                except Exception as error:
                    self._stopped = True
                    replies.put(error)

        # Without a key the client would send the user's Hub token, which another server must not get.
        async with _Client(
            base_url=self.url, api_key=self._key or "none", timeout=TIMEOUT
        ) as client:
            await asyncio.gather(*(ask(client, request) for request in requests))

    async def _send_with_retries(self, client: _Client, request: Request) -> Reply | None:
        """Send a request, and up to `MAX_RETRIES` times again, until it is answered; None if the work has ended."""
        answers, tries = self._answers, 0
        while not self._stopped:
            tries += 1
            try:
                reply = await self._send(client, request)
                self._answers += reply.refused is None
                return reply
            except _TransientError as error:
                message, wait, too_many = error.args
            what = self._clean(message)
            # While the server answers other requests, one that exceeds its rate limit only has to wait for its turn.
            if too_many and self._answers > answers:
                tries = 1
            if tries > MAX_RETRIES:
                # Other requests were answered since the last try, so the server works, and this request is the cause.
                if self._answers > answers:
                    return Reply(
                        request.row, "", stopped=False, refused=f"{what}, tried {tries} times"
                    )
                raise ConfigError(f"{self.url} {what} (tried {tries} times); {_RESUME}")
            # A random part keeps requests that failed together from coming back together.
            if wait is None:
                wait = min(_LONGEST_BACKOFF, FIRST_DELAY * 2 ** (tries - 1)) * random.uniform(
                    0.5, 1.0
                )
            elif wait > _LONGEST_WAIT:
                raise ConfigError(
                    f"{self.url} {what}; the server asks for a wait of {wait:.0f} s; {_RESUME}"
                )
            elif wait > 1:
                self._say(f"{self.url} {what}; waiting {wait:.0f} s, as the server asks")
            answers, until = self._answers, time.monotonic() + wait
            while not self._stopped and time.monotonic() < until:
                await asyncio.sleep(min(_POLL, wait))
        return None

    async def _send(self, client: _Client, request: Request) -> Reply:
        """Send a request once. Raises _TransientError: a retry may succeed; ConfigError: the run cannot continue."""
        options = self._options
        fields = {
            "max_tokens": options.max_new_tokens,
            _NAME.top_p: options.top_p,
            _NAME.temperature: request.temperature,
            _NAME.seed: request.seed,
            **(options.extra_body or {}),
        }
        # A field that is None, as a user's `extra_body` may set it, is not sent.
        body = {name: value for name, value in fields.items() if value is not None}
        messages: Any = request.messages
        try:
            answer = await client.chat_completion(
                messages, model=options.model_name, extra_body=body
            )
            return _reply_in(answer, request.row)
        except ConfigError:
            raise
        except HfHubHTTPError as error:
            return self._refusal(request.row, error.response)
        except InferenceTimeoutError:
            raise _TransientError(f"gave no answer in {TIMEOUT:g} s") from None
        except (ValueError, TypeError, LookupError, AttributeError):
            raise _TransientError("did not return a chat completion") from None
        except Exception as error:
            # Errors of the HTTP library, which depends on the version of huggingface_hub.
            why = self._clean(str(error) or type(error).__name__)
            if self._answers:
                raise _TransientError(f"lost the connection ({why})") from None
            raise ConfigError(f"{self.url} cannot be reached ({why}); {_ADVICE}") from None

    def _refusal(self, row: int, response: Any) -> Reply:
        """A refused reply for an error status that concerns only this request; otherwise raises as `_send` does."""
        status = response.status_code
        what = f"answers {status} ({response.text})"
        # OpenAI answers 429 also to a request that exceeds the rate limit by itself, however long it waits.
        if status in _REFUSALS or "Request too large" in what:
            return Reply(row, "", stopped=False, refused=self._clean(what))
        transient = status in _TRANSIENT or status >= 500
        # OpenAI answers 429 both to too many requests and to an empty account; waiting helps only the first.
        if transient and "insufficient_quota" not in what:
            # The header may also contain a date, which is ignored.
            wait = response.headers.get("Retry-After", "")
            is_number = wait.replace(".", "", 1).isdecimal()
            raise _TransientError(what, float(wait) if is_number else None, status == 429)
        raise ConfigError(f"{self.url} {self._clean(what)}; {_ADVICE}; {_RESUME}") from None

    def _clean(self, text: str) -> str:
        """A server's text as one line that is safe on a terminal, without the key."""
        return one_line(text.replace(self._key, "***") if self._key else text, _LONGEST_MESSAGE)


def _reply_in(answer: Any, row: int) -> Reply:
    """The reply in a chat completion. Raises ValueError, TypeError, LookupError, AttributeError: it is not a completion."""
    choice, usage = answer.choices[0], answer.usage
    if choice.finish_reason == "content_filter":
        return Reply(row, "", stopped=False, refused="its content filter cut the response")
    message = choice.message
    text = mended(message.content or "").strip()
    stopped = choice.finish_reason != "length"
    tokens = (usage.prompt_tokens or 0, usage.completion_tokens or 0) if usage else (0, 0)
    # The field's name differs by server.
    for name in ("reasoning_content", "reasoning"):
        thoughts = message.get(name)
        if isinstance(thoughts, str) and thoughts:
            return Reply(row, text, stopped, *tokens, reasoning=mended(thoughts).strip())
    return Reply(row, text, stopped, *tokens)
