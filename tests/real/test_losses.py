"""The losses of a pretrained model, SmolLM2-135M-Instruct, on rows of GSM8K: those that transformers alone computes."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepjepa import JEPAConfig, JEPATrainer
from support.pretrained import MODEL, ROWS, needs_model

pytestmark = needs_model
PREDICTORS = 2


class Plain:
    """The model as transformers loads it, one chat at a time."""

    def __init__(self):
        self.tokenizer = AutoTokenizer.from_pretrained(MODEL)
        self.model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()

    def tokens(self, row):
        """The text of a chat, its ids, and the last character of each token."""
        question, answer = {"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}
        text = self.tokenizer.apply_chat_template([question, answer], tokenize=False)
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return text, found["input_ids"], [end - 1 for _, end in found["offset_mapping"]]

    @torch.no_grad()
    def lm(self, row):
        """Summed cross-entropy of the answer and its end of turn, and how many tokens that is."""
        _, ids, _ = self.tokens(row)
        chat = [{"role": "user", "content": row["question"]}]
        asked = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        first = len(self.tokenizer(asked, add_special_tokens=False)["input_ids"])
        stop = ids.index(self.tokenizer.convert_tokens_to_ids("<|im_end|>"), first) + 1
        log_p = self.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        return -sum(float(log_p[place - 1, ids[place]]) for place in range(first, stop)), stop - first

    @torch.no_grad()
    def last_state(self, ids, predictors=None):
        """The last state of the last layer, after the tokens of predictors where they are given."""
        embedded = self.model.get_input_embeddings()(torch.tensor(ids))
        embedded = embedded if predictors is None else torch.cat([embedded, predictors])
        return self.model(inputs_embeds=embedded[None], output_hidden_states=True).hidden_states[-1][0, -1].double()

    def jepa(self, row, objective, predictors):
        """One minus the cosine of the source and the target."""
        text, ids, last = self.tokens(row)
        begin = text.index(row["answer"])
        if objective == "llm_jepa":
            source_end, target = text.index(row["question"]) + len(row["question"]), (begin, begin + len(row["answer"]))
        else:
            first, second, *_ = row["answer"].splitlines(keepends=True)
            source_end, target = begin + len(first), (begin + len(first), begin + len(first) + len(second))
        source = [index for index, at in zip(ids, last, strict=True) if at < source_end]
        copied = [index for index, at in zip(ids, last, strict=True) if target[0] <= at < target[1]]
        states = self.last_state(source, predictors), self.last_state(copied)
        return 1 - float(torch.cosine_similarity(*states, dim=0))


@pytest.fixture(scope="module")
def plain():
    return Plain()


@pytest.mark.parametrize("objective", ["llm_jepa", "step_jepa"])
def test_the_losses_are_those_of_transformers(plain, objective, tmp_path):
    steps = {"step_splitter": "lines"} if objective == "step_jepa" else {}
    config = JEPAConfig(
        output_dir=str(tmp_path), objective=objective, predictors=PREDICTORS, per_device_eval_batch_size=2, use_cpu=True,
        disable_tqdm=True, save_strategy="no", report_to=[], **steps,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    trainer = JEPATrainer(model, config, eval_dataset=ROWS, processing_class=plain.tokenizer)
    found = trainer.evaluate()
    totals = [plain.lm(row) for row in ROWS]
    expected = sum(total for total, _ in totals) / sum(tokens for _, tokens in totals)
    assert found["eval_lm_loss"] == pytest.approx(expected, abs=1e-5)
    (rows,) = [one.weight.detach() for one in model.modules() if type(one).__name__ == "PredictorRows"]
    assert rows.shape[0] == PREDICTORS
    rows = rows.flip(0) if objective == "llm_jepa" else rows  # whose predictors descend, as in the published code
    distances = [plain.jepa(row, objective, rows) for row in ROWS]
    assert found["eval_jepa_loss"] == pytest.approx(sum(distances) / len(distances), abs=1e-5)
    prompts = trainer.data_reports["eval"].prompts
    assert prompts.endings == {"": len(ROWS)} and not prompts.lines()  # asked as it is trained
