"""Jinja templates of checkpoints, rendered in a sandbox: they can neither reach nor change anything but their data, and
their steps and output are bounded.

The dialect is that of ``transformers``: block lines leave no white space (``trim_blocks``, ``lstrip_blocks``), loops
have ``break`` and ``continue``, ``tojson`` writes plain JSON, ``raise_exception(message)`` raises an error,
``strftime_now(format)`` gives the time, and ``{% generation %}`` marks text of the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, ClassVar, NoReturn, cast, final

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from weft.core.errors import InputError

STEPS = 1_000_000
"""The most loop iterations and calls of one rendering."""

LARGEST = 16_000_000
"""The most characters of a rendering or any text in it, digits of a number, and items of a list."""

ANOTHER = "Use another template (--template)."


@final
class SandboxedTemplate:
    """A compiled template.

    Args:
        source: the template in Jinja.
        name: for error messages.

    Raises:
        InputError: the source is not Jinja.
    """

    def __init__(self, source: str, name: str) -> None:
        self._name, self._environment = name, _Environment()
        try:
            self._template: Template = self._environment.compiled(source)
        except TemplateSyntaxError as error:
            raise InputError(f"not a Jinja template: {error.message}.", where=f"{self._where} line {error.lineno}",
                             remedy=ANOTHER) from None
        except RecursionError:
            raise InputError("not a Jinja template: nested too deeply.", where=self._where, remedy=ANOTHER) from None

    @property
    def declares_answers(self) -> bool:
        """Whether it says with ``{% generation %}`` which text is the model's."""
        return self._environment.declares_answers

    def render(self, variables: Mapping[str, Any], now: datetime, kept: str = "",
               marks: tuple[str, str] = ("", "")) -> str:
        """Render the template with ``variables``.

        Args:
            variables: plain data.
            now: the time that ``strftime_now`` gives.
            kept: characters that ``tojson`` does not escape even where it writes ASCII.
            marks: texts that are written before and after each block of ``{% generation %}``.

        Raises:
            InputError: the template rejects its input, fails, leaves the sandbox or exceeds its bounds; the message has
                the template's own message and line.
        """
        self._environment.begin(now, kept, marks)
        try:
            return _bounded_text(self._template.generate(dict(variables)))
        except Exception as error:  # expressions in a template can raise anything
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> InputError:
        """The error for a rendering that failed."""
        remedy = ANOTHER
        match error:
            case SecurityError():
                what = "tries to reach out of its sandbox"
            case _TooMuch() | MemoryError():
                what = "does not come to an end"
            case _Refused():
                what, remedy = "rejects these messages", f"Give messages that it accepts. {ANOTHER}"
            case _:
                what = "fails"
        reason = (str(error) or type(error).__name__).rstrip()
        closed = reason if reason.endswith((".", "!", "?")) else f"{reason}."
        return InputError(f"the template {what}: {closed}", where=self._at(error.__traceback__), remedy=remedy)

    @property
    def _where(self) -> str:
        return f"chat template {self._name!r}"

    def _at(self, traceback: TracebackType | None) -> str:
        """The name and line of the template: Jinja maps frames of compiled code to lines of the source."""
        line = None
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == "<template>":
                line = traceback.tb_lineno
            traceback = traceback.tb_next
        return self._where if line is None else f"{self._where} line {line}"


class _TooMuch(Exception):
    """The template exceeds its bounds of steps or text."""


class _Refused(TemplateError):
    """The exception of a template's ``raise_exception``."""


