"""Operations that are computed in several ways: one registry, and forms forced from outside.

An `Operation` has a naive form, called ``reference``, which is the truth, and others that are held to it. A `Form`
declares where it can serve; `Operation.choose` takes the first that can and pays, and gives the reason. Neither ever
reads a tensor: shapes, dtypes, devices and plain facts are all there is to go by. The order of preference is that in
which an operation names its forms. `forced` names the form to take. All that a plugin needs can be imported from here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Generic, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from weft.core.compiling import compiler_traces, constant_to_compiler
from weft.core.errors import ConfigError, UnsupportedError, nearest_meaning
from weft.ops.form import (
    PLAIN,
    REFERENCE,
    C,
    Circumstances,
    Form,
    Formula,
    Kernel,
    LateForm,
    Make,
    Offer,
    R,
    circumstances,
    hindrance,
)


class Chosen(NamedTuple, Generic[C, R]):
    """The form that serves a call.

    Attributes:
        reason: how it computes, or that the user named it.
        passed: for each form that comes before it in the order of preference, its name and why it was not chosen, as
            ``banded: too few queries``.
    """

    form: Form[C, R]
    reason: str
    passed: tuple[str, ...] = ()


class Decision(NamedTuple):
    """The choice for a call while `Operations.observed` was on.

    Attributes:
        reason, passed: those of `Chosen`.
        sizes: shapes of the call's tensors, in their order.
    """

    operation: str
    form: str
    reason: str
    passed: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]


class Operation(Generic[C, R]):
    """Something that is computed in several ways. A call of it runs the form that is chosen.

    Args:
        name: by which ``kernels`` names it.
        about: what it computes, in a line.
        reference: the naive form, which serves every call.
        others: the other forms, in the order of preference. A `LateForm` is imported when a call on its device is
            made, or when it is asked for by name or among all.
        subject: the field of a call that holds the tensor whose device and dtype decide.
        examples: calls of every kind that forms distinguish, at lengths past their borders; every form is held to the
            reference on those it can serve.
        summary: of a random operation what is compared in place of its results, and how far it may be off.

    Attributes:
        forced: the form that is taken for every call, forced from outside (`weft.ops.forms.forced`); None: none is.
        formulas: what a call of an operator costs, by the operator's name, as the forms give it; with those of other
            operations once it is registered.
    """

    def __init__(self, name: str, about: str, reference: Form[C, R], *others: Form[C, R] | LateForm, subject: str,
                 examples: Callable[[Make], Iterable[C]], summary: tuple[Callable[[C, R], Tensor], float] | None = None,
                 known_as: tuple[str, ...] = ()) -> None:
        self.name, self.about, self.subject, self.known_as = name, about, subject, known_as
        self.examples, self.summary = examples, summary
        self.file = reference.file
        self.formulas: dict[str, Formula] = {}
        self._declared = (*(form.name for form in others), reference.name)
        self._forms: dict[str, Form[C, R]] = {}
        self._late = {form.name: form for form in others if isinstance(form, LateForm)}
        self._order: tuple[Form[C, R], ...] = ()
        self._adding = Lock()
        self._admitted: dict[Circumstances, tuple[tuple[Form[C, R], int | None], ...]] = {}
        self.forced: Form[C, R] | None = None
        self._seen: list[Decision] | None = None

        # Traced, what forms declare would be a fifth of all the compiler's instructions for a small model.
        @constant_to_compiler
        def traceable(device: str, dtype: torch.dtype, gradients: bool) -> tuple[int, ...]:
            self._load(device)
            now = (device, dtype, gradients, True, False)
            return tuple(index for index, form in enumerate(self._order) if hindrance(form, now, True) is None)

        self._traceable = traceable
        for form in (reference, *others):
            if isinstance(form, Form):
                self.add(form)

    def __call__(self, call: C, named: str | None = None) -> R:
        """Compute it.

        Args:
            named: the form to take, where a part's configuration names one; one that is `forced` comes before it.

        Raises:
            UnsupportedError: the form that was named or forced cannot serve the call.
        """
        if named is not None or self.forced is not None or self._seen is not None:
            return self._noted(call, named).run(call)
        subject: Tensor = getattr(call, self.subject)
        # The compiler would guard every entry of the dictionary, and chooses only once for all calls of a graph.
        if compiler_traces():
            return self._traced(call, subject)
        # `circumstances`, written out: each call saved counts in a step of one token. The flag is what
        # `torch.compiler.is_compiling` reads here, as in a non-strict `torch.export`.
        compiling = torch.compiler._is_compiling_flag
        now = (subject.device.type, subject.dtype, torch.is_grad_enabled(), compiling,
               not compiling and torch._C._are_functorch_transforms_active())
        admitted = self._admitted.get(now)
        if admitted is None:
            self._load(now[0])
            admitted = self._admitted[now] = tuple(
                (form, form.rows.get(now[1]) if isinstance(form.rows, Mapping) else form.rows)
                for form in self._order if hindrance(form, now, True) is None)
        for form, rows in admitted:
            if ((rows is None or subject.numel() <= rows * subject.shape[-1])
                    and (form.offer is None or form.offer.why_not is None)
                    and (form.worth is None or form.worth(call) is None)
                    and (form.serves is None or form.serves(call) is None)):
                kernel = form.kernel
                if kernel is None or torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state():
                    return form.run(call)
                for each in kernel.tensors(call):
                    # A view may stand for the negative of what lies in memory, which an operator is not shown.
                    if type(each) not in PLAIN or (each is not None and each.is_neg()):
                        return form.run(call)
                return kernel.run(call)
        raise AssertionError("the reference serves every call")

    def _traced(self, call: C, subject: Tensor) -> R:
        """Compute it where the compiler traces."""
        for index in self._traceable(subject.device.type, subject.dtype, torch.is_grad_enabled()):
            form = self._order[index]
            if _unfit(form, call, subject) is None:
                return form.run(call)
        raise AssertionError("the reference serves every call")

    def choose(self, call: C, named: str | None = None) -> Chosen[C, R]:
        """The form that would serve, and why; the arguments and the error are those of a call."""
        requested = self.form(named) if self.forced is None and named is not None else self.forced
        passed: list[tuple[Form[C, R], str]] = []
        if requested is not None:
            if self._first(call, (requested,), passed, worth=False) is None:
                raise self._cannot(requested, passed[0][1], call)
            return Chosen(requested, "named by the user")
        form = self._first(call, self.forms(), passed)
        assert form is not None, "the reference serves every call"
        return Chosen(form, form.about, tuple([f"{other.name}: {other.explain(why)}" for other, why in passed]))

    def form(self, name: str) -> Form[C, R]:
        """The form of that name. Raises `ConfigError`: there is none; the nearest is named."""
        if (late := self._late.get(name)) is not None:
            self.add(late.load())
        if name not in self._forms:
            hint = nearest_meaning(name, {each.name: each.known_as for each in self.forms()})
            raise ConfigError([f"kernels.{self.name}: no form is called {name!r}. {hint}"])
        return self._forms[name]

    def forms(self) -> tuple[Form[C, R], ...]:
        """All forms, in the order of preference; the reference is the last."""
        self._load(None)
        return self._order

    def _load(self, device: str | None) -> None:
        """Import the forms of a device; None: of all."""
        for form in list(self._late.values()):
            if device is None or form.device in (None, device):
                self.form(form.name)

    def can(self, form: Form[C, R], call: C) -> bool:
        """Whether a form can serve a call."""
        return self._first(call, (form,), None, worth=False) is not None

    def add(self, form: Form[C, R]) -> None:
        """Add a form. Those that the operation was not made with come first, in the order in which they were added; one
        from the same file as its namesake replaces that. Raises `ConfigError`: another file has defined a form of the
        name, or the reference would not serve every call."""
        late = self._late.get(form.name)
        other = self._forms.get(form.name) if late is None else late.load()
        if other is not None and other.file != form.file:
            raise ConfigError([f"the form {form.name!r} of {self.name!r} is defined by {other.file} and by "
                               f"{form.file}. Give one of them another name."])
        if form.name == REFERENCE and not form.unconditional():
            raise ConfigError([f"the reference of {self.name!r} must serve every call. Leave out its conditions."])
        if not self._forms and form.name != REFERENCE:
            raise ConfigError([f"the operation {self.name!r} begins with the form {form.name!r}. Its first form is the "
                               f"naive one, called {REFERENCE!r}."])
        if form.kernel is not None and (form.gradients != "without" or form.transformed):
            raise ConfigError([f"the form {form.name!r} of {self.name!r} has a kernel, through which no gradient "
                               "flows. Give it gradients='without' and transformed=False, or leave the kernel out."])
        with self._adding:
            self._forms[form.name] = form
            self.formulas.update(form.flops)
            self._order = tuple(sorted(self._forms.values(), key=lambda each: self._declared.index(each.name)
                                       if each.name in self._declared else -1))
            self._admitted.clear()
            self._late.pop(form.name, None)  # last: until here another thread's call imports the form itself

    def _first(self, call: C, forms: Sequence[Form[C, R]], passed: list[tuple[Form[C, R], str]] | None, *,
               worth: bool = True) -> Form[C, R] | None:
        """The first of the forms that can serve, and pays; those before it go to ``passed``, with why in short."""
        subject: Tensor = getattr(call, self.subject)
        now = circumstances(subject)
        for form in forms:
            why = hindrance(form, now, worth)
            if why is None and worth:
                why = _unfit(form, call, subject)
            elif why is None and form.serves is not None:
                why = form.serves(call)
            if why is None:
                return form
            if passed is not None:
                passed.append((form, why))
        return None

    def _noted(self, call: C, named: str | None) -> Form[C, R]:
        """The form for a call where one is named, or choices are observed."""
        form, reason, passed = self.choose(call, named)
        if self._seen is not None:
            sizes = tuple([tuple(each.shape) for each in tree_leaves(call) if isinstance(each, Tensor)])
            self._seen.append(Decision(self.name, form.name, reason, passed, sizes))
        return form

    def _cannot(self, form: Form[C, R], why: str, call: C) -> UnsupportedError:
        able = [each.name for each in self.forms() if self.can(each, call)]
        return UnsupportedError(f"the form {form.name!r} of {self.name!r} cannot serve this call: {form.explain(why)}.",
                                where=f"kernels.{self.name}", remedy=f"Those that can: {', '.join(able)}.")


def _unfit(form: Form[C, R], call: C, subject: Tensor) -> str | None:
    """Why a form that `hindrance` lets through is not chosen for a call; None where nothing is against it."""
    if form.serves is not None and (why := form.serves(call)) is not None:
        return why
    if form.offer is not None and form.offer.why_not is not None:
        return form.offer.why_not
    rows = form.rows.get(subject.dtype) if isinstance(form.rows, Mapping) else form.rows
    if rows is not None and subject.numel() > rows * subject.shape[-1]:
        return f"more than {rows} rows"
    return None if form.worth is None else form.worth(call)


__all__ = ["OPERATIONS", "REFERENCE", "Chosen", "Decision", "Form", "Formula", "Kernel", "LateForm", "Make", "Offer",
           "Operation", "Operations", "forced"]


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
