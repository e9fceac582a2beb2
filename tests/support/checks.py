"""Statistics of made-up data sets, and a tokenizer whose tokens are words, so that they can be counted by hand."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stepjepa.data.sources import RowSource
from stepjepa.inspect.check import read_tokens, token_warnings
from stepjepa.inspect.statistics import TextReader
from stepjepa.training.options import JEPAOptions

MARKS = ["<pad>", "<unk>", "<s>", "<system>", "<user>", "<assistant>", "<end>"]
WORDS = "how many be brief one two three four five six".split()
TEMPLATE = (
    "{{ '<s>' }}{% for m in messages %}{{ ' <' + m['role'] + '> ' + m['content'] + ' <end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' <assistant> ' }}{% endif %}"
)
# tokens       0   1      2   3  4     5           6   7      8       9    10   11  12
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


def check_format(source, splitter="separator", separator="\\n\\n", *, eval_file=None, **options):
    method = JEPAOptions(step_splitter=splitter, step_separator=separator, **options)
    reader = TextReader(source if isinstance(source, RowSource) else RowSource(source), method)
    list(reader.read())
    if eval_file is not None:
        reader.compare(RowSource(eval_file))
    return reader.texts


def tokens_of(rows, objective="step_jepa", tokenizer=None, **options):
    method = JEPAOptions(objective=objective, **{"step_splitter": "separator", **options})
    method.check()
    return read_tokens(TextReader(RowSource(rows), method), tokenizer or words(), method, "words")


def warned(statistics):
    return {warning.name: warning for warning in token_warnings(statistics)}
