"""What a rewrite may take apart, and that it leaves the rest alone: an adapted model laid out, fused, compiled or
trained is the adapted model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from linear.adapted import ADAPTERS, adapt
from training.tiny_runs import next_token
from weft.core.config import parse_part
from weft.core.model import LanguageModel
from weft.core.span import Span
from weft.decoding.compiled import CompiledStep
from weft.feedforward.glu import GLU, FusedGLU
from weft.heads.readout import LinearReadout
from weft.linear.inference import inference_form
from weft.linear.linear import unadapted
from weft.norms.rmsnorm import RMSNorm
from weft.ops.forms import forced
from weft.tasks.objective import ObjectiveSettings
from weft.tasks.text import TextColumns
from weft.training.precision import Precision

EXACT = {"rtol": 1e-12, "atol": 1e-12}
"""float64, whose products may be summed in another order."""
TOKENS = torch.randint(7, (2, 5), generator=torch.Generator().manual_seed(0))


EXPERTS = {"kind": "moe", "n_experts": 2, "expert": {"kind": "glu", "d_ff": 6}, "dispatch": "dense"}
LAYERS = [{"kind": "attention", "n_heads": 2, "position": "rope"}, {"kind": "glu", "d_ff": 12}, EXPERTS, "s4d"]


def model(layers: Sequence[Any] = LAYERS, **options: Any) -> Any:
    """A decoder with every linear map that is fused or laid out somewhere."""
    torch.manual_seed(0)
    config = {"kind": "decoder", "vocab_size": 7, "d_model": 8, "norm": "rmsnorm", "embedding": {"std": 1.0},
              "readout": {"kind": "linear", "tied": False, "d_embedding": 6}, **options,
              "blocks": [{"kind": "pre", "layers": list(layers), "norm": "rmsnorm"}]}
    return parse_part(("model",), config).build(None).double()


@pytest.fixture(params=ADAPTERS)
def adapted(request: pytest.FixtureRequest) -> Any:
    found = adapt(model(), request.param).eval()
    assert not torch.allclose(found(TOKENS).y, model().eval()(TOKENS).y, rtol=0.1), "an adapter that does nothing"
    return found


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapted_map_is_not_untouched(name: str) -> None:
    assert unadapted(nn.Linear(3, 3), nn.Linear) and not unadapted(nn.Linear(3, 3), nn.Module)
    assert not unadapted(ADAPTERS[name](nn.Linear(3, 3)), nn.Linear)


def test_parameters_of_a_kind_of_their_own_are_not_untouched() -> None:
    class Quantised(Tensor):
        """Stands for a tensor that multiplies in its own way."""

    linear = nn.Linear(3, 3)
    linear.weight = nn.Parameter(linear.weight.detach().as_subclass(Quantised))
    assert not unadapted(linear, nn.Linear)


def test_backward_hooks_count_too() -> None:
    linear = nn.Linear(3, 3)
    linear.register_full_backward_hook(lambda module, before, after: None)
    assert not unadapted(linear, nn.Linear)


def test_an_adapted_model_in_the_form_for_inference_is_the_adapted_model(adapted: Any) -> None:
    assert_close(inference_form(adapted)(TOKENS).y, adapted(TOKENS).y, **EXACT)


@pytest.fixture
def _nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_nothing_compiled")
@pytest.mark.parametrize("name", ADAPTERS)
@torch.inference_mode()
def test_an_adapted_model_compiled_is_the_adapted_model(name: str) -> None:
    adapted = adapt(model(layers=["gated_convolution", {"kind": "glu", "d_ff": 12}]), name).eval()
    logits, _ = CompiledStep(adapted, backend="eager")(TOKENS[:1, 0], adapted.init_state(1, capacity=4))
    assert_close(logits, adapted(TOKENS[:1, :1]).y[:, 0], **EXACT)


def test_the_form_of_a_part_is_not_inherited() -> None:
    class Tripled(GLU):
        def each(self, x: Tensor) -> Tensor:
            return 3 * super().each(x)

    class Shifted(RMSNorm):
        def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
            return super().forward(x, valid) + 1

    whole = nn.Sequential(Tripled(4, 6), GLU(4, 6), Shifted(4), RMSNorm(4))
    form = inference_form(whole)
    assert type(form[0]) is Tripled and type(form[1]) is FusedGLU and type(form[2]) is Shifted
    x = torch.randn(1, 2, 4)
    assert_close(form[0](x).y, whole[0](x).y)
    assert_close(form[2](x), whole[2](x))


def test_a_hook_on_a_part_that_could_be_fused_is_heard() -> None:
    glu, heard = GLU(4, 6), []
    glu.register_forward_hook(lambda *_: heard.append(1))
    inference_form(glu)(torch.zeros(1, 1, 4))
    assert heard == [1]


class Biased(LinearReadout):
    """Adapted where it says its logits, and nowhere else."""

    def logits(self, h: Tensor) -> Tensor:
        z = super().logits(h)
        return z + torch.arange(z.shape[-1])


def biased() -> Any:
    found = model(readout={"kind": "linear", "tied": False})
    found.readout.__class__ = Biased
    return found


@pytest.mark.parametrize("objective", [ObjectiveSettings(), ObjectiveSettings(z_loss=0.1, label_smoothing=0.1)])
def test_an_adapted_readout_is_trained_and_scored_as_it_answers(objective: ObjectiveSettings) -> None:
    found = biased()
    given = TextColumns(TOKENS, TOKENS.flip(1), torch.ones_like(TOKENS, dtype=torch.bool), Span())
    scored = next_token(objective=objective).loss(found, given, None)
    z = found(TOKENS).y
    chosen = z.log_softmax(-1).gather(-1, TOKENS.flip(1)[..., None])[..., 0]
    assert_close(scored.nats, -chosen.sum(), **EXACT)
    assert_close(found.readout.log_prob(found.hidden(TOKENS).y, TOKENS.flip(1)), chosen, **EXACT)
    assert_close(inference_form(found)(TOKENS).y, z, **EXACT)


def gradients(found: Any, run: Callable[[Any], Any]) -> dict[str, Tensor]:
    run(found)
    return {name: p.grad for name, p in found.named_parameters() if p.grad is not None}


def test_an_adapted_model_trained_has_the_adapted_models_gradients(adapted: Any) -> None:
    def fused(found: LanguageModel) -> None:
        every = torch.ones_like(TOKENS, dtype=torch.bool)
        scored = next_token().loss(found, TextColumns(TOKENS, TOKENS.flip(1), every, Span()), None)
        (scored.loss + sum(loss.value for loss in scored.losses)).backward()

    def plain(found: LanguageModel) -> None:
        out = found(TOKENS)
        chosen = out.y.log_softmax(-1).gather(-1, TOKENS.flip(1)[..., None])
        (-chosen.sum() + sum(loss.value for loss in out.losses)).backward()

    assert_close(gradients(copy.deepcopy(adapted), fused), gradients(adapted, plain), **EXACT)


def test_an_adapted_model_that_computes_in_bfloat16_is_the_adapted_model(adapted: Any) -> None:
    """Its maps multiply as they did, whatever the processor lacks; only numbers are narrower."""
    working = Precision(adapted.float(), torch.bfloat16).working
    exact = adapted(TOKENS).y
    # bfloat16 (4e-3) after a dozen roundings; the adapters move logits by several times their own size.
    with forced({"linear": "wide"}):
        assert (working(TOKENS).y.float() - exact).abs().max() < 0.1 * exact.abs().max()
