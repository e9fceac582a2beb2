"""The attempts: every question once, then the unsolved ones again, until all are solved or the attempts are used up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from stepjepa.data.answers import answers_match, final_answer
from stepjepa.errors import ConfigError
from stepjepa.evaluation.teachers.options import TeacherOptions
from stepjepa.evaluation.teachers.questions import REASONS, Question, QuestionSet, messages_of
from stepjepa.evaluation.teachers.requests import Reply, Request, Teacher, seed_of, tidy
from stepjepa.evaluation.teachers.store import Attempt, SolutionStore, paths

VERDICTS = {
    "wrong": "wrong answer",
    "truncated": "cut off at max_new_tokens",
    "no_answer": "no final answer",
    "refused": "request refused",
}
# So many refusals and no response: the request itself is wrong, not the questions.
_REFUSALS = 5


class Watcher(Protocol):
    """Whoever wants to know how far a run is."""

    def begin(self, attempt: int, total: int, done: int) -> None:
        """Attempt number `attempt` begins with `total` questions, `done` of which have been asked before."""

    def step(self, asked: int, solved: int) -> None:
        """So many more questions have been asked in this attempt, and so many of them solved."""


def open_store(options: TeacherOptions, questions: QuestionSet) -> SolutionStore:
    """The files that a run writes, not yet opened.

    Raises:
        ConfigError: files are there that may not be touched, or the input is one of them.
    """
    output = Path(str(options.output_file))
    source = Path(str(options.file))
    for path in paths(output):
        if source.exists() and path.exists() and path.samefile(source):
            raise ConfigError(f"--output_file {output}: the run would write {path}, which is its input; name another")
    return SolutionStore(
        output,
        questions.questions,
        options.deciding(),
        {"file": questions.source, "questions": len(questions.questions), "fingerprint": questions.fingerprint()},
        options.response_field,
        options.resume,
        options.overwrite,
    )


def make_attempts(
    questions: Sequence[Question], teacher: Teacher, store: SolutionStore, options: TeacherOptions, watcher: Watcher
) -> None:
    """Ask until every question is solved or has had all its attempts. Each group of replies is stored as it comes.

    Raises:
        StepJepaError: the teacher cannot be asked, or the store not written; what is stored by then is kept.
    """
    answered = any(standing.verdict != "refused" for standing in store.standings.values())
    for attempt in range(1, options.attempts + 1):
        asked = [question for question in questions if _takes_part(question, attempt, store)]
        done = {one.row for one in asked if one.row in store.standings and store.standings[one.row].attempts >= attempt}
        if len(done) == len(asked):
            continue
        truths = {question.row: question.ground_truth for question in asked}
        requests = [
            Request(
                question.row,
                messages_of(question, options),
                options.temperature_of(attempt),
                seed_of(options.seed, question.row, attempt),
            )
            for question in asked
        ]
        watcher.begin(attempt, len(asked), len(done))
        for replies in _unless_all_refused(teacher.answer(requests, done), answered):
            attempts = [judge(reply, attempt, truths[reply.row], options.accept_truncated) for reply in replies]
            store.store(attempts)
            watcher.step(len(attempts), sum(one.verdict == "right" for one in attempts))
        answered = True


def _takes_part(question: Question, attempt: int, store: SolutionStore) -> bool:
    """Whether a question is asked in an attempt: it was not solved before that."""
    standing = store.standings.get(question.row)
    return standing is None or standing.verdict != "right" or standing.attempts >= attempt


def _unless_all_refused(groups: Iterator[list[Reply]], answered: bool) -> Iterator[list[Reply]]:
    """Hold refused replies back until one is answered.

    Raises:
        ConfigError: none is.
    """
    held: list[Reply] = []
    for group in groups:
        answered = answered or any(reply.refused is None for reply in group)
        held += group
        if answered:
            yield held
            held = []
        elif len(held) >= _REFUSALS:
            break
    if held:
        raise ConfigError(f"the teacher refuses every request: {held[0].refused}")


def judge(reply: Reply, attempt: int, ground_truth: str, accept_truncated: bool = False) -> Attempt:
    """Compare the final answer of a response with the known one. A response that was cut off is no solution."""
    text = tidy(reply.text)
    found = final_answer(text) if reply.refused is None else None
    if reply.refused is not None:
        verdict = "refused"
    elif not reply.stopped and not accept_truncated:
        verdict = "truncated"
    elif answers_match(found, ground_truth):
        verdict = "right"
    else:
        verdict = "no_answer" if found is None else "wrong"
    return Attempt(
        reply.row,
        attempt,
        verdict,
        text,
        found,
        reply.stopped,
        reply.prompt_tokens,
        reply.new_tokens,
        reply.refused,
        reply.reasoning,
    )


def summarise(questions: QuestionSet, store: SolutionStore, attempts: int) -> dict[str, Any]:
    """Where every row that was read has ended: solved at an attempt, unsolved, or skipped."""
    standings = store.standings.values()
    numbers = range(1, max((standing.attempts for standing in standings), default=0) + 1)
    solved = Counter(standing.attempts for standing in standings if standing.verdict == "right")
    return {
        "rows_read": questions.rows_read,
        "solved": sum(solved.values()),
        "solved_at_attempt": {str(number): solved[number] for number in numbers},
        "asked_at_attempt": {str(n): sum(standing.attempts >= n for standing in standings) for n in numbers},
        "attempts_allowed": attempts,
        "unsolved": len(questions.questions) - sum(solved.values()),
        "unsolved_last_attempt": dict(Counter(one.verdict for one in standings if one.verdict != "right")),
        "skipped": dict(questions.skipped),
        "first_skipped": questions.first_skipped,
        "tokens_read": store.tokens_read,
        "tokens_written": store.tokens_written,
    }


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """The summary in words."""
    skipped = sum(summary["skipped"].values())
    lines = [
        f"{summary['rows_read']} rows read: {summary['solved']} solved, {summary['unsolved']} unsolved, {skipped} skipped"
    ]
    for number, asked in summary["asked_at_attempt"].items():
        solved = summary["solved_at_attempt"][number]
        lines.append(f"  attempt {number}: {solved} of {asked} solved ({100 * solved / asked:.1f} %)")
    if summary["unsolved"]:
        why = [f"{VERDICTS[verdict]} {count}" for verdict, count in summary["unsolved_last_attempt"].items()]
        lines.append(f"  unsolved {summary['unsolved']}, by the last attempt: {', '.join(why)}")
    for reason, count in summary["skipped"].items():
        lines.append(f"  skipped {count}: {REASONS.get(reason, reason)} (first: {summary['first_skipped'][reason]})")
    if summary["tokens_written"]:
        lines.append(f"  tokens: {summary['tokens_read']:,} read, {summary['tokens_written']:,} written")
    return lines
