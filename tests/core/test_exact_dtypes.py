"""What a part needs exact stays in float32 or wider on every road: casts, shared and rewritten tensors, files, plans,
training. What it says has a dtype of its own keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrize

import weft
from weft.analysis.memory import weight_bytes
from weft.analysis.shapes import shape_of
from weft.checkpoints import load_checkpoint, save_checkpoint
from weft.checkpoints.layout import MODEL_FILE
from weft.checkpoints.tensors import read_tensors, write_tensors
from weft.core.config import parse_part
from weft.core.declarations import Declared
from weft.core.layer import Part, Pointwise, kept_dtypes
from weft.disk.manifest import MANIFEST_FILE, write_manifest
from weft.positions.frequencies import Constant
from weft.training.precision import Precision, narrowed

CASTS: dict[str, Any] = {
    "to": lambda module: module.to(torch.bfloat16), "bfloat16": lambda module: module.bfloat16(),
    "half": lambda module: module.half(), "twice": lambda module: module.double().half()}


class Decay(Pointwise):
    """y = exp(-exp(rate)) x + w x."""

    def __init__(self, rate: nn.Parameter | None = None) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.randn(3)) if rate is None else rate
        self.register_buffer("angle", torch.randn(3, dtype=torch.complex64))
        self.w = nn.Parameter(torch.randn(3))

    def declares(self) -> Declared:
        return Declared(dynamics=(self.rate,), exact=(self.rate, self.get_buffer("angle")))

    def each(self, x: Tensor) -> Tensor:
        return (torch.exp(-torch.exp(self.rate)) * x + self.w * x).to(x.dtype)


class Counts(Part):
    """A part with a tensor of a dtype of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(2, dtype=torch.float64))

    def declares(self) -> Declared:
        return Declared(same_dtype=(self.get_buffer("table"),))


class Borrower(nn.Module):
    """A plain module that holds somebody else's parameter, and a weight of its own."""

    def __init__(self, lent: nn.Parameter) -> None:
        super().__init__()
        self.lent, self.own = lent, nn.Parameter(torch.randn(2))


class Home(Part):
    """A part that holds what it is given, in the order in which it is given."""

    def __init__(self, *inside: nn.Module) -> None:
        super().__init__()
        self.inside = nn.ModuleList(inside)


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
@pytest.mark.parametrize("turned", [False, True], ids=["owner first", "borrower first"])
def test_a_shared_parameter_is_as_exact_as_any_of_its_owners_needs(cast: Any, turned: bool) -> None:
    owner = Decay()
    borrower, other = Borrower(owner.rate), Decay(owner.rate)
    wanted = owner.rate.detach().clone()
    home = cast(Home(*([borrower, owner, other] if turned else [owner, other, borrower])))
    assert owner.rate is borrower.lent is other.rate
    assert owner.rate.dtype == torch.float32 and torch.equal(owner.rate, wanted)
    assert {borrower.own.dtype, owner.w.dtype} <= {torch.bfloat16, torch.float16}
    assert len(list(home.parameters())) == 4


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_complex_tensors_keep_both_their_parts(cast: Any) -> None:
    part = Decay()
    wanted = part.get_buffer("angle").clone()
    cast(part)
    assert part.get_buffer("angle").dtype == torch.complex64 and torch.equal(part.get_buffer("angle"), wanted)
    assert Decay().double().get_buffer("angle").dtype == torch.complex128


