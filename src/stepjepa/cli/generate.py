"""``stepjepa generate``: solutions from a teacher model, of which those with the right final answer are kept."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepjepa.cli.check import file_argument, needed_file, print_text
from stepjepa.cli.parser import StrictParser
from stepjepa.evaluation.teachers.options import TeacherOptions

if TYPE_CHECKING:
    from stepjepa.evaluation.teachers.requests import Teacher
    from stepjepa.evaluation.teachers.store import SolutionStore


def run(argv: list[str]) -> int:
    """Ask, store, sum up. Exit status 0, also where questions stay unsolved; 130 or 143 where a signal ends it."""
    parser = StrictParser(
        (TeacherOptions,),
        prog="stepjepa generate FILE",
        description="Let a teacher model solve the questions of a file, and keep the responses whose final answer is "
        "right. What is unsolved is asked again, --attempts times in all.",
        epilog="example: stepjepa generate train.jsonl --model_name Qwen/Qwen2.5-7B-Instruct --output_file solved.jsonl",
    )
    options: TeacherOptions
    (options,) = parser.parse(file_argument(parser, argv))
    needed_file(options.file, "generate")
    options.check()
    return generate(options)


def generate(options: TeacherOptions) -> int:
    """Do what the options say; exit status."""
    from stepjepa.evaluation.teachers.questions import read_questions
    from stepjepa.evaluation.teachers.rounds import make_attempts, open_store, summarise, summary_lines

    questions = read_questions(options)
    store = open_store(options, questions)
    if store.summary is not None:
        print_text(f"{store.output} is complete already\n" + "\n".join(summary_lines(store.summary)))
        return 0
    with Bar() as bar, _ending(store):
        teacher, words = load_teacher(options, bar.say)
        store.open()
        bar.say(f"teacher  {options.model_name} ({words})")
        begun = f", going on after {len(store.standings)} of them" if store.standings else ""
        bar.say(f"input    {questions.source}: {len(questions.questions)} questions{begun}")
        make_attempts(questions.questions, teacher, store, options, bar)
        summary = summarise(questions, store, options.attempts)
        store.finish(summary, options.keep_attempts)
    print_text("\n".join([*summary_lines(summary), *_written(store, summary)]))
    return 0


def load_teacher(options: TeacherOptions, say: Callable[[str], None]) -> tuple[Teacher, str]:
    """The teacher of a backend, and what it is in words.

    Raises:
        ConfigError: it cannot be loaded.
    """
    if options.backend == "openai":
        from stepjepa.evaluation.teachers.client import ChatClient
        from stepjepa.evaluation.teachers.endpoint import EndpointTeacher

        client = ChatClient(str(options.base_url), options.api_key(), options.timeout, options.max_retries, say)
        sampling = options.max_new_tokens, options.top_p
        endpoint = EndpointTeacher(client, str(options.model_name), *sampling, options.concurrency, options.extra_body)
        return endpoint, f"{client.url}, {options.concurrency} requests at a time"
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    if options.backend == "vllm":
        from stepjepa.evaluation.teachers.vllm_engine import load_vllm_teacher

        return load_vllm_teacher(options)
    from stepjepa.evaluation.teachers.local import load_transformers_teacher

    return load_transformers_teacher(options)


class Bar:
    """Says on standard error how far the run is: a bar in a terminal, a line an attempt elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("attempt {task.fields[attempt]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[solved]} solved"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: Any = None
        self._solved = 0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, attempt: int, total: int, done: int) -> None:
        """A bar for the attempt."""
        self._solved = 0
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task("", total=total, completed=done, attempt=attempt, solved=0)
        if self._progress.disable:
            self.say(f"attempt {attempt}: {total} questions{f', {done} of them asked before' if done else ''}")

    def step(self, asked: int, solved: int) -> None:
        """Move it on."""
        self._solved += solved
        self._progress.update(self._task, advance=asked, solved=self._solved)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _ending(store: SolutionStore) -> Iterator[None]:
    """Close the store however the run ends, and let SIGTERM end it as Ctrl-C does.

    What is stored is whole at any moment, so there is nothing to save, only to say.
    """

    def terminate(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if in_main else None
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        kept = (
            f"{len(store.standings)} questions have been asked and are kept" if store.standings else "nothing is done"
        )
        print(f"stepjepa generate: interrupted; {kept}; the same command goes on from there", file=sys.stderr)
        raise
    finally:
        store.close()
        if in_main:
            signal.signal(signal.SIGTERM, before)


def _written(store: SolutionStore, summary: dict[str, Any]) -> list[str]:
    files: list[tuple[Path, int]] = [(store.output, summary["solved"]), (store.unsolved, summary["unsolved"])]
    return [f"  written: {path} ({count} rows)" for path, count in files if count or path == store.output]
