"""Thinking is no answer: metrics, `generate` and `prepare` read what follows the last closing mark, of every kind."""

import pytest
from tokenizers import AddedToken
from transformers.utils.chat_template_utils import _compile_jinja_template

from stepjepa.data.answers import final_answer
from stepjepa.data.blocks import answer_of, marked_text
from stepjepa.data.prepare_rows import response_parts
from stepjepa.errors import RowError
from stepjepa.evaluation.metrics import make_metric
from stepjepa.generation.solve import ground_truth
from support.tokenizers import fresh
from support.trl_templates import IN_PARTS, template, templates

# Opening and closing marks as chat templates write them; gpt-oss and Muse as an answer that goes on from the prompt.
MARKS = {
    "qwen": ("<think>\n", "\n</think>\n\n"),
    "thinking": ("<thinking>", "</thinking>"),
    "thought": ("<thought>\n", "\n</thought>\n"),
    "magistral": ("[THINK]", "[/THINK]"),
    "seed-oss": ("<seed:think>", "</seed:think>"),
    "kimi": ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    "command-a": ("<|START_THINKING|>", "<|END_THINKING|><|START_RESPONSE|>"),
    "openthoughts": ("<|begin_of_thought|>\n\n", "\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\n"),
    "gemma4": ("<|channel>thought\n", "\n<channel|>"),
    "gpt-oss": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    "gpt-oss, decoded": ("<|channel|>analysis<|message|>", "assistant<|channel|>final<|message|>"),
    "muse": (" to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>"),
}
THOUGHTS = "It may be \\boxed{7}, or #### 7.\n\n```\n<answer>7</answer>\n\nThe answer is (B) 7."
ANSWER = "So it is (A), \\boxed{5}."
COMPARING = ("gsm8k", "exact", "prefix", "multiple_choice")


@pytest.mark.parametrize("marks", MARKS.values(), ids=MARKS)
def test_what_follows_the_last_closing_mark_is_the_answer_and_an_open_block_has_none(marks):
    opening, closing = marks
    bare = ANSWER if "START_RESPONSE" not in closing else f"<|START_RESPONSE|>{ANSWER}"
    for text in (
        opening + THOUGHTS + closing + ANSWER,
        THOUGHTS + closing + ANSWER,  # the prompt has opened it
        "7" + opening + THOUGHTS + closing + "7 again" + opening + "Hm." + closing + ANSWER,
        opening + THOUGHTS + closing + "No, 7." + closing + ANSWER,
        (opening + THOUGHTS + closing + ANSWER).replace("\n", "\r\n"),
    ):
        assert answer_of(text).strip() == bare
        assert final_answer(text) == ground_truth(text) == "5"
        assert response_parts(text, False) == [bare]
    # Thinking that does not end has no answer.
    assert answer_of(f"{opening}\nfor x in y:\n    print(x)") == ""  # [THINK] is a list in Python
    for text in (opening + THOUGHTS, opening + "Hm." + closing + "#### 7\n" + opening + THOUGHTS):
        assert answer_of(text) == "" and final_answer(text) is None and ground_truth(text) is None
        with pytest.raises(RowError, match="only a thinking block"):
            response_parts(text, False)
        for name in COMPARING:
            assert make_metric(name).score(text, {"answer": "7", "choices": ["5", "7"]}).score == 0, name
    for name in COMPARING if bare == ANSWER else ():
        gold = "A" if name == "multiple_choice" else ANSWER
        for reference in (gold, opening + "Not 7." + closing + gold):
            row = {"answer": reference, "choices": ["5", "7"]}
            assert make_metric(name).score(opening + THOUGHTS + closing + ANSWER, row).score == 1, name


def test_marks_that_a_text_is_about_are_none():
    for text in ("Models write `<think>` before an answer and `</think>` after.", "Use this:\n```\n<think>\n```"):
        assert answer_of(text) == text


def test_special_tokens_that_mark_thinking_stay_in_a_decoded_answer(bpe_tokenizer):
    tokenizer = fresh(bpe_tokenizer)
    plain = tokenizer("It is 5.", add_special_tokens=False).input_ids
    assert marked_text(tokenizer, [*plain, tokenizer.eos_token_id]) is None
    specials = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "[THINK]", "[/THINK]", "<|channel>", "<channel|>"]
    tokenizer.add_tokens([AddedToken(token, special=True) for token in specials], special_tokens=True)
    for name in ("gpt-oss", "magistral", "gemma4"):
        opening, closing = MARKS[name]
        text = opening + "Or 7?" + closing + "It is 5."
        ids = tokenizer(text, add_special_tokens=False).input_ids
        shown = marked_text(tokenizer, [*ids, tokenizer.eos_token_id])
        assert shown == text.replace("<|end|>", "").replace("<|start|>", "") and answer_of(shown) == "It is 5."


def test_every_template_of_trl_that_writes_thinking():
    answer = {"role": "assistant", "content": "It is 5.\n\nSo 5."}
    answer |= dict.fromkeys(("reasoning_content", "thinking", "reasoning"), "Is it 7?\n\nNo.")
    thinking = 0
    names = {"bos_token": "<s>", "eos_token": "</s>", "enable_thinking": True}
    messages = [{"role": "user", "content": "How many?"}, answer]
    for name in [name for name in templates() if not name.startswith(IN_PARTS)]:
        text = _compile_jinja_template(template(name)).render(messages=messages, **names)
        if "Is it 7?" in text:
            thinking += 1
            assert answer_of(text[text.index("Is it 7?") :]).lstrip().startswith("It is 5."), name
            assert answer_of(text).lstrip().startswith("It is 5."), name
    assert thinking > 20 or not templates()
