"""What a study does, in which order, what it chooses, repeats and refuses, and its end when its time is up."""

import json
import shutil
import threading

import pytest

from stepjepa.errors import ConfigError, DataError
from stepjepa.study import records, stages
from stepjepa.study.results import study_tables, table_cells
from stepjepa.study.run import _listed, study
from stepjepa.study.spec import StudyOptions
from stepjepa.utils.files import locked
from support.rows import lines as lines_of
from support.studies import missing_lines, records_of

pytest.importorskip("statsmodels")
BOTH = ("select", "test")


def trained(player):
    return [name for name, what in player.calls if what == "train"]


def test_all_arms_of_a_seed_come_before_the_next_seed(carry_out, player):
    given = "controls=[shuffled, random]", "equal_compute=true"
    outcome = carry_out(*given)
    rows = ["regular", "step_jepa", "step_jepa+shuffled", "step_jepa+random", "step_jepa+same_flop"]
    assert trained(player) == [f"{row} seed {seed}" for seed in (1, 2, 3) for row in rows]
    assert all(what in ("train", BOTH) for _, what in player.calls) and len(player.calls) == 30
    assert not outcome.failed and outcome.said[-1].startswith("[15/15] step_jepa+same_flop seed 3: done")
    records = records_of(carry_out(*given))  # a finished study does nothing again
    assert records == records_of(outcome) and len(player.calls) == 30
    table = study_tables(outcome.study, records)["", "answer_nll"].arms
    against = {kind: made.against for kind, made in table[1].comparisons.items()}
    assert against == {"examples": "regular", "compute": "regular", "control": rows[2], "random": rows[3]}


@pytest.mark.parametrize("die", [1, 4, 11])
def test_an_interrupted_study_goes_on_with_what_is_not_done(carry_out, player, die):
    player.die = die
    with pytest.raises(KeyboardInterrupt):
        carry_out()
    assert len(player.calls) == die
    player.die = None
    assert not carry_out().failed
    assert len(player.calls) == 12 + 1 and len(set(player.calls)) == 12  # one began twice, none was done twice


def test_a_failed_run_stops_no_other_and_stays_in_the_records(carry_out, player, tmp_path):
    kept = tmp_path / "new" / "kept.jsonl"
    player.fails = lambda name, stage: name == "step_jepa seed 2" and stage == "train"
    outcome = carry_out(kept=str(kept))
    (record,) = [record for record in records_of(outcome) if record.status != "finished"]
    assert (record.run, record.metrics, record.model) == ("step_jepa seed 2", {}, None)
    assert missing_lines(outcome) == ["step_jepa seed 2: exit status 1; the last line of train"]
    assert any(line.endswith("FAILED: exit status 1; the last line of train") for line in outcome.said)
    (failed,) = [line for line in lines_of(kept) if line["status"] == "failed"]
    assert failed["settings"]["lbd"] == 0.5 and failed["error"] == record.error and failed["at"] == {}
    player.fails, player.calls = lambda name, stage: False, []
    shutil.rmtree(tmp_path / "out")
    assert not carry_out(kept=str(kept)).failed
    assert player.calls == [("step_jepa seed 2", "train"), ("step_jepa seed 2", BOTH)]
    found = lines_of(kept)
    assert failed in found and len(found) == 7 and found[-1]["status"] == "finished"


def test_the_runs_that_solved_the_task_are_counted(carry_out, player):
    """One that failed has not solved it."""
    player.value = lambda options, split: 0.01 * options["seed"]
    player.fails = lambda name, stage: name == "step_jepa seed 1"
    outcome = carry_out("solved=0.02")
    cells = table_cells(study_tables(outcome.study, records_of(outcome))["", "answer_nll"].record())
    assert cells["solved, at most 0.02 [95 %]"] == ["2 of 3 [0.21, 0.94]", "1 of 3 [0.06, 0.79]"]


