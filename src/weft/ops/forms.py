"""Operations that are computed in several ways: one registry, one chooser.

An `Operation` has a naive form, called ``reference``, which is the truth, and others that are held to it. A `Form`
says where it can serve; `Operation.choose` takes one of those that can, and gives the reason. Neither ever reads a
tensor: shapes, dtypes, devices and plain facts are all there is to go by. The order of preference stands in
``thresholds.json``. `forced` names the form to take.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from weft.core.compiling import compiler_traces
from weft.core.errors import ConfigError, UnsupportedError, nearest
from weft.ops.operator import Offer, transformed
from weft.ops.thresholds import order_of

C = TypeVar("C")
R = TypeVar("R")
REFERENCE = "reference"
Formula = Callable[..., int]
Rule = Callable[[C], str | None]
Circumstances: TypeAlias = tuple[str, torch.dtype, bool, bool, bool]
"""Of a call: device and dtype of the subject, whether gradients are recorded, whether `torch.compile` traces, whether
a transform of `torch.func` is at work. What a form declares of itself depends on nothing else."""


class Make(Protocol):
    """Makes the tensors of an example: random numbers that require a gradient."""

    def __call__(self, *shape: int) -> Tensor: ...


@final
@dataclass(frozen=True)
class Form(Generic[C, R]):
    """One way to compute an operation.

    Attributes:
        name: by which it is forced.
        run: a plain function of one call.
        about: how it computes, in a line.
        devices: kinds of device it runs on; None: any.
        dtypes: of the operation's subject; None: any.
        gradients: "with": for calls whose gradients are recorded, "without": for the others, "any": for both.
        compiled: whether it is taken where `torch.compile` traces; False: only where it is named there.
        eager: whether it is taken elsewhere; False: only where it is named there.
        pays_for: dtypes of the subject for which it is taken where it is not named; None: any.
        transformed: whether the transforms of `torch.func` know its derivatives.
        serves: why it cannot serve a call, in words; None: it can. From shapes, dtypes, devices and plain facts alone.
        worth: why it does not pay for a call that it can serve; asked only where no form is named.
        offer: whether it pays at all as things stand, asked like ``worth`` and without a call; None: always.
        flops: what calls of its own operators cost, by name (``weft.elman_scan``), from their positional arguments.
        known_as: other words for it, for the hint that an unknown name gets.
    """

    name: str
    run: Callable[[C], R]
    about: str
    devices: frozenset[str] | None = None
    dtypes: frozenset[torch.dtype] | None = None
    gradients: Literal["any", "with", "without"] = "any"
    compiled: bool = True
    eager: bool = True
    pays_for: frozenset[torch.dtype] | None = None
    transformed: bool = True
    serves: Rule[C] | None = None
    worth: Rule[C] | None = None
    offer: Offer | None = None
    flops: Mapping[str, Formula] = field(default_factory=dict)
    known_as: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Of the function: what tells a form that is loaded again from another one of its name."""
        if not isinstance(self.run, FunctionType):
            raise ConfigError([f"the form {self.name!r} runs {self.run!r}, which is not a plain function. Write one "
                               "with def."])
        return self.run.__code__.co_filename

    def explain(self, why: str) -> str:
        """A reason in words, of one that the chooser gives in short."""
        known = {"devices": f"it runs on {_listed(self.devices or ())}",
                 "dtypes": f"it computes in {_listed(str(each).removeprefix('torch.') for each in self.dtypes or ())}",
                 "gradients": f"it is for calls {self.gradients} gradients",
                 "compiler": "the compiler makes kernels of plain operators itself",
                 "eager": "outside torch.compile it would be slow",
                 "pays_for": f"it pays in {_listed(str(each).removeprefix('torch.') for each in self.pays_for or ())}",
                 "transforms": "the transforms of torch.func take plain operators"}
        return known.get(why, why)


class Chosen(NamedTuple, Generic[C, R]):
    """The form that serves a call, and the reason why it is this one."""

    form: Form[C, R]
    reason: str


class Decision(NamedTuple):
    """What was chosen for a call while `Operations.observed` was on."""

    operation: str
    form: str
    reason: str
    sizes: tuple[tuple[int, ...], ...]
    """Shapes of the call's tensors, in their order."""


