"""One answer to what the steps of a row are: `prepare`, `check`, `train` and `inspect` read the same ones."""

import itertools
import json

import pytest

from stepjepa.cli.main import main
from stepjepa.data.encode import CheckedChat, encode_dataset
from stepjepa.data.options import PrepareOptions
from stepjepa.data.prepare import prepare
from stepjepa.data.sources import RowSource
from stepjepa.data.template import ChatRenderer
from stepjepa.training.config import JEPAConfig
from stepjepa.training.datasets import ExampleReader, Sources, encode, settings_for
from stepjepa.training.options import JEPAOptions
from support.checks import check_format
from support.encoding import views_of
from support.rows import lines, write
from support.tokenizers import with_template

THOUGHTS = "<think>\nI wonder what {n} and one more come to.\n\nOne takes {n} and counts on from there.\n</think>\n\n"
STYLES = [
    "**Step 1:** Take {n}, as given.\n\nIt is a number.\n\n**Step 2:** Add one to it.\n\nThe answer is \\boxed{{{m}}}.",
    "1. Take {n}, which is given.\n   - it is a number\n\n   Write it down.\n2. Add one to it.\n\nSo it is \\boxed{{{m}}}.",
    "First, take {n}, which is given.\n\nThen, add one to it.\n\nFinally, the answer is \\boxed{{{m}}}.",
    "## Given\n\nTake {n} as it is.\n\n## Sum\n\n$$\n{n} + 1\n\n= {m}\n$$\n\n**Answer:** \\boxed{{{m}}}",
    "Take {n}, which is given.\r\nAdd one to it.\r\n\r\nThe answer is \\boxed{{{m}}}.",
    "Take {n}. Add one to it, in code:\n```\nx = {n}\n\nx + 1\n```\nSo it is \\boxed{{{m}}} — done, «at last».",
]
REGEX = r"^\W*(?:Step|Add|Then)"


def raw_rows(form: str) -> list:
    """Raw rows of a format of `prepare`, in many styles."""
    rows = []
    for n, style in enumerate(STYLES):
        question, text = f"What is {n} and one more?", ("" if n == 2 else THOUGHTS) + style
        text = text.format(n=n, m=n + 1)
        if form == "gsm8k":
            text = text.replace(f"\\boxed{{{n + 1}}}", str(n + 1))
            rows.append({"question": question, "answer": f"{text}\n#### {n + 1}"})
        else:
            rows.append({"question": question, "answer": f"#### {n + 1}", "deepseek_response": text})
    return rows


def checked(capsys, file, *words: str) -> dict:
    """The record of `check`, its warnings by name."""
    assert main(["check", str(file), "--json", *words]) == 0
    record = json.loads(capsys.readouterr().out)
    return {**record, "warnings": {warning["name"]: warning for warning in record["warnings"]}}


def method_of(**options) -> JEPAOptions:
    method = JEPAOptions(objective="step_jepa", **{"step_pairs": "all", **options})
    method.check()
    return method


@pytest.mark.parametrize("keep_thinking", [True, False])
def test_what_prepare_wrote_is_read_in_every_format_and_with_every_splitter(tmp_path, bpe_tokenizer, keep_thinking):
    renderer, method = ChatRenderer(bpe_tokenizer), method_of(predictors=2)
    splitters = ["separator", "lines", "numbered", "sentence", "regex", "auto"]
    for form, splitter in itertools.product(("gsm8k", "teacher"), splitters):
        case, file = f"{form} {splitter}", tmp_path / f"{form}-{splitter}.jsonl"
        options = {"min_steps": 1, "min_step_length": 1, "keep_thinking": keep_thinking, "step_splitter": splitter}
        if splitter == "regex":
            options["step_separator"] = REGEX
        report = prepare(PrepareOptions(format=form, output_file=str(file), **options), raw_rows(form))
        rows, source = lines(file), RowSource(str(file))
        total = [len(row["steps"]) for row in rows]
        assert len(rows) == len(STYLES) == report.rows_kept and [row["total_steps"] for row in rows] == total, case

        found = check_format(source, "auto")
        assert found.step_counts == report.step_counts and found.steps.own == found.steps.rows == len(rows), case
        assert not found.steps.unread, case
        settings = settings_for(source, method)
        store, trained = encode_dataset(source, bpe_tokenizer, renderer, settings)
        assert trained.steps.own == len(rows) == trained.rows_kept, case
        assert trained.pairs == sum(total) - len(rows) == found.pairs_all, case
        for row, example in zip(rows, store, strict=True):
            chat = CheckedChat.of(row, settings, True, renderer)  # as inspect reads it
            (span,) = chat.shown.turns
            texts = [chat.rendered.text[span.start + a : span.start + b] for a, b in chat.steps.spans[0]]
            assert [text.strip() for text in texts] == row["steps"] and "".join(texts) == row["messages"][-1]["content"]
            assert [text.strip() for text in targets(bpe_tokenizer, example)] == row["steps"][1:], case


