"""`rewrites:` of a model: what they reach, what is refused before anything else, and that what they put in is what was
there."""

from __future__ import annotations

from typing import Any, ClassVar, final

import pytest
import torch
from torch import Tensor, nn

from linear.small import LAYERS, TOKENS, VOCAB, described, model
from weft.core.config import parse_part
from weft.core.errors import ConfigError, LawError
from weft.core.layer import Pointwise
from weft.laws.report import Report
from weft.laws.run import examine
from weft.laws.subject import layer_subject
from weft.laws.twin import shrink
from weft.linear.linear import Linear, Rewritten, allowed
from weft.linear.lora import LoRAConfig
from weft.linear.low_rank import LowRank
from weft.linear.quantised import Int8Config
from weft.linear.replacing import sites
from weft.linear.rewrite import RewriteConfig, Rewriter, matches, require_rewritten, rewritten
from weft.models.decoder import Decoder, DecoderConfig

INNER = "stack.layers.0.layers"


def names(found: nn.Module) -> set[str]:
    return {path.removeprefix(f"{INNER}.") for path, module in found.named_modules() if isinstance(module, LowRank)}


@pytest.mark.parametrize(("pattern", "path", "wanted"), [
    ("qkv", "stack.layers.0.qkv", True), ("*", "readout.map", True), ("readout", "readout.map", True),
    ("stack.layers.[0-2]", "stack.layers.1.qkv", True), ("stack.layers.[0-2]", "stack.layers.3.qkv", False),
    ("layers.1.qkv", "stack.layers.1.qkv", True), ("kv", "stack.layers.1.qkv", False), ("*kv", "a.qkv", True),
    ("experts.*.down", "stack.layers.1.experts.7.down", True), ("QKV", "a.qkv", False)])
def test_a_pattern_is_of_a_map_of_what_holds_it_or_of_an_end_of_its_name(pattern: str, path: str,
                                                                         wanted: bool) -> None:
    assert matches(path, pattern) is wanted


@pytest.mark.parametrize(("maps", "wanted"), [
    (["qkv"], {"0.qkv"}), (["layers.1"], {"1.gate", "1.up", "1.down"}),
    (["experts.[01].up", "mix"], {"2.experts.0.up", "2.experts.1.up", "3.mix"}),
    (["readout"], {"readout.map"}), (["router"], {"2.router"})])
def test_patterns_choose_maps(maps: list[str], wanted: set[str]) -> None:
    assert names(model([{"kind": "lora", "rank": 1, "maps": maps}])) == wanted


def test_a_model_without_rewrites_has_the_names_and_the_configuration_that_it_had_before() -> None:
    found = model([], [LAYERS[0], LAYERS[1]])
    assert list(found.state_dict()) == [
        "embedding.tokens.weight", f"{INNER}.0.qkv.weight", f"{INNER}.0.output.weight", f"{INNER}.1.gate.weight",
        f"{INNER}.1.up.weight", f"{INNER}.1.down.weight", "stack.layers.0.norms.0.weight",
        "stack.layers.0.norms.1.weight", "norm.weight", "readout.weight"]
    assert found.config.dump()["rewrites"] == []
    with_one = parse_part(("model",), described(["int8"]))
    assert with_one.dump()["rewrites"] == [{"kind": "int8", "maps": None, "kinds": None}]
    assert parse_part(("model",), with_one.dump()) == with_one


@pytest.mark.parametrize(("rewrites", "message"), [
    (["loar"], r"rewrites.0.kind: no rewrite of kind 'loar'. Did you mean 'lora'\?"),
    (["adapter"], r"rewrites.0.kind: no rewrite of kind 'adapter'. Did you mean 'lora'\?"),
    (["quantise"], r"rewrites.0.kind: no rewrite of kind 'quantise'. Did you mean 'int8'\?"),
    (["nf4"], r"rewrites.0.kind: no rewrite of kind 'nf4'. Did you mean 'int4'\?"),
    ([{"kind": "int8", "maps": ["router"]}], r"rewrites.0.maps.0: 'router' matches only maps that may not be quantised,"
                                             r" or that an earlier rewrite has taken. Leave it out."),
    (["int8", {"kind": "int8", "maps": ["qkv"]}], r"rewrites.1.maps.0: 'qkv' matches only maps that may not be quanti"),
    ([{"kind": "lora", "rank": 1}, "lora"],
     r"rewrites.1: this model has no linear map that may be adapted but those that belong to a part itself. Name those "
     r"under `maps`."),
    ([{"kind": "lora", "maps": ["gat", "layers.0.qvk"]}], r"2 problems .*\n.*maps.0: 'gat' matches no .*'gate'\?\n"
                                                          r".*maps.1: 'layers.0.qvk' .* 'layers.0.qkv'\?")])
