"""Classifiers, taggers, encoders of masked tokens and bare ones that no native class expresses: what they predict of
texts, rows and images in transformers is what they predict here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from torch import Tensor

from against_transformers.tiny import own_modules
from interop.huggingface.test_from_text import TEXTS
from weft import api
from weft.checkpoints import save_checkpoint
from weft.core.model import Model, parse_model
from weft.core.span import Span
from weft.tokenizers import BPETokenizer, ByteTokenizer, Tokenizer, WordPieceTokenizer

EXAMPLE = Path(__file__).parents[2] / "examples" / "classify.yaml"
QUESTIONS = ["a bad film", "the plot is good and the film is not bad", "no"]
TOLERANCE = 2e-5
"""On float32 scores of the size 5; batches have other shapes than rows alone."""


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where transformers copies a folder's code to before it runs it, and looks for modules from then on."""
    with own_modules(tmp_path_factory.mktemp("modules")):
        yield


def model_of(**changes: Any) -> Model:
    """The model of the example of a classifier, small, with changes and with weights that tell texts apart."""
    raw = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["model"]
    raw["blocks"][0]["repeat"] = 1
    model = parse_model({**raw, "d_model": 16, "context": 48, "vocab_size": 300, **changes}).build()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def converted(folder: Path, model: Model, tokenizer: Tokenizer | None) -> Any:
    """The folder with code, opened by the class that its config.json names for its head."""
    save_checkpoint(folder / "a", model, tokenizer)
    done = api.convert(folder / "a", folder / "b", to="hf", with_code=True)
    assert done.family is None and done.difference == 0.0 and done.foreign is not None and done.foreign <= TOLERANCE
    return opened(folder / "b")


def opened(folder: Path) -> Any:
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    auto = next(name for name in config.auto_map if name != "AutoConfig")
    return getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True).eval()


def batch(folder: Path, *texts: list[str], side: str = "right") -> Any:
    return tokenizer_of(folder, padding_side=side)(*texts, padding=True, return_tensors="pt")


def tokenizer_of(folder: Path, **options: Any) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True, **options)


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), atol=TOLERANCE, rtol=0)


CAUSAL = {"kind": "decoder", "position": "none", "norm": "rmsnorm", "head": {"kind": "pooled", "pool": "last",
                                                                             "labels": ["no", "yes", "perhaps"]},
          "blocks": [{"kind": "pre", "layers": ["lstm"]}]}
MODELS: dict[str, dict[str, Any]] = {
    "example": {"head": {"kind": "pooled", "pool": "mean", "labels": ["1", "5"]}},
    "segments": {"n_types": 2, "head": {"kind": "pooled", "n_classes": 3}}, "causal": CAUSAL}
NAMES = {"example": ["1", "5"], "segments": ["LABEL_0", "LABEL_1", "LABEL_2"], "causal": ["no", "yes", "perhaps"]}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("tokenizer", [BPETokenizer, WordPieceTokenizer])
@pytest.mark.parametrize("name", MODELS)
def test_classes_of_texts_and_pairs(name: str, tokenizer: Any, pairs: bool, side: str, tmp_path: Path) -> None:
    model = model_of(**MODELS[name])
    theirs = converted(tmp_path, model, tokenizer.train(TEXTS, 289 if tokenizer is BPETokenizer else 48))
    rows: Any = [(text, QUESTIONS[0]) for text in QUESTIONS] if pairs else QUESTIONS
    given = batch(tmp_path / "b", QUESTIONS, *([QUESTIONS[:1] * 3] if pairs else []), side=side)
    with torch.no_grad():
        found = theirs(**given).logits.log_softmax(-1)
    assert list(theirs.config.id2label.values()) == NAMES[name]
    for folder in "ab":  # what Weft reads back predicts the same
        close(found, torch.tensor([answer.scores[0] for answer in api.classify(tmp_path / folder, rows)]))


def test_a_pipeline_names_the_class(tmp_path: Path) -> None:
    theirs = converted(tmp_path, model_of(**MODELS["example"]), BPETokenizer.train(TEXTS, 289))
    pipeline: Any = transformers.pipeline("text-classification", model=theirs,
                                          tokenizer=tokenizer_of(tmp_path / "b"))
    found = [(each["label"], each["score"]) for each in pipeline(QUESTIONS)]
    for (label, score), answer in zip(found, api.classify(tmp_path / "a", QUESTIONS), strict=True):
        probabilities = torch.tensor(answer.scores[0]).exp()
        assert label == ("1", "5")[int(probabilities.argmax())]
        assert score == pytest.approx(float(probabilities.max()), abs=1e-5)


