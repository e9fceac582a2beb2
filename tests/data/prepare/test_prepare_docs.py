"""The examples in docs/prepare.md: every raw row and the answer that is shown for it."""

import json
import re
from pathlib import Path

import pytest

import stepjepa.data.prepare as package
from stepjepa.data.prepare import PrepareOptions, prepare

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "prepare.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"\*\*`(\w+)`\*\*(?:(?!\n\*\*`).)*?```json\n(.*?)\n```\n```text\n(.*?)\n```", PAGE, re.DOTALL)


def test_every_format_is_there():
    assert [name for name, *_ in EXAMPLES] == ["gsm8k", "teacher"]


@pytest.mark.parametrize(("name", "raw", "shown"), EXAMPLES, ids=[name for name, *_ in EXAMPLES])
def test_examples(tmp_path, name, raw, shown):
    source = tmp_path / "raw.jsonl"
    source.write_text(f"{raw}\n")
    out = tmp_path / "out.jsonl"
    assert prepare(PrepareOptions(file=str(source), output_file=str(out))).format == name
    assert json.loads(out.read_text())["messages"][-1]["content"] == shown


def test_every_option_and_reason_is_there():
    named = set(re.findall(r"`(\w+)`", PAGE))
    folder = Path(package.__file__).parent
    raised = {name for file in folder.glob("*.py") for name in re.findall(r'RowError\(\s*"(\w+)"', file.read_text())}
    assert {*raised, "duplicate", "truncated_line", "not_utf8", "broken_json", "broken_csv", "line_too_long"} <= named
    assert len(raised) > 8
    options = set(re.findall(r"--(\w+)", PAGE))
    assert set(PrepareOptions.__dataclass_fields__) <= options
