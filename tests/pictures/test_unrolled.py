"""The unrolled graph: which layers pass a state on, how large it is, and a loss at every token."""

from __future__ import annotations

from typing import Any

from pictures.reading import attributes, overlapping
from weft.api import read_model
from weft.core.base_model import built_empty
from weft.core.model import LanguageModel, parse_model
from weft.pictures.unrolled import LayerRow, is_recurrent, rows_of, unrolled


def model(*layers: Any, repeat: int = 1) -> LanguageModel:
    built = built_empty(parse_model({"kind": "decoder", "vocab_size": 5, "d_model": 8, "blocks": [
        {"repeat": repeat, "of": [{"kind": "pre", "layers": list(layers)}]}]}))
    assert isinstance(built, LanguageModel)
    return built


def test_layers_say_what_they_carry() -> None:
    rows = rows_of(model("gru", {"kind": "mlp", "d_ff": 9}, {"kind": "lstm", "d_hidden": 6}, {"kind": "attention"}))
    assert rows == [LayerRow("GRU", "state: 8 numbers", carries=True), LayerRow("MLP"),
                    LayerRow("LSTM", "state: 12 numbers", carries=True),
                    LayerRow("Attention", "keys and values", carries=True, grows=True)]


def test_repeated_layers_are_drawn_once() -> None:
    assert rows_of(model("gru", repeat=3)) == [LayerRow("GRU", "state: 8 numbers", carries=True, times=" × 3")]


def test_which_models_are_recurrent() -> None:
    assert is_recurrent(model("gru")) and is_recurrent(model("s4d", {"kind": "attention"}))
    assert not is_recurrent(model({"kind": "attention"}))
    assert not is_recurrent(model({"kind": "attention", "mask": "causal & window(4)"}))
    assert not is_recurrent(built_empty(read_model("ngram"))) and not is_recurrent(built_empty(read_model("encoder")))


def test_every_token_has_a_loss_and_every_later_one_a_state() -> None:
    figure = unrolled(model("gru", {"kind": "mlp", "d_ff": 9}))
    assert attributes(figure, "data-loss") == ["1", "2", "3", "T"]
    assert attributes(figure, "data-carried") == ["GRU 2", "GRU 3", "GRU T"]
    assert attributes(figure, "data-row") == ["embedding", "GRU", "MLP", "readout"] * 4
    assert overlapping(figure) == []
