"""Questions of rows with tools: asked with all that stands before the last answer, calls and results included."""

import pytest

from stepjepa.data.encode import encode_dataset
from stepjepa.data.sources import RowSource
from stepjepa.data.template import ChatRenderer
from stepjepa.data.tokens import Prompter
from stepjepa.evaluation.nll import encode_answers
from stepjepa.evaluation.questions import SystemPrompt, read_questions
from support.encoding import settings_of
from support.models import tiny_model
from support.tool_rows import ANSWER, CHATS, ONE, QUESTION, TWO_CALLS, call, result, row, tool_tokenizer

OWN = SystemPrompt(None, True, "")


@pytest.mark.parametrize("name", ["llama3_1", "qwen2_5", "qwen3", "gptoss", "hermes", "mistral_v3", "mistral_v11"])
def test_the_prompt_is_what_the_answer_was_trained_after(name):
    tokenizer = tool_tokenizer(name)
    rows = [row(ONE), row(TWO_CALLS), row([*TWO_CALLS, *TWO_CALLS[:2]])]
    asked = read_questions(RowSource(rows), OWN)
    store, _ = encode_dataset(rows, tokenizer, ChatRenderer(tokenizer), settings_of("regular", max_length=4096))
    for question, example, place in zip(asked.questions, store, (1, 2, 2), strict=True):
        assert (question.text, question.ground_truth) == (QUESTION, ANSWER)
        ids = Prompter(tokenizer).ids(question.prompt, question.template_kwargs)
        if "mistral" not in name or place == len(example.labels) - 1:  # whose tools stand before the last question
            assert ids == example.trunk[: example.labels[place].start].tolist()
        assert "degrees" in tokenizer.decode(ids) and "Oslo" in tokenizer.decode(ids)
    # The likelihood is of every message of the assistant, calls included, as in training.
    model = tiny_model("llama", vocab_size=len(tokenizer))
    scored, _ = encode_answers(asked, Prompter(tokenizer), model, 4096)
    assert scored[1].trunk.tolist() == store[1].trunk.tolist() and scored[1].labels == store[1].labels


def test_answers_that_are_calls_alone():
    asked = read_questions(RowSource([row(ONE[:2]), row(CHATS["two turns"]), row([*ONE, *ONE[:2]])]), OWN)
    assert asked.rows_skipped == {"no_answer_in_text": 1} and len(asked.questions) == 2
    assert "the assistant only calls tools" in asked.first_skipped["no_answer_in_text"]
    assert [one.ground_truth for one in asked.questions] == ["No.", ANSWER]
    assert asked.questions[0].text == "And in Rome?"
    # A message with text next to its call is no answer.
    (one,) = read_questions(RowSource([row([*ONE, call(content="Again."), result()])]), OWN).questions
    assert one.ground_truth == ANSWER
