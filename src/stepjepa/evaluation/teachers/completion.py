"""What a server sends: chat completions, errors, and how long to wait."""

from __future__ import annotations

import email.utils
import http.client
import time
import urllib.error
from dataclasses import dataclass
from typing import Any

from stepjepa.utils.files import parse_json

LARGEST_ANSWER = 64 << 20


class Refused(Exception):
    """The server will not answer this one request (too long a prompt, a content filter)."""


class Stopped(Exception):
    """Nothing more is to be sent."""


class TryAgain(Exception):
    """What may pass by itself.

    Attributes:
        wait: seconds that the server asks to wait, None where it does not say.
        busy: whether the server has too much to do, which is not the request's fault.
    """

    def __init__(self, message: str, wait: float | None = None, busy: bool = False):
        super().__init__(message)
        self.wait, self.busy = wait, busy


@dataclass(frozen=True)
class Answer:
    """What a chat completion holds."""

    text: str
    stopped: bool
    prompt_tokens: int
    new_tokens: int
    reasoning: str | None


def read_answer(raw: bytes) -> Answer:
    """The answer in a response's body.

    Raises:
        TryAgain: there is none; servers behind a proxy send such bodies when something breaks on the way.
    """
    try:
        data = parse_json(raw)
    except (ValueError, RecursionError):
        raise TryAgain("sends what is no JSON") from None
    try:
        choice = data["choices"][0]
        message = choice["message"]
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(part.get("text") or "" for part in content)
        if not isinstance(content, (str, type(None))):
            raise TypeError
        reason, usage = choice.get("finish_reason"), data.get("usage") or {}
        prompt_tokens, new_tokens = (usage.get(name) or 0 for name in ("prompt_tokens", "completion_tokens"))
        reasoning = message.get("reasoning_content") or message.get("reasoning")
    except (KeyError, IndexError, TypeError, AttributeError):
        told = _message_in(data)[0]
        raise TryAgain(f"sends no chat completion{f' ({told})' if told else ''}") from None
    if reason == "content_filter":
        raise Refused("its content filter cut the response")
    return Answer(
        content or "",
        reason != "length",
        int(prompt_tokens),
        int(new_tokens),
        reasoning if isinstance(reasoning, str) else None,
    )


def error_message(error: urllib.error.HTTPError) -> tuple[str, str]:
    """Message and code in the body of an error, empty where there are none."""
    try:
        raw = error.read(LARGEST_ANSWER)
    except (OSError, http.client.HTTPException):
        return "", ""
    try:
        return _message_in(parse_json(raw))
    except (ValueError, RecursionError):
        text = raw[:1000].decode("utf-8", "replace").strip()
        return "" if text.startswith("<") else text, ""  # a page for a browser says nothing here


def _message_in(data: Any) -> tuple[str, str]:
    """OpenAI sends {"error": {"message", "code"}}, others {"message"}, {"detail"} or {"error"} with a text."""
    inner = data.get("error", data) if isinstance(data, dict) else data
    if isinstance(inner, dict):
        message = inner.get("message") or inner.get("detail") or ""
        return str(message), str(inner.get("code") or inner.get("type") or "")
    return inner if isinstance(inner, str) else "", ""


def retry_after(header: str | None) -> float | None:
    """Seconds from now; the header holds seconds or a date."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if seconds == seconds else None
