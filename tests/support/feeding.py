"""A tokenizer whose tokens are words, three chats that can be counted by hand, and what a model will see of them."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stepjepa.data.chat import ChatRenderer
from stepjepa.data.options import EncodeOptions
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import make_splitter
from stepjepa.inspect.feeding import read_feeding
from stepjepa.inspect.feeding_report import FeedingReport
from stepjepa.inspect.feeding_words import feeding_warnings
from stepjepa.inspect.padding import Form

MARKS = ["<pad>", "<unk>", "<s>", "<system>", "<user>", "<assistant>", "<end>"]
WORDS = "how many be brief one two three four five six".split()
TEMPLATE = (
    "{{ '<s>' }}{% for m in messages %}{{ ' <' + m['role'] + '> ' + m['content'] + ' <end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' <assistant> ' }}{% endif %}"
)
NO_SYSTEM = TEMPLATE.replace(
    "{{ '<s>' }}", "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}{{ '<s>' }}"
)

TWO = Form(2)

# tokens       0   1      2   3    4     5           6   7      8       9    10   11  12
# row 0       <s> <user> how many <end> <assistant> one two  | three | four five six <end>
# row 1       <s> <user> how <end> <assistant> one two <end>
# row 2       <s> <system> be brief <end> <user> how <end> <assistant> one | two three <end>
ROWS = [
    {"question": "how many", "answer": "one two\n\nthree\n\nfour five six"},
    {"question": "how", "answer": "one two"},
    {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "how"},
            {"role": "assistant", "content": "one\n\ntwo three"},
        ]
    },
]


def words(template=TEMPLATE, **special):
    vocabulary = {word: number for number, word in enumerate([*MARKS, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "<pad>", "eos_token": "<end>", "bos_token": "<s>", "unk_token": "<unk>", **special}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        extra_special_tokens=MARKS[3:6],
        chat_template=template,
        **{name: token for name, token in names.items() if token is not None},
    )


def feed(rows, objective="step_jepa", tokenizer=None, form=TWO, sample_rows=2000, **options):
    tokenizer = tokenizer or words()
    settings = EncodeOptions(objective, make_splitter("separator"), predictors=form.predictors, **options)
    report = FeedingReport("words", len(tokenizer), "in words", objective, DataReport("list"))
    renderer = ChatRenderer(tokenizer) if tokenizer.chat_template else None
    sampled = read_feeding(
        RowSource(rows), tokenizer, renderer, settings, report, form, count=len(rows), sample_rows=sample_rows
    )
    return report, sampled


def warned(report):
    return {caution.name: caution for caution in feeding_warnings(report)}
