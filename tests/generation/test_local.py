"""Generators that run here, with tiny random models: every prompt gets in a batch what it gets alone; stops and seeds."""

from __future__ import annotations

import copy
import zlib

import pytest
import torch
from peft import LoraConfig, get_peft_model

from stepjepa.cli.main import main
from stepjepa.data.options import SYSTEM_PROMPT
from stepjepa.data.tokens import Prompter, template_turn_end
from stepjepa.generation import local, solve
from stepjepa.generation.local import LocalGenerator, generate_batch
from stepjepa.generation.output import Request
from support.families import family_model
from support.models import PROMPTS, spread, tiny_model
from support.rows import lines as rows
from support.rows import write
from support.templates import FORMATS
from support.tokenizers import byte_bpe_tokenizer, fresh, special_id

COUNT = 6


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
    asked = [
        {"question": f"What is {n}{' and some more' * (n % 4)} + 1?", "answer": f"#### {n + 1}"} for n in range(COUNT)
    ]
    return write(tmp_path / "data.jsonl", asked)


@pytest.fixture
def lenient(monkeypatch):
    """A random model is never right, so every third text is taken for right."""
    monkeypatch.setattr(solve, "final_answer", lambda text: text)
    monkeypatch.setattr(solve, "answers_match", lambda found, truth: zlib.crc32(found.encode()) % 3 == 0)


@pytest.fixture
def generate(folder, data, tmp_path, lenient):
    def run(name, *flags):
        fixed = (
            f"--batch_size 4 --max_new_tokens 6 --accept_truncated --temperature 1.0 --top_p 1.0 --model_name {folder}"
        )
        return main(["generate", str(data), *fixed.split(), "--output_file", str(tmp_path / name), *flags])

    return run


def test_a_run_and_its_repetition(generate, tmp_path, capsys):
    for name in ("a.jsonl", "b.jsonl"):
        assert generate(name, "--attempts", "2") == 0
    for kind in ("", ".unsolved"):
        first, second = (tmp_path / f"{name}{kind}.jsonl" for name in "ab")
        assert first.exists() == second.exists()
        assert not first.exists() or first.read_bytes() == second.read_bytes()
    assert generate("once.jsonl", "--attempts", "1") == 0
    once = {row["row"]: row["response"] for row in rows(tmp_path / "once.unsolved.jsonl")}
    again = {row["row"]: row["response"] for row in rows(tmp_path / "a.unsolved.jsonl")}
    assert again and all(once[row] != text for row, text in again.items()), "a retry repeats the first attempt"
    assert len(set(once.values())) > 1
    assert generate("c.jsonl", "--seed", "1", "--attempts", "2") == 0
    assert (tmp_path / "c.jsonl").read_bytes() != (tmp_path / "a.jsonl").read_bytes()
    captured = capsys.readouterr()
    assert "6 rows read: " in captured.out and "batches of 4" in captured.err and "float32 on " in captured.err


@pytest.mark.parametrize("name", FORMATS)
def test_a_turn_ends_at_the_templates_mark(name):
    tokenizer = byte_bpe_tokenizer(template=name)
    prompter = Prompter(fresh(tokenizer))
    form = FORMATS[name]
    expected = {9, 10, tokenizer.eos_token_id} - {None}
    if form.end_of_turn is not None:
        end = template_turn_end(tokenizer, prompter.renderer)
        assert special_id(tokenizer, form.end_of_turn) == end
        expected.add(end)
    assert set(prompter.stop_ids([9, 10])) == expected
    assert set(prompter.stop_ids(9)) == expected - {10} and set(prompter.stop_ids(None)) == expected - {9, 10}
    ids = prompter.ids([{"role": "system", "content": "Be short."}, {"role": "user", "content": "How many?"}])
    assert "Be short." in tokenizer.decode(ids) and ids.count(tokenizer.bos_token_id) == form.writes_bos


def request(row, text="How many?"):
    return Request(row, [{"role": "user", "content": text}], 0.0, row)


def test_a_prompt_without_room_is_refused(tokenizer):
    """GPT-2 has 256 learned positions."""
    model = tiny_model("gpt2", vocab_size=len(tokenizer))
    generator = LocalGenerator(model, Prompter(tokenizer), max_new_tokens=6, batch_size=2)
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


