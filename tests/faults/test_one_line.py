"""What is wrong with options, records and files is one line each, before any work is lost."""

from pathlib import Path

import pytest
import torch
import transformers

from stepjepa.cli.main import main
from stepjepa.data.template import ChatRenderer
from stepjepa.errors import ConfigError, RunError
from stepjepa.evaluation.score import earlier_result
from stepjepa.generation.output import reading_record
from stepjepa.modeling import load
from stepjepa.modeling.load import load_model
from stepjepa.study.reading import read_training
from stepjepa.study.tree import parse_tree
from support.rows import step_rows
from support.tokenizers import fresh
from support.training import SAVED, trainer_for


def test_a_metric_that_no_evaluation_gives_is_refused_at_the_start(tmp_path, tokenizer):
    given = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2, "eval_rows": step_rows(4)}
    for metric, objective, words in (
        ("eval_exact", "step_jepa", "best_model is exact; an evaluation has loss, lm_loss, jepa"),
        ("jepa_loss", "regular", "best_model is jepa_loss; an evaluation has loss, lm_loss, runtime"),
    ):
        given |= {"objective": objective, "metric_for_best_model": metric}
        with pytest.raises(ConfigError, match=words):
            trainer_for(tmp_path, tokenizer, **SAVED, **given)


def test_damaged_records_of_evaluations_are_one_line(tmp_path):
    metric = {"kind": "accuracy", "value": 0.5, "low": 0.1, "high": 0.9, "correct": 1, "n": 2}
    good = {"metrics": {"exact": metric}, "generation": {}, "rows": {"skipped": {}}}
    assert "50.0 %" in str(earlier_result(good, []))
    for damage in ({"metrics": None}, {"metrics": [1]}, {"metrics": {"exact": 5}}, {"rows": "text"}, {"generation": 5}):
        refused = pytest.raises(ConfigError, match="metrics.json: the record is damaged.*--overwrite")
        with refused, reading_record(tmp_path / "metrics.json"):
            str(earlier_result({**good, **damage}, []))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the limits of Linux")
def test_a_template_that_takes_too_much_memory_is_refused(tokenizer):
    import resource

    tokenizer, before = fresh(tokenizer), resource.getrlimit(resource.RLIMIT_AS)
    tokenizer.chat_template = "{{ 'x' * 50000000000 }}"
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


def test_messages_and_studies_do_not_hold_the_token_of_the_hub(tmp_path, capsys):
    token = "hf_verysecretindeed"
    words = ["--train_file", "rows.jsonl", "--hub_token", token, "again", "--output_dir", str(tmp_path)]
    assert main(["train", *words]) == 2
    said = capsys.readouterr()
    assert token not in said.err + said.out and "--hub_token takes one value" in said.err
    with pytest.raises(ConfigError, match=r"study.yaml:1: hub_token: .*HF_TOKEN") as caught:
        read_training(parse_tree(f"hub_token: {token}", "study.yaml").given)
    assert token not in str(caught.value)
