"""A small model that is trained on eight rows answers them with what `evaluate` asks by default, whatever the template."""

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from stepjepa import evaluate, train
from support.rows import write
from support.trl_templates import template, tokenizer_with

pytestmark = pytest.mark.long
WORDS = ("red", "blue", "green", "black", "white", "pink", "grey", "brown")


def rows(kind):
    """Eight questions, whose answers differ."""
    made = []
    for number, word in enumerate(WORDS):
        answer = {"role": "assistant", "content": f"No. {number}: {word}."}
        if kind == "thinking":
            answer["content"] = f"<think>\nNo. {number}.\n</think>\n\nIt is {word}."
        if kind == "apart":
            answer["reasoning_content"] = f"No. {number}."
        made.append({"messages": [{"role": "user", "content": f"{word} {word} {word}?"}, answer]})
    return made


CASES = [
    ("qwen2_5", "plain", {}),
    ("gptoss", "plain", {}),
    ("gptoss", "apart", {}),
    ("muse_glimmer", "plain", {}),
    ("qwen3", "plain", {}),
    ("qwen3", "plain", {"enable_thinking": False}),
    ("qwen3", "apart", {}),
    ("qwen3_5_think", "plain", {}),
    ("qwen3_5_nothink", "apart", {}),
    ("glm4moe", "plain", {}),
    ("nemotron_3_nano", "plain", {}),
    ("deepseek_r1_distill", "plain", {}),
    ("deepseek_r1_distill_training", "thinking", {}),
]


@pytest.mark.parametrize(("name", "kind", "kwargs"), CASES)
def test_eight_rows_are_answered_exactly(tmp_path, name, kind, kwargs):
    tokenizer = tokenizer_with(template(name))
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=2048, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    data, run = write(tmp_path / "rows.jsonl", rows(kind)), tmp_path / "run"
    train(
        train_file=data, model_name=str(tmp_path / "base"), output_dir=str(run), objective="regular", use_cpu=True,
        max_steps=200, learning_rate=5e-3, per_device_train_batch_size=8, save_strategy="no",
        chat_template_kwargs=kwargs or None,
    )  # fmt: skip
    result = evaluate(model_name=str(run), test_file=data, metric=["exact"], max_new_tokens=60)
    answers = [one.generated_response.rpartition("</think>")[2].strip() for one in result.predictions]
    contents = [row["messages"][1]["content"] for row in rows(kind)]
    assert answers == [content.rpartition("</think>")[2].strip() for content in contents]
    if kind == "plain":
        assert result.value("exact") == 1.0