@pytest.fixture(scope="module")
def tokenizer():
    return fresh(byte_bpe_tokenizer())


@pytest.fixture
def model(tokenizer):
    return spread(tiny_model("llama", vocab_size=len(tokenizer)))


def greedy_by_hand(model, prompt, count=5):
    """The plainest greedy decoding: no cache, no batch, no padding."""
    ids = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_batches_equal_decoding_by_hand(name, tokenizer):
    model, tokenizer = spread(tiny_model(name, vocab_size=len(tokenizer))), copy.deepcopy(tokenizer)
    expected = [greedy_by_hand(model, prompt) for prompt in PROMPTS]
    assert len({tuple(ids) for ids in expected}) > 1, "all continuations are alike: nothing is compared"
    for tokenizer.padding_side in ("left", "right"):
        results = generate_batch(model, tokenizer, PROMPTS, 5, [])
        assert [result.token_ids for result in results] == expected and not any(one.stopped for one in results)
    # A model's own configuration of generation is not applied, that inside an adapter neither.
    own = copy.deepcopy(model.generation_config)
    own.update(do_sample=True, temperature=3.0, repetition_penalty=1.8, suppress_tokens=[expected[0][0]])
    model.generation_config = own
    target = {"llama": "q_proj", "gpt2": "c_attn"}[name]
    for one in (model, get_peft_model(model, LoraConfig(r=2, target_modules=[target], task_type="CAUSAL_LM"))):
        results = generate_batch(one, tokenizer, PROMPTS, 5, [])
        assert [result.token_ids for result in results] == expected
        assert model.generation_config is own and own.repetition_penalty == 1.8


def test_stop_flag_and_cut(model, tokenizer):
    free = [greedy_by_hand(model, prompt) for prompt in PROMPTS]
    stop = free[0][3]
    results = generate_batch(model, tokenizer, PROMPTS, 5, [stop])
    assert results[0].stopped
    for result, ids in zip(results, free, strict=True):
        expected = ids[: ids.index(stop)] if stop in ids else ids
        assert result.stopped is (stop in ids) and result.token_ids == expected
        assert result.text == tokenizer.decode(expected, skip_special_tokens=True)
    shared = copy.deepcopy(tokenizer)
    shared.pad_token = shared.convert_ids_to_tokens(stop)
    expected = generate_batch(model, tokenizer, PROMPTS, 5, [stop])
    assert generate_batch(model, shared, PROMPTS, 5, [stop]) == expected


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("family", ["gemma3", "gpt2", "llama", "mamba2", "mistral", "openai-gpt", "qwen3_next"])
def test_rows_leave_the_batch_when_half_have_ended(family, tokenizer):
    """Where the cache holds other states than keys and values, all stay to the end."""
    model = family_model(family).eval()
    alone = [generate_batch(model, tokenizer, [prompt], 12, [])[0].token_ids for prompt in PROMPTS]
    stops = [ids[place] for ids, place in zip(alone, (1, 2, 3, 5, 8), strict=False)]
    expected = [next((ids[:n] for n, token in enumerate(ids) if token in stops), ids) for ids in alone]
    sizes = []
    model.register_forward_pre_hook(
        lambda module, args, inputs: sizes.append(len(inputs["input_ids"])), with_kwargs=True
    )
    results = generate_batch(model, tokenizer, PROMPTS, 12, stops)
    assert [result.token_ids for result in results] == expected
    stays = family in ("mamba2", "openai-gpt", "qwen3_next")
    assert sizes == sorted(sizes, reverse=True) and (set(sizes) == {len(PROMPTS)}) is stays


def test_modes_and_seeds(model, tokenizer):
    model.train().model.norm.eval()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.3
    first = generate_batch(model, tokenizer, PROMPTS, 6, [])
    assert generate_batch(model, tokenizer, PROMPTS, 6, []) == first, "dropout was on"
    assert model.training and model.model.layers[0].training and not model.model.norm.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    state = torch.random.get_rng_state()
    hot = {"temperature": 2.0}
    first, again, other = (generate_batch(model, tokenizer, PROMPTS, 5, [], seed=seed, **hot) for seed in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.random.get_rng_state(), state)
