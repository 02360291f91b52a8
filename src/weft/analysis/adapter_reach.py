"""The reach of adapters: the share of a model's matrices, parameters and operations that have a trained term beside
them, by what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.flops import counted
from weft.analysis.shapes import shape_of
from weft.core.layer import label_modules
from weft.core.model import Model, trained_count
from weft.core.strict_json import Record
from weft.linear.linear import reads
from weft.linear.low_rank import Adapted, adapted_maps, rows_of
from weft.linear.quantised import matrix_of, quantised_matrices


@dataclass(frozen=True)
class Reached(Record):
    """The matrices, parameters and operations of the parts of one kind that adapters reach.

    Attributes:
        kind: the heading of the parts, as in the other tables of a plan; ``all`` for the whole model.
        matrices: matrices with an adapter beside them, or beside some of their rows.
        all_matrices: parameters of two dimensions or more, and quantised matrices; one that several parts share counts
            once.
        numbers: entries of the rows that have an adapter.
        all_numbers: parameters and entries of quantised matrices, without those of adapters.
        flops: share of the operations of the forward pass, without those of adapters, that are products with these
            rows; scores between all pairs of tokens count. 0 where a part has no operations.
    """

    kind: str
    matrices: int
    all_matrices: int
    numbers: int
    all_numbers: int
    flops: float

    def line(self) -> str:
        """All of it in a few words."""
        share = self.numbers / self.all_numbers if self.all_numbers else 0.0
        return (f"{self.kind} {self.matrices:,} of {self.all_matrices:,} matrices, {share:.1%} of parameters, "
                f"{self.flops:.1%} of operations")


@dataclass(frozen=True)
class Coverage(Record):
    """The reach of a model's adapters, by kind of part.

    Attributes:
        kinds: what they reach of each kind of part that has parameters, the whole model last.
        trained: parameters that training changes, those of adapters and further ones.
        total: all parameters, those of adapters included.
    """

    kinds: tuple[Reached, ...]
    trained: int
    total: int

    def line(self) -> str:
        """All of it in one line."""
        some = [each.line() for each in (self.kinds[-1], *self.kinds[:-1]) if each.matrices]
        others = ", ".join(each.kind for each in self.kinds if not each.matrices)
        return (f"adapters: {self.trained:,} of {self.total:,} parameters train ({self.trained / self.total:.2%}); "
                f"reached of {'; '.join(some)}{f'; not reached: {others}' if others else ''}")


def coverage(model: Model, context: int | None = None) -> Coverage | None:
    """The reach of a model's adapters; None where it has none. The model is copied to tensors without storage, and runs
    there.

    Args:
        context: tokens of a row; None: the model's.
    """
    if not adapted_maps(model):
        return None
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return coverage_of(shape_of(model, mode, None), mode, model.config.context if context is None else context)


def coverage_of(model: Model, mode: FakeTensorMode, context: int) -> Coverage:
    """`coverage` of a model of fake tensors, as `shape_of` returns it."""
    flops = counted(model, mode, context, None).flops
    labels = label_modules(model)
    adapted = adapted_maps(model)
    kinds: dict[str, list[float]] = {}
    owners = dict[int, str]()
    for kind, key, numbers, matrix in _matrices(model, labels, adapted):
        owners[key] = kind
        found = kinds.setdefault(kind, [0.0] * 6)
        found[1] += matrix
        found[3] += numbers
    flops = {**flops, **_of_readers(model, adapted, flops)}
    for path, count in flops.items():
        if path not in adapted:  # whose own operations are those of its term
            kinds.setdefault(labels[path] or path or "other", [0.0] * 6)[5] += count
    for path, module in adapted.items():
        share = _rows(module) / module.out_features
        found = kinds[owners[id(matrix_of(module.base))]]
        found[0] += 1
        found[2] += _rows(module) * module.in_features
        holder = path.rpartition(".")[0]
        kinds[labels[holder if _reads(model, path) else path] or path][4] += share * (
            flops.get(holder, 0) if _reads(model, path) else sum(
                count for place, count in flops.items() if f"{place}.".startswith(f"{path}.base.")))
    whole = [sum(each) for each in zip(*kinds.values(), strict=True)]
    return Coverage(tuple(_reached(kind, found) for kind, found in {**kinds, "all": whole}.items()),
                    trained_count(model), sum(p.numel() for p in model.parameters()))


def _reached(kind: str, found: list[float]) -> Reached:
    matrices, every, numbers, total = map(int, found[:4])
    return Reached(kind, matrices, every, numbers, total, found[4] / found[5] if found[5] else 0.0)


def _matrices(model: Model, labels: dict[str, str], adapted: dict[str, Adapted]) -> Iterator[
        tuple[str, int, int, bool]]:
    """The kind, identity and size of each parameter and each quantised matrix, and whether it is a matrix."""
    own = {id(p) for module in adapted.values() for p in module.trained()}
    for path, parameter in model.named_parameters():
        if id(parameter) not in own:
            kind = labels[path.rpartition(".")[0]] or path
            yield kind, id(parameter), parameter.numel(), parameter.dim() > 1
    for path, module in quantised_matrices(model).items():
        yield labels[path] or path, id(module), module.in_features * module.out_features, True


def _reads(model: nn.Module, path: str) -> bool:
    """Whether the part around a map reads its matrix and computes the products itself."""
    return reads(model.get_submodule(path.rpartition(".")[0]))


def _of_readers(model: nn.Module, adapted: Mapping[str, Adapted], flops: Mapping[str, int]) -> dict[str, int]:
    """The operations of such parts, by path, without those that make the matrix of an adapter's term."""
    found = {}
    for path, module in adapted.items():
        if _reads(model, path):
            holder = path.rpartition(".")[0]
            first, second = module.factors()
            found[holder] = flops.get(holder, 0) - 2 * second.numel() * first.shape[1]
    return found


def _rows(module: Adapted) -> int:
    """How many rows of a matrix have an adapter."""
    rows = rows_of(module.base)
    return sum(len(range(module.out_features)[rows.get(name, slice(None))]) for name in module.terms())