def chat(text: str, **more) -> dict:
    return {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": text}], **more}


NUMBERED = "1. Take four.\n\nIt is even.\n\n2. Halve it."  # 3 paragraphs, 2 items
PARAGRAPHS = "Take four.\n\nIt is even.\n\nHalve it."
ITEMS = "1. Take four.\n2. Halve it."
TWO_OF_THREE = ["1. Take four.", "It is even.\n\n2. Halve it."]


def test_own_steps_that_are_not_taken_are_counted_with_a_reason_and_the_first_row(tmp_path, capsys, bpe_tokenizer):
    good = chat("Well: take four. Halve it.\n\nDone.", steps=["take four.", " Halve\nit. ", ""], total_steps=2)
    not_taken = [["Take four.", "Double it."], 7, [], None]  # the last two hold none
    rows = [good, *(chat(PARAGRAPHS, steps=steps) for steps in not_taken)]
    rows += [chat(PARAGRAPHS, total_steps=total) for total in (3, 5, "5", 5.0, None, "x")]
    rows.append(chat(PARAGRAPHS, steps=["Take four.", "Halve it."], total_steps=3))
    file = write(tmp_path / "rows.jsonl", rows)
    record = checked(capsys, file)
    warnings = {name: (warning["count"], warning["text"]) for name, warning in record["warnings"].items()}
    assert record["step_counts"] == {"2": 2, "3": 10} and record["steps"]["own"] == 2
    counts = {name: count for name, (count, _) in warnings.items() if "own_" in name}
    assert counts == {"own_steps_not_found": 1, "own_no_steps": 1}
    assert "line 2: step 2 of 2 is not in the answer after step 1: 'Double it.'" in str(warnings)
    _, report = encoded(bpe_tokenizer, file)
    said = "\n".join(report.lines())
    assert report.pairs == 2 + 10 * 2
    assert "steps: listed in 2 of 12 rows, else found by --step_splitter separator" in said
    assert "listed steps not used in 1 row: the steps in the row are not in its answer (first: " in said
    # Who names a splitter, or requires the column, gets that.
    record = checked(capsys, file, "--step_splitter", "lines")
    assert record["step_counts"] == {"2": 1, "3": 11} and record["steps"]["own"] == 0
    assert checked(capsys, file, "--step_splitter", "list")["rows_usable"] == 3


def encoded(tokenizer, source):
    """Examples and report of a data set under ``auto``."""
    return encode(source, tokenizer, method_of())


def targets(tokenizer, example) -> list[str]:
    return [tokenizer.decode(example.trunk[view.start : view.stop]) for view in views_of(example)]


def test_several_turns_thoughts_and_introductions(bpe_tokenizer):
    system, user = {"role": "system", "content": "S\n\nT"}, {"role": "user", "content": "Why?"}
    first, last = ({"role": "assistant", "content": text} for text in ("A.\n\nB.", " Well.\n\nC. D.\n\nE "))
    rows = [
        {"messages": [system, user, first, user, last], "steps": ["C.", "D."], "total_steps": 2},
        chat("<think>\nA.\n\nB.\n</think>\n\nC.\n\nD.", steps=["A.", "B.", "C.", "D."]),
    ]
    store, report = encoded(bpe_tokenizer, rows)
    # An earlier answer is split; what stands around the steps belongs to them: "Well." to C., "E" to D.
    found = [[text.strip() for text in targets(bpe_tokenizer, example)] for example in store]
    assert found == [["B.", "D.\n\nE"], ["B.\n</think>", "C.", "D."]]
    assert report.steps.own == 2
    # A template that leaves the thoughts of the last answer out leaves their steps out.
    tokenizer = with_template(bpe_tokenizer, "chatml")
    text = "m['content'].split('</think>')[-1]"
    tokenizer.chat_template = tokenizer.chat_template.replace("m['content']", text)
    store, report = encoded(tokenizer, rows[1:])
    assert report.steps.unread == {"steps_not_found": 1} and [len(targets(tokenizer, one)) for one in store] == [1]


def test_files_streams_and_caches_give_the_same_steps(tmp_path, bpe_tokenizer):
    own = [chat(NUMBERED, steps=TWO_OF_THREE)] * 3
    files = [write(tmp_path / "own.jsonl", own), write(tmp_path / "items.jsonl", [chat(ITEMS)] * 3)]
    want = [example.pairs for file in files for example in encoded(bpe_tokenizer, file)[0]]
    assert [len(pairs) for pairs in want] == [1] * 6

    def reader(**options):
        args = JEPAConfig(output_dir=str(tmp_path), objective="step_jepa", step_pairs="all", use_cpu=True, **options)
        return ExampleReader(bpe_tokenizer, args, None)

    made = reader()
    assert [example.pairs for example in made.read_training(Sources(files)).store] == want
    steps = [made.reports[name].steps for name in ("train_1", "train_2")]
    assert [(one.splitter, one.own) for one in steps] == [("separator", 3), ("numbered", 0)]
    assert made.args.step_splitter == "auto"  # nothing is written into the options
    stream = reader(streaming=True, max_steps=1).read_training(Sources(files))
    _, window = next(stream.stream.windows(6))
    assert [one.example.pairs for one in window] == want
    # Evaluation data are read with the splitter of the training data.
    made = reader()
    made.read_training(Sources(files[1:]))
    made.read_evaluation(write(tmp_path / "few.jsonl", [chat(PARAGRAPHS), chat(ITEMS)]))
    assert made.reports["eval"].steps.splitter == "numbered"


def test_other_steps_are_other_data(bpe_tokenizer):
    head, *middle, last = "1. Take four.", "It is even.", "2. Halve it."
    steps = [[head, *middle, last], TWO_OF_THREE, [f"{head}\n\n{middle[0]}", last]]
    prints = {encoded(bpe_tokenizer, [chat(NUMBERED, steps=own)])[1].fingerprint for own in steps}
    assert len(prints) == 3  # three steps, two, and another two
