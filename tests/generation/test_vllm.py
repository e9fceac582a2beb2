"""vLLM against `support/vllm_api`: no GPU is needed, and none is tested."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from stepjepa.cli.main import main
from support.answers import vllm_stand_in
from support.models import tiny_model
from support.rows import write
from support.tokenizers import byte_bpe_tokenizer

COUNT = 7


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model whose vocabulary is padded by 5 rows, an adapter of rank 3 on it, questions."""
    folder = tmp_path_factory.mktemp("vllm")
    tokenizer = byte_bpe_tokenizer()
    model = tiny_model("llama", vocab_size=len(tokenizer) + 5)
    model.save_pretrained(folder / "vllm_base")
    tokenizer.save_pretrained(folder / "vllm_base")
    adapted = get_peft_model(model, LoraConfig(r=3, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    torch.manual_seed(0)
    for name, parameter in adapted.named_parameters():
        parameter.data += 0.5 * torch.randn_like(parameter) * ("lora_" in name)
    adapted.peft_config["default"].base_model_name_or_path = "../vllm_base"
    adapted.save_pretrained(folder / "adapter")
    write(folder / "asked.jsonl", [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(COUNT)])
    return folder


@pytest.fixture
def ask(home, tmp_path, capsys):
    """A command on the questions; its words."""

    def run(command, model, flags, status=0):
        place, out = home / model, tmp_path / "out"
        words = {
            "evaluate": f"{place} {home}/asked.jsonl --metric exact --output_dir {out}",
            "generate": f"{home}/asked.jsonl --model_name {place} --attempts 1 --output_file {out}.jsonl",
        }[command]
        fixed = "--backend vllm --max_new_tokens 5 --plain"
        assert main([command, *words.split(), *fixed.split(), *flags.split()]) == status
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return said.err

    return run


@pytest.mark.parametrize("command", ["evaluate", "generate"])
def test_what_vllm_is_asked(command, home, ask, monkeypatch):
    """Padding of the vocabulary is never generated; every request has a seed of its own."""
    seen = vllm_stand_in(monkeypatch)
    words = ask(command, "vllm_base", "--temperature 0.5 --top_p 0.9 --seed 7 --batch_size 4")
    assert "(vLLM)" in words
    loaded, first, second = seen
    assert loaded["model"] == loaded["tokenizer"] == str(home / "vllm_base")
    assert [len(one.params) for one in (first, second)] == [4, 3]
    one, size = first.params[0], len(byte_bpe_tokenizer())
    assert (one.temperature, one.top_p, one.max_tokens) == (0.5, 0.9, 5)
    assert one.logit_bias == dict.fromkeys(range(size, size + 5), -100.0)
    assert one.stop_token_ids == [byte_bpe_tokenizer().eos_token_id]
    assert len({params.seed for params in first.params + second.params}) == COUNT


def test_an_adapter_must_be_merged(home, ask, tmp_path, monkeypatch):
    seen = vllm_stand_in(monkeypatch)
    for command in ("evaluate", "generate"):
        message = ask(command, "adapter", "", status=2)
        assert "merge the adapter (stepjepa export" in message.splitlines()[-1]
    assert not seen and not list(tmp_path.iterdir())
    ask("evaluate", "adapter", "--no_lora")
    assert seen[0]["model"] == seen[0]["tokenizer"] == f"{home}/adapter/../vllm_base"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ('--vllm_options {"model":"other"}', "vLLM cannot load it"),
        ("--data_parallel_size 2", "serve copies of the model (vllm serve --data-parallel-size N)"),
    ],
)
def test_what_cannot_be_is_one_line(flags, words, ask, tmp_path, monkeypatch):
    vllm_stand_in(monkeypatch)
    for command in ("evaluate", "generate"):
        message = ask(command, "vllm_base", flags, status=2)
        assert len(message.splitlines()) == 1 and words in message
    assert not list(tmp_path.iterdir())
