"""One way to compute an operation, and what keeps it from a call by what it declares."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from types import FunctionType
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from weft.core.errors import ConfigError
from weft.ops.operator import transformed

C = TypeVar("C")
R = TypeVar("R")
REFERENCE = "reference"
PLAIN = frozenset({Tensor, nn.Parameter, type(None)})
"""Types of tensors whose numbers lie at the address that they give; those of other subclasses may lie anywhere."""
Formula = Callable[..., int]
Rule = Callable[[C], str | None]
Circumstances: TypeAlias = tuple[str, torch.dtype, bool, bool, bool]
"""Of a call: device and dtype of the subject, whether gradients are recorded, whether `torch.compile` traces, whether
a transform of `torch.func` is at work. What a form declares of itself depends on nothing else."""


class Make(Protocol):
    """Makes the tensors of an example: random numbers that require a gradient."""

    def __call__(self, *shape: int) -> Tensor: ...


class Offer:
    """Whether a form pays at all, for as long as something outside of calls does not change.

    Attributes:
        why_not: why it does not, in words; None: it does. Whatever it depends on sets it.
    """

    def __init__(self, why_not: str | None) -> None:
        self.why_not = why_not


class Kernel(Generic[C, R]):
    """A function that computes a call by addresses alone, without the operator that it is to PyTorch: starting an
    operator takes longer than a small product, and two functions of Python's. It is taken where nothing observes
    operators (a tape, a count of operations, a trace) and no tensor is of a subclass that computes otherwise.

    Args:
        run: a function of one call, with the results of the form's own.
        tensors: the fields of a call whose addresses it takes, at least two, some with dots (``by.cos``). What they
            hold may be None.
    """

    def __init__(self, run: Callable[[C], R], *tensors: str) -> None:
        self.run, self.tensors = run, attrgetter(*tensors)


@dataclass(frozen=True)
class Form(Generic[C, R]):
    """One way to compute an operation.

    Attributes:
        name: by which it is forced.
        run: a plain function of one call.
        about: how it computes, in some 45 letters.
        devices: kinds of device it runs on; None: any.
        dtypes: of the operation's subject; None: any.
        gradients: "with": for calls whose gradients are recorded, "without": for the others, "any": for both.
        compiled: whether it is chosen where `torch.compile` traces; False: only where it is named there.
        eager: whether it is chosen elsewhere; False: only where it is named there.
        pays_for: dtypes of the subject for which it is chosen where it is not named; None: any.
        transformed: whether the transforms of `torch.func` have derivatives of it.
        serves: returns why it cannot serve a call, in some 40 letters, or None where it can. A function of shapes,
            dtypes, devices and plain facts alone.
        rows: vectors of the subject, along its last dimension, up to which it pays, or these by the subject's dtype;
            None: any number.
        worth: returns why another form is faster for a call that this one can serve; called only where no form is
            named.
        offer: whether it pays at all at present, considered as ``worth`` is, and without a call; None: always.
        flops: what calls of its own operators cost, by name (``weft.elman_scan``), from their positional arguments.
        known_as: other words for it, for the hint that an unknown name gets.
        kernel: what runs in place of ``run`` where nothing observes operators; only for calls without gradients, and
            not under transforms.
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
    rows: int | Mapping[torch.dtype, int] | None = None
    worth: Rule[C] | None = None
    offer: Offer | None = None
    flops: Mapping[str, Formula] = field(default_factory=dict)
    known_as: tuple[str, ...] = ()
    kernel: Kernel[C, R] | None = None

    @property
    def file(self) -> str:
        """The file of the function: it distinguishes a form that is loaded again from another one of its name."""
        if not isinstance(self.run, FunctionType):
            raise ConfigError([f"the form {self.name!r} runs {self.run!r}, which is not a plain function. Write one "
                               "with def."])
        return self.run.__code__.co_filename

    def unconditional(self) -> bool:
        """Whether it declares that it serves every call, as a reference must."""
        return not (self.devices or self.dtypes or self.pays_for or self.serves or self.rows or self.worth or self.offer
                    ) and self.gradients == "any" and self.compiled and self.eager and self.transformed

    def explain(self, why: str) -> str:
        """The reason in words, of one that `hindrance` gives in short."""
        declared = {"devices": ("it runs only on", self.devices), "dtypes": ("it runs only in", self.dtypes),
                    "pays_for": ("it is faster only in", self.pays_for)}
        if why in declared:
            words, things = declared[why]
            return f"{words} {' or '.join(sorted(map(str, things or ())))}".replace("torch.", "")
        known = {"gradients": f"it runs only {self.gradients} gradients", "compiler": "it is slower in torch.compile",
                 "eager": "it is slower outside torch.compile", "transforms": "torch.func cannot transform it"}
        return known.get(why, why)


class LateForm(NamedTuple):
    """A form in a module of its own, which is imported when a call could take it.

    Attributes:
        name: by which it is forced.
        place: of the form, a module and a name in it.
        device: the kind of device that it runs on; None: any.
    """

    name: str
    place: str
    device: str | None = "cpu"

    def load(self) -> Form[Any, Any]:
        """The form."""
        module, _, name = self.place.rpartition(".")
        found: Form[Any, Any] = getattr(importlib.import_module(module), name)
        return found


def circumstances(subject: Tensor) -> Circumstances:
    """Those of a call with this subject."""
    return (subject.device.type, subject.dtype, torch.is_grad_enabled(), torch.compiler.is_compiling(), transformed())


def hindrance(form: Form[Any, Any], now: Circumstances, worth: bool) -> str | None:
    """Why a form is not chosen in these circumstances, in short, by what it declares; None where nothing is against it.

    It reads nothing else, since `Operation` stores the answer for each of the circumstances.
    """
    device, dtype, gradients, compiling, transforms = now
    # One condition after the other: the compiler traces this for every form of every call, and would take four times
    # as many instructions for a list of all the answers.
    if form.devices is not None and device not in form.devices:
        return "devices"
    if form.dtypes is not None and dtype not in form.dtypes:
        return "dtypes"
    if form.gradients != "any" and (form.gradients == "with") is not gradients:
        return "gradients"
    if worth and compiling and not form.compiled:
        return "compiler"
    if worth and not compiling and not form.eager:
        return "eager"
    if worth and form.pays_for is not None and dtype not in form.pays_for:
        return "pays_for"
    return "transforms" if transforms and not form.transformed else None
