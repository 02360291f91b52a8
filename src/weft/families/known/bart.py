"""BART: norms after the layers and on the embeddings, positions from the tables' third rows on, a bias of logits.
Marian: the same with fixed positions, all sines before all cosines, and without norms of embeddings."""

from __future__ import annotations

from typing import Any

from weft.families.common import ACTIVATIONS
from weft.families.family import Family, Native
from weft.families.keys import Codec, Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.template import N_LAYERS, Fact, Facts, Layers
from weft.families.tensor_steps import FLATTEN, fuse
from weft.families.weights import Rule, UnusedTensors, both, rename

N_ENCODER_LAYERS = "n_encoder_layers"
NORM = {"kind": "layernorm"}
DROPOUT = {"dropout": Fact("dropout")}
SCORES = {"scores": {"dropout": Fact("attention_dropout")}}
SIDE = {"vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model")}


def attention(heads: str, **fields: Any) -> dict[str, Any]:
    """Attention with biases and as many heads as the fact ``heads`` says."""
    return {"kind": "attention", "n_heads": Fact(heads), "bias": "all", **SCORES, **fields}


def blocks(heads: str, width: str, layers: str, *, encoder: bool) -> Layers:
    """The blocks of one side, each with its norms after the layers."""
    own = attention(heads, mask="bidirectional") if encoder else attention(heads)
    cross = [] if encoder else [attention(heads, kind="cross_attention")]
    feed = {"kind": "mlp", "d_ff": Fact(width), "activation": Fact("activation"), "bias": True}
    return Layers({"kind": "post", "norm": NORM, **DROPOUT, "layers": [own, *cross, feed]}, layers)


def template(position: Any, norm: Any) -> dict[str, Any]:
    """The encoder-decoder with that position and norm of the embeddings on both sides."""
    embedding = {"scale": Fact("embedding_scale"), "std": Fact("std"), **DROPOUT, "norm": norm}
    side = {**SIDE, "position": position, "embedding": embedding}
    return {"kind": "encoder_decoder", **side, "tied_source": True,
            "blocks": blocks("n_heads", "d_ff", N_LAYERS, encoder=False),
            "readout": {"kind": "linear", "tied": True, "bias": True},
            "encoder": {"kind": "encoder", **side,
                        "blocks": blocks("n_encoder_heads", "d_ff_encoder", N_ENCODER_LAYERS, encoder=True)}}


def read_heads(raw: Raw, facts: Facts) -> Facts:
    """Heads share the width evenly on each side."""
    for side, heads in (("encoder", facts["n_encoder_heads"]), ("decoder", facts["n_heads"])):
        if facts["d_model"] % heads:
            raise KeyProblem(f"{side}_attention_heads: {heads} heads do not divide d_model {facts['d_model']}.")
    return {}


SCALE = Codec(lambda value: "sqrt_width" if value else None, lambda value: value == "sqrt_width")


def write_scale(facts: Facts) -> dict[str, Any]:
    """Embeddings are scaled by the square root of the width, or not."""
    if facts["embedding_scale"] not in (None, "sqrt_width"):
        raise KeyProblem(f"scale_embedding: embeddings are scaled by {facts['embedding_scale']}; the class scales them "
                         "by the square root of d_model or not at all.")
    return {"scale_embedding": SCALE.write(facts["embedding_scale"])}


def sizes(vocab_size: int, activation: str, *, positions: int = 1024) -> tuple[KeyRule, ...]:
    """The keys that BART and its relatives have, with the defaults of the class."""
    return (
        Read("vocab_size", "vocab_size", default=vocab_size), Read("d_model", "d_model", default=1024,
                                                                   alias=("hidden_size",)),
        Read("max_position_embeddings", "context", default=positions),
        Read("encoder_layers", N_ENCODER_LAYERS, default=12, alias=("num_hidden_layers",)),
        Read("decoder_layers", N_LAYERS, default=12), Read("encoder_ffn_dim", "d_ff_encoder", default=4096),
        Read("decoder_ffn_dim", "d_ff", default=4096),
        Read("encoder_attention_heads", "n_encoder_heads", default=16, alias=("num_attention_heads",)),
        Read("decoder_attention_heads", "n_heads", default=16), Together((), read_heads, lambda facts: {}),
        Read("activation_function", "activation", str, activation, codec=ACTIVATIONS),
        Read("dropout", "dropout", float, 0.1), Read("attention_dropout", "attention_dropout", float, 0.0),
        Read("init_std", "std", float, 0.02),
        Fixed("tie_word_embeddings", (True,), default=True, why="Both sides and the readout share one matrix."),
        Together(("scale_embedding",), lambda raw, facts: {"embedding_scale": SCALE.read(raw.get("scale_embedding"))},
                 write_scale),
        Ignored(("encoder_layerdrop", "decoder_layerdrop", "activation_dropout"),
                "matters to training only, and Weft drops no layers"),
        Ignored(("unk_token_id", "extra_pos_embeddings"), "an id of the tokenizer, and what is always 2"))


def whole(key: str, value: Any, why: str) -> KeyRule:
    """A key of early files that must have the value of the class."""
    return Fixed(key, (value, None), default=value, why=why)


