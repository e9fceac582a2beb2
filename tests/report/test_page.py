"""The page: numbers equal to the files', everything escaped, and words for what is missing."""

import json
import re
import shutil

import pytest

from stepjepa.report.charts import mean_points
from stepjepa.report.comparison import chosen, cut
from stepjepa.report.reading import Reader as FileReader
from stepjepa.report.run import report_page
from support.pages import Reader
from support.reports import page_data, study_record, write, write_evaluation, write_pair, write_run, write_study

HOSTILE = (
    "</script><script>alert(1)</script> <img src=x onerror=alert(2)> \u05e9\u05dc\u05d5\u05dd &lt; \u202e {{ 7 * 7 }}"
)


def page_of(*folders, most=200):
    return report_page(list(folders), FileReader(), most)[0]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return page_of(*write_pair(tmp_path_factory.mktemp("pair")))


def test_what_was_run(pair):
    read = Reader(pair)
    rows = {row[0]: row[1:] for row in read.rows("Settings")}
    assert rows["objective differs"] == ["regular", "step_jepa"] and rows["max_steps"] == ["50", "50"]
    differing = [row[0] for row in read.rows("Settings that differ")]
    assert differing == ["option", "objective differs", "predictors differs"]
    assert ["torch", "2.6.0", "2.6.0"] in read.rows("Settings")
    text = read.text("run")
    assert "train: train.jsonl: 12 rows read, 11 kept, 1 skipped, 11 pairs" in text
    assert "skipped 1: 'messages' is empty or not a list of messages (first: line 4: 'messages' is empty)" in text
    assert read.rows("Cost")[1] == ["regular", "50", "0:01:15", "160", "2.5 T"]


def test_the_answer_comes_first(tmp_path):
    """Whatever the order of the folders: what was compared, the difference with its interval, and what may be concluded."""
    a, b = write_pair(tmp_path, "rrrrwwww", "rrrrrrrw")
    read = Reader(page_of(b, a))
    text = read.text("answer")
    assert list(read.sections) == "answer accuracy curves predictions run".split()
    assert "Compared: step (objective=step_jepa, seed=0, train_file=train.jsonl); regular (objective=regular, " in text
    assert "step - regular: +37.5 points (" in text and "95 % interval; gsm8k of 8 questions (test) On these" in text
    assert (
        "Whether the training of step helps is not established: one seed of each; no shuffled control was run; not "
        "compared at equal compute. Compared: step (objective"
    ) in text
    shuffled = write_run(tmp_path / "shuffled", predictors=2, control="shuffled")
    write_run(b, predictors=2, same_flop=True)
    assert "not established: one seed of each. Compared:" in Reader(page_of(a, b, shuffled)).text("answer")
    assert "no two models here have answered the same questions" in Reader(page_of(a)).text("answer")


def test_results_of_another_model_are_marked(tmp_path):
    """And are compared with no other, in the headline least of all."""
    a, b = write_pair(tmp_path)
    metrics, record = (json.loads((b / name).read_text()) for name in ("metrics.json", "run.json"))
    write(b / "run.json", {**record, "steps": 90})
    write(b / "metrics.json", {**metrics, "steps": 50})
    read = Reader(page_of(a, b))
    marks = [(row[0], row[2]) for row in read.rows("Accuracy")[1:]]
    assert marks == [("test", "regular")] * 2 + [("test (stale)", "step")] * 2  # of both metrics
    why = f"Stale: {b}/evaluation-test: belongs to the model before this run was resumed; evaluate the current model"
    assert why in read.text("answer") and "Nothing can be concluded" in read.text("answer")
    assert "Paired differences" not in read.tables


def test_collapse_signs(tmp_path):
    text = Reader(page_of(*write_pair(tmp_path))).text("curves")
    # target_std .02 at the end: the mean cosine of two targets is 1 - .0004; the rank is 1 + 8 / 50
    assert "step collapse" in text and "target states have an effective rank of 1.16 (below 2.0)" in text
    assert "two targets have a cosine of 0.9996 on average, computed from target_std 0.020 (a sign of" in text
    assert "regular collapse" not in text and "regular no sign" not in text
    log = json.loads((tmp_path / "step" / "metrics.json").read_text())
    log["log_history"] = [{**entry, "effective_rank": 50.0} for entry in log["log_history"]]
    write(tmp_path / "step" / "metrics.json", log)
    assert "step signs of collapse, which alone do not prove it" in Reader(page_of(tmp_path / "step")).text("curves")
    text = Reader(page_of(write_run(tmp_path / "run", control="random"))).text("curves")
    assert "run one vector by design (--control random)" in text and "effective rank of 1.16" not in text


