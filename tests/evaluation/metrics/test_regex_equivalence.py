"""Regular expressions that match the same lines: marked pairs, and Python's `re`."""

import itertools
import json
import random
import re
from pathlib import Path

from stepjepa.evaluation.metrics import make_metric
from stepjepa.evaluation.metrics.regex_equivalence import difference

# Written and marked by hand: do both match the same lines?
PAIRS = [json.loads(line) for line in (Path(__file__).parent / "regex_pairs.jsonl").read_text().splitlines()]


def test_hand_marked_pairs():
    assert len(PAIRS) > 100
    wrong = []
    with make_metric("regex_equivalence") as metric:
        for pair in PAIRS:
            for first, second in ((pair["first"], pair["second"]), (pair["second"], pair["first"])):
                verdict = metric.score(second, {"answer": first})
                if (verdict.score, not verdict.note) != (pair["equal"], pair["equal"]):
                    wrong.append((pair, verdict))
    assert wrong == []


def test_what_a_verdict_says():
    metric = make_metric("regex_equivalence")
    row = {"messages": [{"role": "user", "content": "lines"}, {"role": "assistant", "content": ".*a.*b.*"}]}
    assert metric.score(" .*(a).*b.* ", row)[:4] == (1.0, ".*a.*b.*", ".*(a).*b.*", "")
    assert metric.score(".*b.*a.*", row)[:4] == (0.0, ".*a.*b.*", ".*b.*a.*", "only the reference matches 'ab'")
    assert metric.score(".*b.*", row)[:4] == (0.0, ".*a.*b.*", ".*b.*", "only the answer matches 'b'")
    assert metric.score("  ", row)[:4] == (0.0, ".*a.*b.*", None, "no answer found")
    assert metric.score("(a", row).note == "the answer is not a regular expression: a ( is not closed"
    assert metric.score("(?=a)b", row).note.startswith("unknown: cannot be compared: (? is not supported: ")
    verdict = make_metric("regex_equivalence", word_boundary="letter").score("dog", {"answer": r"\bdog\b"})
    assert verdict.note == "only the answer matches 'dog'"


def generated(generator, depth):
    kind = generator.random()
    if depth == 0 or kind < 0.3:
        return generator.choice(["a", "B", ".", "[aB]", "[^a]", r"\b", "[a-z]", " ", "-", r"\w", r"\W", "^", "$"])
    inner = [generated(generator, depth - 1) for _ in range(2)]
    if kind < 0.5:
        return "".join(inner)
    if kind < 0.65:
        return f"({inner[0]}|{inner[1]})"
    return f"({inner[0]}){generator.choice(['*', '+', '?', '{2}', '{1,2}', '{2,}'])}"


def test_verdicts_agree_with_pythons_re():
    """It has neither `&` nor `~`, which the marked pairs hold, and repeats no anchor."""
    texts = ["".join(signs) for length in range(5) for signs in itertools.product("aB -", repeat=length)]
    generator, equal, unequal = random.Random(0), 0, 0
    for _ in range(150):
        first = generated(generator, 2)
        changed = first.replace("*", "+", 1), first.replace("a", "(?:a)"), f"({first}|{first})", f"{first}()"
        for second in (generated(generator, 2), generator.choice(changed)):
            try:
                one, other = re.compile(first), re.compile(second)
            except re.error:
                continue
            found = difference(first, second)
            if found is not None:
                text, in_first = found
                assert bool(one.fullmatch(text)) is in_first is not bool(other.fullmatch(text)), (first, second)
                unequal += 1
            else:
                for text in texts:
                    assert bool(one.fullmatch(text)) == bool(other.fullmatch(text)), (first, second, text)
                equal += 1
    assert equal > 60 and unequal > 60


def test_too_much_work_is_given_up():
    first, second = "(a|b)*a(a|b){25}", "(b|a)*a(a|b){24}(b|a)"
    metric = make_metric("regex_equivalence")
    assert metric.score(second, {"answer": first})[::3] == (0, "unknown: not decided in 600000 steps")
    assert metric.score(first, {"answer": first}).score == 1


def test_targets_of_nl_rx(shared_dir):
    lines = (shared_dir / "data" / "nl_rx_synth_test.jsonl").read_text(encoding="utf-8").splitlines()
    targets = [json.loads(line)["messages"][-1]["content"] for line in lines]
    for target in targets:
        assert difference(target, target) is None
    generator = random.Random(0)
    for target in generator.sample(targets, 80):
        spelled = target.replace("[A-Za-z]", "([A-Z]|[a-z])").replace(".*", "(.|..)*").replace("dog", "d(og)")
        assert difference(target, f"~(~({spelled}))") is None, target
