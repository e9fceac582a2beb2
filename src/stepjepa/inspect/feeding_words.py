"""What a model will see of a data set, in words, and what there is to warn of."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from stepjepa.data.format_report import counted, short_place
from stepjepa.data.report import REASONS
from stepjepa.data.warnings import Caution, of_all
from stepjepa.inspect.feeding_report import FeedingReport
from stepjepa.inspect.padding import Padding
from stepjepa.utils.text import escaped, printable

# Smaller shares are no reason to warn.
UNKNOWN_SHARE = 0.001  # of the tokens
ONE_TOKEN_SHARE = 0.05  # of the pairs
_KINDS = {
    "template": "template and markup",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "text": "plain text",
    "predictors": "predictor tokens",
    "source copies": "sources encoded apart",
    "target copies": "copies of targets",
}


def feeding_lines(report: FeedingReport, told: Collection[str] = ()) -> list[str]:
    """The report in words, one fact a line. What comes from the file is made `printable`.

    Args:
        told: reasons for which rows are skipped that were told with their places before.
    """
    data = report.data
    skipped = sum(data.rows_skipped.values())
    kept = f"{data.rows_kept:,} kept" + (f" as {counted(data.examples, 'example')}" if report.plain_text else "")
    lines = [
        f"What a model will see: tokenizer {printable(report.tokenizer)} ({report.vocabulary:,} entries), {report.method}",
        f"  Rows: {data.rows_read:,} read, {kept}, {skipped:,} skipped",
    ]
    for reason, count in data.rows_skipped.most_common():
        words = f"    skipped {count:,}: {REASONS.get(reason, reason)}"
        if reason in told:
            lines.append(f"{words} (as above)")
            continue
        lines.append(f"{words} (first: {printable(data.first_skipped[reason])})")
        lines.append(f"      the row begins: {escaped(report.skipped_texts[reason])}")
    lines += [*_pairs(report), *_lengths(report), *_sample(report)]
    if report.padding is not None:
        lines += ["", *padding_lines(report.padding, "texts" if report.plain_text else "chats")]
    return lines


def _pairs(report: FeedingReport) -> Iterator[str]:
    data = report.data
    if report.objective == "regular":
        yield "  Pairs: none, the objective is regular"
        return
    paired = data.examples - sum(data.examples_without_pairs.values())
    yield from (f"  {printable(line[:1].upper() + line[1:])}" for line in data.steps.lines())
    yield f"  Pairs: {data.pairs:,} in {of_all(paired, data.examples, 'example')}"
    for reason, count in data.examples_without_pairs.most_common():
        yield f"    no pair in {count:,}: {REASONS.get(reason, reason)}; plain language modelling"
    for reason, count in data.pairs_dropped.most_common():
        yield f"    {counted(count, 'pair')} dropped: {REASONS.get(reason, reason)}"
    for pair in report.readouts:
        place = short_place(pair.place, data.source)
        yield f"    {place}: source {_quoted(pair.source)} is read at {_quoted(pair.source_token)}"
        yield f"    {'':{len(place)}}  target {_quoted(pair.target)} is read at {_quoted(pair.target_token)}"
    if report.objective == "semantic_tube":
        yield "    spans are drawn anew every epoch; stepjepa inspect shows those of a row"


def _quoted(text: str) -> str:
    return f'"{escaped(text)}"'


def _lengths(report: FeedingReport) -> Iterator[str]:
    data, cut = report.data, report.truncation
    lengths = ", ".join(f"{name} {value:,}" for name, value in data.token_length.items())
    yield f"  Tokens an example: {lengths}; {data.tokens:,} in all"
    share = 100 * data.labelled_tokens / max(data.tokens, 1)
    yield f"  Labelled (the LM loss predicts them): {data.labelled_tokens:,} ({share:.1f} %)"
    if cut is None:
        yield "  Texts are cut into blocks of max_length; no token is lost but a last one that stands alone"
        return
    holds = f"99 % fit into {cut.holds['99']:,}, 95 % into {cut.holds['95']:,}"
    if not cut.tokens_lost:
        yield f"  Truncation: none at max_length {cut.max_length:,}; the longest has {cut.holds['100']:,}, {holds}"
    else:
        lost = 100 * cut.tokens_lost / cut.tokens
        yield (
            f"  Truncation at max_length {cut.max_length:,}: {counted(cut.answers_cut, 'answer')} cut, "
            f"{counted(cut.rows_without_room, 'row')} skipped for a prompt that fills it; {cut.tokens_lost:,} of "
            f"{cut.tokens:,} tokens lost ({lost:.1f} %)"
        )
        yield f"    all chats fit into max_length {cut.holds['100']:,}, {holds}"
    if report.end_of_turn is None:
        yield "  End of turn: none"
    else:
        same = " (not the tokenizer's EOS)"
        if report.end_is:
            same = f", which is the tokenizer's {' and '.join(report.end_is)} token"
        yield f"  End of turn: {escaped(report.end_of_turn)}{same}; {'' if report.end_labelled else 'not '}labelled"


def _sample(report: FeedingReport) -> Iterator[str]:
    which = f"all {report.sampled:,} examples" if report.sampled_all else f"{report.sampled:,} examples drawn at random"
    found = report.coverage
    if found is not None and report.objective != "regular" and found.answer_tokens:
        view = "a step that is the source or the target" if report.objective == "step_jepa" else "a view"
        share = 100 * found.in_views / found.answer_tokens
        yield (
            f"  Coverage: {share:.1f} % of the answers' {found.answer_tokens:,} tokens lie in {view} of a pair ({which})"
        )
    total = sum(report.segments.values())
    yield f"  Tokens by kind ({which}):"
    for kind, tokens in report.segments.items():
        if tokens:
            yield f"    {_KINDS[kind]:<22} {tokens:>12,} {100 * tokens / total:>6.1f} %"


def padding_lines(padding: Padding, trunks: str = "chats") -> list[str]:
    """The positions of a batch in a table.

    Args:
        trunks: what the examples are: ``chats`` or ``texts``.
    """
    batches = "batch" if padding.batches == 1 else "batches"
    paired = padding.sequences > padding.batch_size
    fixed, longest, what = padding.fixed_chats, padding.longest_chats, f"the {trunks}"
    lines = [
        f"Positions in a batch of {padding.batch_size:,} (mean of {padding.batches:,} {batches}):",
        f"  {'padded to':<29}{f'max_length {padding.max_length:,}':>18}{'the longest':>14}",
        f"  {f'{trunks} alone, a row each':<29}{fixed:>18,.0f}{longest:>14,.0f}",
    ]
    if paired:
        fixed, longest, what = padding.fixed_views, padding.longest_views, f"{trunks} and views"
        lines.append(f"  {f'{trunks} and views, a row each':<29}{fixed:>18,.0f}{longest:>14,.0f}")
    empty = 100 * (1 - padding.tokens / padding.packed)
    published = ", as the published code pads," if trunks == "chats" else ""
    return [
        *lines,
        f"  {'as stepjepa lays them out':<29}{'':>18}{padding.packed:>14,.0f}",
        f"  That is {padding.packed_rows:,.1f} rows with {empty:.1f} % padding: {100 * padding.packed / fixed:.1f} % of the "
        f"positions of {what} padded to max_length{published} and {100 * padding.packed / longest:.1f} % of those padded "
        "to the longest",
    ]


def feeding_warnings(report: FeedingReport) -> list[Caution]:
    """What the tokenizer and the options of the run make of the data set that a user should know."""
    return [*_about_examples(report), *_about_ends(report)]


def _about_examples(report: FeedingReport) -> Iterator[Caution]:
    data, cut = report.data, report.truncation
    if not data.pairs and report.objective != "regular":
        yield Caution(
            "no_pairs",
            data.examples,
            data.examples,
            f"no example of {data.examples:,} has a pair for {report.objective}",
            "stepjepa train would stop: see the reasons under Pairs",
        )
    if cut is not None and cut.answers_cut + cut.rows_without_room:
        count, all_chats, most = cut.answers_cut + cut.rows_without_room, cut.holds["100"], cut.holds["99"]
        less = f", or to {most:,} for 99 % of the rows" if most < all_chats else ""
        yield Caution(
            "truncated",
            count,
            data.rows_read,
            f"{of_all(count, data.rows_read, 'row')} are cut or skipped at max_length {cut.max_length:,}",
            f"the model does not learn how such answers end: raise --max_length to {all_chats:,}{less}, or take them out",
        )
    if report.one_token_targets > ONE_TOKEN_SHARE * data.pairs:
        yield Caution(
            "one_token_targets",
            report.one_token_targets,
            data.pairs,
            f"{of_all(report.one_token_targets, data.pairs, 'pair')} have a target of a single token",
            "such a target is hardly more than that token's embedding: choose other views, or write short steps at the "
            "end of the step before (stepjepa prepare does)",
        )
    if data.system_folded:
        yield Caution(
            "folded_system",
            data.system_folded,
            data.rows_read,
            f"the chat template has no system role: {counted(data.system_folded, 'system message')} stand at the head of "
            "the first user message",
            "nothing to do in training; in use, put it there as well, or choose another --chat_template",
        )
    if report.unknown_tokens is not None and report.unknown_tokens > UNKNOWN_SHARE * data.tokens:
        yield Caution(
            "unknown_tokens",
            report.unknown_tokens,
            data.tokens,
            f"{report.unknown_tokens:,} of {data.tokens:,} tokens ({100 * report.unknown_tokens / data.tokens:.2f} %) are "
            "the tokenizer's unknown token",
            "the model cannot read or write what stands there: take a tokenizer that knows these characters (any "
            "byte-level one does)",
        )


def _about_ends(report: FeedingReport) -> Iterator[Caution]:
    if report.plain_text:
        return
    rows = report.data.rows_kept
    if report.end_of_turn is None:
        yield Caution(
            "no_end_of_turn",
            rows,
            rows,
            "nothing ends an answer: the template writes no special token and the tokenizer has no EOS",
            "the model is not taught to stop: give the tokenizer an eos_token, or a --chat_template that ends turns",
        )
    elif not report.end_labelled:
        yield Caution(
            "end_of_turn_unlabelled",
            rows,
            rows,
            f"--labels reference leaves {escaped(report.end_of_turn)}, the end of turn, out of {counted(rows, 'example')}",
            "as the published code does; the model is not taught to stop: leave --labels out unless that is to be compared",
        )
    elif "padding" in report.end_is:
        too = " and EOS" if "EOS" in report.end_is else ""
        yield Caution(
            "end_of_turn_is_padding",
            rows,
            rows,
            f"the end of turn, {escaped(report.end_of_turn)}, is also the padding{too} token, in {counted(rows, 'example')}",
            "labels go by place here, so it is trained on; code that leaves out padding by its id, as the published does, "
            "would never teach the model to stop. For such code give the tokenizer another pad_token",
        )
