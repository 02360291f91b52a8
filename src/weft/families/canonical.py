"""The canonical form of a configuration: configurations of equal models have equal data, however they were written.

Defaults are filled in, repeated blocks are expanded, and fields that a part derives from the model's dimensions
(``n_kv_heads``, ``d_head``, ``d_ff``, ...) are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from weft.core.model import ModelConfig, parse_model

Data = dict[str, Any]


def canonical(config: ModelConfig) -> Data:
    """The canonical form of a model's configuration."""
    data = config.dump()
    form: Data = _walk(data, data)
    return form


def canonical_data(data: Any) -> Data:
    """The canonical form of a configuration in plain data, which may omit defaults. Raises `ConfigError`: the data is
    not a configuration."""
    return canonical(parse_model(data))


def _walk(data: Any, model: Data) -> Any:
    if isinstance(data, Mapping):
        resolved = {key: _walk(value, model) for key, value in data.items()}
        resolve = RESOLVE.get(str(resolved.get("kind")))
        return resolved if resolve is None else {**resolved, **resolve(resolved, model)}
    if isinstance(data, list | tuple):
        return [_walk(item, model) for item in _expanded(list(data))]
    return data


def _expanded(items: list[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if isinstance(item, Mapping) and set(item) == {"repeat", "of"}:
            found += _expanded(list(item["of"])) * int(item["repeat"])
        else:
            found.append(item)
    return found


def _attention(part: Data, model: Data) -> Data:
    d_head = part["d_head"] or model["d_model"] // part["n_heads"]
    found = {"d_head": d_head, "n_kv_heads": part["n_kv_heads"] or part["n_heads"],
             "d_value": part["d_value"] or d_head}
    return {**found, **_turned(part, d_head, d_head)}


def _turned(part: Data, turned: int, size: int) -> Data:
    """Position and scores of attention with ``turned`` rotary of ``size`` features in a head."""
    found, position, scores = {}, part["position"], part["scores"]
    if position.get("kind") == "rope" and position["rot"] is None:
        found["position"] = {**position, "rot": turned}
    if scores["scale"] == size ** -0.5:
        found["scores"] = {**scores, "scale": None}
    return found


def _latent_attention(part: Data, model: Data) -> Data:
    content = part["d_nope"] or model["d_model"] // part["n_heads"]
    turned = part["d_rope"] or 2 * -(-content // 4)
    found = {"d_nope": content, "d_rope": turned, "d_value": part["d_value"] or content,
             "d_latent": part["d_latent"] or 4 * content}
    return {**found, **_turned(part, turned, content + turned)}


def _gated_delta_net(part: Data, model: Data) -> Data:
    d_head = part["d_head"] or model["d_model"] // part["n_heads"]
    return {"d_head": d_head, "d_value": part["d_value"] or 2 * d_head,
            "n_value_heads": part["n_value_heads"] or part["n_heads"]}


def _mamba2(part: Data, model: Data) -> Data:
    norm, factors = part["norm"], part["multipliers"]
    if norm is not None and part["n_groups"] == 1:
        norm = {**norm, "per_group": True}
    return {"n_heads": part["n_heads"] or 2 * model["d_model"] // part["d_head"], "norm": norm,
            "multipliers": dict.fromkeys(("input", "z", "x", "b", "c", "dt"), 1.0) if factors is None else factors}


def _sum(part: Data, model: Data) -> Data:
    return {"factors": part["factors"] or [1.0] * len(part["layers"])}


def _mlp(part: Data, model: Data) -> Data:
    return {"d_ff": part["d_ff"] or 4 * model["d_model"]}


def _glu(part: Data, model: Data) -> Data:
    return {"d_ff": part["d_ff"] or -(-model["d_model"] // 3) * 8}


def _embedding(model: Data) -> Data:
    embedding = model["embedding"]
    width = embedding["d_embedding"] or model["d_model"]
    return {**embedding, "scale": None if embedding["scale"] == 1.0 else embedding["scale"],
            "std": width ** -0.5 if embedding["std"] == "inverse_sqrt_width" else embedding["std"]}


def _stacked(part: Data, model: Data) -> Data:
    return {"embedding": _embedding(part)}


RESOLVE: Mapping[str, Callable[[Data, Data], Data]] = MappingProxyType({
    "attention": _attention,
    "channel_mix": _mlp,
    "cross_attention": lambda part, model: _attention({**part, "position": {}}, model),
    "decoder": _stacked,
    "encoder": _stacked,
    "encoder_decoder": _stacked,
    "gated_attention": _attention,
    "gated_delta_net": _gated_delta_net,
    "global_attention": _attention,
    "glu": _glu,
    "latent_attention": _latent_attention,
    "learned": lambda part, model: {"max_length": part["max_length"] or model["context"]},
    "mamba2": _mamba2,
    "mlp": _mlp,
    "rwkv4": lambda part, model: {"d_attention": part["d_attention"] or model["d_model"]},
    "scaled_glu": _glu,
    "sum": _sum,
})
"""Functions, by a part's kind, that compute the fields it derives from its other fields and from the model's."""
