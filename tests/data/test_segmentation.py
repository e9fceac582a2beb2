"""Answers in many styles with hand-marked steps (`answers/*.txt`): how many are cut as marked, by `auto` and by name.

A file holds answers behind lines ``=== title | style``, with `` crlf`` behind the style for Windows line ends. The sign
U+2016 stands where a new step begins, U+237D for a non-breaking space.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepjepa.data.steps import STYLES, make_splitter, style_and_spans

FOLDER = Path(__file__).parent / "answers"
HEAD = re.compile(r"(?P<title>.+) \| (?P<style>\w+)(?P<crlf> crlf)?")


def answers() -> list[tuple[str, str, list[str]]]:
    """(file and title, style, steps) of every marked answer."""
    found = []
    for file in sorted(FOLDER.glob("*.txt")):
        for block in re.split(r"(?m)^=== ", file.read_text(encoding="utf-8"))[1:]:
            line, _, body = block.partition("\n")
            head = HEAD.fullmatch(line)
            assert head, f"{file.name}: {line!r}"
            body = body.strip("\n").replace("\u237d", "\u00a0")
            body = body.replace("\n", "\r\n") if head["crlf"] else body
            found.append((f"{file.stem}: {head['title']}", head["style"], body.split("\u2016")))
    return found


def wrong(cases) -> list[str]:
    """The answers that a splitter cuts otherwise than marked; white space around steps does not count."""
    names = []
    for name, splitter, steps in cases:
        text = "".join(steps)
        spans = splitter.spans(text)
        if [text[start:end].strip() for start, end in spans] != [step.strip() for step in steps]:
            style = f" as {style_and_spans(text)[0]}" if splitter.name == "auto" else ""
            names.append(f"{name} (found {len(spans)}{style}, marked {len(steps)})")
    return names


def test_there_are_enough_and_every_mark_has_a_step():
    found = answers()
    assert len(found) >= 350 and len({name.split(":")[0] for name, _, _ in found}) >= 25
    assert len({"".join(steps) for _, _, steps in found}) == len(found)
    assert all(step.strip() for _, _, steps in found for step in steps)
    assert {style for _, style, _ in found} == set(STYLES) - {"regex", "auto"}


def test_steps_as_marked_when_the_style_is_named():
    cases = [(name, make_splitter(style), steps) for name, style, steps in answers()]
    failed = wrong(cases)
    assert len(failed) <= 0.01 * len(cases), "\n".join(failed)


def test_steps_as_marked_when_it_is_not():
    # Sentences are taken only when they are asked for.
    cases = [(name, make_splitter("auto"), steps) for name, style, steps in answers() if style != "sentence"]
    failed = wrong(cases)
    assert len(failed) <= 0.05 * len(cases), "\n".join(failed)


def test_auto_cuts_as_the_style_that_it_names():
    for _, _, steps in answers():
        text = "".join(steps)
        style, spans = style_and_spans(text)
        assert make_splitter("auto").spans(text) == spans == make_splitter(style).spans(text)


@pytest.mark.parametrize("style", ["numbered", "separator", "connectives", "headings"])
def test_steps_put_together_again_are_the_same_steps(style):
    for name, marked, steps in answers():
        if marked == style and "indented" not in name and "right" not in name:
            steps = [step.strip("\r\n") for step in steps]
            text = "\n\n".join(steps)
            spans = make_splitter(style).spans(text)
            assert [text[start:end].strip("\n") for start, end in spans] == steps, name