def test_new_seeds_and_arms_are_added_to_what_is_there(carry_out, player):
    carry_out("seeds=[1]")
    before = len(player.calls)
    carry_out("seeds=[1, 2]", "arms.third.objective=llm_jepa")
    new = ["regular seed 2", "step_jepa seed 2", "third seed 1", "third seed 2"]
    assert sorted(trained(player)[before // 2 :]) == new


def test_weights_are_deleted_once_scored(carry_out, tmp_path):
    assert all(record.model is None for record in records_of(carry_out("keep_models=false")))
    model = tmp_path / "out" / "runs" / "regular" / "seed-1" / "model"
    assert sorted(file.name for file in model.iterdir()) == ["metrics.json", "run.json"]
    kept = carry_out("keep_models=true", folder="kept")
    assert all((tmp_path / "kept").as_posix() in record.model for record in records_of(kept))


TUNED = "tune={learning_rate: [1e-3, 2e-3, 3e-3]}"
FEW = ["tune={learning_rate: [1e-3, 2e-3]}", "seeds=[1]"]


def test_the_validation_split_chooses_and_the_test_split_is_scored_once(carry_out, player, tmp_path):
    best = {"regular": 0.002, "step_jepa": 0.003}

    def value(options, split):
        target = best[options["objective"]] if split == "select" else 0.001  # on the test split another is better
        return abs(options["learning_rate"] - target) + 0.0001 * options["seed"]

    player.value = value
    outcome = carry_out(TUNED, "controls=[shuffled]", "equal_compute=true", "keep_models=false")
    assert len(trained(player)) == 2 * 9 + 2 * 3
    tested = sorted(name for name, what in player.calls if "test" in what)
    rates = {"regular": 0.002, "step_jepa": 0.003, "step_jepa+shuffled": 0.003, "step_jepa+same_flop": 0.003}
    assert tested == sorted(f"{row}/learning_rate={rate} seed {s}" for row, rate in rates.items() for s in (1, 2, 3))
    state = json.loads((tmp_path / "out" / "state.json").read_text())
    choice = state["choices"]["/step_jepa"]
    assert choice["cell"] == {"learning_rate": 0.003} and "(lowest answer_nll of " in choice["words"]
    assert choice["means"]["learning_rate=0.001"] == pytest.approx(0.002 + 0.0002)
    records = records_of(outcome)
    assert sorted(record.run for record in records if "test" in record.at) == tested
    assert all(record.at["test"] > choice["at"] for record in records if record.chosen and record.arm == "step_jepa")
    assert all(("test" in record.metrics) == record.chosen for record in records)
    assert sum(record.chosen for record in records) == 12 and not any(record.model for record in records)
    shutil.rmtree(tmp_path / "out" / "runs" / "step_jepa+shuffled")
    assert "21 of them finished" in _listed(outcome.study, StudyOptions()).lines[1]


def test_cells_that_diverged(carry_out, player):
    two = "seeds=[1, 2]"
    player.value = lambda options, split: None if options["objective"] == "step_jepa" else 1.0
    outcome = carry_out(TUNED, two, folder="everywhere")
    assert len(outcome.failed) == 6 and "no cell of this arm has a finite value" in outcome.failed[0].error
    lost = (0.003, 2)  # a seed of the lowest cell
    player.value = lambda o, split: None if (o["learning_rate"], o["seed"]) == lost else 1 - o["learning_rate"]
    choice = carry_out(TUNED, two).state.choice("", "regular")
    assert choice["cell"] == {"learning_rate": 0.002} and choice["means"]["learning_rate=0.003"] is None


def test_the_choice_has_seeds_of_its_own(carry_out, player):
    player.value = lambda options, split: 1.0 - 100 * options["learning_rate"] + 0.001 * options["seed"]
    given = [FEW[0], "tune_seeds=[11]", "keep_models=false", "controls=[shuffled]"]
    outcome = carry_out(*given)
    cells = [f"learning_rate={rate}" for rate in ("0.001", "0.002")]
    tuning = [f"{arm}/{cell} seed 11" for arm in ("regular", "step_jepa") for cell in cells]
    assert trained(player)[:4] == tuning
    rows = ["regular", "step_jepa", "step_jepa+shuffled"]
    assert sorted(trained(player)[4:]) == sorted(f"{row}/{cells[1]} seed {seed}" for row in rows for seed in (1, 2, 3))
    scored = {name: what for name, what in player.calls if what != "train"}
    assert all(scored[name] == (("select",) if name in tuning else ("test",)) for name in scored)
    assert not outcome.failed and outcome.said[-1].startswith("[13/13]")
    records = records_of(outcome)
    assert [record.seed for record in records if not record.chosen] == [11] * 4
    table = study_tables(outcome.study, records)["", "answer_nll"].arms
    assert [(row.name, row.seeds) for row in table] == [(row, (1, 2, 3)) for row in rows]
    # New seeds may follow: the choice does not depend on them.
    before = len(player.calls)
    assert not carry_out(*given, "seeds=[1, 2, 3, 4]").failed
    assert sorted({name for name, _ in player.calls[before:]}) == sorted(f"{row}/{cells[1]} seed 4" for row in rows)


def test_nothing_is_chosen_while_a_run_is_missing(carry_out, player):
    player.fails = lambda name, stage: name == "step_jepa/learning_rate=0.001 seed 3"
    outcome = carry_out(TUNED, "controls=[shuffled]")
    assert outcome.state.choice("", "step_jepa") is None and outcome.state.choice("", "regular") is not None
    assert not any("test" in what for name, what in player.calls if name.startswith("step_jepa"))
    said = missing_lines(outcome)
    assert "step_jepa: nothing was chosen on the validation split" in said[-1]
    player.fails = lambda name, stage: False
    assert not carry_out(TUNED, "controls=[shuffled]").failed


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (["seeds=[1]"], ["seeds=[1]", "base.max_steps=5"], ["max_steps was 4, is 5", "--overwrite_output_dir"]),
        (["seeds=[1]"], ["seeds=[1]", "arms.step_jepa.lbd=0.1"], ["step_jepa lbd was 0.5, is 0.1"]),
        (["seeds=[1]"], ["seeds=[1]", "metrics=[answer_nll]"], ["scoring metrics gsm8k was {}, is not set"]),
        (["seeds=[1]"], ["seeds=[1]", "data.builtin.train_rows=7"], ["data train was"]),
        (FEW, [*FEW, "seeds=[1, 2]"], ["regular seeds was [1], is [1, 2]"]),
        (FEW, [*FEW, "select=gsm8k"], ["select was ['answer_nll', False], is ['gsm8k', True]"]),
    ],
)
def test_results_of_other_settings_are_not_mixed(carry_out, player, before, after, words):
    carry_out(*before)
    calls = len(player.calls)
    with pytest.raises(ConfigError) as caught:
        carry_out(*after)
    assert all(word in str(caught.value) for word in [*words, "a table must not mix them"]), caught.value
    assert len(player.calls) == calls
    carry_out(*after, overwrite=True)
    assert len(player.calls) > calls


