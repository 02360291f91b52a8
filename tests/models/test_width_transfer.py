"""muP: initial deviations, multipliers and rates by role, the coordinate check, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

from weft.core.config import parse_part
from weft.core.declarations import Declared, WidthRoles
from weft.core.errors import ConfigError
from weft.core.layer import Pointwise
from weft.core.model import built_model
from weft.core.part_config import Dims
from weft.core.registry import REGISTRY
from weft.feedforward.base import FeedForwardConfig
from weft.models.decoder import DecoderConfig
from weft.training.optimizers import AdamWConfig, SGDConfig
from weft.training.parameter_groups import labelled

BASE = 16


def config(width: int, *, mup: bool = True, **changes: Any) -> dict[str, Any]:
    layers = [{"kind": "attention", "n_heads": 4, "bias": "all"}, {"kind": "mlp", "d_ff": 4 * width}]
    found = {"kind": "decoder", "vocab_size": 32, "context": 16, "d_model": width, "norm": "layernorm",
             "embedding": {"std": 0.5}, "readout": {"kind": "linear", "tied": False},
             "blocks": [{"repeat": 2, "of": [{"kind": "pre", "norm": "layernorm", "layers": layers}]}], **changes}
    return {**found, "parametrization": {"kind": "mup", "base_width": BASE}} if mup else found


def built(plain: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return built_model(parse_part(("model",), plain))  # type: ignore[arg-type]


def test_the_base_is_the_model_as_it_is() -> None:
    mine, plain = built(config(BASE)), built(config(BASE, mup=False))
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, mine.get_parameter(name)), name
    tokens = torch.arange(16)[None]
    assert torch.equal(mine(tokens).y, plain(tokens).y) and not mine.rate_factors


def test_a_wide_model_has_the_deviations_multipliers_and_rates_of_table_8() -> None:
    """With m = 8: input matrices as the base, hidden ones 1/sqrt(m), output as the base with a multiplier of 1/m;
    rates of Adam lr, lr / m, lr. Deviations are of at least 512 numbers, so within 8 %."""
    base, wide = built(config(BASE)), built(config(8 * BASE))
    adam = AdamWConfig(lr=1.0, weight_decay=0.1)
    groups = {id(p): group for group in adam.parameter_groups(wide, 0.1) for p in group["params"]}
    for each in labelled(wide):
        mine, its, group = each.parameter, base.get_parameter(each.name), groups[id(each.parameter)]
        hidden = each.hidden
        assert group["factor"] == (1 / 8 if hidden else 1), each.name
        assert group["weight_decay"] * group["factor"] == pytest.approx(0.0 if each.kind == "vectors" else 0.1)
        if its.numel() >= 48 and float(its.detach().std()) > 0:
            wanted = float(its.detach().std()) / (8 ** 0.5 if hidden else 1)
            close = 0.08 if its.numel() >= 512 else 0.25
            assert float(mine.detach().std()) == pytest.approx(wanted, rel=close), each.name
    assert len(wide.rate_factors) == 8  # two blocks of four maps
    assert wide.readout.scale == 1 / 8
    attention = [module for module in wide.modules() if type(module).__name__ == "Attention"]
    # 1/d_head with the constant that makes it 1/sqrt(d_head) at the base, whose heads have 4 features.
    assert [each.scale for each in attention] == [2 / 32, 2 / 32]


def test_a_tied_readout_is_initialised_as_an_embedding_and_read_with_the_multiplier() -> None:
    wide = built(config(4 * BASE, readout={"kind": "linear"}))
    assert float(wide.embedding.tokens.weight.detach().std()) == pytest.approx(0.5, rel=0.05)
    assert wide.readout.scale == 1 / 4 and wide.readout.weight is wide.embedding.tokens.weight


def test_embeddings_whose_deviation_follows_the_width_begin_with_that_of_the_base() -> None:
    """It is the default; without muP it is 1 / sqrt(d_model)."""
    assert DecoderConfig.model_fields["embedding"].default.std == "inverse_sqrt_width"
    wide = built(config(16 * BASE, embedding={}))
    assert float(wide.embedding.tokens.weight.detach().std()) == pytest.approx(BASE ** -0.5, rel=0.05)


def test_a_map_from_few_numbers_to_the_width_has_the_whole_rate() -> None:
    wide = built(config(64, embedding={"d_embedding": 12}))
    assert wide.embedding.projection is not None
    assert wide.rate_factors and "embedding.projection.weight" not in wide.rate_factors


def test_heads_of_a_given_size_grow_in_number_and_keep_their_scale() -> None:
    layers = [{"kind": "attention", "n_heads": 8, "n_kv_heads": 4, "d_head": 8}, {"kind": "glu", "d_ff": 96}]
    wide = built(config(64, blocks=[{"kind": "pre", "layers": layers}]))
    attention = next(module for module in wide.modules() if type(module).__name__ == "Attention")
    assert attention.scale == pytest.approx(8 ** -0.5) and set(wide.rate_factors.values()) == {1 / 4}


def change_of_logits(width: int, *, mup: bool, steps: int = 4, make: Callable[..., dict[str, Any]] = config) -> float:
    """The mean size by which logits have moved after some steps of Adam on one batch, averaged over two seeds."""
    moved = []
    for seed in range(2):
        torch.manual_seed(seed)
        model = built_model(parse_part(("model",), make(width, mup=mup)))  # type: ignore[arg-type]
        optimizer = AdamWConfig(lr=0.01, weight_decay=0.0).create(model)
        for group in optimizer.param_groups:
            group["lr"] *= group["factor"]
        tokens = torch.randint(32, (8, 17), generator=torch.Generator().manual_seed(seed))
        first = model(tokens[:, :-1]).y.detach()
        for _ in range(steps):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).y.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
        moved.append(float((model(tokens[:, :-1]).y.detach() - first).abs().mean()))
    return sum(moved) / len(moved)


def test_coordinate_check() -> None:
    """What a few steps change does not grow with the width, and does in the usual parametrization. In muP widths of 16,
    64 and 256 give 0.75, 0.57 and 0.42: a constant and a part that falls with the root of the width, with which the
    random agreement of vectors falls. Otherwise they give 0.75, 1.29 and 2.19."""
    narrow, wide = (change_of_logits(width, mup=True) for width in (4 * BASE, 16 * BASE))
    assert 0.6 < wide / narrow < 1.05
    narrow, wide = (change_of_logits(width, mup=False) for width in (4 * BASE, 16 * BASE))
    assert wide / narrow > 1.5


@pytest.mark.parametrize(("changes", "message"), [
    ({"blocks": [{"kind": "pre", "layers": ["lstm"]}]},
     r"mup says nothing about LSTM, at stack\.layers\.0\.layers\.0, which does not declare what "
     r"follows the width\. Leave the parametrization out, or use other layers\."),
    ({"blocks": [{"kind": "pre", "layers": [{"kind": "moe", "n_experts": 2}]}]}, r"nothing about MixtureOfExperts, at"),
    ({"embedding": {"scale": "sqrt_width"}}, r"model\.embedding\.scale: sqrt_width, while under mup .* Give a number"),
    ({"rewrites": [{"kind": "lora"}]}, r"mup beside rewrites, which change what is trained\. Leave out one"),
    ({"readout": {"kind": "linear", "tied": False, "d_embedding": 5}},
     r"readout\.projection maps the width to 5 numbers inside the model"),
    ({"parametrization": {"kind": "mup", "base_width": 12}},
     r"blocks\.0\.layers\.1\.d_ff: 36, which at parametrization\.base_width 12 would be 13\.5",
     ),
])
def test_what_the_table_does_not_cover_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    given = {"blocks": [{"kind": "pre", "layers": [{"kind": "attention"}, {"kind": "mlp", "d_ff": 36}]}]} if (
        "parametrization" in changes) else {}
    with pytest.raises(ConfigError, match=message):
        built({**config(32), **given, **changes})


def test_other_optimizers_are_refused() -> None:
    assert SGDConfig().problems(built(config(32))) == [
        "training.optimizer.kind: 'sgd', while model.parametrization is for Adam, whose updates have one size. "
        "Use adamw, or leave the parametrization out."]
    assert not SGDConfig().problems(built(config(32, mup=False)))


class Gate(Pointwise):
    """A layer of no class of Weft's: y = W (v tanh(s q k)), with W a matrix of its own."""

    def __init__(self, d_model: int, d_inner: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(d_model, d_inner) for _ in range(3))
        self.out = torch.nn.Parameter(torch.randn(d_model, d_inner) / d_inner ** 0.5)
        self.sharpness = d_inner ** -0.5

    def each(self, x: torch.Tensor) -> torch.Tensor:
        products = (self.q(x) * self.k(x)).sum(-1, keepdim=True)
        return (self.v(x) * torch.tanh(self.sharpness * products)) @ self.out.T


