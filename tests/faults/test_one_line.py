"""What is wrong with options, records and files is one line each, before any work is lost."""

from pathlib import Path

import pytest
import torch
import transformers

from stepjepa.data.template import ChatRenderer
from stepjepa.errors import ConfigError, RunError
from stepjepa.evaluation.score import earlier_result
from stepjepa.generation.output import reading_record
from stepjepa.modeling import load
from stepjepa.modeling.load import load_model
from support.rows import step_rows
from support.tokenizers import fresh
from support.training import trainer_for


def test_a_metric_that_no_evaluation_gives_is_refused_at_the_start(tmp_path, tokenizer):
    def made(metric, objective, **more):
        more |= {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": metric}
        return trainer_for(tmp_path, tokenizer, objective=objective, eval_rows=step_rows(4), **more)

    best = {"load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 2}
    for words, arguments in (
        ("best_model is exact; an evaluation has loss, lm_loss, jepa", ("eval_exact", "step_jepa")),
        ("best_model is jepa_loss; an evaluation has loss, lm_loss, runtime", ("jepa_loss", "regular")),
    ):
        with pytest.raises(ConfigError, match=words):
            made(*arguments, **best)
    with pytest.raises(ConfigError) as refused:
        made("none", "step_jepa")
    known = set(str(refused.value).partition("has ")[2].split(", "))
    # Only an evaluation before training gives this time.
    given = {name.removeprefix("eval_") for name in made("runtime", "step_jepa").evaluate()}
    assert given == known | {"model_preparation_time"}


def test_damaged_records_of_evaluations_are_one_line(tmp_path):
    metric = {"kind": "accuracy", "value": 0.5, "low": 0.1, "high": 0.9, "correct": 1, "n": 2}
    good = {"metrics": {"exact": metric}, "generation": {}, "rows": {"skipped": {}}}
    assert "50.0 %" in str(earlier_result(good, []))
    for damage in ({"metrics": None}, {"metrics": [1]}, {"metrics": {"exact": 5}}, {"rows": "text"}, {"generation": 5}):
        refused = pytest.raises(ConfigError, match="metrics.json: the record is damaged.*--overwrite")
        with refused, reading_record(tmp_path / "metrics.json"):
            str(earlier_result({**good, **damage}, []))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the limits of Linux")
@pytest.mark.parametrize("greedy", ["{{ 'x' * 50000000000 }}", "{{ '%099999999999d' % 3 }}"])
def test_a_template_that_takes_too_much_memory_is_refused(tokenizer, greedy):
    import resource

    tokenizer, before = fresh(tokenizer), resource.getrlimit(resource.RLIMIT_AS)
    tokenizer.chat_template = greedy
    with pytest.raises(ConfigError, match="the chat template takes more than 1,024 MiB for 1 messages; fix it"):
        ChatRenderer(tokenizer).apply([{"role": "user", "content": "a"}])
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_lack_of_memory_does_not_speak_of_folders(tmp_path, tokenizer, monkeypatch):
    def fails(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    transformers.LlamaConfig().save_pretrained(tmp_path)
    monkeypatch.setattr(load.AutoModelForCausalLM, "from_pretrained", fails)
    with pytest.raises(RunError, match="out of memory while the model was loaded") as refused:
        load_model(str(tmp_path), tokenizer)
    assert "save_pretrained" not in str(refused.value)
