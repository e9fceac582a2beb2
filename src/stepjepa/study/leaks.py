"""Questions that stand in two splits: what was trained on, or chosen by, is no test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from stepjepa.data.chat import RowError
from stepjepa.data.sources import PairColumns, RowSource, row_to_messages
from stepjepa.study.spec import Block

# Larger files are read by training alone.
_MOST_BYTES = 500_000_000
_WORDS = {"train": "train_file", "select": "select_file", "test": "test_file"}


def leak_notes(block: Block, files: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A line for every two splits of a block that share questions (the user's messages, white space aside)."""
    paths = [Path(name).expanduser() for name in chain.from_iterable(files.values())]
    if any(not path.is_file() for path in paths) or sum(path.stat().st_size for path in paths) > _MOST_BYTES:
        return
    names = [block.base.get(f"{name}_column") for name in ("source", "target", "choice")]
    columns = PairColumns(names[0], names[1], names[2]) if names[0] and names[1] else None
    asked = {split: [_questions(name, columns) for name in chosen] for split, chosen in files.items() if chosen}
    found = {split: set(chain.from_iterable(sets)) for split, sets in asked.items()}
    for one, other in (("test", "train"), ("test", "select"), ("select", "train")):
        both = found.get(one, set()) & found.get(other, set())
        if both:
            place = f"{block.name}: " if block.name else ""
            yield f"{place}{len(both)} of the {len(found[one])} questions of {_WORDS[one]} stand in {_WORDS[other]} too"


def _questions(name: str, columns: PairColumns | None) -> set[int]:
    """Hashes of what the rows of a file ask; rows that are no chats ask nothing."""
    questions = set()
    for _, row in RowSource(name):
        try:
            messages = row_to_messages(row, None, columns)
        except RowError:
            continue
        questions.add(hash(tuple(" ".join(m["content"].split()) for m in messages if m["role"] == "user")))
    return questions
