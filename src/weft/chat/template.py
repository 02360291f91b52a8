"""Conversations as the text and ids on which a model was trained: messages rendered by a checkpoint's own template.

    template = chat_template(tokenizer)
    ids = template.encode([{"role": "user", "content": "Hello"}])

`transformers` gives the template the messages unchanged and recognises every special token in the result, also those
that a user has typed. Here a message is ordinary text, but for the marks of thoughts in the model's own; for messages
that spell no other special tokens, text and ids are the same as with `transformers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weft.chat.guard import Guard, all_texts, encode
from weft.chat.messages import ASSISTANT, Message, parse_messages, plain_data, with_reasoning
from weft.chat.sandbox import SandboxedTemplate
from weft.core.errors import InputError, nearest
from weft.disk.documents import Unreadable, read_document
from weft.tokenizers.base import Tokenizer

DEFAULT, TOOL_USE = "default", "tool_use"

STYLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"plain": ("\nUser:",), "chatml": ("<|im_end|>",), "llama2": ()})
"""Styles for models without a template, none of them chosen silently, and what ends an answer besides the tokenizer's
own ends: the spelling of a special token where it has one, else a stop string. ``plain``: lines that begin with
User: and Assistant:; ``chatml``: OpenAI's Chat Markup Language (2023); ``llama2``: Touvron et al. (2023), "Llama 2",
appendix A.3.3, as Meta's released code writes it."""

RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
"""The variables that are set from arguments; further variables must have other names."""


@dataclass(frozen=True)
class Extras:
    """The input of a template besides the messages.

    Attributes:
        tools: descriptions of functions that the model may call (JSON Schema), or None.
        documents: texts to answer from, with ``title`` and ``text``, or None.
        variables: further variables that the template uses (``enable_thinking``).
        now: the time that ``strftime_now`` gives; None: the time of the rendering.
    """

    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] | None = None
    now: datetime | None = None


NO_EXTRAS = Extras()
"""Nothing besides the messages."""


@dataclass(frozen=True)
class Rendering:
    """A conversation that is ready to be rendered.

    Attributes:
        guard: which has covered the special tokens that the messages spell.
        variables: of the template besides the messages.
        now: the time that the template gets.
    """

    template: SandboxedTemplate
    guard: Guard
    messages: list[dict[str, Any]]
    variables: Mapping[str, Any]
    now: datetime

    def text(self, messages: Sequence[Message], *, prompt: bool = False, marks: tuple[str, str] = ("", "")) -> str:
        """The text of some of the messages, special tokens still covered.

        Args:
            prompt: end with the beginning of an answer.
            marks: see `SandboxedTemplate.render`.

        Raises:
            InputError: the template rejects the messages or fails.
        """
        variables = {**self.variables, "messages": list(messages), "add_generation_prompt": prompt}
        return self.template.render(variables, self.now, self.guard.stand_ins, marks)


