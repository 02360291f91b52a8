"""Jinja templates of checkpoints, rendered in a sandbox: they can neither reach nor change anything but their data, and
their steps and output are bounded.

The dialect is that of ``transformers``: block lines leave no white space (``trim_blocks``, ``lstrip_blocks``), loops
have ``break`` and ``continue``, ``tojson`` writes plain JSON, ``raise_exception(message)`` raises an error,
``strftime_now(format)`` gives the time, and ``{% generation %}`` marks text of the model.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, ClassVar, NoReturn, cast, final

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import _PassArg

from weft.chat.bounds import (
    WITHOUT,
    TooMuch,
    bounded,
    joined,
    most_written,
    require_small_call,
    require_small_result,
)
from weft.core.errors import InputError

STEPS = 1_000_000
"""The most loop iterations, calls and filters of one rendering."""

SECONDS = 10.0
"""The longest time of one rendering; usual ones take less than a thousandth of that."""

LONGEST_SOURCE = 1 << 20
"""The most characters of a template. The longest published ones have some thirty thousand."""

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
        if len(source) > LONGEST_SOURCE:
            raise InputError(f"a template of {len(source):,} characters; at most {LONGEST_SOURCE:,} are read.",
                             where=self._where, remedy=ANOTHER)
        try:
            self._template: Template = self._environment.compiled(source)
        except TemplateSyntaxError as error:
            raise InputError(f"not a Jinja template: {error.message}.", where=f"{self._where} line {error.lineno}",
                             remedy=ANOTHER) from None
        except RecursionError:
            raise InputError("not a Jinja template: nested too deeply.", where=self._where, remedy=ANOTHER) from None
        except (SyntaxError, ValueError, OverflowError, MemoryError) as error:  # of the Python that it becomes
            reason = str(error) or type(error).__name__
            raise InputError(f"not a Jinja template: {reason}.", where=self._where, remedy=ANOTHER) from None

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
            return joined(self._template.generate(dict(variables)), most_written(variables))
        except Exception as error:  # expressions in a template can raise anything
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> InputError:
        """The error for a rendering that failed."""
        remedy = ANOTHER
        match error:
            case SecurityError():
                what = "tries to reach out of its sandbox"
            case TooMuch() | MemoryError():
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


class _Refused(TemplateError):
    """The exception of a template's ``raise_exception``."""


@final
class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox in the dialect of chat templates, with a budget of steps."""

    intercepted_binops: ClassVar[frozenset[str]] = frozenset({"*", "**", "+", "%"})  # type: ignore[misc]

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension])
        self._steps, self._now, self._kept, self.marks, self._end = 0, datetime.min, "", ("", ""), float("inf")
        self.declares_answers = False
        self.filters["tojson"] = self._tojson
        for name in WITHOUT:
            self.filters.pop(name, None)
            self.globals.pop(name, None)
        self.filters = {name: self._measured(name, filter_) for name, filter_ in self.filters.items()}
        self.filters["_counted"], self.filters["_bounded"] = self._counted, bounded
        self.concat = joined  # type: ignore[method-assign]  # of what Jinja captures: blocks of `set`, macros
        self.finalize = bounded
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._strftime

    def begin(self, now: datetime, kept: str, marks: tuple[str, str]) -> None:
        """Reset the budget for a rendering."""
        self._steps, self._now, self._kept, self.marks = 0, now, kept, marks
        self._end = time.monotonic() + SECONDS

    def compiled(self, source: str) -> Template:
        """The syntax tree, with loops counted and concatenations bounded."""
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filtered(cast(nodes.Expr, loop.iter), "_counted")
        _measure_made(tree)
        return self.from_string(tree)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Count and make a call; Jinja routes every call of a template here."""
        self._step()
        # Jinja wraps `format` of a text in a function of its own.
        subject = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        require_small_call(getattr(function, "__name__", ""), subject, (*args, *kwargs.values()))
        return bounded(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Bound the operators whose results can be much larger than their operands."""
        self._step()
        require_small_result(operator, left, right)
        return bounded(super().call_binop(context, operator, left, right))

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
            raise TooMuch(f"it took {STEPS:,} steps")
        if time.monotonic() > self._end:
            raise TooMuch(f"it took {SECONDS:.0f} seconds")

    def _measured(self, name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that is a step, and whose result is bounded before and after it is made."""
        passed = 1 if _PassArg.from_obj(filter_) is not None else 0

        @functools.wraps(filter_)
        def measured(*args: Any, **kwargs: Any) -> Any:
            self._step()
            subject, *others = args[passed:] or (None,)
            require_small_call(name, subject, (*others, *kwargs.values()))
            return bounded(filter_(*args, **kwargs))

        return measured

    def _strftime(self, form: str) -> str:
        if len(form) > 1_000 or re.search(r"%[^A-Za-z%]*\d", form):
            raise TooMuch("the format of its date is long, or has widths")
        return self._now.strftime(form)

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


def _measure_made(node: nodes.Node) -> None:
    """Wrap every ``a ~ b`` and every list, tuple and mapping that is made under ``node`` in `bounded`."""
    for field, value in node.iter_fields():
        if isinstance(value, list):
            setattr(node, field, [_measured(item) for item in value])
        else:
            setattr(node, field, _measured(value))


def _measured(value: Any) -> Any:
    if isinstance(value, nodes.Node):
        _measure_made(value)
    made = isinstance(value, nodes.Concat | nodes.List | nodes.Dict) or (
        isinstance(value, nodes.Tuple) and value.ctx == "load")
    return _filtered(value, "_bounded") if made else value


def _raise_exception(message: object = "") -> NoReturn:
    raise _Refused(str(message))
