"""RWKV's original files: what is read from them, and what is said of those that cannot be."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from weft import api
from weft.checkpoints.tensors import own_tensors
from weft.core.errors import CheckpointError
from weft.families.common import BUFFERS
from weft.families.rwkv import VERSIONS, Version
from weft.families.template import Facts, build_config
from weft.families.weights import account
from weft.interop.rwkv import load_original

SIZES: Facts = {"vocab_size": 11, "d_model": 8, "n_layers": 3, "d_ff": 12}
OWN: dict[str, Facts] = {
    "rwkv": {"d_attention": 8, "eps": 1e-5, "tied": False}, "rwkv5": {"n_heads": 2, "d_head": 4},
    "rwkv6": {"n_heads": 2, "d_head": 4, "shift_rank": 3, "decay_rank": 2},
    "rwkv7": {"n_heads": 2, "d_head": 4, "value_residual": [False, True, True], "decay_rank": 2, "rate_rank": 3,
              "value_rank": 5, "gate_rank": 4}}
EVERY = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.family.name)


def written(version: Version) -> tuple[Any, dict[str, Tensor]]:
    """A random model of a version, and its tensors as its original files name them."""
    torch.manual_seed(0)
    facts = {**SIZES, "context": version.context, **OWN[version.family.name]}
    model = build_config(version.family.template, facts).build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    own = own_tensors(model)
    rules = account(version.weights(facts), own, junk=BUFFERS).rules
    return model, {name: tensor.detach().clone() for rule in rules for name, tensor in zip(
        rule.theirs, rule.write([own[each].detach() for each in rule.ours]), strict=True)}


@EVERY
def test_a_file_is_the_model_that_its_shapes_say(version: Version, tmp_path: Path) -> None:
    model, tensors = written(version)
    torch.save(tensors, tmp_path / "model.pth")
    loaded = api.load(tmp_path / "model.pth")
    assert loaded.config == model.config and loaded.facts["family"] == version.family.name
    tokens = torch.randint(11, (2, 9))
    # Where the file has the share of the earlier token, that of the token itself is rounded twice.
    torch.testing.assert_close(loaded.model(tokens).y, model.eval()(tokens).y, rtol=1e-4, atol=1e-4)


def test_names_and_shapes_are_those_of_released_files() -> None:
    """As the released code builds them (RWKV-LM)."""
    shapes = {version.family.name: {name: tuple(x.shape) for name, x in written(version)[1].items()}
              for version in VERSIONS}
    assert shapes["rwkv"]["blocks.0.att.time_mix_k"] == (1, 1, 8) and shapes["rwkv"]["blocks.2.att.time_first"] == (8,)
    assert shapes["rwkv5"]["blocks.1.att.time_decay"] == (2, 4) and shapes["rwkv5"]["blocks.1.att.ln_x.weight"] == (8,)
    assert shapes["rwkv6"]["blocks.1.att.time_maa_w1"] == (8, 15)
    assert shapes["rwkv6"]["blocks.1.att.time_maa_w2"] == (5, 3, 8)
    assert shapes["rwkv6"]["blocks.0.att.time_decay_w2"] == (2, 8) and "blocks.1.ln0.weight" not in shapes["rwkv6"]
    assert shapes["rwkv7"]["blocks.1.att.v1"] == (8, 5) and "blocks.0.att.v1" not in shapes["rwkv7"]
    assert shapes["rwkv7"]["blocks.0.att.r_k"] == (2, 4) and shapes["rwkv7"]["blocks.0.ffn.x_k"] == (1, 1, 8)


@pytest.mark.parametrize(("place", "name"), [(0, "x_k"), (1, "time_maa_k")], ids=["rwkv7", "rwkv6"])
def test_later_files_hold_the_share_of_the_token_before(place: int, name: str) -> None:
    """x + (x_{t-1} - x) x_k there, and here mu x + (1 - mu) x_{t-1}."""
    model, tensors = written(VERSIONS[place])
    mine = model.stack.layers[1].layers[1].mix_key
    torch.testing.assert_close(tensors[f"blocks.1.ffn.{name}"].flatten(), 1 - mine.detach())


def test_what_the_first_layer_of_version_7_does_not_use_is_left(tmp_path: Path) -> None:
    _, tensors = written(VERSIONS[0])
    unused = {f"blocks.0.att.{name}": tensors[f"blocks.1.att.{name}"] for name in ("v0", "v1", "v2")}
    torch.save(tensors | unused, tmp_path / "model.pth")
    assert load_original(tmp_path / "model.pth").facts["family"] == "rwkv7"


def spoilt(tensors: dict[str, Tensor], **changes: Tensor | None) -> dict[str, Tensor]:
    return {name: x for name, x in {**tensors, **changes}.items() if x is not None}


@pytest.mark.parametrize(("changes", "message"), [
    ({"blocks.0.att.time_first": None}, r"names of no version of RWKV that is known here \(rwkv, rwkv5, rwkv6, rwkv7; "
     r"RWKV-5 from 5\.2 on\)"),
    ({"emb.weight": None}, "the tensor 'emb.weight' is missing, from whose shape sizes follow"),
    ({"emb.weight": torch.zeros(3)}, "other numbers of dimensions"),
    ({"blocks.1.att.key.weight": None}, r"blocks\.1\.att\.key\.weight: missing, shape \[8, 8\]"),
    ({"blocks.1.att.gate": torch.zeros(2)}, r"blocks\.1\.att\.gate: unexpected"),
    ({"blocks.1.att.key.weight": torch.zeros(2, 8)}, r"shape \[2, 8\] where the configuration gives \[8, 8\]"),
    ({"head.weight": torch.full((11, 8), torch.nan)}, r"head\.weight: holds NaN"),
    ({"head.weight": torch.zeros(11, 8, dtype=torch.int8)}, r"head\.weight: its numbers are torch\.int8")])
def test_what_is_wrong_is_said(changes: dict[str, Tensor | None], message: str, tmp_path: Path) -> None:
    tensors = spoilt(written(VERSIONS[-1])[1], **changes)
    torch.save(tensors, tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match=message):
        api.load(tmp_path / "model.pth")


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "model.pth").write_bytes(pickle.dumps({"emb.weight": Trap()}, protocol=2))
    with pytest.raises(CheckpointError, match="holds more than tensors"):
        api.load(tmp_path / "model.pth")
    assert not (tmp_path / "ran").exists()


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such file"):
        api.load(tmp_path / "model.pth")
