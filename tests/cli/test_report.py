"""``stepjepa report``: the command."""

from stepjepa.cli.main import main
from stepjepa.training.config import JEPAConfig
from stepjepa.training.options import RunOptions
from stepjepa.training.run import run_training
from support.reports import page_data, write, write_run
from support.rows import step_rows


def report(*words):
    return main(["report", *map(str, words)])


def test_nothing_is_written_over(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    (run / "run.json").write_text("{")
    page = run / "report.html"
    page.write_text("mine")
    assert report(run) == 2 and page.read_text() == "mine"
    assert capsys.readouterr().err == (
        f"stepjepa report: error: {page} exists; replace it with --overwrite, or give another --output_file\n"
    )
    assert report("--overwrite", run) == 0 and "Left out" in page.read_text()
    assert f"left out {run / 'run.json'}: cannot be read" in capsys.readouterr().out


def test_a_run_as_training_leaves_it(tmp_path):
    """The real files: what training, evaluating while training and answering write."""
    rows = step_rows(24, seed=1)
    write(tmp_path / "train.jsonl", rows)
    config = JEPAConfig(
        output_dir=str(tmp_path / "run"), objective="step_jepa", predictors=1, max_steps=4, logging_steps=2, seed=0,
        per_device_train_batch_size=4, eval_strategy="steps", eval_steps=4, save_strategy="no", disable_tqdm=True,
        report_to=[], track_flop=True,
    )  # fmt: skip
    file = str(tmp_path / "train.jsonl")
    done = run_training(RunOptions(train_file=[file], eval_file=file, model_name="tiny"), config)
    assert done.trainer is not None and report(tmp_path / "run") == 0
    page = (tmp_path / "run" / "report.html").read_text()
    charts = page_data(page)["charts"]
    logged = [entry for entry in done.trainer.state.log_history if "lm_loss" in entry]
    training, evaluation = charts["lm_loss"]
    assert [point[:2] for point in training["points"]] == [[entry["step"], entry["lm_loss"]] for entry in logged]
    assert evaluation["points"][-1][:2] == [4, done.metrics["eval_lm_loss"]]
    assert set(charts) == {"lm_loss", "jepa_loss", "cosine_similarity", "target_std", "effective_rank"}
    assert "24 rows read, 24 kept, 0 skipped" in page and "Left out" not in page
    assert '<th scope="row">objective</th><td dir="auto">step_jepa</td>' in page