class Operation(Generic[C, R]):
    """Something that is computed in several ways. A call of it runs the form that is chosen.

    Args:
        name: by which ``kernels`` names it.
        about: what it computes, in a line.
        reference: the naive form, which serves every call.
        others: the other forms.
        subject: the field of a call that holds the tensor whose device and dtype decide.
        examples: calls of every kind that forms tell apart, at lengths past their borders; every form is held to the
            reference on those it can serve.
        summary: of a random operation what is compared in place of its results, and how far it may be off.
        known_as: other words for it.
    """

    def __init__(self, name: str, about: str, reference: Form[C, R], *others: Form[C, R], subject: str,
                 examples: Callable[[Make], Iterable[C]], summary: tuple[Callable[[C, R], Tensor], float] | None = None,
                 known_as: tuple[str, ...] = ()) -> None:
        self.name, self.about, self.subject, self.known_as = name, about, subject, known_as
        self.examples, self.summary = examples, summary
        self.file = reference.file
        self._forms: dict[str, Form[C, R]] = {}
        self._order: tuple[Form[C, R], ...] = ()
        self._admitted: dict[Circumstances, tuple[Form[C, R], ...]] = {}
        self._forced: Form[C, R] | None = None
        self._seen: list[Decision] | None = None
        for form in (reference, *others):
            self.add(form)

    def __call__(self, call: C, named: str | None = None) -> R:
        """Compute it.

        Args:
            call: what to compute.
            named: the form to take, where a part's configuration names one; one that is `forced` comes before it.

        Raises:
            UnsupportedError: the form that was named or forced cannot serve the call.
        """
        if named is not None or self._forced is not None or self._seen is not None:
            return self._noted(call, named).run(call)
        # The compiler would guard what is remembered; it asks once and for all anyway.
        if compiler_traces():
            form = self._first(call, self._order, None)
            assert form is not None, "the reference serves every call"
            return form.run(call)
        subject: Tensor = getattr(call, self.subject)
        compiling = torch.compiler._is_compiling_flag  # what `is_compiling` reads here, as in a non-strict export
        now = (subject.device.type, subject.dtype, torch.is_grad_enabled(), compiling,
               not compiling and torch._C._are_functorch_transforms_active())
        admitted = self._admitted.get(now)
        if admitted is None:
            admitted = self._admitted[now] = tuple(form for form in self._order if _hindrance(form, now, True) is None)
        for form in admitted:
            if ((form.offer is None or form.offer.why_not is None)
                    and (form.worth is None or form.worth(call) is None)
                    and (form.serves is None or form.serves(call) is None)):
                return form.run(call)
        raise AssertionError("the reference serves every call")

    def choose(self, call: C, named: str | None = None) -> Chosen[C, R]:
        """The form that would serve, and why; the arguments and the error are those of a call."""
        wanted = self.form(named) if self._forced is None and named is not None else self._forced
        passed: list[tuple[Form[C, R], str]] = []
        if wanted is not None:
            if self._first(call, (wanted,), passed, worth=False) is None:
                raise self._cannot(wanted, passed[0][1], call)
            return Chosen(wanted, "named by the user")
        form = self._first(call, self._order, passed)
        assert form is not None, "the reference serves every call"
        others = "; ".join(f"not {other.name}: {other.explain(why)}" for other, why in passed)
        return Chosen(form, f"{form.about}{f' ({others})' if others else ''}")

    def form(self, name: str) -> Form[C, R]:
        """The form of that name.

        Raises:
            ConfigError: there is none; the nearest is named.
        """
        if name not in self._forms:
            raise ConfigError([f"kernels.{self.name}: no form is called {name!r}. {_hint(name, self.forms())}"])
        return self._forms[name]

    def forms(self) -> tuple[Form[C, R], ...]:
        """All forms, in the order in which they are asked; the reference is the last."""
        return self._order

    def can(self, form: Form[C, R], call: C) -> bool:
        """Whether a form can serve a call."""
        return self._first(call, (form,), None, worth=False) is not None

    def add(self, form: Form[C, R]) -> None:
        """One more form. Those that the file of thresholds does not name are asked first, in the order in which they
        came; one from the same file as its namesake replaces that.

        Raises:
            ConfigError: another file has defined a form of the name, or the reference would not serve every call.
        """
        other = self._forms.get(form.name)
        if other is not None and other.file != form.file:
            raise ConfigError([f"the form {form.name!r} of {self.name!r} is defined by {other.file} and by "
                               f"{form.file}. Give one of them another name."])
        if form.name == REFERENCE and (form.devices or form.dtypes or form.pays_for or form.serves or form.worth
                                       or form.offer or form.gradients != "any"
                                       or not (form.compiled and form.eager and form.transformed)):
            raise ConfigError([f"the reference of {self.name!r} must serve every call. Leave out its conditions."])
        if not self._forms and form.name != REFERENCE:
            raise ConfigError([f"the operation {self.name!r} begins with the form {form.name!r}. Its first form is the "
                               f"naive one, called {REFERENCE!r}."])
        self._forms[form.name] = form
        order = [*(name for name in order_of(self.name) if name != REFERENCE), REFERENCE]
        self._order = tuple(sorted(self._forms.values(), key=lambda each: order.index(each.name)
                                   if each.name in order else -1))
        self._admitted.clear()

    def _first(self, call: C, forms: Sequence[Form[C, R]], passed: list[tuple[Form[C, R], str]] | None, *,
               worth: bool = True) -> Form[C, R] | None:
        """The first of the forms that can serve, and pays; those before it go to ``passed``, with why in short."""
        subject: Tensor = getattr(call, self.subject)
        now = (subject.device.type, subject.dtype, torch.is_grad_enabled(), torch.compiler.is_compiling(),
               transformed())
        for form in forms:
            why = _hindrance(form, now, worth)
            if why is None and form.serves is not None:
                why = form.serves(call)
            if why is None and worth:
                why = None if form.offer is None else form.offer.why_not
                why = form.worth(call) if why is None and form.worth is not None else why
            if why is None:
                return form
            if passed is not None:
                passed.append((form, why))
        return None

    def _noted(self, call: C, named: str | None) -> Form[C, R]:
        """The form for a call where one is named, or choices are observed."""
        form, reason = self.choose(call, named)
        if self._seen is not None:
            sizes = tuple(tuple(each.shape) for each in tree_leaves(call) if isinstance(each, Tensor))
            self._seen.append(Decision(self.name, form.name, reason, sizes))
        return form

    def _cannot(self, form: Form[C, R], why: str, call: C) -> UnsupportedError:
        able = [each.name for each in self._order if self.can(each, call)]
        return UnsupportedError(f"the form {form.name!r} of {self.name!r} cannot serve this call: {form.explain(why)}.",
                                where=f"kernels.{self.name}", remedy=f"Those that can: {', '.join(able)}.")