class Declaring(Gate):
    """Declares what follows the width."""

    def declares(self) -> Declared:
        return Declared(width_roles=WidthRoles(Declaring, {"sharpness": self.out.shape[1]}, matrices=("out",)))


class Inheriting(Declaring):
    """May compute something else."""


class GateConfig(FeedForwardConfig):
    kind: ClassVar[str] = "gate"
    d_inner: int = 8
    what: str = "Declaring"

    def width_fields(self) -> tuple[str, ...]:
        return ("d_inner",)

    def build(self, dims: Dims) -> Gate:
        kinds: dict[str, type[Gate]] = {"Gate": Gate, "Declaring": Declaring, "Inheriting": Inheriting}
        return kinds[self.what](dims.d_model, self.d_inner)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer is known while a test runs."""
    REGISTRY.discover()
    monkeypatch.setitem(REGISTRY._parts["feedforward"], GateConfig.kind, GateConfig)


def with_gate(width: int, *, mup: bool = True, **fields: Any) -> dict[str, Any]:
    layers = [{"kind": "attention", "n_heads": 4}, {"kind": "gate", "d_inner": 2 * width, **fields}]
    return config(width, mup=mup, blocks=[{"kind": "pre", "layers": layers}])


@pytest.mark.usefixtures("gate")
def test_a_layer_of_no_known_class_takes_part_by_what_it_declares() -> None:
    base, wide = built(with_gate(BASE)), built(with_gate(4 * BASE))
    plain = built(with_gate(BASE, mup=False))
    assert all(torch.equal(p, plain.get_parameter(name)) for name, p in base.named_parameters())
    at = "stack.layers.0.layers.1"
    assert {name: rate for name, rate in wide.rate_factors.items() if name.startswith(at)} == {
        f"{at}.{name}": 1 / 4 for name in ("q.weight", "k.weight", "v.weight", "out")}
    inner = wide.get_submodule(at)
    assert inner.sharpness == pytest.approx((2 * BASE) ** -0.5 / 4)  # that of the base, over the growth of the sum
    # A uniform distribution of biases over plus and minus one over the root of the base's width; 128 numbers.
    assert float(inner.q.bias.detach().std()) == pytest.approx(BASE ** -0.5 / 3 ** 0.5, rel=0.15)


@pytest.mark.usefixtures("gate")
def test_coordinate_check_of_a_layer_of_no_known_class() -> None:
    """As `test_coordinate_check`; in muP widths of 64 and 256 give 0.55 and 0.47, otherwise 1.2 and 2.0."""
    narrow, wide = (change_of_logits(width, mup=True, make=with_gate) for width in (4 * BASE, 16 * BASE))
    assert 0.6 < wide / narrow < 1.05
    narrow, wide = (change_of_logits(width, mup=False, make=with_gate) for width in (4 * BASE, 16 * BASE))
    assert wide / narrow > 1.5


@pytest.mark.usefixtures("gate")
@pytest.mark.parametrize("what", ["Gate", "Inheriting"])
def test_a_layer_that_declares_nothing_itself_is_refused(what: str) -> None:
    with pytest.raises(ConfigError, match=rf"mup says nothing about {what}, at stack\.layers\.0\.layers\.1, which"):
        built(with_gate(4 * BASE, what=what))
