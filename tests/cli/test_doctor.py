"""`stepjepa doctor`: what is exact, its speed and memory, and what is recommended."""

import json

import pytest

import stepjepa
from stepjepa.cli.main import main
from stepjepa.modeling.flops import card_peak
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
    only(["", BF16, FLEX])
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"torch", "stepjepa"} <= set(found["about"]["versions"]) and found["about"]["devices"]
    tried = {one["flags"]: one for one in found["tried"]}
    default, short, flex = (tried[flags] for flags in ("", BF16, FLEX))
    assert not default["fault"] and not short["fault"]
    assert "has no backward pass on CPU" in flex["fault"]
    assert flex["speed"] is None and min(default["speed"], short["speed"]) > 0
    assert 0 < abs(default["lm_loss"] - short["lm_loss"]) < 0.01 * default["lm_loss"]
    assert default["mebibytes"] is None and default["mfu"] is None  # of a GPU
    assert found["recommended"].startswith("stepjepa train --train_file FILE --model_name tiny")


@pytest.mark.parametrize(
    ("made", "flags"),
    [
        ({}, ""),
        ({BF16: Tried(BF16, speed=105, lm_loss=3.0)}, ""),  # no faster than chance
        ({BF16: Tried(BF16, speed=200, lm_loss=3.0)}, BF16),
        ({BF16: Tried(BF16, speed=200, lm_loss=3.1)}, ""),
        ({BF16: Tried(BF16, fault="not exact", speed=200, lm_loss=3.0)}, ""),
    ],
)
def test_what_is_faster_and_trains_alike_is_recommended(made, flags, only):
    only(**{"": Tried("", "sdpa", "", 100, 9.0, 3.0), **made})
    found = stepjepa.doctor()
    assert found.recommended == f"stepjepa train --train_file FILE --model_name tiny {flags}".strip()


SIZE, CHECKPOINTING = "--per_device_train_batch_size", "--gradient_checkpointing true"


@pytest.mark.parametrize(
    ("speeds", "flags"),
    [
        ({8: 300, 16: 290}, f"{BF16} {SIZE} 8"),  # 16 is no faster
        ({8: 300, 16: 0}, f"{BF16} {SIZE} 8"),  # 16 does not fit
        ({8: 0}, f"{BF16} {SIZE} 8 {CHECKPOINTING}"),
    ],
)
def test_batches_grow_on_a_gpu_until_they_do_not_fit_or_are_no_faster(speeds, flags, only, monkeypatch):
    monkeypatch.setattr(doctor, "_on_gpu", lambda: True)
    made = {"": Tried("", "sdpa", "", 100, 9.0, 3.0), BF16: Tried(BF16, speed=200, lm_loss=3.0, mfu=0.25)}
    for size, speed in speeds.items():
        name = f"{BF16} {SIZE} {size}"
        made[name] = Tried(name, speed=speed, lm_loss=3.0) if speed else Tried(name, fault="out of memory")
        other = f"{name} {CHECKPOINTING}"
        made[other] = Tried(other, speed=250, lm_loss=3.0)
    only(**made)
    found = stepjepa.doctor()
    assert found.recommended.endswith(f"--model_name tiny {flags}")
    assert "MFU" in str(found) and "25.0 %" in str(found)


def test_a_card_is_known_by_its_name():
    names = {"NVIDIA H100 80GB HBM3": 989, "NVIDIA H100 PCIe": 756, "NVIDIA A100-SXM4-80GB": 312, "NVIDIA L4": 121}
    assert {name: card_peak(name) for name in names} == {name: 1e12 * peak for name, peak in names.items()}
    assert card_peak("NVIDIA H1000") is None
