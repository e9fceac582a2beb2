"""Metrics by name, functions of the user's own, and the process that metrics share."""

import sys

import pytest

from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.metrics import METRICS, Metric, Verdict, make_metric
from stepjepa.evaluation.metrics.worker import Worker, WorkerError, WorkerTimeout

PACKAGES = {"math": "math_verify", "rouge": "rouge_score", "bleu": "sacrebleu"}


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(
    "text", ["", "\x00", "\ud800", "((((", "'; DROP TABLE t", "\\boxed{" * 1000, "\u0661" * 3000, "\\" * 999]
)
def test_no_text_makes_a_metric_fail(name, text, tmp_path):
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    (tmp_path / "empty.sqlite").touch()
    row = {"answer": "SELECT 1", "db_path": str(tmp_path / "empty.sqlite")}
    with make_metric(name) as metric:
        verdict = metric.score(text, row)
    assert isinstance(metric, Metric) and metric.name == name and metric.kind in ("accuracy", "score")
    assert isinstance(verdict, Verdict) and verdict.score == 0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gsm8", {}, "unknown metric 'gsm8'; did you mean 'gsm8k'\\?"),
        ("regex", {}, "did you mean 'regex_equivalence'"),
        ("answer_nll", {}, "needs the model"),
        ("gsm8k", {"refernce_column": "a"}, "has no option 'refernce_column'; did you mean 'reference_column'"),
        ("sql_execution", {"_worker": None}, "has no option '_worker'"),
        ("sql_execution", {"time_limit": -1}, "time_limit is -1; it must be above 0"),
        ("no_such_module_at_all:f", {}, "no module no_such_module_at_all"),
        ("json:no_such_function", {}, "json has no function no_such_function"),
        ("json:", {}, "is no module:function"),
        ("missing.py:f", {}, "no file missing.py"),
    ],
)
def test_what_cannot_be_made(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make_metric(name, **options)


@pytest.mark.parametrize(("name", "package"), PACKAGES.items())
def test_a_package_that_is_missing(name, package, monkeypatch):
    for module in [one for one in sys.modules if one == package or one.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"pip install 'stepjepa\[{make_extra(name)}\]'"):
        make_metric(name)


def make_extra(name):
    return "math" if name == "math" else "eval"


def test_a_function_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "own_metrics_for_test.py").write_text(
        "def words(generated, reference, row):\n"
        "    return len(generated.split()) == len(reference.split()) + row.get('more', 0)\n"
        "def half(generated, reference, row):\n"
        "    return 0.5\n"
        "def broken(generated, reference, row):\n"
        "    return row['missing']\n"
        "def text(generated, reference, row):\n"
        "    return '1'\n"
    )
    (tmp_path / "broken_metrics_for_test.py").write_text("import no_such_module_at_all\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    metric = make_metric("own_metrics_for_test:words")
    assert sys.path == before
    assert metric.name == "own_metrics_for_test:words" and metric.kind == "score"
    assert metric.score("a b", {"answer": "c d"}) == (1.0, "c d", "a b", "")
    assert metric.score("a b", {"answer": "c d", "more": 1}).score == 0
    assert metric.score("", {"question": "no reference"}) == (1.0, "", "", "")
    file = str(tmp_path / "own_metrics_for_test.py")
    assert make_metric(f"{file}:half", reference_column="solution").score("", {"solution": "x"}).score == 0.5
    with pytest.raises(DataError, match="broken: KeyError: 'missing'"):
        make_metric("own_metrics_for_test:broken").score("", {"answer": "x"})
    with pytest.raises(DataError, match="must return a bool or a number from 0 to 1, it returned '1'"):
        make_metric("own_metrics_for_test:text").score("", {"answer": "x"})
    with pytest.raises(ConfigError, match="importing broken_metrics_for_test failed: ModuleNotFoundError"):
        make_metric("broken_metrics_for_test:f")


def test_a_worker_answers_and_is_ended():
    worker = Worker("operator:mul")
    with pytest.raises(WorkerError, match="TypeError"):
        worker.call(5, a=1, b=2)  # it takes no names
    worker.close()
    worker = Worker("textwrap:indent")
    assert worker.call(5, text="a", prefix="\u00e9 ") == "\u00e9 a"
    worker.close()
    assert worker.call(5, text="a", prefix="- ") == "- a"  # a fresh process
    worker.close()
    worker = Worker("subprocess:check_output")
    with pytest.raises(WorkerTimeout, match="no result after 0.3 s"):
        worker.call(0.3, args=[sys.executable, "-c", "import time; time.sleep(30)"])
    with pytest.raises(WorkerError, match="not JSON serializable"):
        worker.call(5, args=[sys.executable, "-c", ""])
    worker.close()
    with pytest.raises(WorkerError, match="did not start: ModuleNotFoundError"):
        Worker("no_such_module_at_all:f").call(5)
