"""Generators that run here, with tiny random models: every prompt gets in a batch what it gets alone; stops and seeds."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model

from stepjepa.data.tokens import Prompter
from stepjepa.errors import StepJepaError
from stepjepa.generation import local
from stepjepa.generation.local import LocalGenerator, generate_batch
from stepjepa.generation.output import Request
from support.families import family_model
from support.models import PROMPTS, spread, tiny_model
from support.templates import FORMATS
from support.tokenizers import byte_bpe_tokenizer, fresh, special_id


@pytest.mark.parametrize("name", FORMATS)
def test_a_turn_ends_at_the_templates_mark(name):
    tokenizer, form = byte_bpe_tokenizer(template=name), FORMATS[name]
    prompter = Prompter(fresh(tokenizer))
    ends = {special_id(tokenizer, token) for token in (form.end_of_turn, form.eos) if token is not None}
    assert set(prompter.stop_ids([9, 10])) == ends | {9, 10}
    assert set(prompter.stop_ids(9)) == ends | {9} and set(prompter.stop_ids(None)) == ends
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


def test_out_of_memory_names_the_batch(model, tokenizer, monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(local, "generate_batch", full)
    generator = LocalGenerator(model, Prompter(tokenizer), max_new_tokens=6, batch_size=4)
    with pytest.raises(StepJepaError, match="out of memory with 4 questions at once"):
        list(generator.answer([request(number) for number in range(6)], set()))


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
    model = spread(tiny_model(name, vocab_size=len(tokenizer)))
    expected = [greedy_by_hand(model, prompt) for prompt in PROMPTS]
    assert len({tuple(ids) for ids in expected}) > 1, "all continuations are alike: nothing is compared"
    assert generate_batch(model, PROMPTS, 5, []) == expected
    # A model's own configuration of generation is not applied, that inside an adapter neither.
    own = copy.deepcopy(model.generation_config)
    own.update(do_sample=True, temperature=3.0, repetition_penalty=1.8, suppress_tokens=[expected[0][0]])
    model.generation_config = own
    target = {"llama": "q_proj", "gpt2": "c_attn"}[name]
    for one in (model, get_peft_model(model, LoraConfig(r=2, target_modules=[target], task_type="CAUSAL_LM"))):
        assert generate_batch(one, PROMPTS, 5, []) == expected
        assert model.generation_config is own and own.repetition_penalty == 1.8


def test_stop_flag_and_cut(model, tokenizer):
    free = [greedy_by_hand(model, prompt) for prompt in PROMPTS]
    stop = free[0][3]
    expected = [ids[: ids.index(stop) + 1] if stop in ids else ids for ids in free]
    model.generation_config.eos_token_id = stop
    generator = LocalGenerator(model, Prompter(tokenizer), max_new_tokens=5)
    replies = list(generator._generate([request(row) for row in range(len(PROMPTS))], PROMPTS))
    assert replies[0].stopped
    for reply, ids, before in zip(replies, expected, free, strict=True):
        assert reply.stopped is (stop in before) and reply.new_tokens == len(ids)
        kept = [token for token in ids if token != stop]
        assert reply.text == tokenizer.decode(kept, skip_special_tokens=True)


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("family", ["gemma3", "gpt2", "llama", "mamba2", "mistral", "openai-gpt", "qwen3_next"])
def test_answers_that_end_early_do_not_change_the_others(family):
    model = family_model(family).eval()
    alone = [generate_batch(model, [prompt], 12, [])[0] for prompt in PROMPTS]
    stops = [ids[place] for ids, place in zip(alone, (1, 2, 3, 5, 8), strict=False)]
    expected = [next((ids[:n] for n, token in enumerate(ids, 1) if token in stops), ids) for ids in alone]
    assert generate_batch(model, PROMPTS, 12, stops) == expected


def test_modes_and_seeds(model):
    model.train().model.norm.eval()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.3
    first = generate_batch(model, PROMPTS, 6, [])
    assert generate_batch(model, PROMPTS, 6, []) == first, "dropout was on"
    assert model.training and model.model.layers[0].training and not model.model.norm.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    state = torch.random.get_rng_state()
    hot = {"temperature": 2.0}
    first, again, other = (generate_batch(model, PROMPTS, 5, [], seed=seed, **hot) for seed in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.random.get_rng_state(), state)
