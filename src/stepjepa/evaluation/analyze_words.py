"""An analysis in words and as plain JSON values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from stepjepa.evaluation.analyze import Analysis, Comparison, example_record
from stepjepa.evaluation.error_kinds import KINDS
from stepjepa.evaluation.intervals import Interval
from stepjepa.evaluation.predictions import Prediction

_QUESTION, _HEAD, _END = 160, 80, 160  # characters of a question, and of a response's beginning and end


def percent(interval: Interval, sign: str = "") -> str:
    """``61.0 % (57.9 to 64.0)``."""
    if interval.value is None:
        return "none"
    middle = f"{100 * interval.value:{sign}.1f} %"
    if interval.low is None or interval.high is None:
        return middle
    return f"{middle} ({100 * interval.low:{sign}.1f} to {100 * interval.high:{sign}.1f})"


def analysis_lines(found: Analysis) -> Iterator[str]:
    """One file in words."""
    yield f"{found.file}: {found.n} answers, {found.correct} right, {found.n - found.correct} wrong"
    by = f" by {found.metric}" if found.metric else ""
    yield f"  accuracy{by}: {percent(found.accuracy)}, 95 % interval in brackets"
    if found.undecided:
        yield f"  {found.undecided} answers are called neither right nor wrong, and are left out"
    others = [f"{name} {interval.value:.4f}" for name, interval in found.scores.items() if name != found.metric]
    if others:
        yield f"  means of the other metrics: {', '.join(others)}"
    if sum(found.cut_off):
        yield f"  cut off at max_new_tokens: {found.cut_off[0]} of the right answers, {found.cut_off[1]} of the wrong ones"
    yield f"  {found.unit} a response:"
    for name, sizes in found.lengths.items():
        if sizes.n:
            numbers = f"mean {sizes.mean:.1f}, median {sizes.median:g}, 90 % below {sizes.p90}, longest {sizes.longest}"
            yield f"    {name}  {numbers}"
    if found.kinds:
        yield "  kinds of errors, each wrong answer counted once:"
    width = len(str(max(found.kinds.values(), default=0)))
    wrong = found.n - found.correct
    for kind, count in found.kinds.items():
        yield f"    {count:>{width}}  {100 * count / wrong:5.1f} %  {KINDS[kind]}"
    for kind, examples in found.examples.items():
        if examples:
            yield ""
            yield f"{KINDS[kind]}:"
        for one in examples:
            yield from example_lines(one)


def comparison_lines(found: Comparison) -> Iterator[str]:
    """Two files in words."""
    if found.a.metric:
        yield f"right is what {found.a.metric} calls right"
    yield f"A  {found.a.file}: {percent(found.a.accuracy)}"
    yield f"B  {found.b.file}: {percent(found.b.accuracy)}"
    difference = percent(found.difference, "+").replace(" %", " points", 1)
    yield f"B - A  {difference}, 95 % intervals in brackets; McNemar's exact test p = {found.p:.3g}"
    yield ""
    rows = (("", "B right", "B wrong"), ("A right", found.both, found.only_a), ("A wrong", found.only_b, found.neither))
    for row, left, right in rows:
        yield f"  {row:<8}{left:>9}{right:>9}"
    for name, examples in found.examples.items():
        if examples:
            yield ""
            yield f"only {name[-1].upper()} is right:"
        for a, b in examples:
            yield f"  index {a.index}: {shortened(a.question, _QUESTION)}"
            yield f"    expected {_answer(a.gt_answer or a.ground_truth)}"
            for letter, one in (("A", a), ("B", b)):
                more = f": {ends(one.generated_response)}" if _says_more(one) else ""
                yield f"    {letter} {_answer(one.gen_answer)}{more}"
    yield ""
    for letter, analysis in (("A", found.a), ("B", found.b)):
        kinds = ", ".join(f"{KINDS[kind]} {count}" for kind, count in analysis.kinds.items()) or "none"
        yield f"errors of {letter}: {kinds}"


def example_lines(one: Prediction) -> Iterator[str]:
    """A wrong answer in words."""
    yield f"  index {one.index}: {shortened(one.question, _QUESTION)}"
    note = f" ({one.note})" if one.note and one.note not in KINDS.values() else ""
    yield f"    expected {_answer(one.gt_answer or one.ground_truth)}, found {_answer(one.gen_answer)}{note}"
    if _says_more(one):
        yield f"    {ends(one.generated_response)}"


def _says_more(one: Prediction) -> bool:
    """Whether the response is more than the answer that was found in it."""
    return one.generated_response.strip() != (one.gen_answer or "").strip()


def _answer(text: str | None) -> str:
    return "none" if text is None else repr(shortened(text, _HEAD))


def shortened(text: str, length: int) -> str:
    """One line of a text, cut."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[:length]}..."


def ends(text: str) -> str:
    """The beginning and the end of a response, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= _HEAD + _END + 5 else f"{line[:_HEAD]} ... {line[-_END:]}"


def analysis_record(found: Analysis) -> dict[str, Any]:
    """One file as plain values."""
    record = asdict(found)
    record["accuracy"] = found.accuracy._asdict()
    record["scores"] = {name: interval._asdict() for name, interval in found.scores.items()}
    record["cut_off"] = dict(zip(("right", "wrong"), found.cut_off, strict=True))
    record["examples"] = {kind: [example_record(one) for one in group] for kind, group in found.examples.items()}
    return record


def comparison_record(found: Comparison) -> dict[str, Any]:
    """Two files as plain values."""
    examples = {
        name: [{"a": example_record(a), "b": example_record(b)} for a, b in pairs]
        for name, pairs in found.examples.items()
    }
    return {
        "a": analysis_record(found.a),
        "b": analysis_record(found.b),
        "difference": found.difference._asdict(),
        "mcnemar_p": found.p,
        **{name: getattr(found, name) for name in ("both", "only_a", "only_b", "neither")},
        "examples": examples,
    }
