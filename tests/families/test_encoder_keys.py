"""The keys of encoders' configurations: heads and their classes, positions, and what is refused with its reason."""

from __future__ import annotations

from typing import Any

import pytest

from weft.core.errors import CheckpointError, ConfigError
from weft.core.model import ModelConfig
from weft.families.family import families
from weft.interop.huggingface.writing import fit
from weft.preset_files.published_models import published

SMALL = {"vocab_size": 11, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 8,
         "max_position_embeddings": 16}
RELATIVE = {**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
BASES: dict[str, dict[str, Any]] = {
    "bert": SMALL, "roberta": {**SMALL, "type_vocab_size": 1}, "roformer": SMALL, "modernbert": SMALL,
    "deberta": RELATIVE, "deberta_v2": RELATIVE}


def read(family: str, **values: Any) -> ModelConfig:
    return families()[family].read({**BASES[family], **values})[0]


def written(family: str, **values: Any) -> dict[str, Any]:
    return dict(fit(read(family, **values), {}, family=family).raw)


@pytest.mark.parametrize(("family", "values", "message"), [
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type: 'relative_key', but only"),
    ("bert", {"is_decoder": True}, "is_decoder: True, but only False can be read. It would attend to earlier tokens"),
    ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings: False, but only True can be read. The head that"),
    ("bert", {"architectures": ["BertForQuestionAnswering"]},
     "architectures: BertForQuestionAnswering, but only BertForMaskedLM, BertForPreTraining, BertForSequence"),
    ("bert", {"architectures": ["BertForSequenceClassification"], "problem_type": "multi_label_classification"},
     "problem_type: 'multi_label_classification', but only regression and single_label_classification can be read"),
    ("bert", {"architectures": ["BertForTokenClassification"], "num_labels": 1},
     "id2label: a single class, or values, for each token, which no head here gives."),
    ("roberta", {"pad_token_id": 15}, "pad_token_id: 15; positions are counted from the id after it on, in a table of"),
    ("roformer", {"rotary_value": True}, "rotary_value: True, but only False can be read. It would turn values too"),
    ("modernbert", {"layer_types": ["full_attention"]}, "layer_types: 1 types for 2 layers."),
    ("modernbert", {"classifier_pooling": "max"}, "'max' is not known here"),
    ("modernbert", {"rope_parameters": {"local": {}}}, "rope_parameters: local, where only mappings for"),
    ("deberta", {"relative_attention": False}, "relative_attention: False, but only True can be read. Without it"),
    ("deberta", {"pos_att_type": "c2p|p2p"}, "pos_att_type: 'c2p|p2p', but only c2p, p2c and both can be read."),
    ("deberta", {"talking_head": True}, "talking_head: True, but only False or None can be read."),
    ("deberta_v2", {"conv_kernel_size": 3}, "conv_kernel_size: 3, but only 0 or None can be read. A convolution"),
    ("deberta_v2", {"embedding_size": 5}, "embedding_size: 5, with positions or segments that are added before"),
    ("deberta_v2", {"pooler_hidden_size": 5}, "pooler_hidden_size: 5, but only hidden_size, 12, can be read.")])
def test_what_cannot_be_read_is_named(family: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, CheckpointError)) as raised:
        read(family, **values)
    assert any(message in problem for problem in raised.value.problems), raised.value.problems  # type: ignore[union-attr]


@pytest.mark.parametrize("family", BASES)
def test_classes_and_values_are_written_as_they_were_read(family: str) -> None:
    stem = str(families()[family].native.architecture).removesuffix("ForMaskedLM")  # type: ignore[union-attr]
    names = {"id2label": {"0": "bad", "1": "good", "2": "so"}, "architectures": [f"{stem}ForSequenceClassification"]}
    assert read(family, **names).labels() == ("bad", "good", "so")
    raw = written(family, **names)
    assert raw["id2label"] == names["id2label"] and raw["label2id"] == {"bad": 0, "good": 1, "so": 2}
    assert (raw["architectures"], raw["problem_type"]) == (names["architectures"], None)
    values = written(family, **{**names, "id2label": {"0": "LABEL_0"}})
    assert (values["problem_type"], values["id2label"]) == ("regression", {"0": "LABEL_0"})
    unnamed = written(family, architectures=[f"{stem}ForTokenClassification"], num_labels=4)
    assert list(unnamed["id2label"].values()) == [f"LABEL_{index}" for index in range(4)]
    assert written(family, architectures=[f"{stem}Model"])["architectures"] == [f"{stem}Model"]


def test_a_shorter_window_of_training_is_still_written() -> None:
    config = read("bert").model_copy(update={"context": 5})
    assert fit(config, {}).raw["max_position_embeddings"] == 16


def test_what_bert_s_class_adds_in_any_case_is_asked_for() -> None:
    config = read("bert").model_copy(update={"n_types": 0})
    _, _, problems = families()["bert"].write(config, {})
    assert problems == ["n_types: 0, and the class adds an embedding of the segment to each token."]


def test_roberta_s_positions_belong_to_its_padding() -> None:
    config = read("roberta")
    assert (config.dump()["padding_id"], config.dump()["position"]["max_length"]) == (1, 14)
    _, _, problems = families()["roberta"].write(config.model_copy(update={"padding_id": 0}), {})
    assert problems == ["pad_token_id: 0, and position 0 has row 2 of the table; the class begins to count at the row "
                        "after the padding's, and counts no token with its id."]


def test_the_nearest_family_of_an_encoder_is_one_of_encoders() -> None:
    assert fit(read("bert"), {}).family.name == "bert" and fit(read("deberta"), {}).family.name == "deberta"


@pytest.mark.parametrize("value", [" ", True])
def test_a_dropout_of_the_wrong_kind_is_a_problem(value: Any) -> None:
    raw = {**published()["bert-base-uncased"].values, "classifier_dropout": value}
    with pytest.raises(ConfigError, match=f"classifier_dropout: {value!r} is not a number"):
        families()["bert"].read(raw)