class Softened(nn.Module):
    """A parametrisation."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x


def test_what_an_exact_parameter_is_made_of_is_as_exact() -> None:
    part = Decay()
    parametrize.register_parametrization(part, "rate", Softened())
    parametrize.register_parametrization(part, "w", Softened())
    made = part.rate.detach().clone()
    part.bfloat16()
    assert part.rate.dtype == torch.float32 and torch.equal(part.rate, made)
    assert part.w.dtype == torch.bfloat16


def test_gradients_are_as_wide_as_their_parameters_however_often_they_are_shared() -> None:
    owner = Decay()
    home = Home(Borrower(owner.rate), owner)
    owner(torch.randn(1, 2, 3)).y.sum().backward()
    home.bfloat16()
    assert owner.rate.grad is not None and owner.rate.grad.dtype == torch.float32
    assert owner.w.grad is not None and owner.w.grad.dtype == torch.bfloat16


def test_a_dtype_of_its_own_is_kept_in_both_directions_and_on_other_devices() -> None:
    home = Home(Counts(), Constant([0.1, 0.2]), Decay())
    for dtype in (torch.bfloat16, torch.float64, torch.float16):
        home.to(dtype)
        table, constant, _ = home.inside
        assert table.get_buffer("table").dtype == torch.float64
        assert constant.get_buffer("numbers").tolist() == torch.tensor([0.1, 0.2]).tolist()
    assert home.to("meta").inside[0].get_buffer("table").device.type == "meta"
    assert Home(Counts()).to("meta").to_empty(device="cpu").inside[0].get_buffer("table").dtype == torch.float64


def model(tied: bool = True) -> Any:
    torch.manual_seed(0)
    blocks = [{"kind": "pre", "layers": [{"shared": "modes"}, "mlp"]}] * 2
    return parse_part(("model",), {"kind": "decoder", "vocab_size": 11, "d_model": 8, "blocks": blocks,
                                   "shared": {"modes": "s4d"}, "readout": {"kind": "linear", "tied": tied}}).build(None)


def exact_tensors(found: nn.Module) -> list[Tensor]:
    kept = kept_dtypes(found)
    return [p for p in found.parameters() if id(p) in kept.exact]


def test_files_keep_what_is_exact_and_a_narrow_file_is_widened(tmp_path: Path) -> None:
    original = model()
    wanted = [p.detach().clone() for p in exact_tensors(original)]
    save_checkpoint(tmp_path / "narrow", original.bfloat16(), None)
    stored = read_tensors(tmp_path / "narrow" / MODEL_FILE)
    assert {tensor.dtype for name, tensor in stored.items() if "log_dt" in name} == {torch.float32}
    assert stored["embedding.tokens.weight"].dtype == torch.bfloat16
    for loaded in (load_checkpoint(tmp_path / "narrow").model, weft.load(tmp_path / "narrow", dtype="bfloat16").model):
        assert all(torch.equal(p, q) and p.dtype == torch.float32
                   for p, q in zip(exact_tensors(loaded), wanted, strict=True))
        assert loaded.get_parameter("embedding.tokens.weight").dtype == torch.bfloat16
    assert {p.dtype for p in weft.load(tmp_path / "narrow", dtype="float64").model.parameters()} == {torch.float64}


def test_a_file_that_another_program_narrowed_is_read_as_wide_as_the_model_needs(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "model", model(), None)
    narrow = {name: tensor.bfloat16() for name, tensor in read_tensors(folder / MODEL_FILE).items()}
    write_tensors(folder / MODEL_FILE, narrow)
    (folder / MANIFEST_FILE).unlink()
    write_manifest(folder)
    loaded = load_checkpoint(folder).model
    assert {p.dtype for p in exact_tensors(loaded)} == {torch.float32}
    assert loaded.get_parameter("embedding.tokens.weight").dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_plans_count_what_a_cast_would_leave(dtype: torch.dtype) -> None:
    planned = shape_of(model().config, FakeTensorMode(allow_non_fake_inputs=True), dtype)
    cast = model().to(dtype)
    kinds = [(name, p.dtype) for name, p in cast.named_parameters()]
    assert [(name, p.dtype) for name, p in planned.named_parameters()] == kinds
    assert weight_bytes(cast)[str(dtype).removeprefix("torch.")] == sum(p.nbytes for p in cast.parameters())


def test_training_in_bfloat16_computes_with_what_is_exact() -> None:
    original = model()
    for working in (narrowed(original, torch.bfloat16), Precision(original, torch.bfloat16).working):
        assert [p.dtype for p in exact_tensors(working)] == [torch.float32] * len(exact_tensors(original))
        assert all(torch.equal(p, q) for p, q in zip(exact_tensors(working), exact_tensors(original), strict=True))
        assert working.get_parameter("embedding.tokens.weight").dtype == torch.bfloat16
    assert len(exact_tensors(original)) == 4
