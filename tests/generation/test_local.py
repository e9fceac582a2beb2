"""Generators that run here: prompts, stops, batches and their seeds, with tiny random models."""

from __future__ import annotations

import json
import sys
import types
import zlib
from types import SimpleNamespace

import pytest
import torch

from stepjepa.cli.main import main
from stepjepa.data.prepare.options import SYSTEM_PROMPT
from stepjepa.data.prompts import Prompter
from stepjepa.generation import Request, local, solve
from stepjepa.generation.local import LocalGenerator, generate_batch
from support.models import tiny_model
from support.templates import FORMATS
from support.tokenizers import byte_bpe_tokenizer, fresh, special_id

COUNT = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model of the size `tiny` whose text changes from place to place."""
    from stepjepa.modeling.load import load_model, load_tokenizer

    path = tmp_path_factory.mktemp("generator") / "model"
    tokenizer = load_tokenizer("tiny", ["What is 12345 + 67890?", SYSTEM_PROMPT])
    model = load_model("tiny", tokenizer, seed=3)
    torch.manual_seed(1)
    for parameter in model.parameters():  # or each prompt would get the same text
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def data(tmp_path):
    rows = [
        {"question": f"What is {n}{' and some more' * (n % 4)} + 1?", "answer": f"#### {n + 1}"} for n in range(COUNT)
    ]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(autouse=True)
def lenient(monkeypatch):
    """A random model is never right, so every third text is taken for right."""
    monkeypatch.setattr(solve, "final_answer", lambda text: text)
    monkeypatch.setattr(solve, "answers_match", lambda found, truth: zlib.crc32(found.encode()) % 3 == 0)


@pytest.fixture
def generate(folder, data, tmp_path):
    def run(name, *flags):
        fixed = (
            f"--batch_size 4 --max_new_tokens 6 --accept_truncated --temperature 1.0 --top_p 1.0 --model_name {folder}"
        )
        return main(["generate", str(data), *fixed.split(), "--output_file", str(tmp_path / name), *flags])

    return run


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_a_run_and_its_repetition(generate, tmp_path, capsys):
    for name in ("a.jsonl", "b.jsonl"):
        assert generate(name, "--keep_attempts") == 0
    for kind in ("", ".unsolved", ".attempts"):
        first, second = (tmp_path / f"{name}{kind}.jsonl" for name in "ab")
        assert first.exists() == second.exists()
        assert not first.exists() or first.read_bytes() == second.read_bytes()
    attempts = rows(tmp_path / "a.attempts.jsonl")
    by_row = {}
    for one in attempts:
        by_row.setdefault(one["row"], []).append(one["response"])
    tried = [texts for texts in by_row.values() if len(texts) > 1]
    assert tried and all(len(set(texts)) == len(texts) for texts in tried), "a retry repeats the first attempt"
    assert len({texts[0] for texts in by_row.values()}) > COUNT // 2
    assert generate("c.jsonl", "--seed", "1") == 0
    assert (tmp_path / "c.jsonl").read_bytes() != (tmp_path / "a.jsonl").read_bytes()
    captured = capsys.readouterr()
    assert "10 rows read: " in captured.out and "batches of 4" in captured.err and "float32 on " in captured.err


def test_the_first_attempt_may_be_greedy(generate, folder, data, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert generate("out.jsonl", "--greedy_first", "--keep_attempts", "--attempts", "2") == 0
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    first = {one["row"]: one for one in rows(tmp_path / "out.attempts.jsonl") if one["attempt"] == 1}
    for number, row in enumerate(rows(data), 1):
        chat = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": row["question"]}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        (expected,) = generate_batch(model, tokenizer, [prompt], 6)
        assert first[number]["response"] == expected.text.strip()
        assert first[number]["prompt_tokens"] == len(prompt)


@pytest.mark.parametrize("name", FORMATS)
def test_a_turn_ends_at_the_templates_mark(name):
    tokenizer = byte_bpe_tokenizer(template=name)
    prompter = Prompter(fresh(tokenizer))
    form = FORMATS[name]
    expected = {9, 10, tokenizer.eos_token_id} - {None}
    if form.end_of_turn is not None:
        assert special_id(tokenizer, form.end_of_turn) == prompter.end_of_turn
        expected.add(prompter.end_of_turn)
    assert set(prompter.stop_ids([9, 10])) == expected
    assert set(prompter.stop_ids(9)) == expected - {10} and set(prompter.stop_ids(None)) == expected - {9, 10}
    ids = prompter.ids([{"role": "system", "content": "Be short."}, {"role": "user", "content": "How many?"}])
    assert "Be short." in tokenizer.decode(ids) and ids.count(tokenizer.bos_token_id) == form.writes_bos


def request(row, text="How many?"):
    return Request(row, [{"role": "user", "content": text}], 0.0, row)


def test_a_prompt_without_room_is_refused():
    """GPT-2 has 256 learned positions."""
    tokenizer = byte_bpe_tokenizer()
    prompter = Prompter(fresh(tokenizer))
    model = tiny_model("gpt2", vocab_size=len(tokenizer))
    generator = LocalGenerator(model, prompter, max_new_tokens=6, batch_size=2)
    requests = [request(1), request(2, "x y " * 200), request(3), request(4)]
    groups = list(generator.answer(requests, set()))
    assert [[reply.row for reply in group] for group in groups] == [[2], [1, 3], [4]]
    assert "has room for 250" in groups[0][0].refused
    assert [[r.row for r in group] for group in generator.answer(requests, {1, 2, 3})] == [[4]]


def test_out_of_memory_is_one_line(generate, monkeypatch, capsys):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(local, "generate_batch", full)
    assert generate("out.jsonl") == 2
    assert "out of memory with 4 questions at once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model_name", "tiny"], "a preset has random weights"),
        (["--model_name", "./nowhere"], "./nowhere: the tokenizer cannot be loaded"),
        (["--chat_template", "nowhere.jinja"], "nowhere.jinja: cannot be read"),
        (["--attn_implementation", "fast"], "cannot be loaded"),
        (["--base_url", "http://localhost:1"], "--backend openai"),
        (["--backend", "vllm"], "pip install 'stepjepa[vllm]'"),
    ],
)
def test_what_cannot_be_loaded(flags, words, generate, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert generate("out.jsonl", *flags) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1 and words in err[0]
    assert not list(tmp_path.glob("out*"))


def test_what_vllm_is_asked(generate, folder, tmp_path, monkeypatch):
    """A stand-in with vLLM's interface, which says its seed."""
    seen = []

    class LLM:
        def __init__(self, **kwargs):
            seen.append(kwargs)
            self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=2048))

        def generate(self, prompts, params, use_tqdm):
            seen.append((len(prompts), params[0].temperature, params[0].stop_token_ids))
            outputs = [SimpleNamespace(text=f" {p.seed} ", finish_reason="stop", token_ids=[1, 2]) for p in params]
            assert all(prompt["prompt_token_ids"] for prompt in prompts)
            return [SimpleNamespace(outputs=[output]) for output in outputs]

    module = types.ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, SimpleNamespace
    module.__spec__ = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "vllm", module)
    assert (
        generate("out.jsonl", "--backend", "vllm", "--greedy_first", "--vllm_options", '{"max_model_len": 2048}') == 0
    )
    expected = {"model": str(folder), "dtype": "auto", "trust_remote_code": False, "seed": 42, "max_model_len": 2048}
    assert seen[0] == expected
    assert [size for size, _, _ in seen[1:4]] == [4, 4, 2]
    assert seen[1][1] == 0.0 and seen[-1][1] == 1.0 and len(seen[1][2]) == 1
    solved = rows(tmp_path / "out.jsonl")
    assert solved and all(row["response"].isdigit() and row["new_tokens"] == 2 for row in solved)
