"""Render chats with the tokenizer's template, and locate each message in the output.

A message is never searched for in the text: the user may repeat the answer's words, and a template may trim, fold or drop
contents. Instead, the template also renders the chat with marks in place of the contents. The text around the marks is the
template's own, and the real rendering must be exactly this text with the contents in between.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, lru_cache
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepjepa.config.option import Names
from stepjepa.data.columns import (
    REASONING,
    REASONING_KEYS,
    ROLES,
    TOOL_CALLS,
    TOOLS,
    TRAINED,
    Chat,
    Message,
)
from stepjepa.data.options import TemplateOptions
from stepjepa.data.rendered import (
    MessageSpan,
    Opening,
    RenderedChat,
    common_end,
    left_out,
    opening_of,
    quoted,
    switch_hint,
)
from stepjepa.errors import ConfigError, RowError, attempted, said

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NAME = Names(TemplateOptions)
_NOT_FOUND = "message_not_found"
# The form of `_mark`.
_MARK = re.compile("@@stepjepa:[0-9]+@@")
_LAST_TAG = re.compile(r"<(\w+)>\s*$")
# Limits of a template, which may loop forever: seconds of processor time for a chat, and bytes of memory, plus some for each
# character of the chat. A character has up to four bytes, and templates join texts several times.
TEMPLATE_SECONDS = 20
TEMPLATE_BYTES = 2**30
_BYTES_A_CHARACTER = 64
# Linux only: the size of this process in pages.
_STATM = Path("/proc/self/statm")

# Templates such as Llama 3.2's write today's date into the system header; a fixed date makes two runs equal.
DEFAULT_DATE = "26 Jul 2024"
_DEFAULT_DAY = datetime(2024, 7, 26)
_DIRECTIVES = (
    "%A %a %B %b %d %e %F %H %I %j %M %m %p %S %T %Y %y %-d %-H %-I %-j %-M %-m %-S".split()
)


def plain_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a template without markup: the contents with line breaks between them, after the BOS if the tokenizer adds one
    by default."""
    start = "{{ bos_token }}" if tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id] else ""
    return (
        start + "{% for message in messages %}{{ message['content'] }}"
        "{% if not loop.last or add_generation_prompt %}{{ '\\n' }}{% endif %}{% endfor %}"
    )


def with_template(
    tokenizer: PreTrainedTokenizerBase, chat_template: str | None, plain: bool = False
) -> PreTrainedTokenizerBase:
    """Return a copy of the tokenizer with the template of a file, or with `plain_template`; the tokenizer itself without
    either.

    Raises:
        ConfigError: the file cannot be read.
    """
    if not chat_template and not plain:
        return tokenizer
    try:
        template = (
            Path(chat_template).read_text(encoding="utf-8")
            if chat_template
            else plain_template(tokenizer)
        )
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"chat template {chat_template}: cannot be read ({error}); give a Jinja file"
        ) from None
    if tokenizer.chat_template != template:
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.chat_template = template
    return tokenizer


def template_of(
    tokenizer: PreTrainedTokenizerBase, tools: list[dict[Any, Any]] | None = None
) -> str:
    """Return the text of the tokenizer's chat template; of several templates, the one for tools if there are any tools.

    Raises:
        ConfigError: the tokenizer has no template, or does not use one.
    """
    name = getattr(tokenizer, "name_or_path", "") or "this model"
    try:
        return tokenizer.get_chat_template(tools=tools)
    except NotImplementedError:
        # The tokenizers of mistral-common.
        raise ConfigError(
            f"the tokenizer of {name} ({type(tokenizer).__name__}) uses no chat template and reads control tokens in a text "
            "as plain text; load the Hugging Face one: AutoTokenizer.from_pretrained(..., mistral_format=False)"
        ) from None
    except ValueError:
        raise ConfigError(
            f"the tokenizer of {name} has no chat template, or several chat templates without a default; "
            f"give one with --{_NAME.chat_template} FILE, or use the instruction-tuned model's tokenizer"
        ) from None


