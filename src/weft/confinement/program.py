"""The process of a program: it confines itself, runs the program, and then does what the judge asks with the names that
the program has made. It never has the tests, nor what they expect; whatever the program's code does to this process, it
can only give other answers."""

from __future__ import annotations

import builtins
import json
import operator
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, BinaryIO, NoReturn

from weft.confinement.guards import confine, end_with_parent, limit, refuse_in_python
from weft.confinement.values import line_of, packed, unpacked

NAME = 80
"""Characters of an exception's name that are told."""


def run(questions: BinaryIO, answers: BinaryIO, limits: tuple[int, int, int]) -> NoReturn:
    """Confine this process, run the program that the first line of ``questions`` gives, and answer the others.

    Args:
        questions: lines of JSON from the judge: the program; then the name of an action and its arguments.
        answers: where to a line goes for each: the means of confinement, then ``value`` or ``error``.
        limits: see `weft.confinement.guards.limit`.
    """
    end_with_parent()
    source: str = json.loads(questions.readline())
    limit(*limits)
    by = confine()
    refuse_in_python()
    _tell(answers, lambda: {"by": by})
    main = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"], sys.argv = main, ["program.py"]
    held: list[Any] = []
    actions = actions_on(vars(main))

    def hold(value: Any) -> int:
        held.append(value)
        return len(held) - 1

    def answer(question: bytes) -> Any:
        name, *arguments = unpacked(json.loads(question), held.__getitem__)
        return {"value": packed(actions[name](*arguments), hold)}

    def begin() -> Any:
        exec(compile(source, "program.py", "exec"), vars(main))
        return {"value": None}

    _tell(answers, begin)
    for question in iter(questions.readline, b""):
        _tell(answers, lambda asked=question: answer(asked))  # type: ignore[misc]  # bound at once
    os._exit(0)


def actions_on(names: Mapping[str, Any]) -> Mapping[str, Callable[..., Any]]:
    """The actions of a judge, by name, on a program with these names."""
    def named(name: str) -> Any:
        if name not in names and name not in vars(builtins):
            raise NameError(name)
        return names.get(name, vars(builtins).get(name))

    return {"name": named, "call": lambda function, arguments, further: function(*arguments, **further),
            "getattr": getattr, "setattr": setattr, "getitem": operator.getitem, "list": list, "len": len,
            "bool": bool, "str": str, "repr": repr}


def _tell(answers: BinaryIO, made: Callable[[], Any]) -> None:
    try:
        line = line_of(made())
    except BaseException as error:  # SystemExit too is an end that a test does not expect
        line = line_of({"error": type(error).__name__[:NAME]})
    answers.write(line)
    answers.flush()
