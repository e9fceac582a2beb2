"""What answers and errors of a server mean, without a server. `tests/cli/test_generate.py` has one."""

from __future__ import annotations

import email.utils
import json
import threading
import time

import pytest

from stepjepa.errors import ConfigError
from stepjepa.evaluation.teachers import client
from stepjepa.evaluation.teachers.client import ChatClient
from stepjepa.evaluation.teachers.completion import Answer, Refused, Stopped, TryAgain, read_answer, retry_after


def body(message, reason="stop", **usage):
    return json.dumps({"choices": [{"message": message, "finish_reason": reason}], "usage": usage or None}).encode()


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (body({"content": "a"}, prompt_tokens=3, completion_tokens=4), Answer("a", True, 3, 4, None)),
        (body({"content": None}, "length"), Answer("", False, 0, 0, None)),
        (body({"content": "a"}, None), Answer("a", True, 0, 0, None)),
        (body({"content": [{"type": "text", "text": "a"}, {"text": "b"}]}), Answer("ab", True, 0, 0, None)),
        (body({"content": "a", "reasoning_content": "hm"}), Answer("a", True, 0, 0, "hm")),
        (body({"content": "a", "reasoning": {"x": 1}}), Answer("a", True, 0, 0, None)),
    ],
)
def test_a_chat_completion(raw, expected):
    assert read_answer(raw) == expected


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100000, "no JSON"),
        (b"3", "no chat completion"),
        (b'{"choices": []}', "no chat completion"),
        (b'{"choices": [{"message": {"content": 5}}]}', "no chat completion"),
        (b'{"error": {"message": "upstream"}}', r"no chat completion \(upstream\)"),
        (b'{"detail": "gone"}', r"no chat completion \(gone\)"),
        (b'{"error": "gone"}', r"no chat completion \(gone\)"),
    ],
)
def test_what_is_none(raw, words):
    with pytest.raises(TryAgain, match=words):
        read_answer(raw)


def test_a_filtered_response_is_refused():
    with pytest.raises(Refused, match="content filter"):
        read_answer(body({"content": "a"}, "content_filter"))


def test_retry_after():
    assert retry_after(None) is None and retry_after("soon") is None and retry_after("nan") is None
    assert retry_after("2.5") == 2.5 and retry_after("-1") == 0
    date = email.utils.format_datetime(email.utils.localtime()).replace("-0000", "+0000")
    assert retry_after(date) == pytest.approx(0, abs=2)
    assert 50 < retry_after(email.utils.formatdate(time.time() + 60, usegmt=True)) < 61


class Scripted(ChatClient):
    """Fails for "bad", for "busy" nine times; before each failure, `others` other requests are answered."""

    def __init__(self, others, **kwargs):
        super().__init__("http://localhost/v1", **kwargs)
        self.others, self.tries = others, 0

    def _once(self, body):
        self.tries += 1
        if body == "busy" and self.tries < 10:
            self._answers += self.others
            raise TryAgain("answers 429", busy=True)
        if body == "bad":
            self._answers += self.others
            raise TryAgain("answers 500")
        return body


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(client, "FIRST_DELAY", 0.001)


def test_one_bad_request_among_good_ones_is_refused():
    bad = Scripted(others=1, max_retries=2)
    with pytest.raises(Refused, match="answers 500, tried 3 times"):
        bad.complete("bad")
    assert bad.tries == 3


@pytest.mark.parametrize(("others", "max_retries"), [(0, 2), (0, 0), (1, 0)])
def test_an_outage_ends_the_run(others, max_retries):
    out = Scripted(others, max_retries=max_retries)
    out._answers = 7
    with pytest.raises(
        ConfigError, match=r"localhost/v1/chat/completions answers 500 \(tried .*\); what is done is kept"
    ):
        out.complete("bad")
    assert out.tries == max_retries + 1


def test_a_busy_server_is_asked_as_long_as_it_answers_others(monkeypatch):
    monkeypatch.setattr(client, "_LONGEST_BACKOFF", 0.001)
    assert Scripted(others=1, max_retries=2).complete("busy") == "busy"
    with pytest.raises(ConfigError, match="answers 429"):
        Scripted(others=0, max_retries=2).complete("busy")


def test_waiting_ends_when_the_run_is_stopped(monkeypatch):
    monkeypatch.setattr(client, "FIRST_DELAY", 60.0)
    waiting = Scripted(others=0)
    threading.Timer(0.1, waiting.stop.set).start()
    begun = time.monotonic()
    with pytest.raises(Stopped):
        waiting.complete("bad")
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("base", ["http://h:1/v1", "http://h:1/v1/", "http://h:1/v1/chat/completions"])
def test_the_address(base):
    assert ChatClient(base).url == "http://h:1/v1/chat/completions"
