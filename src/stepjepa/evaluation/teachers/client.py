"""Chat completions over HTTP with the standard library: one request, its retries, and what its errors mean."""

from __future__ import annotations

import http.client
import json
import random
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from stepjepa import __version__
from stepjepa.errors import ConfigError
from stepjepa.evaluation.teachers.completion import (
    LARGEST_ANSWER,
    Answer,
    Refused,
    Stopped,
    TryAgain,
    error_message,
    read_answer,
    retry_after,
)
from stepjepa.utils.text import one_line

_PATH = "/chat/completions"
_LOCAL_HOSTS = {"localhost", "127.0.0.1", "::1"}
_TRANSIENT = {408, 409, 425, 429}
_REFUSALS = {400, 413, 422}
FIRST_DELAY = 1.0  # seconds before the first retry; doubled with each further one
_LONGEST_BACKOFF = 60.0
_LONGEST_WAIT = 600.0  # a server that asks for more is out of quota, not busy
_LONGEST_CONNECT = 30.0
_LONGEST_MESSAGE = 300
_ADVICE = {
    401: "check the key that --api_key_env names",
    402: "the account has no credit",
    403: "the key may not use this model; check --api_key_env and --model_name",
    404: "check --model_name, and that --base_url ends where /chat/completions begins (often in /v1)",
}
GO_ON = "what is done is kept, and the same command goes on from it"


class ChatClient:
    """Sends chat completions; threads may share one.

    Args:
        base_url: what `/chat/completions` is appended to.
        api_key: sent as a bearer token; never printed.
        timeout: seconds without a byte from the server.
        max_retries: how often a request is sent again.
        say: told about longer waits.

    `stop`, once set, ends all waiting: `complete` raises `Stopped` instead of sending.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 6,
        say: Callable[[str], None] = lambda line: None,
    ):
        base = base_url.rstrip("/")
        self.url = base if base.endswith(_PATH) else base + _PATH
        self.stop = threading.Event()
        self._key, self._timeout, self._max_retries = api_key, timeout, max_retries
        self._say, self._reached = say, False
        self._answers = 0
        self._paused_until = 0.0  # by time.monotonic
        self._lock = threading.Lock()
        handlers: list[Any] = [_NoRedirect(), _Http(), _Https()]
        if urlsplit(base).hostname in _LOCAL_HOSTS:
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def complete(self, body: dict[str, Any]) -> Answer:
        """Send one request until it is answered.

        Raises:
            Refused: the server will not answer this request, though it may answer others.
            Stopped: `stop` was set before it was answered.
            ConfigError: no request can be answered.
        """
        tries = answers = 0
        while True:
            self._wait(self._paused_until)
            tries += 1
            try:
                return self._once(body)
            except TryAgain as trouble:
                others = tries > 1 and self._answers > answers  # were answered since the last try
                if tries > self._max_retries and not (others and trouble.busy):
                    raise self._given_up(trouble, tries, others) from None
                if trouble.wait is not None and trouble.wait > _LONGEST_WAIT:
                    raise ConfigError(
                        f"{self._named(trouble)}; the server asks to wait {trouble.wait:.0f} s; {GO_ON}"
                    ) from None
                answers = self._answers
                self._back_off(trouble, tries)

    def _given_up(self, trouble: TryAgain, tries: int, others: bool) -> Exception:
        """What it means that a request has failed too often: its own fault where others were answered meanwhile."""
        times = f"tried {tries} times" if tries > 1 else "tried once"
        if others:
            return Refused(f"{self._presentable(str(trouble))}, {times}")
        return ConfigError(f"{self._named(trouble)} ({times}); {GO_ON}")

    def _back_off(self, trouble: TryAgain, tries: int) -> None:
        if trouble.wait is None:
            delay = min(_LONGEST_BACKOFF, FIRST_DELAY * 2 ** (tries - 1))
            self._wait(time.monotonic() + delay * random.uniform(0.5, 1.0))
            return
        until = time.monotonic() + trouble.wait
        with self._lock:
            news = until > self._paused_until + 1
            self._paused_until = max(until, self._paused_until)
        if news:
            self._say(f"{self._named(trouble)}; waiting {trouble.wait:.0f} s as it asks")
        self._wait(until)

    def _wait(self, until: float) -> None:
        if self.stop.wait(max(0.0, until - time.monotonic())):
            raise Stopped

    def _once(self, body: dict[str, Any]) -> Answer:
        headers = {"Content-Type": "application/json", "User-Agent": f"stepjepa/{__version__}"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                raw = response.read(LARGEST_ANSWER)
        except urllib.error.HTTPError as error:
            self._reached = True
            with error:
                raise self._meaning(error) from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise self._lost(error) from None
        self._reached = True
        answer = read_answer(raw)
        with self._lock:
            self._answers += 1
        return answer

    def _meaning(self, error: urllib.error.HTTPError) -> Exception:
        """What an error status is to the run."""
        status = error.code
        message, code = error_message(error)
        words = f"answers {status}{f' ({message})' if message else ''}"
        if status in _REFUSALS:
            return Refused(self._presentable(words))
        if (status in _TRANSIENT or status >= 500) and code != "insufficient_quota":
            return TryAgain(words, retry_after(error.headers.get("Retry-After")), busy=status == 429)
        if 300 <= status < 400:
            words += f"; it moved to {error.headers.get('Location')}, so --base_url must change"
        advice = _ADVICE.get(status)
        return ConfigError(f"{self._named(words)}{f'; {advice}' if advice else ''}; {GO_ON}")

    def _lost(self, error: Exception) -> Exception:
        """What a connection that fails is to the run: before anything came from there, most likely a wrong address."""
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(error, TimeoutError):
            return TryAgain(f"gave no answer in {self._timeout:g} s")
        why = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConfigError(f"{self.url}: its certificate cannot be trusted ({cause.verify_message})")
        if not self._reached:
            return ConfigError(f"{self.url} cannot be reached ({why}); check --base_url, and that the server runs")
        return TryAgain(f"lost the connection ({why})")

    def _named(self, trouble: object) -> str:
        return f"{self.url} {self._presentable(str(trouble))}"

    def _presentable(self, text: str) -> str:
        """A text of others in one line that a terminal can show, without the key."""
        text = text.replace(self._key, "***") if self._key else text
        return one_line(text, _LONGEST_MESSAGE)


def _connect(connection: Any, connect: Callable[[], None]) -> None:
    """Make a connection soon or not at all; for an answer it may then wait long."""
    timeout = connection.timeout
    connection.timeout = min(timeout, _LONGEST_CONNECT)
    connect()
    connection.sock.settimeout(timeout)


class _HttpConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        _connect(self, super().connect)


class _HttpsConnection(http.client.HTTPSConnection):
    def connect(self) -> None:
        _connect(self, super().connect)


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_HttpConnection, request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_HttpsConnection, request, context=ssl.create_default_context())


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Lets no redirect carry the key to another address."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None
