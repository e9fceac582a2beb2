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
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_START_SECONDS = 120.0
_MEMORY = 4 * 2**30  # bytes of address space
Result = TypeVar("Result")


class WorkerError(Exception):
    """The function raised an error, or its process died."""


class WorkerTimeout(WorkerError):
    """The function took too long."""


class Worker(Generic[Result]):
    """Calls a function in another process, which ends with this one.

    Args:
        function: of a module; arguments and result must be JSON.
        imports: a module that the process loads when it starts, so that no call's time limit includes it.
    """

    def __init__(self, function: Callable[..., Result], imports: str | None = None):
        named = function.__module__, function.__qualname__
        self._code = f"from {__name__} import serve; serve{(*named, imports)}"
        self._process: subprocess.Popen[str] | None = None

    def call(self, seconds: float, /, **arguments: object) -> Result:
        """The function's result.

        Raises:
            WorkerTimeout: there was none after `seconds`; starting the process does not count.
            WorkerError: it raised an error, ran out of memory, or its process could not start or died.
        """
        reply = None
        try:
            if self._process is None or self._process.poll() is not None:
                self._start()
            reply = self._exchange({"seconds": seconds, "arguments": arguments}, seconds)
        finally:
            if reply is None:  # too late, or an interrupt: a reply under way belongs to no later call
                self.close()
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply["value"]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()  # closes its streams
            self._process = None

    def _start(self) -> None:
        self.close()
        # The same packages as here, wherever they were found; not the current folder, which nobody asked for.
        path = os.pathsep.join(part for part in sys.path if part)
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
        )
        self._exchange(None, _START_SECONDS)

    def _exchange(self, call: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
        """Send a call, if there is one, and read a reply."""
        process, deadline = self._process, time.monotonic() + seconds
        assert process is not None and process.stdin is not None and process.stdout is not None
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            if call is not None:
                process.stdin.write(json.dumps(call) + "\n")
                process.stdin.flush()
            reply = process.stdout.readline()
        except OSError:
            reply = ""
        finally:
            timer.cancel()
        if reply.endswith("\n"):
            return json.loads(reply)
        if time.monotonic() >= deadline:
            raise WorkerTimeout(f"no result after {seconds:g} s")
        raise WorkerError("its process ended")


def serve(module: str, name: str, imports: str | None) -> None:
    """The other process: answer calls until standard input ends."""
    import signal

    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing that a library prints may pass for a reply
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    # Should the parent be gone by the time, nobody else would end an endless call.
    alarm = getattr(signal, "alarm", lambda seconds: None)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))

    function = getattr(importlib.import_module(module), name)
    importlib.import_module(imports or module)
    print(json.dumps({"value": "ready"}), file=replies, flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        alarm(int(call["seconds"]) + 6)
        try:
            reply = json.dumps({"value": function(**call["arguments"])})
        except Exception as error:
            reply = json.dumps({"error": f"{type(error).__name__}: {error}"})
        print(reply, file=replies, flush=True)
        alarm(0)
