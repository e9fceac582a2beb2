"""Which files of the library some work enters: the `entered_*` figures of `tools/house.py`.

A file is entered when one of its functions runs (`sys.setprofile`). What runs while a module is imported does not count.

- `rows`: eight chat rows, from a JSONL file to a batch; tokenizer, configuration and collator are there before.
- `trainer`: from a configuration to a `JEPATrainer` for a preset, data set included; nothing is trained.
- `loss`: one batch through `compute_loss`.
- `report`: `stepjepa report` on one run with predictions.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "src" / "stepjepa"


def entered(work: Callable[[], Any]) -> list[str]:
    """The files of the library of which a function runs while `work` does, imports apart."""
    library, files = str(LIBRARY) + os.sep, set[str]()

    def profile(frame: FrameType | None, event: str, _: Any) -> None:
        path = frame.f_code.co_filename if frame and event == "call" else ""
        if not path.startswith(library) or path in files:
            return
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return
            frame = frame.f_back
        files.add(path)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return sorted(path.removeprefix(library) for path in files)


def write_rows(folder: Path) -> Path:
    from support.rows import step_rows

    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in step_rows(8)), encoding="utf-8")
    return path


def make_config(folder: Path) -> Any:
    from stepjepa import JEPAConfig

    return JEPAConfig(
        output_dir=str(folder / "run"),
        objective="step_jepa",
        predictors=2,
        max_steps=1,
        per_device_train_batch_size=8,
        disable_tqdm=True,
    )


def make_trainer(folder: Path, config: Any) -> Any:
    from stepjepa import JEPATrainer

    return JEPATrainer("tiny", config, train_dataset=str(write_rows(folder)))


def rows(folder: Path) -> list[str]:
    from stepjepa.training.batches import Draw
    from stepjepa.training.encoding import ExampleReader

    trainer = make_trainer(folder, make_config(folder))
    path, collate = str(write_rows(folder)), trainer.data_collator

    def work() -> None:
        examples = ExampleReader(trainer.processing_class, trainer.args, None).read_training(path)
        batch = collate([examples[Draw(0, row)] for row in range(8)])
        assert batch.label_ids.numel()

    return entered(work)


def trainer(folder: Path) -> list[str]:
    return entered(lambda: make_trainer(folder, make_config(folder)))


def loss(folder: Path) -> list[str]:
    trainer = make_trainer(folder, make_config(folder))
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.model.train()
    return entered(lambda: trainer.compute_loss(trainer.model, batch))


def report(folder: Path) -> list[str]:
    from stepjepa.cli.main import main
    from support.reports import write_evaluation, write_run

    run = write_run(folder / "run")
    write_evaluation(run, "rwr")
    found = entered(lambda: main(["report", str(run)]))
    assert (run / "report.html").is_file()
    return found


def files_entered() -> dict[str, list[str]]:
    """The files that each kind of work enters, measured in this process one after the other."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    import stepjepa

    if not Path(stepjepa.__file__).is_relative_to(LIBRARY):
        raise RuntimeError(f"{stepjepa.__file__} is imported, not {LIBRARY}")
    found = {}
    for work in (trainer, rows, loss, report):
        with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
            found[work.__name__] = work(Path(folder))
    return found
