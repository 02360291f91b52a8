"""Adapters beside matrices that a part reads and multiplies by itself: those of recurrent networks and of gated
convolutions. Values, gradients, pieces, decoding, what is saved, what is dropped, and what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import weft
from fresh import check_near
from linear.small import EXACT, TOKENS, by_hand, model
from training.tiny_runs import same_weights
from weft.checkpoints import load_checkpoint, save_checkpoint
from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.core.span import Span
from weft.interop.adapters.base import fingerprint_of
from weft.laws.check import check
from weft.linear.inference import checked_inference_form
from weft.linear.linear import Linear
from weft.linear.low_rank import Adapted, AdapterTerm, LowRank
from weft.linear.merging import merged
from weft.linear.rewrite import rewritten

LAYERS = ("elman", {"kind": "gru", "d_hidden": 5}, "lstm", {"kind": "gated_convolution", "d_conv": 3, "dilation": 2})
LORA: dict[str, Any] = {"kind": "lora", "rank": 2, "alpha": 3.0, "maps": ["recurrent", "convolution"]}
PATHS = [f"stack.layers.0.layers.{index}" for index in range(len(LAYERS))]


def pair() -> tuple[Any, Any, dict[str, Any]]:
    """The adapted model, the plain one with W + s B A written out, and A and B by the name of W."""
    adapted, plain = model([LORA], LAYERS), model([], LAYERS, seed=1)
    low = by_hand(adapted, plain, 1.5)
    assert list(low) == [f"{PATHS[0]}.recurrent_weight", f"{PATHS[1]}.recurrent_weight",
                         f"{PATHS[2]}.recurrent_weight", f"{PATHS[3]}.convolution.weight"]
    return adapted, plain, low


@pytest.mark.parametrize("packed", [False, True])
def test_values_and_gradients_are_those_of_the_sum_written_out(packed: bool) -> None:
    adapted, plain, low = pair()
    span = Span(begins=TOKENS % 4 == 3) if packed else Span()
    outputs = [each.train()(TOKENS, None, span).y for each in (adapted, plain)]
    assert_close(*outputs, **EXACT)
    for y in outputs:
        y.square().sum().backward()
    for name, (a, b) in low.items():
        whole = plain.get_parameter(name).grad.flatten(1)
        assert_close(a.grad, 1.5 * b.detach().t() @ whole, **EXACT)
        assert_close(b.grad, 1.5 * whole @ a.detach().t(), **EXACT)


def test_a_matrix_that_is_read_is_summed_in_the_width_that_is_asked_for() -> None:
    put: Any = model([{**LORA, "alpha": 2.0}], LAYERS).float().get_submodule(f"{PATHS[2]}.recurrent")
    put.perturb(torch.Generator().manual_seed(0))
    found, _ = put.read(torch.float64)
    wanted = put.base.weight.double() + put.b.weight.double() @ put.a.weight.double()
    assert_close(found, wanted, rtol=1e-14, atol=1e-15)


def test_it_goes_on_from_a_state_and_every_law_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    check_near(monkeypatch, traced=True)
    adapted, plain, _ = pair()
    state, wanted = adapted.eval().init_state(2), plain.eval()(TOKENS).y
    first = adapted(TOKENS[:, :3], state)
    assert_close(torch.cat([first.y, adapted(TOKENS[:, 3:], first.state).y], 1), wanted, **EXACT)
    found = check(adapted.config, adapted, length=40)
    assert found.holds, [report.broken() for report in found.reports()]


def test_without_gradients_there_is_one_matrix() -> None:
    adapted, plain, _ = pair()
    form = checked_inference_form(adapted.eval(), where="here")
    assert not any(isinstance(module, Adapted) for module in form.modules())
    names = [{name for name, _ in each.stack.named_parameters() if "norms" not in name} for each in (form, plain)]
    assert names[0] == names[1]
    with torch.no_grad():
        assert_close(form(TOKENS).y, plain.eval()(TOKENS).y, **EXACT)
    assert all(isinstance(adapted.get_submodule(f"{path}.{child}"), LowRank)
               for path, child in zip(PATHS, ["recurrent"] * 3 + ["convolution"], strict=True))


@pytest.mark.parametrize("dora", [False, True])
def test_saved_loaded_and_merged(dora: bool, tmp_path: Path) -> None:
    adapted = model([{**LORA, "dora": dora}], LAYERS).float().eval()
    save_checkpoint(tmp_path / "a", adapted, None)
    loaded = load_checkpoint(tmp_path / "a").model
    assert same_weights(loaded, adapted)
    plain = merged(loaded)
    assert set(plain.state_dict()) == set(model([], LAYERS).state_dict())
    # float32, and one rounding of the merged matrices, through four layers.
    assert_close(plain(TOKENS).y, adapted(TOKENS).y, rtol=1e-4, atol=1e-4)


def test_an_adapter_alone_is_put_on_the_model_under_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "base", model([], LAYERS).float(), None)
    found = weft.load(tmp_path / "base")
    every = [parse_part(("rewrite",), LORA)]
    whole = rewritten(found.model, every).eval()
    whole.config = found.config.model_copy(update={"rewrites": every})
    for each in whole.modules():
        if isinstance(each, Adapted):
            each.perturb(torch.Generator().manual_seed(3))
    save_checkpoint(tmp_path / "whole", whole, None)
    weft.convert(tmp_path / "whole", tmp_path / "alone", to="adapter", base=str(tmp_path / "base"))
    again = weft.load(tmp_path / "alone").model
    assert same_weights(again, whole)
    unopened = model([{**LORA, "maps": ["recurrent"]}], LAYERS).float()
    assert fingerprint_of(unopened) == fingerprint_of(whole), "the same weights under another adapter"


def test_what_is_read_is_not_rounded_and_in_training_whole_inputs_are_dropped() -> None:
    base = Linear(64, 8, bias=False).bfloat16()
    adapted = LowRank(base, AdapterTerm(2, 1.0, magnitude=True), 0.25)
    adapted.perturb(torch.Generator().manual_seed(0))
    torch.nn.init.constant_(adapted.b.weight, 2.0 ** -12)
    term = (adapted.b.weight @ adapted.a.weight).double()
    lengths = (base.weight.double() + term).norm(dim=1) / adapted.magnitude.double()
    kept = lengths[:, None] * adapted.eval().read(torch.float32)[0].double() - base.weight
    # Of float32 sums, and of a length by which they are divided; bfloat16 would round by 2^-9 of W, more than the term.
    assert_close(kept, term, rtol=0, atol=1e-6)
    assert term.abs().max() > 1e-5
    dropped = (lengths[:, None] * adapted.train().read(torch.float32)[0].double() - base.weight) / term
    columns = dropped.mean(0)
    assert ((columns.abs() < 0.1) | ((columns - 4 / 3).abs() < 0.1)).all()
    assert 4 <= (columns.abs() < 0.1).sum() <= 28, "a quarter of 64"


def test_they_are_adapted_where_they_are_named_and_not_quantised() -> None:
    plain = model([{"kind": "lora", "rank": 2}], LAYERS[2:])
    assert [name for name, p in plain.named_parameters() if p.requires_grad] == [
        f"{PATHS[0]}.input.{each}.weight" for each in "ab"]
    every = model([{**LORA, "maps": ["*"], "kinds": ["lstm", "gru"]}], LAYERS)
    assert sum(isinstance(module, LowRank) for module in every.modules()) == 5
    with pytest.raises(ConfigError, match=r"rewrites.0.maps.0: 'recurrent' matches only maps that may not be quantis"):
        model([{"kind": "int8", "maps": ["recurrent"]}], LAYERS)
    with pytest.raises(ConfigError, match=r"'recurent' matches no linear map of this model. Did you mean 'recurrent'"):
        model([{**LORA, "maps": ["recurent"]}], LAYERS)
