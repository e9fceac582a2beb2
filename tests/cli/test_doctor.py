"""`stepjepa doctor`: what is exact, its speed and memory, and what is recommended."""

import json

import pytest

import stepjepa
from stepjepa.cli.main import main
from stepjepa.training import doctor
from stepjepa.training.doctor import Tried


@pytest.fixture
def only(monkeypatch):
    """Try the given settings alone, by their flags; the others are as they are given, or left as not tried."""
    own = doctor._tried

    def choose(real=(), **made):
        def tried(given, common, first):
            flags = " ".join(f"--{name} {str(value).lower()}" for name, value in given.items())
            return own(given, common, first) if flags in real else made.get(flags, Tried(flags))

        monkeypatch.setattr(doctor, "_tried", tried)

    return choose


FLEX, BF16 = "--attn_implementation flex_attention", "--bf16 true"


@pytest.mark.slow
def test_settings_are_tried_and_trained(only, capsys):
    only(["", BF16, FLEX, "--attn_implementation eager"])
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"torch", "stepjepa"} <= set(found["about"]["versions"]) and found["about"]["devices"]
    tried = {one["flags"]: one for one in found["tried"]}
    default, short, flex, eager = (tried[flags] for flags in ("", BF16, FLEX, "--attn_implementation eager"))
    assert not any(one["fault"] for one in (default, short, eager))
    assert "has no backward on CPU" in flex["fault"]
    assert flex["speed"] is None and min(one["speed"] for one in (default, short, eager)) > 0
    assert default["lm_loss"] == pytest.approx(eager["lm_loss"], rel=1e-4)
    assert 0 < abs(default["lm_loss"] - short["lm_loss"]) < 0.01 * default["lm_loss"]
    assert default["mebibytes"] is None  # memory is that of a GPU
    assert found["recommended"].startswith("stepjepa train --train_file FILE --model_name tiny")


@pytest.mark.parametrize(
    ("made", "flags"),
    [
        ({}, ""),
        ({BF16: Tried(BF16, speed=105, lm_loss=3.0)}, ""),  # no faster than chance
        ({BF16: Tried(BF16, speed=200, lm_loss=3.0)}, BF16),
        ({BF16: Tried(BF16, speed=200, lm_loss=3.1)}, ""),
        ({BF16: Tried(BF16, fault="not exact", speed=200, lm_loss=3.0)}, ""),
        ({"--dtype bfloat16": Tried("--dtype bfloat16", speed=200, lm_loss=3.0)}, ""),
    ],
)
def test_what_is_faster_and_trains_alike_is_recommended(made, flags, only):
    only(**{"": Tried("", "sdpa", "", 100, 9.0, 3.0), **made})
    found = stepjepa.doctor()
    assert found.recommended == f"stepjepa train --train_file FILE --model_name tiny {flags}".strip()
    assert found.tried[0].flags == "" and f"recommended: {found.recommended}" in " ".join(str(found).split())
    assert all(reason in str(found) for reason in (one.fault for one in made.values()))


def test_a_setting_that_breaks_is_said_and_the_others_go_on(only, monkeypatch):
    def broken(run, config):
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr(doctor, "make_trainer", broken)
    only(["", BF16])
    found = stepjepa.doctor()
    assert [one.fault for one in found.tried[:2]] == ["out of memory"] * 2
    assert found.recommended == "nothing, as no setting trains with exact numbers"


@pytest.mark.long  # compiles
def test_every_setting_is_exact_on_cpu():
    found = stepjepa.doctor()
    assert len(found.tried) == 13
    assert all("flex_attention" in one.flags for one in found.tried if one.fault)
    assert found.tried[-1].flags == "--torch_compile true" and found.tried[-1].speed > 0