_Openings = tuple[Opening | None, ...]
# What all chats with the same roles have in common: the template's own text around the contents, one piece more than there
# are messages, and the openings of the answers.
_Skeleton = tuple[list[str], _Openings]
# The spans of a chat's messages, and the openings of its answers.
_Located = tuple[list[MessageSpan], _Openings]


class ChatRenderer:
    """Renders chats with a tokenizer's template and locates each message.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        template_kwargs: further variables of the template: ``enable_thinking``, ``date_string`` (default `DEFAULT_DATE`),
            ``tools``, or any other that the template reads. They have JSON's types.

    Attributes:
        given: `template_kwargs`; `kwargs`: all arguments of the template.
        template: the text of the template, which writes `DEFAULT_DATE` in place of today's date.

    Raises:
        ConfigError: the tokenizer has no chat template or does not use one.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None = None
    ):
        self._tokenizer: Any = tokenizer
        self.given = dict(template_kwargs or {})
        self.template = template_of(tokenizer, self.given.get(TOOLS))
        self.kwargs = {"date_string": DEFAULT_DATE, **self.given}
        # transformers passes a function `strftime_now` to templates. A macro of this name shadows it, and writes
        # `DEFAULT_DATE` in place of today's date.
        if "strftime_now" in self.template:
            day = "format" + "".join(
                f" | replace({d!r}, {_DEFAULT_DAY.strftime(d)!r})" for d in _DIRECTIVES
            )
            macro = f"{{% macro strftime_now(format) %}}{{{{ {day} }}}}{{% endmacro +%}}"
            self.template = macro + self.template
        # A cache, by the roles of a chat.
        self._skeletons: dict[tuple[str, ...], _Skeleton | None] = {}

    def using(self, template_kwargs: Mapping[str, Any]) -> ChatRenderer:
        """Return the renderer for a row's template arguments; this one if there are none."""
        if not template_kwargs:
            return self
        return _renderer_of(self, json.dumps(template_kwargs, default=str))

    def apply(self, messages: Chat, add_generation_prompt: bool = False) -> str:
        """Render `messages` with the template, as on `DEFAULT_DATE`.

        Raises:
            ConfigError: the template does not terminate.
            RowError: the template refuses the messages.
        """
        calling = any(TOOL_CALLS in message for message in messages)
        chat = map(_with_texts, messages) if calling and self._arguments_are_texts else messages
        return self._write(list(chat), add_generation_prompt)

    def _write(self, messages: list[Message], add_generation_prompt: bool = False) -> str:
        """As `apply`, for arguments of tool calls in the form that this template reads."""
        characters = sum(len(str(value)) for message in messages for value in message.values())
        with _limits(TEMPLATE_BYTES + _BYTES_A_CHARACTER * characters, len(messages)):
            try:
                return self._tokenizer.apply_chat_template(
                    messages,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    # Python refuses `kwargs` with one of these names.
                    continue_final_message=False,
                    chat_template=self.template,
                    **self.kwargs,
                )
            except (ConfigError, MemoryError):
                raise
            except Exception as error:
                # Jinja raises its own errors, and any error of an expression in the template.
                raise RowError(
                    "template_refused", f"the chat template refuses this chat: {said(error)}"
                ) from None

    def prompt(self, messages: Chat) -> str:
        """Render the generation prompt after `messages`, which end with the user's."""
        return self.apply(self._folded(messages)[0], add_generation_prompt=True)

    def render(self, messages: Chat) -> RenderedChat:
        """Render one checked chat.

        Raises:
            RowError: the template refuses the chat, or its text cannot be distinguished from the contents.
        """
        chat, folded = self._folded(messages)
        text = self.apply(chat)
        # The fast way needs no further rendering, and suffices for most templates.
        located = self._match(text, chat)
        if located is None:
            spans = self._locate_one_by_one(text, chat)
            located = spans, self._openings(text, chat, spans)
        spans, openings = located
        # The first text of an answer, or of the thinking next to it, that the template does not write.
        missing = ""
        for span in spans:
            if span.role != "assistant":
                continue
            message = chat[span.number]
            missing = missing or left_out(message["content"], text[span.start : span.end])
            thinking = message.get(REASONING, "")
            if thinking.strip() not in text:
                missing = missing or thinking
        return RenderedChat(text, tuple(spans), folded, openings, missing)

    def _folded(self, messages: Chat) -> tuple[list[Message], bool]:
        """A chat in the form that the template reads, and whether its system message had to be put into a user message."""
        chat = [self._as_template_reads(message) for message in messages]
        folds = chat[0]["role"] == "system" and self._folds_system
        return _fold(chat) if folds else chat, folds

    def _as_template_reads(self, message: Message) -> Message:
        """A checked message with the keys that the template reads."""
        if len(message) == 2:
            return message
        read = {name: value for name, value in message.items() if name != TRAINED}
        # Templates read thinking from different keys.
        if REASONING in read:
            read |= dict.fromkeys(REASONING_KEYS, read[REASONING])
        return read

    @cached_property
    def _arguments_are_texts(self) -> bool:
        """Whether the template accepts the arguments of a tool call only as JSON text, as DeepSeek's does."""
        call = {"type": "function", "function": {"name": "f", "arguments": {"a": _mark(1)}}}
        calling = {"role": "assistant", "content": "", TOOL_CALLS: [call]}
        user = _marked(("user",))[0]
        as_object, as_text = (
            attempted(self._write, [user, form]) for form in (calling, _with_texts(calling))
        )
        return isinstance(as_object, RowError) and _mark(1) in str(as_text)

    @cached_property
    def sample(self) -> RenderedChat | None:
        """A question with its answer, without thinking; None if the template refuses it."""
        rendered = attempted(self.render, _marked(("user", "assistant")))
        return None if isinstance(rendered, RowError) else rendered

    def _openings(self, text: str, chat: Chat, spans: Sequence[MessageSpan]) -> _Openings:
        """The opening of each answer, by rendering its generation prompt."""
        openings = list[Opening | None]()
        end = self._tokenizer.eos_token
        last_message = 0
        for span in spans:
            if span.role == "assistant":
                opening = self._opening(text, chat[: span.number], span.start, last_message)
                # Generation stops at an EOS, so the model can never write such an opening.
                if opening is not None and end and end in opening.written:
                    opening = Opening(apart=True)
                openings.append(opening)
            last_message = span.stop
        return tuple(openings)

    def _opening(self, text: str, asked: Chat, answer: int, last_message: int) -> Opening | None:
        """The opening of an answer to the messages `asked`; None without a generation prompt.

        Args:
            answer: the start of the answer in the text.
            last_message: the end of the last of `asked`.
        """
        prompt = self.written(asked, add_generation_prompt=True)
        if not prompt:
            return None
        opening = opening_of(text, answer, last_message, prompt)
        if not opening.apart or TOOL_CALLS in asked[-1]:
            return opening
        # The prompt shows earlier messages in another form (with their thinking, or with the tools elsewhere): compare only
        # the text after the last message.
        marked = [*asked[:-1], {**asked[-1], "content": _mark(0)}]
        _, *after = self.written(marked, add_generation_prompt=True).split(_mark(0))
        if len(after) != 1:
            return opening
        after_last = opening_of(text, answer, last_message, text[:last_message] + after[0])
        return after_last._replace(apart=True)

    @cached_property
    def switches(self) -> str:
        """The template's words such as enable_thinking or keep_thinking: arguments that may change what it writes of
        thinking; empty if there are none."""
        # A word before a bracket is a macro.
        names = set(re.findall(r"\b[a-z]+_think[a-z]*\b(?!\()", self.template))
        return ", ".join(sorted(names))

    @cached_property
    def _folds_system(self) -> bool:
        """Whether the template refuses or leaves out a system message. The first chat with one causes a trial rendering."""
        trial = _marked(ROLES)
        return _mark(0) not in self.written(trial) and _mark(1) in self.written(trial[1:])

    def written(self, messages: Chat, add_generation_prompt: bool = False) -> str:
        """Render as `apply` does; return "" if the template refuses."""
        text = attempted(self.apply, messages, add_generation_prompt)
        return text if isinstance(text, str) else ""

    def _skeleton(self, roles: tuple[str, ...]) -> _Skeleton | None:
        """What all chats with these roles have in common; None if the template's text around the contents is not
        constant."""
        if roles not in self._skeletons:
            marked = _marked(roles)
            text = self.written(marked)
            marks = list(_MARK.finditer(text))
            self._skeletons[roles] = None
            # A template that drops, repeats or reorders contents has no skeleton.
            if [mark[0] for mark in marks] == [message["content"] for message in marked]:
                places = enumerate(zip(roles, marks, strict=True))
                spans = [MessageSpan(index, role, *mark.span()) for index, (role, mark) in places]
                openings = self._openings(text, marked, spans)
                self._skeletons[roles] = _MARK.split(text), openings
        return self._skeletons[roles]

    def _match(self, text: str, chat: list[Message]) -> _Located | None:
        # Thinking and tool calls can be anywhere in the output.
        if any(len(message) > 2 for message in chat):
            return None
        skeleton = self._skeleton(tuple(message["role"] for message in chat))
        if skeleton is None:
            return None
        pieces, openings_left = skeleton[0], iter(skeleton[1])
        if not text.startswith(pieces[0]):
            return None
        spans = []
        openings = []
        position = len(pieces[0])
        for index, (message, piece) in enumerate(zip(chat, pieces[1:], strict=True)):
            content = message["content"]
            # Templates may trim contents at either end; the longest form is tried first.
            for shown in (content, content.lstrip(), content.rstrip(), content.strip()):
                if text.startswith(shown + piece, position):
                    break
            else:
                return None
            if message["role"] == "assistant":
                opening = next(openings_left)
                # If the answer itself begins with the rest of the generation prompt, as with "<think>", nothing is extra.
                if opening and text.startswith(opening.extra, position - len(opening.written)):
                    opening = opening._replace(extra="")
                openings.append(opening)
            end = position + len(shown)
            spans.append(MessageSpan(index, message["role"], position, end))
            position = end + len(piece)
        return (spans, tuple(openings)) if position == len(text) else None

    def _locate_one_by_one(self, text: str, chat: list[Message]) -> list[MessageSpan]:
        """Locate messages the slow way, for templates whose text around a message depends on the contents (thinking blocks):
        render the chat again for each message, with a mark in its place."""
        spans: list[MessageSpan] = []
        for index, message in enumerate(chat):
            reached = spans[-1].stop if spans else 0
            calls = self._calls(text, chat, index, reached) if TOOL_CALLS in message else None
            marked = [*chat[:index], {**message, "content": _mark(0)}, *chat[index + 1 :]]
            around = self.written(marked).split(_mark(0))
            # The template may write only the calls.
            if calls is not None and (len(around) == 1 or not message["content"].strip()):
                spans.append(calls)
                continue
            start, end = self._between(text, chat, index, around) or (-1, -1)
            # Text next to calls must be inside their span: after the results, it would look like an answer.
            if start >= reached and (calls is None or calls.start <= start and end <= calls.stop):
                close = calls and calls.close
                spans.append(MessageSpan(index, message["role"], start, end, close))
            elif calls is not None and start >= calls.stop:
                raise RowError(
                    "template_refused",
                    f"message {index + 1} (assistant): the chat template writes its text after the results of its calls; "
                    f"leave the text out, or give another template with --{_NAME.chat_template}",
                )
            # A system message may be written elsewhere (some templates move it to the top). It then has no span, and needs
            # none. A system message that the template drops is refused, unless it is the first message.
            elif message["role"] != "system" or (index and len(around) == 1):
                raise RowError(_NOT_FOUND, self._not_found(text, chat, index))
        return spans

    def _between(
        self, text: str, chat: Chat, index: int, around: Sequence[str]
    ) -> tuple[int, int] | None:
        """The characters of a message in the text, by the texts before and after a mark in its place; None if they do not
        fit."""
        if len(around) != 2 or not text.endswith(around[1]):
            return None
        start = len(around[0])
        end = len(text) - len(around[1])
        if not text.startswith(around[0]):
            if chat[index]["role"] != "assistant":
                return None
            # If the template writes something before the mark (an empty thinking block) that it does not write before this
            # answer, the answer begins at the end of the generation prompt.
            asked = self._asked(text, chat[:index], chat[index]["content"])
            if asked is None:
                return None
            start = asked
        return (start, end) if start <= end else None

    def _calls(self, text: str, chat: Chat, index: int, last_message: int) -> MessageSpan:
        """The span of the calls in a message, without its content.

        The span contains all characters that change with the arguments of the calls. It begins at the end of the generation
        prompt, and includes the template's text after the calls, as far as that text does not depend on the messages that
        follow.

        Args:
            last_message: the end of the message before.

        Raises:
            RowError: the template does not write all calls, or no generation prompt shows where they begin.
        """
        message = chat[index]
        marks = [_mark(number) for number in range(len(message[TOOL_CALLS]))]
        values = [call["function"]["arguments"] for call in message[TOOL_CALLS]]
        arguments = [
            mark if isinstance(value, str) else {mark: mark}
            for value, mark in zip(values, marks, strict=True)
        ]
        marked = _with_arguments(message, arguments)
        # The chat with other arguments: the texts differ from the first argument to the last.
        text_marked = self.written([*chat[:index], marked, *chat[index + 1 :]])
        unwritten = [number for number, mark in enumerate(marks, 1) if mark not in text_marked]
        if unwritten:
            raise RowError(
                "template_refused",
                f"the chat template does not write tool call {unwritten[0]} of message {index + 1}; give one that does "
                f"with --{_NAME.chat_template}, or leave such rows out",
            )
        # The end of the turn: the common end of both renderings, as far as it also follows the calls in a chat that ends
        # with them.
        alone, alone_marked = (self.written([*chat[:index], last]) for last in (message, marked))
        tail = common_end(text, text_marked)
        turn_end = commonprefix([tail, common_end(alone, alone_marked)])
        close = len(text) - len(tail) + len(turn_end.rstrip())

        # The model writes everything between the generation prompt and the first argument.
        first = len(commonprefix([text, text_marked]))
        opening = self._opening(text, chat[:index], first, last_message)
        if opening is None or not opening.written or not alone:
            raise RowError(_NOT_FOUND, self._not_found(text, chat, index))
        begin = first - len(opening.written)
        return MessageSpan(index, message["role"], begin, begin, close)

    def _not_found(self, text: str, chat: Chat, index: int) -> str:
        """The reason why a message is not located, and what to do."""
        message = chat[index]
        lines = message["content"].splitlines()
        stripped = [line.strip() for line in lines]
        part = next((line for line in stripped if line not in text), None)
        missing = "" if part is None else f"; {quoted(part)} is missing"
        hint = switch_hint(self.switches)
        where = f"message {index + 1} ({message['role']})"
        return f"{where} cannot be located in the output of the chat template{missing}{hint}"

    def _asked(self, text: str, messages: Chat, content: str) -> int | None:
        """The start of an answer in a chat's text, by the generation prompt; None if the prompt does not show it.

        The generation prompt may end in a thinking block, open or closed, that the answer itself contains.
        """
        # Both the generation prompt and the text must be continuations of the chat without the answer.
        closed, asked = self.written(messages), self.written(messages, add_generation_prompt=True)
        if asked in ("", closed) or not asked.startswith(closed) or not text.startswith(closed):
            return None
        begins = len(commonprefix([text, asked]))
        tag = _LAST_TAG.search(text, len(closed), begins)
        if tag and f"</{tag[1]}>" in content:
            begins = tag.start()
        if begins <= len(closed):
            return None
        # White space before content that does not begin with any is the template's.
        if content[:1].strip():
            begins += len(text[begins:]) - len(text[begins:].lstrip())
        return begins