KEYS: tuple[KeyRule, ...] = (
    *sizes(50265, "gelu"), whole("normalize_embedding", True, "Its embeddings are normalised."),
    whole("normalize_before", False, "Its norms follow the layers."),
    whole("add_final_layer_norm", False, "Its last block ends with a norm."),
    whole("add_bias_logits", False, "The bias of its logits is the tensor final_logits_bias."),
    whole("static_position_embeddings", False, "Its positions are learned."),
    Ignored(("force_bos_token_to_be_generated",), "how text is generated, by the older name of forced_bos_token_id"))


def side_rules(theirs: str, prefix: str, width: int, *, encoder: bool) -> list[Rule]:
    """The rules of one side's blocks; the file stores queries, keys and values as separate tensors."""
    layer, ours, feed = f"{theirs}.layers.{{layer}}", f"{prefix}stack.layers.{{layer}}", 1 if encoder else 2
    rules = [Rule(tuple(f"{layer}.self_attn.{name}_proj.{part}" for name in "qkv"), (f"{ours}.layers.0.qkv.{part}",),
                  (fuse((width, width, width)),)) for part in ("weight", "bias")]
    pairs = {"self_attn.out_proj": "layers.0.output", "self_attn_layer_norm": "norms.0", "fc1": f"layers.{feed}.up",
             "fc2": f"layers.{feed}.down", "final_layer_norm": f"norms.{feed}"}
    if not encoder:
        pairs |= {"encoder_attn.q_proj": "layers.1.q", "encoder_attn.out_proj": "layers.1.output",
                  "encoder_attn_layer_norm": "norms.1"}
        rules += [Rule(tuple(f"{layer}.encoder_attn.{name}_proj.{part}" for name in "kv"),
                       (f"{ours}.layers.1.kv.{part}",), (fuse((width, width)),)) for part in ("weight", "bias")]
    return [*rules, *(rule for a, b in pairs.items() for rule in both(f"{layer}.{a}", f"{ours}.{b}"))]


def shared_rules(facts: Facts) -> list[Rule]:
    """The rules of what BART and its relatives share."""
    width = facts["d_model"]
    return [rename("model.shared.weight", "embedding.tokens.weight"),
            Rule(("final_logits_bias",), ("readout.bias",), (FLATTEN,)),
            *side_rules("model.encoder", "encoder.", width, encoder=True),
            *side_rules("model.decoder", "", width, encoder=False)]


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors."""
    return [*shared_rules(facts), *(rule for theirs, prefix in (("encoder", "encoder."), ("decoder", ""))
                                    for rule in (rename(f"model.{theirs}.embed_positions.weight",
                                                        f"{prefix}embedding.position.table"),
                                                 *both(f"model.{theirs}.layernorm_embedding",
                                                       f"{prefix}embedding.norm")))]


COPIES = tuple((name, "model.shared.weight") for name in (
    "lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"))


BART = Family(
    name="bart", template=template({"kind": "learned", "max_length": Fact("context"), "offset": 2}, NORM),
    source="Lewis et al. 2020 (arXiv:1910.13461), section 2.1",
    native=Native(
        model_type="bart", architecture="BartForConditionalGeneration", architectures=("BartModel",), keys=KEYS,
        weights=weights, prefix="model.", takes_source=True, copies=COPIES,
        junk=(UnusedTensors(r"(model\.)?(encoder|decoder)\.version", "of the code that wrote the file"),)))


TARGETS = "decoder_vocab_size"


def read_targets(raw: Raw, facts: Facts) -> Facts:
    """Sources and targets have one vocabulary."""
    size = typed(TARGETS, raw.get(TARGETS), int)
    if size is not None and size != facts["vocab_size"]:
        raise KeyProblem(f"{TARGETS}: {size} ids of targets and {facts['vocab_size']} of sources, but only models with "
                         "one vocabulary can be read.")
    return {}


def write_targets(facts: Facts) -> dict[str, Any]:
    """The vocabulary again."""
    return {TARGETS: facts["vocab_size"]}


MARIAN_KEYS: tuple[KeyRule, ...] = (
    *sizes(58101, "gelu"), Together((TARGETS,), read_targets, write_targets),
    Fixed("share_encoder_decoder_embeddings", (True, None), default=True, why="Sources and targets share embeddings."),
    whole("normalize_embedding", False, "Its embeddings are not normalised."),
    whole("normalize_before", False, "Its norms follow the layers."),
    whole("add_final_layer_norm", False, "Its last block ends with a norm."),
    whole("add_bias_logits", False, "The bias of its logits is the tensor final_logits_bias."),
    whole("static_position_embeddings", True, "Its positions are fixed."))

MARIAN = Family(
    name="marian", template=template({"kind": "sinusoidal", "layout": "halves"}, {"kind": "none"}),
    source="Junczys-Dowmunt et al. 2018 (arXiv:1804.00344); Tiedemann and Thottingal 2020 (OPUS-MT)",
    native=Native(
        model_type="marian", architecture="MarianMTModel", architectures=("MarianModel",), keys=MARIAN_KEYS,
        weights=shared_rules, prefix="model.", takes_source=True, copies=COPIES,
        junk=(UnusedTensors(r"(model\.)?(encoder|decoder)\.embed_positions\.weight", "sines and cosines, which the "
                            "configuration gives"),)))
