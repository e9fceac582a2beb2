"""A function in a process of its own, which is ended when it takes too long.

For work whose length nobody can bound from outside: a computer algebra system or a database may stay inside one call for
hours, where no signal and no thread reaches it. The process is kept between calls, so a call costs a fraction of a
millisecond; after one that was cut off, the next call starts a fresh process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["Worker", "WorkerError", "WorkerTimeout"]

_START_SECONDS = 120.0
_MEMORY = 4 * 2**30  # bytes of address space
_SERVE = "from stepjepa.evaluation.metrics.worker import serve; serve({target!r}, {memory})"


class WorkerError(Exception):
    """The function raised an error, or its process died."""


class WorkerTimeout(WorkerError):
    """The function took too long."""


class Worker:
    """Calls a function in another process.

    Args:
        target: ``package.module:function``; arguments and result must be JSON.
        memory: bytes of address space that the process may have, where the system keeps to that (Linux does).
    """

    def __init__(self, target: str, memory: int = _MEMORY):
        self._code = _SERVE.format(target=target, memory=memory)
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._end: Callable[[], object] = lambda: None

    def call(self, seconds: float, /, **arguments: Any) -> Any:
        """The function's result.

        Raises:
            WorkerTimeout: there was none after `seconds`; starting the process does not count.
            WorkerError: it raised an error, ran out of memory, or its process could not start or died.
        """
        with self._lock:
            process = self._started()
            try:
                reply = _exchange(process, json.dumps({"seconds": seconds, "arguments": arguments}), seconds)
            except BaseException:  # too late, or an interrupt: a reply under way belongs to no later call
                self._stop()
                raise
            if reply is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=1)  # it has closed its output: its own exit code is about to come
                self._stop()
                raise WorkerError(f"its process ended with code {process.returncode}")
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply["value"]

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        # The same packages as here, wherever they were found; not the current folder, which nobody asked for.
        path = os.pathsep.join(part for part in sys.path if part)
        process = self._process = subprocess.Popen(
            [sys.executable, "-c", self._code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
        )
        self._end = weakref.finalize(self, _end, process)
        ready: dict[str, Any] | None = None
        try:
            ready = _exchange(process, None, _START_SECONDS)
        except WorkerTimeout:
            pass
        finally:
            if ready is None or "error" in ready:
                self._stop()
        if ready is None or "error" in ready:
            raise WorkerError(f"its process did not start: {(ready or {}).get('error', 'no reply')}")
        return process

    def _stop(self) -> None:
        self._end()
        self._process = None


def _exchange(process: subprocess.Popen[str], line: str | None, seconds: float) -> dict[str, Any] | None:
    """Send a line and read one; None where the process is gone.

    Raises:
        WorkerTimeout: it did not answer in time, and was ended.
    """
    assert process.stdin is not None and process.stdout is not None
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        if line is not None:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        reply = process.stdout.readline()
    except OSError:
        reply = ""
    finally:
        timer.cancel()
    if reply.endswith("\n"):
        return json.loads(reply)
    if late.is_set():
        raise WorkerTimeout(f"no result after {seconds:g} s")
    return None


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def serve(target: str, memory: int) -> None:
    """The other process: answer calls until standard input ends."""
    import signal

    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing that a library prints may pass for a reply
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        module, _, name = target.partition(":")
        function = getattr(importlib.import_module(module), name)
        reply: dict[str, Any] = {"ready": True}
    except Exception as error:
        reply = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(reply), file=replies, flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        # Should the parent be gone by the time, nobody else would end an endless call.
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, call["seconds"] + 5)
        try:
            answer = json.dumps({"value": function(**call["arguments"])})
        except Exception as error:
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        print(answer, file=replies, flush=True)