class ChatTemplate:
    """A template and the tokenizer whose special tokens it writes.

    Args:
        source: the template in Jinja.
        ends: what ends an answer besides the tokenizer's own ends, see `STYLES`.

    Raises:
        InputError: the source is not Jinja.
    """

    def __init__(self, tokenizer: Tokenizer, source: str, *, name: str = DEFAULT, ends: Sequence[str] = ()) -> None:
        self.tokenizer, self.name, self._source, self._ends = tokenizer, name, source, tuple(ends)
        self._template = SandboxedTemplate(source, name)
        self._names = {place: content for content, place in tokenizer.special_tokens.items()}

    @property
    def source(self) -> str:
        """The template in Jinja."""
        return self._source

    @property
    def declares_answers(self) -> bool:
        """Whether it says with ``{% generation %}`` which text is the model's."""
        return self._template.declares_answers

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids that end an answer."""
        specials = self.tokenizer.special_tokens
        more = (specials[end] for end in self._ends if end in specials)
        return tuple(dict.fromkeys((*self.tokenizer.end_ids, *more)))

    @property
    def marks(self) -> Mapping[str, int]:
        """The ids of special tokens that the template looks for in messages, such as the one behind a thought, and of
        their partners (``<think>`` of ``</think>``), by their spellings; none that begins or ends a turn. The model's
        own messages keep them."""
        closed, sought = {*self.end_ids, self.tokenizer.bos_id}, {_bare(text) for text in self._template.sought}
        return {content: place for content, place in self.tokenizer.special_tokens.items()
                if _bare(content) in sought and place not in closed}

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        texts = (*self._ends, *self.tokenizer.conventions.stops)
        return tuple(dict.fromkeys(end for end in texts if end not in self.tokenizer.special_tokens))

    def text(self, messages: Sequence[Message], *, add_generation_prompt: bool = False,
             continue_final: bool = False, extras: Extras = NO_EXTRAS) -> str:
        """The conversation as rendered by the template.

        Args:
            messages: each with ``role`` and ``content``.
            add_generation_prompt: end with the beginning of an answer.
            continue_final: end inside the last message, so that the model continues it.
            extras: tools and the like.

        Raises:
            InputError: a message is malformed, or the template rejects the messages or fails.
        """
        guard, text = self._rendered(messages, add_generation_prompt, continue_final, extras)
        return guard.bare(text)

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool = False,
               continue_final: bool = False, extras: Extras = NO_EXTRAS) -> list[int]:
        """The ids of `text`: special tokens of the template are recognised, the messages are ordinary text.

        No opening or closing token is added, since the template writes them.

        Raises:
            InputError: as for `text`.
            TokenizerError: a message holds something that the tokenizer cannot express.
        """
        guard, text = self._rendered(messages, add_generation_prompt, continue_final, extras)
        return encode(self.tokenizer, text, guard)

    def _rendered(self, messages: Sequence[Message], add_generation_prompt: bool, continue_final: bool,
                  extras: Extras) -> tuple[Guard, str]:
        form = self.rendering(messages, extras)
        final_text = None
        if continue_final:
            if add_generation_prompt:
                raise InputError("an answer cannot both be begun and be continued.", where="continue_final",
                                 remedy="Give one of continue_final and add_generation_prompt.")
            final_text = _mark_final(form.messages, form.guard.mark)
        text = form.text(form.messages, prompt=add_generation_prompt)
        return form.guard, text if final_text is None else _cut(text, final_text, form.guard.mark, self.name)

    def rendering(self, messages: Sequence[Message], extras: Extras = NO_EXTRAS) -> Rendering:
        """A conversation whose special tokens are covered, so that parts of it can be rendered. Raises `InputError`: a
        message is malformed."""
        parsed = [with_reasoning(message) for message in parse_messages(messages)]
        given = self._given(extras)
        guard = Guard((*self.tokenizer.special_tokens, *self.stops),
                      [self._source, *all_texts(parsed), *all_texts(given)], self.marks)
        covered = [{**guard.cover(message, own=message["role"] == ASSISTANT), "role": message["role"]}
                   for message in parsed]
        variables = {**self._special_variables(), **{key: guard.cover(value) for key, value in given.items()}}
        return Rendering(self._template, guard, covered, variables, extras.now or datetime.now())

    def _given(self, extras: Extras) -> dict[str, Any]:
        variables = dict(extras.variables or {})
        taken = [name for name in variables if name in (*RESERVED, *self._special_variables())]
        if taken:
            raise InputError(f"the name {taken[0]!r} is taken.", where="variables",
                             remedy="Give messages, tools and the like as what they are.")
        lists = {"tools": extras.tools, "documents": extras.documents}
        return {**{name: None if value is None else plain_data(list(value), name) for name, value in lists.items()},
                **{name: plain_data(value, f"variables.{name}") for name, value in variables.items()}}

    def _special_variables(self) -> dict[str, str]:
        roles = {"bos_token": self.tokenizer.bos_id, "eos_token": self.tokenizer.eos_id}
        return {role: self._names[place] for role, place in roles.items() if place is not None and place in self._names}


def _bare(mark: str) -> str:
    """A mark without the stroke that tells the closing one of a pair from the opening one."""
    return mark.replace("/", "", 1)


def style(name: str) -> str:
    """The template of one of `STYLES`."""
    return (Path(__file__).parent / f"styles/{name}.jinja").read_text(encoding="utf-8")


def chat_template(tokenizer: Tokenizer, choice: str | Path | None = None, *, with_tools: bool = False) -> ChatTemplate:
    """The template for a conversation.

    Args:
        tokenizer: whose files may have brought templates (`Conventions.chat_templates`).
        choice: the name of one of these, a Jinja file, or a built-in style (plain, chatml, llama2); None: the
            tokenizer's own, for tools where there are any.
        with_tools: whether tools will be given.

    Raises:
        InputError: there is no such template, or none at all; none is ever guessed.
    """
    own = tokenizer.conventions.chat_templates
    if choice is None:
        name = TOOL_USE if with_tools and TOOL_USE in own else DEFAULT
        if name not in own:
            raise _none(own)
        return ChatTemplate(tokenizer, own[name], name=name)
    name = str(choice)
    if name in own:
        return ChatTemplate(tokenizer, own[name], name=name)
    if name in STYLES:
        return ChatTemplate(tokenizer, style(name), name=name, ends=STYLES[name])
    return ChatTemplate(tokenizer, _read(Path(name), (*own, *STYLES)), name=name)


def _none(own: Mapping[str, str]) -> InputError:
    styles = ", ".join(STYLES)
    if own:
        return InputError(f"the model has several chat templates, {', '.join(sorted(own))}, and none is the default.",
                          where="chat template", remedy="Name one of them with --template.")
    return InputError("the model has no chat template, so the format of the conversations it was trained on "
                      "is not known.", where="chat template",
                      remedy=f"Give its Jinja template with --template FILE, or name a form: --template {styles} "
                             "(plain suits a model that was only trained to continue text).")


def _read(path: Path, names: Sequence[str]) -> str:
    try:
        return read_document(path).decode("utf-8")
    except Unreadable as error:
        raise InputError(f"the file cannot be read ({error}).", where=str(path),
                         remedy="Give a text file of Jinja.") from None
    except UnicodeDecodeError:
        raise InputError("not UTF-8.", where=str(path), remedy="Give a text file of Jinja.") from None
    except OSError as error:
        raise InputError(f"neither a chat template's name nor a file that can be read ({error.strerror}).",
                         where=str(path), remedy=f"{nearest(str(path), names)} Or give the path of a Jinja "
                                                 "file.") from None


def _mark_final(messages: list[dict[str, Any]], mark: str) -> str:
    """Append a mark to the last message's text, and a space, by which trimming is detected; return the original
    text."""
    content = messages[-1].get("content")
    if isinstance(content, list) and content:
        text: str = content[-1]["text"]
        content[-1] = {**content[-1], "text": f"{text}{mark} "}
        return text
    if not isinstance(content, str):
        raise InputError("the last message has no text to continue.", where="continue_final",
                         remedy="Give it some, or request a new answer.")
    messages[-1]["content"] = f"{content}{mark} "
    return content


def _cut(text: str, final: str, mark: str, name: str) -> str:
    """Cut a rendering at the end of the last message, which is trimmed if the template trims."""
    place = text.rfind(mark)
    if place < 0:
        raise InputError("the template does not write out the last message, so it cannot be continued.",
                         where=f"chat template {name!r}", remedy="Request a new answer.")
    trims = not text[place:].startswith(f"{mark} ")
    kept = text[:place]
    return kept[: len(kept) - len(final) + len(final.rstrip())] if trims else kept
