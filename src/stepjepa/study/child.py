"""A process of a study, which ends with the study that started it, also where that is killed.

``python -m stepjepa.study.child train ...`` is ``python -m stepjepa train ...``; ``score FOLDER SPLIT ...`` scores a run;
``demo ARM OPTIONS`` is an arm of the demo.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable

from stepjepa.errors import StepJepaError

# Names a pipe whose only writer is the study: its end of file is the study's end.
ENDS_WITH = "STEPJEPA_ENDS_WITH"


def main(argv: list[str]) -> int:
    """Run a command of ``stepjepa``, or score; exit status."""
    watch(os.environ.get(ENDS_WITH), end_group)
    from stepjepa.cli.main import main as stepjepa
    from stepjepa.cli.main import tell

    if argv[0] not in ("score", "demo"):
        return stepjepa(argv)
    try:
        if argv[0] == "score":
            from stepjepa.study.scoring import run

            return run(argv[1:])
        from stepjepa.study.demo import run_one_arm

        run_one_arm(*argv[1:])
    except StepJepaError as error:
        return tell(error, f"stepjepa {argv[0]}")
    except KeyboardInterrupt:  # the demo says so
        return 130
    return 0


def watch(pipe: str | None, end: Callable[[], None]) -> None:
    """Call `end` once nobody holds the writing end of the named pipe any more; None watches nothing."""
    if pipe:
        threading.Thread(target=_wait_for_end, args=(pipe, end), daemon=True).start()


def end_group() -> None:
    """Kill this process and those that it started: each process of a study leads a group of its own."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _wait_for_end(pipe: str, end: Callable[[], None]) -> None:
    try:
        # Not blocking: where the writer has gone already there would be nobody to open it with.
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        end()
        return
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while True:
        try:
            if os.read(reader, 1) == b"":  # also where the writer had gone before this end was opened
                break
        except BlockingIOError:
            poll.poll()
    end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
