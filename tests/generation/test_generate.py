"""``stepjepa generate`` against a server in a thread that answers by a test's script; what it refuses at once."""

import itertools
import json
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stepjepa.cli.main import main
from stepjepa.data.options import SYSTEM_PROMPT
from stepjepa.generation import endpoint
from stepjepa.generation.output import seed_of
from support.rows import lines, write
from support.runs import one_line

QUESTIONS = 8


def completion(text, finish="stop"):
    return {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7},
    }


def number_in(body):
    return int(re.search(r"\d+", body["messages"][-1]["content"])[0])


def solution(body, wrong=False):
    """The right answer to "What is N + 1?", or one beside it."""
    return completion(f"**Step 1:** Add.\n\n**Step 2:** \\boxed{{{number_in(body) + 1 + wrong}}}")


class ScriptedServer(ThreadingHTTPServer):
    """`script(body, earlier requests of this question)` gives a completion, (status, headers, body), or None to hang up."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = lambda body, count: solution(body)
        self.bodies, self.headers, self.lock = [], [], threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def asked(self, number):
        return [body for body in self.bodies if number_in(body) == number]

    def handle_error(self, request, client_address):
        pass  # a client that was killed


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            count = len(self.server.asked(number_in(body)))
            self.server.bodies.append(body)
            self.server.headers.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        reply = self.server.script(body, count)
        if reply is None:
            return
        status, headers, content = (200, {}, reply) if isinstance(reply, dict) else reply
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(endpoint, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(endpoint, "MAX_RETRIES", 2)
    with ScriptedServer() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "data.jsonl"
    rows = [{"question": f"What is {n} + 1?", "answer": f"It is easy.\n#### {n + 1}"} for n in range(QUESTIONS)]
    write(file, rows)
    return file


def words(server, data, output, *flags):
    fixed = ["--backend", "openai", "--base_url", server.url, "--model_name", "big", "--output_file", str(output)]
    return ["generate", str(data), *fixed, *flags]


def stored(partial):
    """Row and attempt of the replies in a file of unfinished work, as far as its lines are complete."""
    complete = partial.read_bytes().rpartition(b"\n")[0].splitlines()[1:]
    numbers = [reply[0] for line in complete for reply in json.loads(line)["replies"]]
    return {(number % QUESTIONS + 1, number // QUESTIONS + 1) for number in numbers}


def test_wrong_first_right_second(server, data, tmp_path, capsys, monkeypatch):
    """Even numbers are solved at once, odd ones at the second attempt, 7 never; some answers have thoughts in a field."""
    thoughts = {2: {"reasoning": "", "reasoning_content": " First. "}, 4: {"reasoning": "First."}}

    def script(body, count):
        number = number_in(body)
        reply = solution(body, wrong=number == 7 or count < number % 2)
        reply["choices"][0]["message"] |= thoughts.get(number, {})
        return reply

    server.script = script
    with open(data, "a") as file:
        file.write('{"answer": "#### 1"}\n')
    monkeypatch.setenv("MY_KEY", "sk-secret")
    out = tmp_path / "sub" / "out.jsonl"
    flags = ["--attempts", "3", "--api_key_env", "MY_KEY", "--seed", "5"]
    assert main(words(server, data, out, *flags)) == 0
    rows = lines(out)
    assert [row["question"] for row in rows] == [f"What is {n} + 1?" for n in range(7)]
    assert [row["attempt"] for row in rows] == [1, 2, 1, 2, 1, 2, 1]
    assert {row["row"]: row["reasoning"] for row in rows if "reasoning" in row} == {3: "First.", 5: "First."}
    assert rows[1] == {
        "question": "What is 1 + 1?",
        "answer": "It is easy.\n#### 2",
        "ground_truth": "2",
        "response": "**Step 1:** Add.\n\n**Step 2:** \\boxed{2}",
        "attempt": 2,
        "model": "big",
        "correct": True,
        "final_answer": "2",
        "row": 2,
        "stopped": True,
        "new_tokens": 7,
    }
    (unsolved,) = lines(tmp_path / "sub" / "out.unsolved.jsonl")
    assert (unsolved["row"], unsolved["attempt"], unsolved["correct"], unsolved["final_answer"]) == (8, 3, False, "9")
    summary = capsys.readouterr().out.splitlines()
    assert summary[:2] == [f"written: {out}", "9 rows read: 7 solved, 1 unsolved, 1 skipped"]
    assert "  attempt 1: 4 solved" in summary and "  attempt 2: 3 solved" in summary
    assert "  unsolved: 1, last attempt: wrong answer" in summary
    assert len(server.bodies) == 8 + 4 + 1
    first, second, third = server.asked(7)
    assert first["messages"][0] == {"role": "system", "content": SYSTEM_PROMPT}
    assert [body["seed"] for body in (first, second, third)] == [seed_of(5, 8, attempt) for attempt in (1, 2, 3)]
    assert first["max_tokens"] == 1024 and first["temperature"] == 0.7 and first["model"] == "big"
    assert {path for path, _ in server.headers} == {"/v1/chat/completions"}
    assert {headers["authorization"] for _, headers in server.headers} == {"Bearer sk-secret"}
    assert all("sk-secret" not in path.read_text() for path in out.parent.iterdir())


def test_request_fields(server, data, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # is about the Hub, not about this server
    monkeypatch.setenv("HF_TOKEN", "hf_secret")  # so is this
    flags = ["--prompt_template", "Q: {question} {x}", *"--system_prompt none --max_examples 2".split()]
    extra = ["--extra_body", '{"max_tokens": null, "max_completion_tokens": 9, "seed": null}']
    server.script = lambda body, count: solution(body, wrong=count == 0)
    assert main(words(server, data, tmp_path / "out.jsonl", *flags, *extra)) == 0
    assert len(server.bodies) == 4
    first, second = server.asked(1)
    assert first["messages"] == [{"role": "user", "content": "Q: What is 1 + 1? {x}"}]
    assert (first["temperature"], second["temperature"]) == (0.7, 0.7)
    assert not any("hf_secret" in str(headers) for _, headers in server.headers)
    assert "max_tokens" not in first and "seed" not in first and first["max_completion_tokens"] == 9


def test_cut_off_responses_broken_text_and_refused_questions(server, data, tmp_path, capsys):
    """A request that exceeds a rate limit by itself is not tried again."""
    too_large = "Request too large for big on tokens per min (TPM): Limit 30000, Requested 30601."
    refusals = {
        1: (400, {}, b"content filter"),
        2: (429, {}, {"error": {"message": too_large, "code": "rate_limit_exceeded"}}),
    }

    def script(body, count):
        number = number_in(body)
        return refusals[number] if number in refusals else completion(f"\ud83d \u2028 {number + 1}", "length")

    server.script = script
    flags = ["--attempts", "2", "--concurrency", "1", "--max_examples", "3"]
    assert main(words(server, data, tmp_path / "out.jsonl", *flags)) == 0
    summary = capsys.readouterr().out
    assert "unsolved: 1, last attempt: cut off at max_new_tokens" in summary
    assert "unsolved: 2, last attempt: request refused" in summary
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    _, filtered, large = lines(tmp_path / "out.unsolved.jsonl")
    assert filtered["refused"] == "answers 400 (content filter)" and filtered["attempt"] == 2
    assert too_large in large["refused"] and len(server.asked(2)) == 2
    assert main(words(server, data, tmp_path / "kept.jsonl", *flags, "--accept_truncated")) == 0
    (kept,) = lines(tmp_path / "kept.jsonl")
    assert kept["response"] == "\ufffd \u2028 1"


def test_what_may_pass_is_tried_again(server, data, tmp_path, monkeypatch):
    troubles = {
        1: lambda: (429, {"Retry-After": "0.2"}, {"error": {"message": "slow down", "code": "rate_limit"}}),
        2: lambda: (500, {}, b"<html>oops</html>"),
        3: lambda: (200, {}, b'{"choices": [{"mess'),
        4: lambda: (200, {}, {"error": {"message": "upstream"}}),
        5: lambda: None,
        6: lambda: time.sleep(1.0),
    }
    times = []

    def script(body, count):
        times.extend([time.monotonic()] * (number_in(body) == 1))
        return troubles[number_in(body)]() if number_in(body) in troubles and count < 2 else solution(body)

    server.script = script
    out = tmp_path / "out.jsonl"
    monkeypatch.setattr(endpoint, "TIMEOUT", 0.5)
    assert main(words(server, data, out, "--concurrency", "1")) == 0
    assert [row["attempt"] for row in lines(out)] == [1] * QUESTIONS
    assert [len(server.asked(number)) for number in range(QUESTIONS)] == [1, 3, 3, 3, 3, 3, 3, 1]
    assert times[1] - times[0] >= 0.2 and times[2] - times[1] >= 0.2


def test_a_rate_limit_refuses_no_question_while_others_are_answered(server, data, tmp_path, monkeypatch):
    # Another question is answered between two tries.
    monkeypatch.setattr(endpoint, "FIRST_DELAY", 0.2)
    busy = (429, {}, {"error": {"message": "slow down", "code": "rate_limit"}})

    def script(body, count):
        if number_in(body) != 1:
            time.sleep(0.09)
        return busy if number_in(body) == 1 and len(server.bodies) - count < QUESTIONS - 1 else solution(body)

    server.script = script
    out = tmp_path / "out.jsonl"
    assert main(words(server, data, out, "--concurrency", "2")) == 0
    assert [row["attempt"] for row in lines(out)] == [1] * QUESTIONS
    assert len(server.asked(1)) > endpoint.MAX_RETRIES + 1


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ((401, {}, {"error": {"message": "Incorrect key sk-secret"}}), ["401", "Incorrect key ***", "--api_key_env"]),
        ((402, {}, b"Insufficient\x1b[2J\nBalance"), ["402", r"Insufficient\x1b[2J Balance"]),
        ((429, {}, {"error": {"message": "pay", "code": "insufficient_quota"}}), ["429", "pay"]),
        ((429, {"Retry-After": "86400"}, {}), ["429", "wait of 86400 s"]),
        ((308, {"Location": "http://127.0.0.1:9/"}, {}), ["308", "http://127.0.0.1:9/", "--base_url"]),
        ((500, {}, {"detail": "broken"}), ["500", "broken", "tried 3 times"]),
        ((200, {}, b"hello"), ["did not return a chat completion", "tried 3 times"]),
        ((400, {}, {"error": {"message": "unknown field"}}), ["refuses every request", "400", "unknown field"]),
    ],
)
def test_what_does_not_pass_ends_the_run(reply, expected, server, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret")
    out = tmp_path / "out.jsonl"
    flags = ["--api_key_env", "MY_KEY", "--concurrency", "2"]
    server.script = lambda body, count: reply
    assert main(words(server, data, out, *flags)) == 2
    message = one_line(capsys.readouterr().err, "generate")
    for text in expected:
        assert text in message
    assert "sk-secret" not in message
    assert list(tmp_path.iterdir()) == [data], "a run that came to nothing leaves nothing"
    if reply[0] not in (401, 500):
        return
    server.script = lambda body, count: reply if number_in(body) >= 4 else solution(body)
    assert main(words(server, data, out, *flags, "--seed", "1")) == 2
    assert "completed work is kept" in one_line(capsys.readouterr().err, "generate")
    kept = stored(tmp_path / "out.partial")
    assert {row for row, _ in kept} >= {1, 2, 3} and len(kept) <= 4
    server.script, server.bodies[:] = lambda body, count: solution(body), []
    assert main(words(server, data, out, *flags, "--seed", "1")) == 0
    assert [row["row"] for row in lines(out)] == list(range(1, QUESTIONS + 1))
    assert len(server.bodies) <= 5


def by_seed(body, count):
    """Right or wrong by what is asked alone, so that two runs agree whatever the order."""
    return solution(body, wrong=body["seed"] % 3 > 0)


@pytest.mark.parametrize(("end", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_killed_and_resumed_equals_uninterrupted(server, data, tmp_path, end, status):
    """After five replies, with three more questions asked."""
    flags = ["--attempts", "4", "--concurrency", "3"]
    server.script = by_seed
    assert main(words(server, data, tmp_path / "whole.jsonl", *flags)) == 0
    total, number, go_on = len(server.bodies), itertools.count(1), threading.Event()
    out, log = tmp_path / "out.jsonl", tmp_path / "out.partial"
    again = words(server, data, out, *flags)
    server.bodies.clear()
    server.script = lambda body, count: by_seed(body, count) if next(number) <= 5 or go_on.wait(60) else None
    with subprocess.Popen([sys.executable, "-m", "stepjepa", *again], stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (log.exists() and len(stored(log)) == 5 and len(server.bodies) == 8):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(end)
        _, said = process.communicate(timeout=60)
    go_on.set()
    assert process.returncode == status and "Traceback" not in said
    assert ("completed work is kept; the same command resumes from there" in said) is (end == signal.SIGTERM)
    kept = stored(log)
    assert len(kept) == 5 and not out.exists()
    server.script = by_seed
    server.bodies.clear()
    assert main(again) == 0
    seeds = {body["seed"] for body in server.bodies}
    assert not any(seed_of(42, *one) in seeds for one in kept), "asked twice"
    assert len(seeds) == total - len(kept)  # a request of the killed process may still have come in
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    whole, mine = (tmp_path / f"{stem}.unsolved.jsonl" for stem in ("whole", "out"))
    assert not log.exists() and whole.exists() == mine.exists()
    assert not whole.exists() or whole.read_bytes() == mine.read_bytes()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--prompt_template Solve", "it must contain {question}"),
        ("--output_file out.json", "must end in .jsonl"),
        ("--output_file /proc/nowhere/out.jsonl", "/proc/nowhere/out.partial: cannot be written"),
        ("--base_url none", "needs --base_url"),
        ("--base_url localhost:8000", "takes only an address"),
        ("--base_url http://host:0/v1", "takes only an address"),
        ("--base_url http://host:99999/v1", "takes only an address"),
        ("--base_url http://me:pw@host/v1", "pass a key with --api_key_env"),
        ("--api_key_env BROKEN_KEY", "no variable of that name has a key"),
        ("--api_key_env sk-proj-abc", "no variable of that name has a key"),
    ],
)
def test_one_clear_line(data, flags, said, tmp_path, capsys, monkeypatch):
    """Exit status 2, nothing written, nobody asked, a key in place of a name not repeated."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BROKEN_KEY", "sk-proj\nabc")
    fixed = "data.jsonl --backend openai --base_url http://127.0.0.1:9/v1 --model_name big --output_file out.jsonl"
    assert main(["generate", *fixed.split(), *flags.split()]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.out == "" and "sk-proj" not in captured.err
    assert captured.err.startswith("stepjepa generate: error: ") and captured.err.count("\n") == 1
    assert not list(tmp_path.glob("out*"))
