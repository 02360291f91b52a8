"""The drawing of an architecture says what the model is: parts in order, repetitions, norms, sums, positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pictures.reading import attributes, overlapping, tree
from weft.blocks.residual import PreNormConfig
from weft.core.base_model import built_empty
from weft.core.model import Model, parse_model
from weft.core.part_config import Dims
from weft.pictures.architecture import BlockPicture, ModelColumn, ModelDrawing, PartBox, architecture_of, block_picture
from weft.pictures.diagram import figure
from weft.pictures.folding import Fold

MLP: dict[str, Any] = {"kind": "mlp", "d_ff": 12}


def model(**changes: Any) -> Model:
    data = {"kind": "decoder", "vocab_size": 11, "context": 16, "d_model": 8, "norm": "layernorm",
            "blocks": [{"repeat": 3, "of": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}, MLP]}]}]}
    return built_empty(parse_model({**data, **changes}))


def written(column: ModelColumn) -> list[str]:
    return [_element(each) for each in column.elements]


def _element(element: object) -> str:
    if isinstance(element, Fold):
        return f"{element.repeat}({', '.join(_element(each) for each in element.items)})"
    if isinstance(element, BlockPicture):
        return f"{element.kind}[{'; '.join(_step(step) for step in element.steps)}]"
    assert isinstance(element, PartBox)
    return element.title


def _step(step: Any) -> str:
    inner = " | ".join(" ".join(box.title for box in (branch.before, branch.layer, branch.after) if box is not None)
                       for branch in step.branches)
    parts = [*([step.entering.title] if step.entering else []), inner, f"+{step.skip}"]
    return " ".join([*parts, *([step.after.title] if step.after else [])])


def test_a_decoder_with_equal_blocks_is_folded() -> None:
    [column] = architecture_of(model(), "small").columns
    assert written(column) == [
        "token embedding", "3(pre[layernorm attention +stream; layernorm mlp +stream])", "layernorm", "linear readout"]


@pytest.mark.parametrize(("block", "expected"), [
    ({"kind": "post"}, "post[attention +stream layernorm; mlp +stream layernorm]"),
    ({"kind": "post", "inside": True}, "post[attention layernorm +stream; mlp layernorm +stream]"),
    ({"kind": "sandwich", "norm": "rmsnorm"},
     "sandwich[rmsnorm attention rmsnorm +stream; rmsnorm mlp rmsnorm +stream]"),
    ({"kind": "parallel"}, "parallel[layernorm attention | mlp +stream]"),
    ({"kind": "parallel", "shared_norm": False}, "parallel[layernorm attention | layernorm mlp +stream]"),
    ({"kind": "pre", "skip_normed": True}, "pre[layernorm attention +entering; layernorm mlp +entering]"),
    ({"kind": "plain", "residual": False}, "plain[attention +nothing; mlp +nothing]"),
    ({"kind": "pre", "norm": "none"}, "pre[attention +stream; mlp +stream]")])
def test_norms_and_residual_paths_are_shown_where_they_are(block: dict[str, Any], expected: str) -> None:
    found = model(blocks=[{**block, "layers": [{"kind": "attention", "n_heads": 2}, MLP]}])
    assert written(architecture_of(found).columns[0])[1] == expected


def test_patterns_of_layers_are_folded_and_differ_by_their_masks() -> None:
    def block(mask: str) -> dict[str, Any]:
        return {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "mask": mask}, MLP]}

    found = model(blocks=[{"repeat": 2, "of": [{"repeat": 5, "of": [block("causal & window(4)")]}, block("causal")]}])
    picture = figure(architecture_of(found))
    assert attributes(picture, "data-repeat") == ["5", "2"]  # from the inside out
    assert attributes(picture, "data-block") == ["pre", "pre"]


def test_parts_say_their_sizes_settings_and_positions() -> None:
    found = model(blocks=[{"kind": "pre", "layers": [
        {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "d_head": 4, "position": {"kind": "rope", "base": 500.0},
         "qk_norm": "rmsnorm", "mask": "causal & window(4)"}, MLP]}], position="learned")
    [column] = architecture_of(found).columns
    [block] = [each for each in column.elements if isinstance(each, BlockPicture)]
    attention, mlp = (step.branches[0].layer for step in block.steps)
    assert [line.replace("\u00a0", " ") for line in attention.lines] == [
        "n_heads 4, n_kv_heads 2, d_head 4", "mask causal & window(4)", "qk_norm rmsnorm",
        "rope (base 500) positions, on queries and keys", "qkv 8→32 · output 16→8"]
    assert mlp.lines[-1].replace("\u00a0", " ") == "up 8→12 · down 12→8" and mlp.note == "212"
    positions = column.elements[1]
    assert isinstance(positions, PartBox) and (positions.title, positions.note) == ("learned positions", "128")
    assert positions.lines[0] == "added"


def test_a_readout_that_is_the_embedding_says_so() -> None:
    [tied] = architecture_of(model()).columns
    [own] = architecture_of(model(readout={"kind": "linear", "tied": False})).columns
    assert tied.elements[-1] == PartBox("linear readout", ("tied: the token embedding",))
    assert isinstance(own.elements[-1], PartBox) and own.elements[-1].note == "88"


def test_an_encoder_stands_beside_its_decoder_which_reads_it() -> None:
    layers = [{"kind": "attention", "n_heads": 2, "mask": "bidirectional"}, MLP]
    cross = [{"kind": "attention", "n_heads": 2}, {"kind": "cross_attention", "n_heads": 2}, MLP]
    found = model(kind="encoder_decoder", blocks=[{"kind": "post", "layers": cross}],
                  encoder={"kind": "encoder", "vocab_size": 11, "d_model": 8, "position": "sinusoidal",
                           "blocks": [{"kind": "post", "layers": layers}]})
    architecture = architecture_of(found)
    assert [column.title for column in architecture.columns] == ["encoder", "decoder"]
    picture = figure(architecture)
    assert attributes(picture, "data-column") == ["encoder", "decoder"]
    assert attributes(picture, "data-wire").count("memory") == 1
    assert attributes(picture, "data-part").count("cross attention") == 1
    assert attributes(picture, "data-part").count("sinusoidal positions") == 1


def test_a_block_that_says_nothing_of_its_wiring_is_drawn_without_wires() -> None:
    class Silent(PreNormConfig):
        kind = "silent"

        def build(self, dims: Dims) -> Any:
            block = super().build(dims)
            block.wiring = lambda: None  # type: ignore[method-assign]
            return block

    with torch.device("meta"):
        built = Silent.model_validate({"layers": [{"kind": "attention", "n_heads": 2}, MLP]}).build(Dims(8, 11, 16))
    found = block_picture(built, {})
    assert not found.wired and _element(found) == "silent[attention +nothing; mlp +nothing]"
    picture = figure(ModelDrawing("it", (ModelColumn("block", (found,), "stream"),)))
    assert any("wiring unknown" in (each.text or "") for each in tree(picture).iter())


@pytest.mark.parametrize("preset", ["transformer", "encoder_decoder", "encoder", "lstm", "ngram", "feedforward", "s4d"])
def test_words_do_not_overlap(preset: str) -> None:
    from weft.api import read_model

    assert overlapping(figure(architecture_of(built_empty(read_model(preset)), preset))) == []