def test_what_reaches_nothing_is_one_error_with_the_nearest(rewrites: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model(rewrites)


def test_models_without_maps_take_none() -> None:
    config: Any = parse_part(("model",), {"kind": "ngram", "vocab_size": 5, "rewrites": ["lora"]})
    with pytest.raises(ConfigError, match=r"rewrites.0: this model has no linear map that may be adapted. Remove"):
        config.build()


def test_a_rewrite_whose_maps_an_earlier_one_has_taken_is_to_come_first() -> None:
    blocks = [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "mask": "bidirectional"}]}]
    encoder = {"kind": "encoder", "vocab_size": 5, "d_model": 8, "blocks": blocks}
    one = {"kind": "lora", "rank": 1}
    config: Any = parse_part(("encoder",), {**encoder, "rewrites": [one, "int8"]})
    with pytest.raises(ConfigError, match=r"rewrites.1: this model has no linear map that may be quantised but those "
                                          r"that an earlier rewrite has taken. Put it before that one, or remove it."):
        config.build()
    other: Any = parse_part(("encoder",), {**encoder, "rewrites": ["int8", one]})
    other.build()


def test_an_encoders_own_are_refused() -> None:
    blocks = [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "mask": "bidirectional"}]}]
    encoder = {"kind": "encoder", "vocab_size": 5, "d_model": 8, "blocks": blocks, "rewrites": ["lora"]}
    with pytest.raises(ConfigError, match=r"encoder.rewrites: the encoder's maps are rewritten with the model's."):
        parse_part(("model",), {"kind": "encoder_decoder", "vocab_size": 5, "d_model": 8, "encoder": encoder,
                                "blocks": [{"kind": "pre", "layers": ["mlp"]}]})


def test_a_model_of_a_plugin_that_does_not_rewrite_is_refused() -> None:
    config = parse_part(("model",), described(["lora"]))
    assert isinstance(config, DecoderConfig)
    with pytest.raises(ConfigError, match=r"rewrites: a model of kind 'decoder' does not apply them. Let its build\(\) "
                                          r"end in weft"):
        require_rewritten(Decoder(config))
    require_rewritten(config.build())


def test_what_shares_a_matrix_and_cannot_go_with_it_is_named() -> None:
    class Noted(nn.Embedding):
        """Computes something of its own."""

    found = model([])
    found.embedding.tokens.__class__ = Noted
    message = r"rewrites.0.maps: 'readout.map' shares its matrix with 'embedding.tokens', which may not be quantised."
    with pytest.raises(ConfigError, match=message):
        rewritten(found, [Int8Config(maps=["readout"])])


@final
class Scaled(Rewritten):
    """A map times a number."""

    def __init__(self, base: nn.Linear, by: float) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.base, self.by = base, by

    def forward(self, x: Tensor) -> Tensor:
        if self.by == 0:
            raise RuntimeError("divided by zero")
        y: Tensor = self.base(x)
        return y * self.by

    def merged(self) -> Linear:
        return Linear.of(nn.Parameter(self.by * self.base.weight), self.base.bias)

    def dense(self) -> tuple[Tensor, Tensor | None]:
        return self.by * self.base.weight, self.base.bias


class ScaleConfig(RewriteConfig):
    """Of a plugin."""

    kind: ClassVar[str] = "test_scale"
    use = "adapt"
    by: float = 1.0

    def rewriter(self) -> Rewriter:
        def rewrite(module: nn.Module) -> nn.Module:
            assert isinstance(module, nn.Linear)
            return Scaled(module, self.by)

        return rewrite