def test_accuracy_and_pairs(pair):
    read = Reader(pair)
    rows = read.rows("Accuracy")
    assert rows[1] == ["test", "gsm8k", "regular", "60.0 % (10.0 to 90.0)", "3 of 5 right", "1 of 5", "2"]
    assert rows[2][2:4] == ["step", "40.0 % (10.0 to 90.0)"]
    assert rows[3][3:5] == ["1.2500", "nats per token; mean of 5 rows 1.5000 (1.0000 to 2.0000)"]
    (paired,) = read.rows("Paired differences")[1:]
    assert paired[:4] == ["test, gsm8k", "regular", "step", "-20.0 points (-63.1 to +36.4)"]
    assert paired[4:] == ["1", "1", "2", "1", "1"]  # McNemar: 2 against 1 of 3; then both, A, B, neither
    assert [line["kind"] for line in page_data(pair)["charts"]["gsm8k"]] == ["evaluation", "evaluation"]


def test_questions_that_are_not_the_same_are_not_compared(tmp_path):
    a, b = write_pair(tmp_path)
    write_evaluation(b, "rrw", q1="something else")
    read, page = Reader(page_of(a, b)), page_data(page_of(a, b))
    assert "not compared" in read.text("accuracy") and "evaluate both on the same" in read.text("accuracy")
    (made,) = page["predictions"]
    assert [one["letters"] for one in made["models"]] == ["r-rwwr", "rr-w--"]  # sorted by index and question


def test_predictions(tmp_path):
    (made,) = page_data(page_of(*write_pair(tmp_path), most=3))["predictions"]
    assert made["name"] == "test" and [one["metric"] for one in made["models"]] == ["gsm8k", "gsm8k"]
    assert [one["letters"] for one in made["models"]] == ["rrwwr", "rwrww"]
    assert [row["index"] for row in made["rows"]] == [0, 1, 2]
    row = made["rows"][1]
    assert row["question"] == "question text 1" and row["reference"] == "truth text 1"
    assert row["answers"][1] == {"text": "step says text 1", "found": "1", "stop": "stop"}


def test_the_sample_has_every_kind():
    a, b = "r" * 90 + "wwrw", "r" * 90 + "wrwu"
    assert chosen([a, b], 5) == [0, 90, 91, 92, 93]
    assert chosen([a, b], 7) == [0, 1, 2, 90, 91, 92, 93]
    assert chosen([a, b], 0) == [] and chosen([a, b], 999) == list(range(94))


def test_long_texts_lose_their_middle(tmp_path):
    assert cut("abcdef", 6) == "abcdef"
    assert cut("ab" + "x" * 1000 + "yz", 4) == "ab\n[... 1,000 characters are left out here ...]\nyz"
    run = write_run(tmp_path / "run")
    write_evaluation(run, "rw" * 100, **{f"q{n}": "long " * 1500 for n in range(200)})
    assert len(page_of(run)) < 3_000_000


def test_a_study(tmp_path):
    """The tables of table.json, also of version 0.2; curves are means over the seeds."""
    page = page_of(write_study(tmp_path / "study"))
    read = Reader(page)
    _, regular, step = read.rows("gsm8k (higher is better)")
    assert regular[:3] == ["regular", "2", "0.5"] and regular[-1] == "baseline"
    assert "+0.0125 [-0.0075, +0.0325]" in step
    assert step[-1] == "not established: n=2 seeds in common with regular; a | b"
    text = read.text("answer")
    assert text.startswith(
        "The answer gsm8k (higher is better), against regular: step_jepa: not established: n=2 seeds in"
    )
    assert "a | b at equal examples: +0.0125 [-0.0075, +0.0325], p = 0.200 (Holm), n = 2 seeds Compared:" in text
    assert "step_jepa seed 2: exit status 2" in read.text("study")
    assert [row[0] for row in read.rows("Cost")[1:]] == ["regular/seed-1", "regular/seed-2", "step_jepa/seed-1"]
    assert "only studies since version 0.3 keep the answers of their runs" in read.text("accuracy")
    (chart,) = [
        one for one in page_data(page)["charts"]["lm_loss"] if (one["name"], one["kind"]) == ("regular", "training")
    ]
    assert [point[:2] for point in chart["points"]][:2] == [[10, 2.0], [20, 1.0]]  # the mean of two equal runs
    logs = [(1, 2.0), (2, 4.0)], [(2, 6.0), (3, 1.0)], []  # the mean is over steps that all have
    assert mean_points([[{"step": step, "k": value} for step, value in log] for log in logs], "k") == [(2, 5.0)]


