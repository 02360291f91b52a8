"""The process that judges a program: it runs the tests, and asks the program's own process for what they call.

The first line of standard input gives the program, the code before the tests, and the tests. Two lines of JSON go to
standard output: the means that confine the program; then, when the program's process has ended, how the tests ended.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NoReturn, final

from weft.confinement.guards import confine, end_with_parent, limit, separate
from weft.confinement.program import NAME, run
from weft.confinement.values import MOST, line_of, packed, unpacked

CLOSE = 0.1
"""Seconds by which the system's account of a program's processor time may fall short of the limit that ended it."""


class Ended(Exception):
    """The program raised the exception of this name, or ended its process."""


@final
class Program:
    """A program in another process.

    Args:
        questions: lines that it reads.
        answers: lines that it writes.
    """

    def __init__(self, questions: BinaryIO, answers: BinaryIO) -> None:
        self._questions, self._answers = questions, answers

    def begin(self, source: str) -> list[str]:
        """Give the program to its process, which confines itself; by which means."""
        self._questions.write(line_of(source))
        self._questions.flush()
        return list(map(str, self._answer()["by"]))

    def value(self) -> Any:
        """The value that the process answers next. Raises `Ended`: it has raised an exception, or answers nothing that
        can be read."""
        told = self._answer()
        if "error" in told:
            raise Ended(str(told["error"]))
        try:
            return unpacked(told["value"], lambda place: Remote(self, int(place)))
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
            raise Ended("ended") from None

    def ask(self, action: str, *arguments: Any) -> Any:
        """The value of an action of `weft.confinement.program.actions_on`."""
        self._questions.write(line_of([action, *(packed(each, self._place) for each in arguments)]))
        self._questions.flush()
        return self.value()

    def _place(self, value: Any) -> int:
        """The number of an object of the program's, or of what is built in there under the same name."""
        name = None if isinstance(value, Remote) else getattr(value, "__name__", None)
        if name in vars(builtins) and vars(builtins)[name] is value:
            value = self.ask("name", name)
        if not isinstance(value, Remote):
            raise TypeError(f"a {type(value).__name__} is no plain data")
        place: int = object.__getattribute__(value, "_place")
        return place

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline(MOST + 1)
        try:
            found = json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Ended("ended")
        return found


@final
class Remote:
    """An object that is in the program's process. It equals nothing but itself, so a program cannot return what equals
    everything.

    Args:
        place: the number under which the program holds it.
    """

    __slots__ = ("_place", "_program")

    def __init__(self, program: Program, place: int) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_place", place)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._program.ask("call", self, list(arguments), named)

    def __getattr__(self, name: str) -> Any:
        return self._program.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._program.ask("setattr", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._program.ask("getitem", self, key)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._program.ask("list", self)))

    def __len__(self) -> int:
        try:
            return int(self._program.ask("len", self))
        except Ended as end:
            raise TypeError(str(end)) from None  # Python asks iterators too, and goes on without

    def __bool__(self) -> bool:
        return bool(self._program.ask("bool", self))

    def __str__(self) -> str:
        return str(self._program.ask("str", self))

    def __repr__(self) -> str:
        return str(self._program.ask("repr", self))


@final
class KnownNames(dict[str, Any]):
    """The names that tests know: those that they make, Python's own, modules of the standard library, and otherwise
    the program's."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self._program = program

    def __missing__(self, name: str) -> Any:
        if name in vars(builtins):
            raise KeyError(name)  # for Python to look there itself
        self[name] = importlib.import_module(name) if name in sys.stdlib_module_names else (
            self._program.ask("name", name))
        return self[name]


def verdict(program: Program, setup: str, tests: Sequence[str]) -> str:
    """``passed`` if the program and then every test run to their end; else the name of the exception that ended one of
    them, or ``ended``.

    Where a test names nothing but what is built in, as in ``assert sum(1, 2) == 3``, these names are the program's.
    """
    try:
        program.value()
        names = KnownNames(program)
        exec(compile(setup, "setup.py", "exec"), names)
        for source in tests:
            code = compile(source, "test.py", "exec")
            own = {*code.co_names} if {*code.co_names} <= vars(builtins).keys() - names.keys() else set[str]()
            names.update({name: program.ask("name", name) for name in own})
            exec(code, names)
            for name in own:
                del names[name]
    except Ended as end:
        name = str(end)
        return name if name.isidentifier() and len(name) <= NAME and name != "passed" else "ended"
    except ConnectionError:
        return "ended"
    except BaseException as error:  # SystemExit too is an end that no test expects
        return type(error).__name__
    return "passed"


def main() -> NoReturn:
    """Judge the program that standard input gives, under the limits that the arguments give."""
    memory, seconds, files = map(int, sys.argv[1:4])
    end_with_parent()
    sys.path[:] = [path for path in sys.path if not os.path.isdir(os.path.join(path, "weft"))]
    by = ["namespaces"] if separate() else []
    (question, questions), (answers, answer) = os.pipe(), os.pipe()
    child = os.fork()  # before the tests are read, so that they are in no memory of the program's
    if child == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        for number in {*range(3, null + 1)} - {question, answer}:
            os.close(number)
        run(os.fdopen(question, "rb"), os.fdopen(answer, "wb"), (memory, seconds, files))
    os.close(question)
    os.close(answer)
    asked: Mapping[str, Any] = json.loads(sys.stdin.buffer.readline())
    limit(memory, seconds, files)
    confine()
    program = Program(os.fdopen(questions, "wb"), os.fdopen(answers, "rb"))
    _tell([*by, *program.begin(asked["source"])])
    found = verdict(program, asked["setup"], asked["tests"])
    os.close(questions)
    _, _, used = os.wait4(child, 0)
    late = found == "ended" and used.ru_utime + used.ru_stime > seconds - CLOSE
    _tell("time" if late else found)
    os._exit(0)


def _tell(line: Any) -> None:
    sys.stdout.buffer.write(line_of(line))
    sys.stdout.buffer.flush()