def test_a_rewrite_of_a_plugin_is_one_class() -> None:
    found = rewritten(model([]), [ScaleConfig(maps=["qkv"])])
    assert isinstance(found.get_submodule(f"{INNER}.0.qkv"), Scaled)


@pytest.mark.parametrize("path", [f"{INNER}.0.qkv", f"{INNER}.2.experts.1.down"])
def test_a_rewrite_that_changes_what_is_computed_names_the_layer(path: str) -> None:
    """Whether the map is called with a short row or not: of an expert that was not chosen nothing is seen there."""
    with pytest.raises(LawError, match=rf"rewrites.0: {path}: rewritten, it does not compute what it did: off by "):
        rewritten(model([]), [ScaleConfig(maps=[path], by=1.001)])


def test_a_rewrite_that_does_not_run_says_so() -> None:
    with pytest.raises(LawError, match=r"rewrites.0: rewritten, the model does not run: RuntimeError: divided by zero"):
        rewritten(model([]), [ScaleConfig(maps=["qkv"], by=0.0)])


def test_a_model_is_left_in_the_mode_it_was_in_and_draws_no_random_numbers() -> None:
    found = model([], embedding={"dropout": 0.5}).train()
    found.readout.eval()
    before = torch.random.get_rng_state()
    rewritten(found, [Int8Config(maps=["*"])])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert found.training and found.embedding.training


def test_one_without_storage_is_rewritten_too() -> None:
    config: Any = parse_part(("model",), described(["int8", {"kind": "lora", "rank": 1, "maps": ["*"]}]))
    with torch.device("meta"):
        found = config.build()
    assert all(p.is_meta for p in found.parameters())


def test_plain_maps_of_a_plugins_part_become_ours() -> None:
    found = model([])
    found.embedding.projection = nn.Linear(8, 8)
    weight = found.embedding.projection.weight
    rewritten(found, [])
    assert type(found.embedding.projection) is Linear and found.embedding.projection.weight is weight


def test_every_map_of_every_model_is_ours_and_the_router_says_what_it_is_not_for() -> None:
    every = [module for module in model([]).modules() if isinstance(module, nn.Linear)]
    assert len(every) > 15 and all(type(module) is Linear for module in every)
    assert allowed(model([]).stack.layers[0].layers[2].router) == {"adapt"}


def test_a_twin_has_the_rewrites_of_its_model() -> None:
    block = {"kind": "pre", "layers": list(LAYERS[:2])}
    rewrite = {"kind": "lora", "maps": ["stack.layers.7.layers.0.output", "[0-9].qkv"]}
    config: Any = parse_part(("model",), {**described([rewrite]), "d_model": 64,
                                          "blocks": [{"repeat": 8, "of": [block]}]})
    assert names(shrink(config).config.build()) == {
        "0.qkv", "0.output", "stack.layers.1.layers.0.qkv", "stack.layers.1.layers.0.output"}


class Peeking(Pointwise):
    """Reads its matrix past its map."""

    def __init__(self) -> None:
        super().__init__()
        self.map = Linear(8, 8)

    def each(self, x: Tensor) -> Tensor:
        y: Tensor = self.map(x)
        return y + x @ self.map.weight if isinstance(self.map, Linear) else y


def test_the_law_of_rewriting_finds_a_part_that_reads_its_matrix_past_its_map() -> None:
    found: Report = examine(layer_subject("peeking", Peeking().double(), 8), laws=("rewriting",))
    assert {finding.case for finding in found.broken()} == {
        "adapted", "adapted, in pieces", "quantised", "quantised, in pieces"}


def test_what_stands_inside_a_rewritten_map_is_no_map_of_the_models() -> None:
    found = model([{"kind": "lora", "maps": ["qkv"]}])
    assert f"{INNER}.0.qkv" in {site.path for site in sites(found)}
    assert not any(".qkv." in site.path for site in sites(found))
    assert LoRAConfig(rank=4, alpha=8.0).recipe("").scale == 2.0 and found(TOKENS).y.shape == (2, 7, VOCAB)
