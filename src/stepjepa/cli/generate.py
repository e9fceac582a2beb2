"""``stepjepa generate``: solutions from a teacher model, of which those with the right final answer are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepjepa.cli.check import needed_file
from stepjepa.config.parser import StrictParser
from stepjepa.evaluation.teachers.options import TeacherOptions
from stepjepa.utils.progress import Bar, ending
from stepjepa.utils.terminal import print_text

if TYPE_CHECKING:
    from stepjepa.evaluation.teachers.requests import Teacher
    from stepjepa.evaluation.teachers.store import SolutionStore


def run(argv: list[str]) -> int:
    """Ask, store, sum up. Exit status 0, also where questions stay unsolved; 130 or 143 where a signal ends it."""
    parser = StrictParser(
        (TeacherOptions,),
        positional=("file",),
        prog="stepjepa generate FILE",
        description="Let a teacher model solve the questions of a file, and keep the responses whose final answer is "
        "right. What is unsolved is asked again, --attempts times in all.",
        epilog="example: stepjepa generate train.jsonl --model_name Qwen/Qwen2.5-7B-Instruct --output_file solved.jsonl",
    )
    options: TeacherOptions
    (options,) = parser.parse(argv)
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
    with AttemptBar() as bar, ending("generate", lambda: _kept(store)), contextlib.closing(store):
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


class AttemptBar(Bar):
    """A bar for each attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._solved = 0

    def begin(self, attempt: int, total: int, done: int) -> None:
        """A bar for the attempt."""
        self._solved = 0
        self.start(f"attempt {attempt}", total, done, "0 solved")
        if not self.is_terminal:
            self.say(f"attempt {attempt}: {total} questions{f', {done} of them asked before' if done else ''}")

    def step(self, asked: int, solved: int) -> None:
        """Move it on."""
        self._solved += solved
        self.advance(asked, f"{self._solved} solved")


def _kept(store: SolutionStore) -> str:
    asked = len(store.standings)
    return f"{asked} questions have been asked and are kept" if asked else "nothing is done"


def _written(store: SolutionStore, summary: dict[str, Any]) -> list[str]:
    files: list[tuple[Path, int]] = [(store.output, summary["solved"]), (store.unsolved, summary["unsolved"])]
    return [f"  written: {path} ({count} rows)" for path, count in files if count or path == store.output]
