r"""Answers that are mathematically equal; the process that decides may be ended."""

import pytest

from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics import make_metric

pytest.importorskip("math_verify", reason="needs the package math-verify")


@pytest.fixture(scope="module")
def metric():
    with make_metric("math") as metric:
        yield metric


# Known answer, response, marked by hand.
EQUAL = [
    (r"\frac{1}{2}", r"\boxed{0.5}"),
    (r"\frac{1}{2}", r"\boxed{\dfrac{2}{4}}"),
    (r"\frac{\sqrt{2}}{2}", r"\boxed{\frac{1}{\sqrt{2}}}"),
    (r"3\sqrt{2}", r"\boxed{\sqrt{18}}"),
    ("x^2+2x+1", r"\boxed{(x+1)^2}"),
    ("x^2+2x+1", r"so it is $(x+1)^2$."),
    (r"2\pi", r"The answer is \(2\pi\)."),
    (r"\{1,2\}", r"\boxed{\{2,1\}}"),
    ("(1,2)", r"\boxed{(1, 2)}"),
    ("[0,1)", r"\boxed{[0,1)}"),
    ("5", r"\boxed{x = 5}"),
    ("18", "She makes 18."),
    ("1,234", r"\boxed{1234}"),
    ("50\\%", r"\boxed{0.5}"),
    (r"\text{Saturday}", r"\boxed{Saturday}"),
    (r"We get \boxed{7}.", r"\boxed{7}"),
    (r"90^\circ", r"\boxed{90}"),
    ("2^{10}", r"\boxed{1024}"),
]
UNEQUAL = [
    (r"\frac{1}{2}", r"\boxed{\frac{1}{3}}"),
    (r"\frac{1}{3}", r"\boxed{0.33}"),
    ("x^2+2x+1", r"\boxed{(x-1)^2}"),
    ("x+1", r"\boxed{x}"),
    ("(1,2)", r"\boxed{(2,1)}"),
    ("[0,1)", r"\boxed{(0,1)}"),
    (r"2\pi", r"\boxed{\pi}"),
    ("5", r"\boxed{-5}"),
    ("5y", r"\boxed{5}"),
    ("18", r"\boxed{}"),
    ("18", ""),
    ("18", r"\boxed{__import__('os').getcwd()}"),
]


@pytest.mark.parametrize(("gold", "response"), EQUAL)
def test_equal(metric, gold, response):
    verdict = metric.score(response, {"answer": gold})
    assert verdict.score == 1 and verdict.note == "" and verdict.answer


@pytest.mark.parametrize(("gold", "response"), UNEQUAL)
def test_unequal(metric, gold, response):
    verdict = metric.score(response, {"answer": gold})
    assert verdict.score == 0 and verdict.note in ("another answer", "no answer found")


def test_endless_computations_end():
    with make_metric("math", time_limit=0.5) as metric:
        for endless in (r"9^{9^{9^{9^9}}}", r"10000000000!"):
            verdict = metric.score(rf"\boxed{{{endless}}}", {"answer": "5"})
            assert verdict == (0.0, "5", endless, "not decided within 0.5 s")
    with make_metric("math") as metric:
        assert metric.score(r"\boxed{" + "x+" * 2000 + "1}", {"answer": "5"}).note == "longer than 2000 characters"


def test_it_goes_on_after_one_that_was_ended(metric):
    metric.time_limit = 0.5
    assert "not decided" in metric.score(r"\boxed{9^{9^{9^{9^9}}}}", {"answer": "5"}).note
    metric.time_limit = 5.0
    assert metric.score(r"\boxed{\sqrt{18}}", {"answer": r"3\sqrt{2}"}).score == 1


def test_options_are_checked():
    with pytest.raises(ConfigError, match="time_limit is 0; it must be above 0"):
        make_metric("math", time_limit=0)