def test_files_that_changed_are_found_out(carry_out, player, tmp_path):
    files = {name: tmp_path / f"{name}.jsonl" for name in ("train", "test")}
    for name, file in files.items():
        file.write_text(json.dumps({"question": name, "answer": "a" * 200_000}) + "\n")
    data = f"data={{train_file: {files['train']}, test_file: {files['test']}}}"
    carry_out(data)
    assert all(what in ("train", ("test",)) for _, what in player.calls)  # no validation file, nothing to choose
    files["test"].write_text(files["test"].read_text().replace("a" * 100_000, "a" * 99_999 + "b"))
    with pytest.raises(ConfigError, match="data test was"):
        carry_out(data)
    files["test"].unlink()
    with pytest.raises(DataError, match="test.jsonl: no such file"):
        carry_out(data)


def test_other_code_is_another_study(carry_out, player, tmp_path, monkeypatch):
    carry_out("seeds=[1]")
    carry_out("seeds=[1]", "base.logging_steps=3", "base.save_steps=3")  # which leave the numbers as they are
    assert len(player.calls) == 4
    monkeypatch.setattr(records, "SOURCE", tmp_path / "stepjepa")
    found = []
    for name in ("losses/l2.py", "report/html.py", "cli/study.py", "losses/l2.py", "study/stages.py"):
        file = tmp_path / "stepjepa" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"text {len(found)}")
        found.append(records.code_identity()["source"])
    assert found[0] == found[1] == found[2] and len(set(found)) == 3
    with pytest.raises(ConfigError, match=f"code source was .*, is {found[-1]}.*--overwrite_output_dir"):
        carry_out("seeds=[1]")


def test_what_is_in_the_folder(carry_out, player, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="thesis.txt.*no study in it"):
            carry_out(overwrite=overwrite)
    assert not player.calls
    (folder / "thesis.txt").unlink()
    carry_out("seeds=[1]")
    (folder / "thesis.txt").write_text("mine")
    (folder / "data" / "mine.jsonl").write_text("{}")
    carry_out("seeds=[1]", overwrite=True)
    assert len(player.calls) == 8 and (folder / "thesis.txt").exists() and (folder / "data" / "mine.jsonl").exists()
    with locked(folder / ".lock"), pytest.raises(ConfigError, match="another stepjepa study is running"):
        carry_out("seeds=[1]")
    run = folder / "runs" / "regular" / "seed-1"
    (run / "scored-test.json").unlink()
    with locked(run / ".lock"):
        assert "another process is running" in carry_out("seeds=[1]").failed[0].error


def test_a_study_whose_time_is_up(study_file, player, tmp_path, monkeypatch):
    """What has ended is recorded, what was under way is neither failed nor recorded, and the next start goes on."""
    killed = threading.Event()

    def fails(run, stage):
        return run == "step_jepa seed 1" and stage == "score" and killed.wait(60)

    monkeypatch.setattr(stages, "kill_all", killed.set)
    player.fails = fails
    kept = tmp_path / "kept.jsonl"
    options = {"output_dir": str(tmp_path / "out"), "records": str(kept), "jobs": 1}
    lines: list[str] = []
    result = study(StudyOptions(study_file, stop_after=0.05, **options), lines.append)
    assert lines[-1] == "the time is up: 1 of 6 runs are finished; the same command resumes"
    assert not result.failed and "  step_jepa seed 1: not run" in result.lines
    assert [(line["run"], line["status"]) for line in lines_of(kept)] == [("regular seed 1", "finished")]
    assert len(trained(player)) == 2
    player.fails = lambda run, stage: stage == "train" and run == "step_jepa seed 3"
    assert study(StudyOptions(study_file, **options), lines.append).failed
    assert [line["run"] for line in lines_of(kept) if line["status"] == "failed"] == ["step_jepa seed 3"]
