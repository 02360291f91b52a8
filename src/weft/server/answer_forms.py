"""The grammars that an assistant's answers are held to: JSON of a schema, and calls of functions as the template writes
them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from weft.core.errors import InputError
from weft.server.dialect import ARGUMENTS, ID, NAME, Dialect, WrittenCalls
from weft.server.fields import ChatBody, SchemaFormat, Tool
from weft.server.served import Served
from weft.serving.grammars import json_in_lark

Constraint: TypeAlias = Callable[[], Any]
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def form_of(served: Served, body: ChatBody, dialect: Dialect, thinks: bool) -> Constraint | None:
    """The maker of the state of the grammar that an answer is held to; None: it is free.

    Args:
        thinks: whether the answer begins inside a thought, which is then ended first.

    Raises:
        InputError: a schema does not compile, or the template's way to write calls is not known.
    """
    given, where = body.response_format, "response_format"
    if given is not None and given.type != "text":
        schema = given.json_schema.schema_ if isinstance(given, SchemaFormat) else {"type": "object"}
        if not thinks:
            return served.grammars.json_schema(schema)
        rules = [f"start: {json_in_lark(schema, where)}"]
    else:
        where, rules = "tools", _calls(body, dialect)
    if rules and thinks and dialect.thought:
        rules[0] = rules[0].replace("start: ", r"start: thought /\s*/ answer" + "\nanswer: ", 1)
        rules.append(f"thought[lazy]: {_up_to(dialect.thought.closes)}")
    return served.grammars.lark("\n".join(rules), where) if rules else None


def _calls(body: ChatBody, dialect: Dialect) -> list[str]:
    """The rules for the calls of an answer; none where it is free: no call is required, none is held to its schema, and
    their number is not limited. Raises `InputError`."""
    tools, choice = body.tools or [], body.tool_choice
    strict = any(tool.function.strict for tool in tools)
    if choice == "none" or (choice in (None, "auto") and not strict and body.parallel_tool_calls is not False):
        return []
    form = dialect.calls
    if form is None or not {NAME, ARGUMENTS} <= {*form.pieces}:
        if choice in (None, "auto") and not strict:
            return []  # none of its calls is ever told as one, so there is none too many
        field = "tools" if choice in (None, "auto") else "tool_choice"
        raise InputError("this model's template writes calls in a way that is not known, so no answer can be held to "
                         "them.", where=field, remedy="Leave it out, or serve the model with another template.")
    named = [tool for tool in tools if not isinstance(choice, Tool) or tool.function.name == choice.function.name]
    several = body.parallel_tool_calls is not False and not isinstance(choice, Tool) and form.between is not None
    more = f" ({json.dumps(form.between)} call)*" if several else ""
    rules = [f"start: {json.dumps(form.before)} call{more} {json.dumps(form.after)}",
             "call: " + " | ".join(_call(form, tool) for tool in named)]
    if choice == "required" or isinstance(choice, Tool):
        return rules
    mark = form.before.rstrip()
    behind = json.dumps(form.before[len(mark):])
    rules[0] = f"start: rest | opened {behind} call{more} {json.dumps(form.after)}"
    if several:
        rules[0] = f"start: (opened {behind} call{more} {json.dumps(form.after)})* rest"
    return [*rules, f"opened[lazy]: {_up_to(mark)}", "rest: REST |",
            f"REST: /(?s:.+)/ & ~/(?s:.*){_escaped(mark)}(?s:.*)/"]


def _call(form: WrittenCalls, tool: Tool) -> str:
    """The call of a function, as a part of a rule."""
    function = tool.function
    written = {NAME: json.dumps(function.name), ID: "/[A-Za-z0-9]{9}/",
               ARGUMENTS: json_in_lark(function.parameters or NO_ARGUMENTS, "tools")}
    return " ".join(written.get(piece) or json.dumps(piece, ensure_ascii=False) for piece in form.pieces if piece)


def _up_to(mark: str) -> str:
    return f"/(?s:.*){_escaped(mark)}/"


def _escaped(mark: str) -> str:
    """A mark as a part of a regular expression."""
    return re.escape(mark).replace("/", r"\/").replace("\\\n", r"\n")
