"""Operations by part against formulas worked out by hand, with T, vocabulary, and full or visible stated."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from weft.analysis.calls import training_step
from weft.analysis.flops import Flops, PartFlops, forward_flops
from weft.analysis.shapes import OperationCounter, shape_of
from weft.core.config import parse_part
from weft.core.model import LanguageModel, ModelConfig
from weft.core.part_config import PartConfig
from weft.core.registry import REGISTRY
from weft.masks import parse_mask
from weft.ops.fft_convolution import fft_convolution, transform_size
from weft.ops.forms import forced
from weft.ops.operator import operator

D, V, T = 16, 37, 48


def config(*layers: Any, **fields: Any) -> ModelConfig:
    data = {"kind": "decoder", "vocab_size": V, "context": T, "d_model": D,
            "blocks": [{"kind": "pre", "layers": list(layers)}], **fields}
    found = parse_part(("model",), data)
    assert isinstance(found, ModelConfig)
    return found


def shapes(source: ModelConfig | LanguageModel) -> tuple[LanguageModel, FakeTensorMode]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return shape_of(source, mode, None), mode


def count(source: ModelConfig, context: int = T) -> tuple[Flops, dict[str, PartFlops]]:
    flops = forward_flops(*shapes(source), context)
    return flops, {part.part: part for part in flops.parts}


def test_attention_and_perceptron_by_hand() -> None:
    heads, kv_heads, size, value, d_ff = 4, 2, 3, 5, 40
    attention = {"kind": "attention", "n_heads": heads, "n_kv_heads": kv_heads, "d_head": size, "d_value": value}
    flops, parts = count(config(attention, {"kind": "mlp", "d_ff": d_ff}))
    projections = 2 * D * (heads * size + kv_heads * (size + value)) + 2 * heads * value * D
    assert parts["attention projections"].full == projections
    assert parts["attention scores"].full == 2 * T * heads * (size + value)
    assert parts["attention scores"].visible == pytest.approx((T + 1) * heads * (size + value), rel=1e-12)
    assert parts["feed-forward"].full == parts["feed-forward"].visible == 2 * 2 * D * d_ff
    assert parts["logits"].full == 2 * D * V
    assert flops.full == sum(part.full for part in parts.values())
    assert flops.uncounted == ()


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_both_backends_compute_the_same_products(backend: str) -> None:
    _, parts = count(config({"kind": "attention", "n_heads": 2, "backend": backend}, "mlp"))
    assert parts["attention scores"].full == 2 * T * 2 * D


@pytest.mark.parametrize(("kind", "gates"), [("lstm", 4), ("gru", 3), ("elman", 1)])
def test_recurrent_networks_by_hand(kind: str, gates: int) -> None:
    hidden = 24
    _, parts = count(config({"kind": kind, "d_hidden": hidden}))
    assert parts[kind].full == 2 * gates * hidden * (D + hidden) + 2 * hidden * D


def test_convolution_by_hand() -> None:
    _, parts = count(config({"kind": "gated_convolution", "d_conv": 5}))
    assert parts["gated_convolution"].full == 2 * 5 * D * 2 * D


def test_state_space_model_by_hand() -> None:
    with forced({"fft_convolution": "operator", "s4d_kernel": "blocks"}):
        flops, parts = count(config({"kind": "s4d", "d_state": 8}))
    size = transform_size(2 * T - 1)
    # Transforms of D inputs and D kernels and back, half a complex transform each.
    transforms = 3 * (D * 5 * size * math.log2(size)) / 2
    # The kernel's powers: 6 coarse ones times 8 fine ones make T=48, over 4 modes of 2 numbers each.
    kernel = 2 * D * 6 * 8 * 8
    mixing = 2 * D * 2 * D * T
    assert flops.fourier["s4d"] * T == pytest.approx(transforms, abs=3)  # counts are whole numbers
    assert parts["s4d"].full * T == pytest.approx(transforms + kernel + mixing, abs=3)


def test_a_short_state_space_model_in_c_by_hand() -> None:
    """A product and a sum for every pair of tokens; for every lag and mode the next power, by four products and two
    sums, and the sum over modes."""
    flops, parts = count(config({"kind": "s4d", "d_state": 8}))
    terms, kernel, mixing = D * T * (T + 1), 7 * D * 4 * T, 2 * D * 2 * D * T
    assert not flops.fourier
    assert parts["s4d"].full * T == pytest.approx(terms + kernel + mixing, abs=3)


def test_fourier_transforms_of_others_by_hand() -> None:
    """A real transform of size n is half of 5 n log2 n, a complex one is all of it."""
    with FakeTensorMode(), OperationCounter() as tally:
        spectrum = torch.fft.rfft(torch.zeros(3, 16))
        real = tally.total()
        torch.fft.irfft(spectrum, n=16)
        back = tally.total() - real
        torch.fft.fft(torch.zeros(3, 16, dtype=torch.complex64))
    assert (real, back, tally.total() - real - back) == (3 * 160, 3 * 160, 3 * 320)


def test_a_convolutions_backward_pass_by_hand() -> None:
    size, rows = transform_size(2 * T - 1), 2
    with FakeTensorMode(), OperationCounter() as tally:
        u, kernel = torch.zeros(rows, D, T, requires_grad=True), torch.zeros(D, T, requires_grad=True)
        with forced({"fft_convolution": "operator"}):
            y = fft_convolution(u, kernel)
        forward = tally.total()
        y.sum().backward()
    each = 5 * size * math.log2(size) / 2
    assert forward == pytest.approx((2 * rows + 1) * D * each, abs=1)
    assert tally.total() - forward == pytest.approx((3 * rows + 2) * D * each, abs=1)


@pytest.mark.parametrize(("kind", "gates"), [("lstm", 4), ("gru", 3), ("elman", 1)])
def test_a_recurrent_step_of_training_by_hand(kind: str, gates: int) -> None:
    """Every product, those of the scan too, has two more in the backward pass."""
    batch = 2
    step = training_step(*shapes(config({"kind": kind, "d_hidden": D})), batch, T)
    assert step.flops == 3 * batch * T * (2 * gates * D * (D + D) + 2 * D * V)


def every_layer() -> list[Any]:
    parts = [*REGISTRY.parts("mixer"), *REGISTRY.parts("feedforward")]
    return [pytest.param(part.examples()[0], id=f"{part.group}.{part.kind}") for part in parts]


@pytest.mark.parametrize("layer", every_layer())
def test_no_part_goes_uncounted(layer: PartConfig) -> None:
    flops, _ = count(config(layer, blocks=[{"kind": "plain", "layers": [layer]}]))
    assert flops.uncounted == ()
    assert flops.full > 2 * D * V


def test_experts_count_as_many_as_a_token_chooses() -> None:
    expert = {"kind": "glu", "d_ff": 20}
    _, parts = count(config({"kind": "moe", "expert": expert, "n_experts": 6, "top_k": 2}))
    assert parts["feed-forward"].full == 2 * D * 6 + 2 * (3 * 2 * D * 20)


def test_encoder_and_cross_attention_have_parts_of_their_own() -> None:
    both = {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}
    encoder = {"kind": "encoder", "vocab_size": V, "d_model": D,
               "blocks": [{"kind": "post", "layers": [both, {"kind": "mlp", "d_ff": 20}]}]}
    source = {"kind": "cross_attention", "n_heads": 2}
    _, parts = count(config({"kind": "attention", "n_heads": 2}, source, kind="encoder_decoder", encoder=encoder))
    assert parts["cross-attention scores"].visible == parts["cross-attention scores"].full == 4 * T * D
    assert parts["cross-attention projections"].full == 8 * D * D
    assert parts["encoder attention scores"].visible == parts["encoder attention scores"].full == 4 * T * D
    assert parts["encoder feed-forward"].full == 4 * D * 20


@pytest.mark.parametrize(("name", "layers", "width", "heads", "full", "visible"), [
    ("760M", 24, 1536, 16, (25, 17, 50, 8.5), (27, 9, 54, 9.3)),
    ("175B", 96, 12288, 96, (32, 2.7, 65, 0.34), (33, 1.4, 66, 0.35))])
def test_shares_of_gpt3(name: str, layers: int, width: int, heads: int, full: tuple[float, ...],
                        visible: tuple[float, ...]) -> None:
    """SPEC, headline claim 4, at T=2048 and V=50257; Brown et al. 2020, table 2.1. Rounded as they are written."""
    vocabulary, steps = 50257, 2048
    block = {"kind": "pre", "layers": [{"kind": "attention", "n_heads": heads, "bias": "all"}, "mlp"]}
    flops, parts = count(config(vocab_size=vocabulary, context=steps, d_model=width, position="learned",
                                norm="layernorm", blocks=[{"repeat": layers, "of": [block]}]), steps)
    order = ("attention projections", "attention scores", "feed-forward", "logits")
    exact = [8 * layers * width**2, 4 * layers * steps * width, 16 * layers * width**2, 2 * width * vocabulary]
    assert [parts[part].full for part in order] == exact
    assert [100 * parts[part].share_full for part in order] == pytest.approx(full, rel=0.03)
    assert [100 * parts[part].share_visible for part in order] == pytest.approx(visible, rel=0.03)
    assert flops.full == sum(exact)


@pytest.mark.parametrize("text", ["causal", "causal & window(7)", "bidirectional", "causal & strided(4)",
                                  "per_head(causal, causal & window(3))"])
def test_visible_fraction_equals_the_mask_written_out(text: str) -> None:
    mask = parse_mask(text)
    assert mask.share(33) == pytest.approx(mask.dense(33).double().mean().item(), rel=1e-15)


def test_visible_fraction_of_many_tokens() -> None:
    assert parse_mask("causal").share(1300) == pytest.approx(1301 / 2600, rel=1e-15)


def test_total_agrees_with_pytorchs_counter_on_a_real_run() -> None:
    source = config({"kind": "attention", "n_heads": 2, "backend": "reference", "position": "rope"},
                    {"kind": "gated_convolution"}, "glu")
    flops, _ = count(source)
    model = source.build()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, T, dtype=torch.int64))
    assert flops.full * T == counter.get_total_flops()


def test_training_step_by_hand() -> None:
    batch, d_ff = 3, 40
    model, mode = shapes(config({"kind": "attention", "n_heads": 2}, {"kind": "mlp", "d_ff": d_ff}))
    with forced({"attention": "sdpa"}):  # which of the forms that differ in work comes first depends on the processor
        step = training_step(model, mode, batch, T)
    linear = 8 * D * D + 4 * D * d_ff + 2 * D * V  # each product has two more in the backward pass
    pairs = 2 * batch * T * T * D  # one product over all pairs: two forward; five backward, as scores are made again
    causal = (2 * pairs) * (T - 1) // (2 * T) + (5 * pairs) * (T - 1) // (2 * T)
    assert step.flops == 3 * linear * batch * T + 7 * pairs - causal


def test_operators_of_others_are_named_and_not_counted() -> None:
    def mystery(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    call = operator("analysis_mystery", mystery, torch.empty_like)
    with FakeTensorMode(), OperationCounter() as tally:
        call(torch.zeros(3))
    assert tally.total() == 0
    assert tally.uncounted() == ["weft.analysis_mystery"]