def _hindrance(form: Form[Any, Any], now: Circumstances, worth: bool) -> str | None:
    """Why a form is not taken in these circumstances, in short, by what it declares. It may read nothing else: the
    result is remembered for them."""
    device, dtype, gradients, compiling, transforms = now
    hindrances = (("devices", form.devices is not None and device not in form.devices),
                  ("dtypes", form.dtypes is not None and dtype not in form.dtypes),
                  ("gradients", form.gradients != "any" and (form.gradients == "with") is not gradients),
                  ("compiler", worth and compiling and not form.compiled),
                  ("eager", worth and not compiling and not form.eager),
                  ("pays_for", worth and form.pays_for is not None and dtype not in form.pays_for),
                  ("transforms", transforms and not form.transformed))
    for why, hinders in hindrances:
        if hinders:
            return why
    return None


@final
class Operations:
    """Every operation by name."""

    def __init__(self) -> None:
        self._known: dict[str, Operation[Any, Any]] = {}
        self._discovered = False

    def add(self, operation: Operation[C, R]) -> Operation[C, R]:
        """Make an operation known; one from the same file as its namesake replaces that.

        Raises:
            ConfigError: another file has defined an operation of the name.
        """
        other = self._known.get(operation.name)
        if other is not None and other.file != operation.file:
            raise ConfigError([f"the operation {operation.name!r} is defined by {other.file} and by {operation.file}. "
                               "Give one of them another name."])
        self._known[operation.name] = operation
        return operation

    def get(self, name: str) -> Operation[Any, Any]:
        """The operation of that name.

        Raises:
            ConfigError: there is none; the nearest is named.
        """
        known = self.all()
        if name not in self._known:
            raise ConfigError([f"kernels.{name}: no operation is called {name!r}. {_hint(name, known)}"])
        return self._known[name]

    def all(self) -> tuple[Operation[Any, Any], ...]:
        """Every operation, by name."""
        if not self._discovered:
            self._discovered = True
            package = importlib.import_module("weft.ops")
            for info in pkgutil.iter_modules(package.__path__, prefix="weft.ops."):
                importlib.import_module(info.name)
        return tuple(self._known[name] for name in sorted(self._known))

    def formula(self, operator: str) -> Formula | None:
        """What a call of an operator costs, where one of the forms says it."""
        return next((form.flops[operator] for operation in self._known.values() for form in operation.forms()
                     if operator in form.flops), None)

    def problems(self, kernels: Mapping[str, str]) -> list[tuple[str, str]]:
        """What is wrong with ``kernels``: each operation concerned, and what is wrong with its name or its form's."""
        found = []
        for name, form in kernels.items():
            try:
                self.get(name).form(form)
            except ConfigError as error:
                found.append((name, error.problems[0].split(": ", 1)[1]))
        return found

    def resolved(self, kernels: Mapping[str, str]) -> list[tuple[Operation[Any, Any], Form[Any, Any]]]:
        """The forms that ``kernels`` names.

        Raises:
            ConfigError: names that are not known, all at once.
        """
        problems = self.problems(kernels)
        if problems:
            raise ConfigError(f"kernels.{name}: {what}" for name, what in problems)
        return [(self.get(name), self.get(name).form(form)) for name, form in kernels.items()]

    @contextmanager
    def observed(self) -> Iterator[list[Decision]]:
        """Inside, every choice is put down in the list."""
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
    before = [operation._forced for operation, _ in chosen]
    for operation, form in chosen:
        operation._forced = form
    try:
        yield
    finally:
        for (operation, _), value in zip(chosen, before, strict=True):
            operation._forced = value


def _hint(name: str, known: Iterable[Operation[Any, Any] | Form[Any, Any]]) -> str:
    """The nearest name, by spelling or by another word for the same."""
    words = {word: each.name for each in known for word in (each.name, *each.known_as)}
    close = nearest(name, words)
    canonical = next((words[word] for word in words if close == f"Did you mean {word!r}?"), None)
    return nearest(name, set(words.values())) if canonical is None else f"Did you mean {canonical!r}?"


def _listed(words: Iterable[str]) -> str:
    return " or ".join(sorted(words)) + " alone"