@contextlib.contextmanager
def _limits(room: int, messages: int) -> Iterator[None]:
    """Raise a ConfigError if a block takes more than `TEMPLATE_SECONDS` of this process's time, or more than `room` bytes.

    Outside of the main thread and on Windows there are no limits; memory is limited only on Linux.
    """
    # Python runs signal handlers only in the main thread.
    if os.name == "nt" or threading.current_thread() is not threading.main_thread():
        yield
        return
    import resource

    def stop(number: int, frame: object) -> None:
        raise _unusable(
            f"the chat template does not end: {messages} messages took more than {TEMPLATE_SECONDS} s"
        )

    # A virtual timer counts this process's own time, so a busy machine does not trip it.
    handler = signal.signal(signal.SIGVTALRM, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    linux = _STATM.exists()
    try:
        # RLIMIT_AS limits the complete address space: add the room to its present size.
        if linux:
            pages = int(_STATM.read_bytes().split()[0])
            limit = pages * resource.getpagesize() + room
            if soft != resource.RLIM_INFINITY:
                limit = min(limit, soft)
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        signal.setitimer(signal.ITIMER_VIRTUAL, TEMPLATE_SECONDS)
        yield
    except MemoryError:
        raise _unusable(
            f"the chat template takes more than {room >> 20:,} MiB for {messages} messages"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)
        if linux:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# Bounded, since a tool list may differ in every row.
@lru_cache(maxsize=100)
def _renderer_of(renderer: ChatRenderer, template_kwargs: str) -> ChatRenderer:
    """The renderer for a row's template arguments, given as JSON."""
    return ChatRenderer(renderer._tokenizer, {**renderer.given, **json.loads(template_kwargs)})


def _unusable(words: str) -> ConfigError:
    return ConfigError(f"{words}; fix it, or give another one with --{_NAME.chat_template}")


def _mark(index: int) -> str:
    return f"@@stepjepa:{index}@@"


def _marked(roles: Sequence[str]) -> list[Message]:
    """A chat of messages with these roles, whose contents are marks."""
    return [{"role": role, "content": _mark(index)} for index, role in enumerate(roles)]


def _with_arguments(message: Message, arguments: Sequence[object]) -> dict[str, Any]:
    """A message with other arguments in its tool calls."""
    calls = []
    for call, replacement in zip(message[TOOL_CALLS], arguments, strict=True):
        function = {**call["function"], "arguments": replacement}
        calls.append({**call, "function": function})
    return {**message, TOOL_CALLS: calls}


def _with_texts(message: Message) -> Message:
    """A message with the arguments of its tool calls, if any, as JSON text."""
    if TOOL_CALLS not in message:
        return message
    values = [call["function"]["arguments"] for call in message[TOOL_CALLS]]
    texts = [
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for value in values
    ]
    return _with_arguments(message, texts)


def _fold(chat: list[Message]) -> list[Message]:
    """Prepend the system message to the first user message, as templates without a system role expect."""
    system, *rest = chat
    for index, message in enumerate(rest):
        if message["role"] == "user":
            lead = f"{system['content']}\n\n" if system["content"].strip() else ""
            rest[index] = {**message, "content": lead + message["content"]}
            return rest
    raise RowError(
        "template_refused",
        "the chat template has no system role, and there is no user message to put the system message into",
    )
