"""Best of N: one of N sampled solutions is chosen by a signal or a vote, and compared with chance and other choices.

A signal orders the solutions of one question; a solution without a value comes after all that have one, and among equals
the one that was sampled first is chosen. Everything here is about questions with exactly N solutions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepjepa.data.answers import answers_match
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.intervals import Interval, mcnemar_p, mean, paired_counts, paired_difference, share

# signal -> its name in tables, and whether a high value is the better one
SIGNALS = {
    "relative": ("lowest relative energy", False),
    "energy": ("lowest energy", False),
    "shuffled": ("lowest shuffled energy (control)", False),
    "likelihood_mean": ("highest likelihood a token", True),
    "likelihood_sum": ("highest likelihood in all", True),
}
MAJORITY, FIRST, RANDOM, ORACLE = "majority", "first", "random", "oracle"
RULES = {
    RANDOM: "random (expected)",
    FIRST: "the first sample",
    MAJORITY: "majority of answers",
    **{name: words for name, (words, _) in SIGNALS.items()},
    ORACLE: "oracle (pass@N)",
}


@dataclass(frozen=True)
class Candidate:
    """One solution of a question.

    Attributes:
        right: whether its final answer is.
        answer: that answer, None where there is none.
        signals: signal -> value, None where it has none.
    """

    right: bool
    answer: str | None
    signals: dict[str, float | None]


Question = Sequence[Candidate]  # the N solutions, as they were sampled


def first_of_each(keys: Sequence[str], count: int) -> tuple[list[list[int]], int]:
    """Places of the first `count` of each key, in the order in which the keys come; and how many keys have fewer, which are
    left out.

    Raises:
        DataError: no key has so many.
    """
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    whole = [found[:count] for found in places.values() if len(found) >= count]
    if not whole:
        most = max(map(len, places.values()), default=0)
        raise DataError(
            f"--best_of {count}: no question has {count} solutions, the most is {most}; lower it, or let the model sample "
            "them with --questions FILE"
        )
    return whole, len(places) - len(whole)


def choose(question: Question, signal: str) -> int:
    """The place of the best solution by a signal."""
    return max(range(len(question)), key=lambda place: (_worth(question[place], signal), -place))


def choose_majority(question: Question) -> int:
    """The place of the first solution with the most common answer; of answers that are equally common, the one that came
    first. Solutions without an answer do not vote; the first one where none has an answer."""
    groups: list[list[int]] = []
    for place, one in enumerate(question):
        if one.answer is None:
            continue
        same = (group for group in groups if answers_match(question[group[0]].answer, one.answer))
        group = next(same, None)
        if group is None:
            groups.append([place])
        else:
            group.append(place)
    return max(groups, key=len)[0] if groups else 0


def within_auroc(questions: Sequence[Question], signal: str) -> dict[str, Any]:
    """How well a signal tells right solutions from wrong ones of the same question.

    Of each question that has both: the share of pairs (right, wrong) of which the right one has the better value, equal ones
    count half (the area under the ROC curve). 0.5 is chance.

    Returns:
        ``value``, the mean over those questions, with the ends of its t interval; how many ``questions`` and ``pairs``.
    """
    areas, pairs = [], 0
    for question in questions:
        right = [_worth(one, signal) for one in question if one.right]
        wrong = [_worth(one, signal) for one in question if not one.right]
        if right and wrong:
            won = [1.0 if good > bad else 0.5 if good == bad else 0.0 for good in right for bad in wrong]
            areas.append(sum(won) / len(won))
            pairs += len(won)
    value, low, high = mean(areas)
    ends = {"low": None if low is None else max(low, 0.0), "high": None if high is None else min(high, 1.0)}
    return {"value": value, **ends, "questions": len(areas), "pairs": pairs}


def best_of(questions: Sequence[Question]) -> dict[str, Any]:
    """The accuracy of every rule, and what it differs by from chance and from the majority.

    Returns:
        ``questions``, ``samples``; ``rules``: rule -> ``value``, ``low``, ``high`` (95 %), ``against_random`` and
        ``against_majority`` alike; ``auroc``: signal -> see `within_auroc`; ``mixed``: questions with right and wrong
        solutions, on which alone a choice matters.
    """
    chance = [sum(one.right for one in question) / len(question) for question in questions]
    rules: dict[str, Callable[[Question], int]] = {FIRST: lambda question: 0, MAJORITY: choose_majority}
    rules |= {name: lambda question, name=name: choose(question, name) for name in SIGNALS}  # type: ignore[misc]
    picked = {name: [question[rule(question)].right for question in questions] for name, rule in rules.items()}
    picked[ORACLE] = [any(one.right for one in question) for question in questions]
    found: dict[str, Any] = {RANDOM: _ends(mean(chance))}
    for name in list(RULES)[1:]:
        right = picked[name]
        differences = [float(one) - expected for one, expected in zip(right, chance, strict=True)]
        found[name] = {**_ends(share(sum(right), len(right))), "against_random": _ends(mean(differences))}
        if name not in (MAJORITY, ORACLE):
            found[name]["against_majority"] = _paired(right, picked[MAJORITY])
    return {
        "questions": len(questions),
        "samples": len(questions[0]),
        "mixed": sum(0 < value < 1 for value in chance),
        "rules": found,
        "auroc": {name: within_auroc(questions, name) for name in SIGNALS},
    }


def best_of_lines(result: dict[str, Any]) -> list[str]:
    """The result as two tables."""
    count, of = result["samples"], result["questions"]
    wide = max(map(len, RULES.values())) + 2
    lines = [
        f"best of {count} on {of} questions; {result['mixed']} have right and wrong solutions; 95 % intervals, %",
        f"{'':<{wide}}{'accuracy':<24}{'less random':<24}less majority",
    ]
    for name, words in RULES.items():
        rule = result["rules"][name]
        parts = [_percent(rule), *(_percent(rule.get(f"against_{base}"), "+") for base in (RANDOM, MAJORITY))]
        lines.append(f"{words:<{wide}}{parts[0]:<24}{parts[1]:<24}{parts[2]}".rstrip())
    lines += ["", "right against wrong solutions of the same question: area under the ROC curve (0.5 is chance)"]
    for name, found in result["auroc"].items():
        value = "-" if found["value"] is None else f"{found['value']:.3f}"
        ends = "" if found["low"] is None else f" ({found['low']:.3f} to {found['high']:.3f})"
        lines.append(
            f"{SIGNALS[name][0]:<{wide}}{value + ends:<24}{found['questions']} questions, {found['pairs']} pairs"
        )
    return lines


def best_of_records(lines: Sequence[Mapping[str, Any]], count: int) -> dict[str, Any]:
    """`best_of` for records of ``stepjepa analyze --energy``, in which `count` solutions of a question follow each other."""
    candidates = [
        Candidate(
            line["correct"],
            line["answer"],
            {
                **{name: line[name] for name in ("energy", "relative", "shuffled")},
                "likelihood_mean": line["log_likelihood_mean"],
                "likelihood_sum": line["log_likelihood"],
            },
        )
        for line in lines
    ]
    return best_of([candidates[start : start + count] for start in range(0, len(candidates), count)])


def _worth(one: Candidate, signal: str) -> float:
    value = one.signals.get(signal)
    if value is None:
        return float("-inf")
    return value if SIGNALS[signal][1] else -value


def _paired(one: Sequence[bool], baseline: Sequence[bool]) -> dict[str, Any]:
    counts = paired_counts(baseline, one)
    found = _ends(paired_difference(*counts))
    try:
        return {**found, "p": mcnemar_p(*counts[1:3])}
    except ConfigError:  # SciPy is not there; the interval says the same
        return found


def _ends(interval: Interval) -> dict[str, Any]:
    return dict(interval._asdict())


def _percent(found: dict[str, Any] | None, sign: str = "") -> str:
    if found is None:
        return ""
    value, low, high = (None if found[name] is None else 100 * found[name] for name in ("value", "low", "high"))
    ends = "" if low is None else f" ({low:{sign}.1f} to {high:{sign}.1f})"
    return f"{value:{sign}.1f}{ends}"