@final
class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox in the dialect of chat templates, with a budget of steps."""

    intercepted_binops: ClassVar[frozenset[str]] = frozenset({"*", "**", "+", "%"})  # type: ignore[misc]

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension])
        self._steps, self._now, self._kept, self.marks = 0, datetime.min, "", ("", "")
        self.declares_answers = False
        self.filters["tojson"] = self._tojson
        self.filters["_counted"], self.filters["_bounded"] = self._counted, _bounded
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: self._now.strftime(form)

    def begin(self, now: datetime, kept: str, marks: tuple[str, str]) -> None:
        """Reset the budget for a rendering."""
        self._steps, self._now, self._kept, self.marks = 0, now, kept, marks

    def compiled(self, source: str) -> Template:
        """The syntax tree, with loops counted and concatenations bounded."""
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filtered(cast(nodes.Expr, loop.iter), "_counted")
        _measure_joins(tree)
        return self.from_string(tree)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Count and make a call; Jinja routes every call of a template here."""
        self._step()
        return _bounded(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Bound the operators whose results can be much larger than their operands."""
        self._step()
        _require_small(operator, left, right)
        return _bounded(super().call_binop(context, operator, left, right))

    def _counted(self, items: Iterable[Any]) -> Iterator[Any] | Iterable[Any]:
        if not isinstance(items, Iterable):
            return items  # Jinja's own error describes it
        return self._count(items)

    def _count(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._step()
            yield item

    def _step(self) -> None:
        self._steps += 1
        if self._steps > STEPS:
            raise _TooMuch(f"it took {STEPS:,} steps")

    def _tojson(self, value: Any, ensure_ascii: bool = False, indent: int | None = None,
                separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
        text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
        if not ensure_ascii:
            return text
        return re.sub(r"[^\x00-\x7f]", lambda found: found[0] if found[0] in self._kept else json.dumps(found[0])[1:-1],
                      text)


@final
class _Generation(Extension):
    """``{% generation %} ... {% endgeneration %}`` marks text of the model, and is rendered like other text, between
    the marks of the rendering."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block, which has its own scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        cast(_Environment, self.environment).declares_answers = True
        ends = (nodes.Output([self.call_method("mark", [nodes.Const(place)])], lineno=line) for place in (0, 1))
        return nodes.Scope([next(ends), *body, next(ends)], lineno=line)

    def mark(self, place: int) -> str:
        """The mark before a block (0) or after it (1)."""
        return cast(_Environment, self.environment).marks[place]


def _filtered(expression: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(expression, name, [], [], None, None, lineno=expression.lineno)


def _measure_joins(node: nodes.Node) -> None:
    """Wrap every ``a ~ b`` under ``node`` in `_bounded`."""
    for field, value in node.iter_fields():
        if isinstance(value, list):
            setattr(node, field, [_measured(item) for item in value])
        else:
            setattr(node, field, _measured(value))


def _measured(value: Any) -> Any:
    if isinstance(value, nodes.Node):
        _measure_joins(value)
    return _filtered(value, "_bounded") if isinstance(value, nodes.Concat) else value


def _bounded(value: Any) -> Any:
    if isinstance(value, str) and len(value) > LARGEST:
        raise _TooMuch(f"it made a text of more than {LARGEST:,} characters")
    return value


def _require_small(operator: str, left: Any, right: Any) -> None:
    """Raise for ``'a' * 10**10`` and ``9 ** 9 ** 9`` before they are computed."""
    size = 0
    if operator == "*":
        lengths = [len(side) for side in (left, right) if isinstance(side, str | list | tuple)]
        counts = [side for side in (left, right) if isinstance(side, int)]
        size = max(lengths, default=0) * max(counts, default=0)
        if len(counts) == 2:
            size = sum(side.bit_length() for side in counts)
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        size = left.bit_length() * max(0, right)
    elif operator == "%" and isinstance(left, str):
        size = max((int(width) for width in re.findall(r"\d{1,18}", left)), default=0)
    if size > LARGEST:
        raise _TooMuch(f"it made something larger than {LARGEST:,}")


def _bounded_text(pieces: Iterable[str]) -> str:
    parts, length = [], 0
    for piece in pieces:
        length += len(piece)
        if length > LARGEST:
            raise _TooMuch(f"it wrote more than {LARGEST:,} characters")
        parts.append(piece)
    return "".join(parts)


def _raise_exception(message: object = "") -> NoReturn:
    raise _Refused(str(message))