def test_the_answers_of_a_study_are_those_of_its_first_seed(tmp_path):
    """Of one seed alone they are the answer too, as of two models."""
    study = write_study(tmp_path / "study", answers=True)
    page = page_of(study)
    read = Reader(page)
    assert "The runs of seed 1 on the test split" in read.text("accuracy")
    (paired,) = read.rows("Paired differences")[1:]
    assert paired[1:4] == ["regular", "step_jepa", "+25.0 points (-32.0 to +65.5)"]
    assert "On these questions" not in read.text("answer")  # several seeds: the verdicts are the answer
    (answers,) = page_data(page)["predictions"]
    assert [model["letters"] for model in answers["models"]] == ["rrww", "rrrw"]
    for arm in ("regular", "step_jepa"):
        shutil.rmtree(study / "runs" / arm / "seed-2")
    text = Reader(page_of(study)).text("answer")
    assert "step_jepa - regular: +25.0 points (" in text and "one seed of each" in text


def test_a_study_that_is_unfinished(tmp_path):
    read = Reader(page_of(write_study(tmp_path / "study", ended=False)))
    assert "Nothing can be concluded: the study has not finished. Compared: regular; step_jepa" in read.text("answer")
    assert "No tables yet" in read.text("study")
    assert [tag for tag, _ in read.elements].count("figure") == 6  # curves of what has been trained


def test_a_control_is_no_rival(tmp_path):
    runs = [*write_pair(tmp_path, "rrww", "rwrw"), write_run(tmp_path / "shuffled", control="shuffled", predictors=2)]
    runs.append(write_run(tmp_path / "other", predictors=3))  # whose control was not run
    write_evaluation(runs[2], "wwww")
    write_evaluation(runs[3], "wwww")
    read = Reader(page_of(*runs))
    text = read.text("answer")
    assert "shuffled (objective=step_jepa, seed=0, train_file=train.jsonl), a control: shuffled targets" in text
    assert "training of shuffled helps" not in text and text.count("shuffled is a control: only what a run gains") == 1
    assert "step - shuffled: +50.0 points" in text and text.count("no shuffled control was run") == 1
    paired = [row[1:3] for row in read.rows("Paired differences")[1:]]
    assert paired == [["regular", "shuffled"], ["regular", "step"], ["shuffled", "step"], ["regular", "other"]]


def test_text_of_the_data_is_text(tmp_path):
    """In settings, reports, names of models, predictions, verdicts: as it was, in no other element."""
    plain = Reader(page_of(*write_pair(tmp_path / "plain")))
    a, b = write_pair(tmp_path / "hostile", q1=HOSTILE)
    for run in (a, b):
        record = json.loads((run / "run.json").read_text())
        record["settings"]["train_file"] = [HOSTILE]
        write(run / "run.json", record)
        report = json.loads((run / "data_report.json").read_text())
        report["train"]["source"] = HOSTILE
        write(run / "data_report.json", report)
    page = page_of(a, b)
    page.encode("ascii")
    read = Reader(page)
    assert [tag for tag, _ in read.elements] == [tag for tag, _ in plain.elements]
    assert {row[0]: row[1:] for row in read.rows("Settings")}["train_file"] == [" ".join(HOSTILE.split())] * 2
    (made,) = page_data(page)["predictions"]
    assert made["rows"][1]["question"] == f"question {HOSTILE}"
    study, record = write_study(tmp_path / "study"), study_record()
    record["tables"][0]["arms"][1]["verdict"]["reasons"] = [HOSTILE]
    write(study / "table.json", record)
    read = Reader(page_of(study))
    assert " ".join(HOSTILE.split()) in read.text("study") and " ".join(HOSTILE.split()) in read.text("answer")
    assert sum(tag == "script" for tag, _ in read.elements) == 2


def test_nothing_is_fetched(pair):
    assert not re.search(r"(src|href)=\"(?!data:|#)", pair) and "url(" not in pair and "@import" not in pair
    assert " style=" not in pair  # the policy forbids it
