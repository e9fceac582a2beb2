"""Calls a function in a separate process, which is killed when a call takes too long.

For calls that cannot be interrupted: a computer algebra system or a database may stay in one call for hours, where no
signal and no thread reaches it. The process stays alive between calls, so that a call costs a fraction of a millisecond;
after a timeout the next call starts a new process.
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

# Starting the process includes the import of SymPy on a busy machine.
_START_SECONDS = 120.0
# Address space of the process in bytes, because an expression such as 9^9^9 can fill any amount of memory.
_MEMORY = 4 * 2**30
Result = TypeVar("Result")


class WorkerError(Exception):
    """The function raised an error or took too long, or its process died."""


class Worker(Generic[Result]):
    """Calls a function in another process, which ends when this process ends.

    Args:
        function: function at the top level of a module; arguments and result must be JSON values.
        imports: a module that the process imports when it starts, so that no time limit includes the import.
    """

    def __init__(self, function: Callable[..., Result], imports: str | None = None):
        named = function.__module__, function.__qualname__
        self._code = f"from {__name__} import serve; serve{(*named, imports)}"
        self._process: subprocess.Popen[str] | None = None

    def call(self, seconds: float, /, **arguments: object) -> Result:
        """The function's result.

        Raises:
            WorkerError: the function raised an error, ran out of memory, or returned no result within `seconds` (not
                counting the start of the process), or its process did not start or died.
        """
        reply = None
        try:
            if self._process is None or self._process.poll() is not None:
                self._start()
            reply = self._exchange({"seconds": seconds, "arguments": arguments}, seconds)
        finally:
            # After a timeout or an interrupt, a late reply must not be mistaken for the reply to the next call.
            if reply is None:
                self.close()
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply["value"]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            # Waits for the end, and closes the streams.
            self._process.communicate()
            self._process = None

    def _start(self) -> None:
        self.close()
        # The process imports the same packages as this one, but nothing from the current folder.
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
        # Not every system can read a pipe with a timeout, but killing the process ends the read on all of them.
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
        # A line without its newline was cut off by the kill.
        if reply.endswith("\n"):
            return json.loads(reply)
        if time.monotonic() >= deadline:
            raise WorkerError(f"no result after {seconds:g} s")
        raise WorkerError("its process ended")


def serve(module: str, name: str, imports: str | None) -> None:
    """The main function of the other process: answer calls until standard input ends."""
    import signal

    # Replies go to a copy of standard output, and what a library prints goes to the null device.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # Ctrl-C reaches the whole process group; the parent ends this process when it wants to.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # If the parent was killed, nothing else would end an endless call.
    alarm = getattr(signal, "alarm", lambda seconds: None)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))

    # The first reply tells the parent that all imports are done.
    function = getattr(importlib.import_module(module), name)
    importlib.import_module(imports or module)
    print(json.dumps({"value": "ready"}), file=replies, flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        # A little later than the parent's own timer, whose message is better.
        alarm(int(call["seconds"]) + 6)
        try:
            reply = json.dumps({"value": function(**call["arguments"])})
        except Exception as error:
            reply = json.dumps({"error": f"{type(error).__name__}: {error}"})
        print(reply, file=replies, flush=True)
        alarm(0)
