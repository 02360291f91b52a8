"""How a run computes: matrix products, threads, compilation. Chosen once, before the first step, and recorded, so that
a resumed run computes as it did before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import torch
from pydantic import field_validator
from pydantic_core import PydanticCustomError

from weft.analysis.arithmetic import threads_set
from weft.analysis.matmul import chosen_once
from weft.core.errors import CheckpointError, ConfigError, UnsupportedError
from weft.core.part_config import Settings
from weft.core.strict_json import Record
from weft.ops.linear import ONEDNN, Product, routed
from weft.ops.processor import processor_name
from weft.ops.products import PRODUCT
from weft.ops.triton.library import why_not as triton_lacks

Route = Literal["default", "onednn", "measured"]
Compiled: TypeAlias = bool | Literal["blocks"]
COMPILED = frozenset({True, "blocks"})  # on any device
MEASURED_DTYPES = frozenset({torch.float32, torch.bfloat16})
RECORD = "run.json: compute"


class ComputeSettings(Settings):
    """How a run is to be computed. Only the last bits of its weights depend on it.

    Attributes:
        matmul: library of the matrix products of linear maps on a CPU. "default": PyTorch's choice; "onednn": oneDNN's
            own call; "auto": for each product of the model, forward and backward, whichever a short measurement on its
            shape has found to be the fastest of those as exact as PyTorch's. It is measured once on a machine and kept
            in the cache.
        routes: result of an earlier measurement, as run.json records it, which "auto" uses instead of the cache's.
        compile: what `torch.compile` compiles. true: the whole forward and backward pass, which takes half a minute
            once; "blocks": each block of the model, equal ones once, which takes a few seconds; false: nothing; "auto":
            blocks on a GPU, nothing elsewhere.
        checkpoint_activations: keep only the input of each block and compute the block again in the backward pass:
            less memory for a third more work, with the same gradients.
        repeatable: on a GPU, compute the same bits each time: PyTorch takes some sums in the order in which threads
            finish unless this is required, which can cost speed. An operation that has no such form is an error, and
            false allows it; a resumed run then follows the uninterrupted one only to within rounding.
    """

    matmul: Literal["auto", "default", "onednn"] = "auto"
    routes: dict[str, str] | None = None
    compile: bool | Literal["auto", "blocks"] = "auto"
    checkpoint_activations: bool = False
    repeatable: bool = True

    @field_validator("routes")
    @classmethod
    def _known_routes(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        wrong = [f"{product}: {route}" for product, route in (value or {}).items() if not _readable(product, route)]
        if wrong:
            raise PydanticCustomError("weft_rule", "{what}", {
                "what": f"{wrong[0]!r} is not a product and its route. Copy them from the record of a run, run.json."})
        return value


@dataclass(frozen=True)
class Compute(Record):
    """The conditions that decide the last bits of a run besides its configuration.

    Attributes:
        matmul: how the products of linear maps are routed.
        threads: that torch computes with.
        compile: what is compiled: the forward and backward pass as a whole, the blocks, or nothing.
        processor: its name, as the operating system gives it.
        device: such as "cpu" or "cuda".
        routes: the measured products for which PyTorch's own choice is not the fastest, with the form that is.
        repeatable: whether a GPU must compute the same bits each time.
    """

    matmul: Route
    threads: int
    compile: Compiled
    torch_version: str
    processor: str
    device: str
    routes: tuple[tuple[str, str], ...] = ()
    repeatable: bool = True

    @staticmethod
    def choose(settings: ComputeSettings, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu",
               products: Callable[[], Iterable[Product]] = tuple,
               tell: Callable[[str], object] = lambda _: None, alike: bool = True) -> Compute:
        """Resolve the settings on this machine. With "auto", this times the products whose routes it does not keep yet,
        which takes a moment.

        Args:
            dtype: what the model computes in.
            device: where it computes; routes differ only on a CPU.
            products: returns those of a training step; called only where they have routes.
            tell: called with a sentence where routes cannot be kept.
            alike: whether all steps have tensors of one shape and train the same parameters, as "auto" compiles them.

        Raises:
            ConfigError: the settings name oneDNN, and this PyTorch is built without it.
        """
        place = torch.device(device).type
        matmul: Route = settings.matmul if settings.matmul != "auto" else "default"
        routes: dict[str, str] = {}
        if settings.matmul == "onednn":
            _require_onednn()
        elif settings.matmul == "auto" and place == "cpu" and dtype in MEASURED_DTYPES:
            routes = settings.routes if settings.routes is not None else {
                str(product): route for product, route in chosen_once(products(), tell).items()}
            matmul = "measured" if routes else "default"
        automatic: Compiled = "blocks" if place == "cuda" and alike and triton_lacks() is None else False
        return Compute(matmul, torch.get_num_threads(), automatic if settings.compile == "auto" else settings.compile,
                       str(torch.__version__), processor_name(), place, tuple(sorted(routes.items())),
                       settings.repeatable)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """A context in which torch computes so; its settings are restored afterwards."""
        known = {Product.parse(product): route for product, route in self.routes}
        with (threads_set(self.threads), same_bits() if self.device == "cuda" and self.repeatable else nullcontext(),
              nullcontext() if self.matmul == "default" else routed(
                  known, otherwise=ONEDNN if self.matmul == "onednn" else None)):
            yield

    def require_here(self, *, device: torch.device | str = "cpu") -> None:
        """Check that this machine can go on with what was recorded on the machine of the first step.

        Raises:
            UnsupportedError: processor, version of torch or kind of device differ; the message names them.
            ConfigError: the run used oneDNN, and this PyTorch is built without it.
        """
        here = {"torch_version": torch.__version__, "processor": processor_name(), "device": torch.device(device).type}
        changed = [f"{name} {getattr(self, name)!r} (here {now!r})" for name, now in here.items()
                   if getattr(self, name) != now]
        if changed:
            raise UnsupportedError(f"the run began with {', '.join(changed)}, so it cannot go on to the same weights.",
                                   where=RECORD, remedy="Resume it where it began, or start a run in another folder.")
        if self.matmul == "onednn":
            _require_onednn()

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads."""
        return {**super().to_json(), "routes": dict(self.routes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the output of `to_json`. Raises `CheckpointError`: the record lacks a field, or a field has another
        type."""
        kinds: dict[str, type] = {"matmul": str, "threads": int, "torch_version": str, "processor": str, "device": str}
        wrong = [name for name, kind in kinds.items() if type(data.get(name)) is not kind]
        if type(data.get("compile")) is not bool and data.get("compile") != "blocks":
            wrong.append("compile")
        if data.get("matmul") not in ("default", "onednn", "measured") and "matmul" not in wrong:
            wrong.append("matmul")
        routes: dict[str, Any] = data["routes"] if isinstance(data.get("routes"), dict) else {"": None}
        if not all(_readable(*each) for each in routes.items()):
            wrong.append("routes")
        if wrong:
            raise CheckpointError(f"cannot be read: {', '.join(wrong)}.", where=RECORD,
                                  remedy="Start the run again in another folder.")
        return cls(**{name: data[name] for name in (*kinds, "compile")}, routes=tuple(sorted(routes.items())),
                   repeatable=data.get("repeatable") is not False)


@contextmanager
def same_bits() -> Iterator[None]:
    """A context in which CUDA computes the same bits each time: sums that PyTorch takes in the order in which threads
    finish are taken in a fixed order. cuBLAS reads its own setting when it is first called in a process. Raises
    `UnsupportedError`: an operation has no such form."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    on, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic  # a module whose one setting is a property
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False
    try:
        yield
    except RuntimeError as error:
        if "does not have a deterministic implementation" not in str(error):
            raise
        raise UnsupportedError(f"{str(error).split(',')[0]}.", where="training.compute.repeatable",
                               remedy="Set it to false, and a resumed run follows the uninterrupted one only to within "
                               "rounding, or train on a CPU.") from None
    finally:
        torch.use_deterministic_algorithms(on, warn_only=warns)
        memory.fill_uninitialized_memory = filled


def _require_onednn() -> None:
    if not torch.backends.mkldnn.is_available():
        raise ConfigError(["training.compute.matmul: 'onednn', and this PyTorch is built without it. Use 'auto' or "
                           "'default'."])


def _readable(product: object, route: object) -> bool:
    """Whether a product and a route have the form in which a run's record holds them."""
    try:
        Product.parse(str(product))
    except ValueError:
        return False
    return route in {form.name for form in PRODUCT.forms()}
