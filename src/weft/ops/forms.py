"""Operations that are computed in several ways: one registry, and forms forced from outside.

An `Operation` has a naive form, called ``reference``, which is the truth, and others that are held to it. A `Form`
declares where it can serve; `Operation.choose` takes the first that can and pays, and gives the reason. Neither ever
reads a tensor: shapes, dtypes, devices and plain facts are all there is to go by. The order of preference is that in
which an operation names its forms. `forced` names the form to take. All that a plugin needs can be imported from here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from weft.core.errors import ConfigError, nearest_meaning
from weft.ops.form import REFERENCE, C, Form, Formula, Kernel, LateForm, Make, Offer, R
from weft.ops.operation import Chosen, Decision, Operation

__all__ = ["OPERATIONS", "REFERENCE", "Chosen", "Decision", "Form", "Formula", "Kernel", "LateForm", "Make", "Offer",
           "Operation", "Operations", "forced"]


@final
class Operations:
    """Every operation by name."""

    def __init__(self) -> None:
        self._known: dict[str, Operation[Any, Any]] = {}
        self._formulas: dict[str, Formula] = {}
        self._discovered = False

    def add(self, operation: Operation[C, R]) -> Operation[C, R]:
        """Register an operation; one from the same file as its namesake replaces that. Raises `ConfigError`: another
        file has defined an operation of the name."""
        other = self._known.get(operation.name)
        if other is not None and other.file != operation.file:
            raise ConfigError([f"the operation {operation.name!r} is defined by {other.file} and by {operation.file}. "
                               "Give one of them another name."])
        self._known[operation.name] = operation
        self._formulas |= operation.formulas
        operation.formulas = self._formulas  # so that those of forms that are added later are found here too
        return operation

    def get(self, name: str) -> Operation[Any, Any]:
        """The operation of that name. Raises `ConfigError`: there is none; the nearest is named."""
        known = self.all()
        if name not in self._known:
            hint = nearest_meaning(name, {each.name: each.known_as for each in known})
            raise ConfigError([f"kernels.{name}: no operation is called {name!r}. {hint}"])
        return self._known[name]

    def all(self) -> tuple[Operation[Any, Any], ...]:
        """Every operation, by name."""
        if not self._discovered:
            self._discovered = True
            package = importlib.import_module("weft.ops")
            for info in pkgutil.iter_modules(package.__path__, prefix="weft.ops."):
                importlib.import_module(info.name)
        return tuple([self._known[name] for name in sorted(self._known)])

    def forced_now(self) -> dict[str, Form[Any, Any]]:
        """The form of each operation whose form is forced (`forced`), by the operation's name."""
        return {name: operation.forced for name, operation in self._known.items() if operation.forced is not None}

    def formula(self, operator: str) -> Formula | None:
        """The cost of an operator's call, where one of the forms declares it."""
        return self._formulas.get(operator)

    def problems(self, kernels: Mapping[str, str]) -> list[tuple[str, str]]:
        """The problems of ``kernels``: each operation concerned, and what is wrong with its name or its form's."""
        problems = []
        for name, form in kernels.items():
            try:
                self.get(name).form(form)
            except ConfigError as error:
                problems.append((name, error.problems[0].split(": ", 1)[1]))
        return problems

    def resolved(self, kernels: Mapping[str, str]) -> list[tuple[Operation[Any, Any], Form[Any, Any]]]:
        """The forms that ``kernels`` names. Raises `ConfigError`: names that are not known, all at once."""
        problems = self.problems(kernels)
        if problems:
            raise ConfigError(f"kernels.{name}: {what}" for name, what in problems)
        return [(self.get(name), self.get(name).form(form)) for name, form in kernels.items()]

    @contextmanager
    def observed(self) -> Iterator[list[Decision]]:
        """Inside, every choice is appended to the list."""
        seen: list[Decision] = []
        known = self.all()
        before = [operation._seen for operation in known]
        for operation in known:
            operation._seen = seen
        try:
            yield seen
        finally:
            for operation, value in zip(known, before, strict=True):
                operation._seen = value


OPERATIONS = Operations()


@contextmanager
def forced(kernels: Mapping[str, str]) -> Iterator[None]:
    """Inside, these forms are taken, in the whole process: ``{"attention": "reference"}``. What is compiled inside is
    compiled with them, and again where they change.

    Raises:
        ConfigError: names that are not known, all at once.
        UnsupportedError: at a call that a form cannot serve.
    """
    chosen = OPERATIONS.resolved(kernels)
    before = [operation.forced for operation, _ in chosen]
    for operation, form in chosen:
        operation.forced = form
    try:
        yield
    finally:
        for (operation, _), value in zip(chosen, before, strict=True):
            operation.forced = value