def test_values_and_their_loss(tmp_path: Path) -> None:
    theirs = converted(tmp_path, model_of(head={"kind": "pooled", "n_values": 1}), BPETokenizer.train(TEXTS, 289))
    given, goals = batch(tmp_path / "b", QUESTIONS), torch.tensor([0.5, -1.0, 2.0])
    with torch.no_grad():
        found = theirs(**given, labels=goals)
    values = torch.tensor([answer.scores[0] for answer in api.classify(tmp_path / "a", QUESTIONS)])
    close(found.logits, values)
    close(found.loss, (values[:, 0] - goals).square().mean())


@pytest.mark.parametrize("side", ["left", "right"])
def test_classes_of_tokens_and_their_loss(side: str, tmp_path: Path) -> None:
    theirs = converted(tmp_path, model_of(head={"kind": "per_token", "labels": ["O", "B", "I"]}),
                       BPETokenizer.train(TEXTS, 289))
    given = batch(tmp_path / "b", QUESTIONS, side=side)
    labels = (given["input_ids"] % 3).masked_fill(given["attention_mask"] == 0, -100)
    with torch.no_grad():
        found = theirs(**given, labels=labels)
    scores = [torch.tensor(answer.scores) for answer in api.classify(tmp_path / "a", QUESTIONS)]
    for row, (mask, wanted) in enumerate(zip(given["attention_mask"].bool(), scores, strict=True)):
        close(found.logits[row][mask].log_softmax(-1), wanted)
    close(found.loss, -torch.cat(scores).gather(1, labels[labels >= 0][:, None]).mean())


@pytest.mark.parametrize(("head", "key"), [({"kind": "masked_token"}, "logits"), (None, "last_hidden_state")])
def test_encoders_of_masked_tokens_and_bare_ones(head: Any, key: str, tmp_path: Path) -> None:
    theirs = converted(tmp_path, model_of(head=head), BPETokenizer.train(TEXTS, 289))
    given = batch(tmp_path / "b", QUESTIONS)
    with torch.no_grad():
        found = theirs(**given)[key]
    rows = [ids[mask.bool()].tolist() for ids, mask in zip(given["input_ids"], given["attention_mask"], strict=True)]
    wanted = api.score(tmp_path / "a", rows, logits=True).logits
    assert wanted is not None
    for row, each in enumerate(wanted):
        close(found[row, :len(each)], each)


def test_classes_of_images(tmp_path: Path) -> None:
    image = {"kind": "image_encoder", "image": {"height": 8, "width": 8}, "class_token": False, "vocab_size": 0,
             "context": 4, "position": "none", "head": {"kind": "pooled", "pool": "mean", "labels": ["cat", "dog"]}}
    theirs = converted(tmp_path, model_of(**image), None)
    pixels = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        found = theirs(pixels, labels=torch.tensor([0, 1, 1]))
    model: Any = api.load(tmp_path / "b").model
    with torch.no_grad():
        wanted = model.head.scores(model.vectors(model.images(pixels)).y, Span())
    close(found.logits, wanted)
    close(found.loss, -wanted.log_softmax(-1)[range(3), [0, 1, 1]].mean())


def test_training_goes_through_and_what_is_saved_is_read(tmp_path: Path) -> None:
    theirs = converted(tmp_path, model_of(**MODELS["example"]), BPETokenizer.train(TEXTS, 289)).train()
    given = batch(tmp_path / "b", QUESTIONS)
    loss = theirs(**given, labels=torch.tensor([0, 1, 0])).loss
    loss.backward()
    assert all(parameter.grad is not None for parameter in theirs.parameters())
    theirs.eval().save_pretrained(tmp_path / "c")
    tokenizer_of(tmp_path / "b").save_pretrained(tmp_path / "c")
    again, before = (api.classify(tmp_path / name, QUESTIONS) for name in "ca")
    assert [answer.scores for answer in again] == [answer.scores for answer in before]
    assert opened(tmp_path / "c").config.id2label == {0: "1", 1: "5"}


def test_a_tokenizer_without_a_library_s_file_is_weft_s_alone(tmp_path: Path) -> None:
    theirs = converted(tmp_path, model_of(**MODELS["example"]), ByteTokenizer())
    again, before = (api.classify(tmp_path / name, QUESTIONS) for name in "ba")
    assert [answer.scores for answer in again] == [answer.scores for answer in before]
    assert theirs.config.num_labels == 2
