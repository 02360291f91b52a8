"""SST-2 and CoLA: completions by plain calls of the model, classifiers by their own answers, figures by hand."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.asked import END, V, asked, by_hand, transformer
from weft.benchmarks import Conditions
from weft.benchmarks.sentences import ColaConfig, SST2Config
from weft.core.config import parse_part
from weft.core.errors import DataError, InputError, UnsupportedError
from weft.core.model import Model
from weft.tasks.answers import classify

SENTENCES = [f"a {'very ' * (i % 3)}{word} \"film\" , {i}" for i, word in enumerate(
    ["fine", "dull", "odd", "fine", "bad", "long", "good", "grim", "new", "old"])]
LABELS = [1, 0, 0, 1, 1, 0, 1, 0, 1, 0]


def sst2(folder: Path, part: str = "dev") -> Path:
    rows = "".join(f"{text} \t{label}\n" for text, label in zip(SENTENCES, LABELS, strict=True))
    (folder / f"{part}.tsv").write_text("sentence\tlabel\n" + rows, "utf-8")
    return folder


def cola(folder: Path, part: str = "dev") -> Path:
    rows = (f"gj04\t{label}\t{'' if label else '*'}\t{text}" for text, label in zip(SENTENCES, LABELS, strict=True))
    (folder / f"{part}.tsv").write_text("\n".join(rows), "utf-8")
    return folder


@pytest.mark.parametrize("normalise", ["none", "bytes"])
def test_the_completion_with_the_higher_score_is_the_answer(normalise: str, tmp_path: Path) -> None:
    model, sizes = transformer().eval(), {"none": (1, 1), "bytes": (9, 9)}
    found = SST2Config(divide_by=normalise).measure(asked(model), sst2(tmp_path), Conditions())
    chosen = []
    for sentence, request in zip(SENTENCES, found.requests, strict=True):
        prompt = f"{sentence}\nQuestion: Is this sentence positive or negative?\nAnswer:"
        wanted = [by_hand(model, prompt, f" {word}")[0] / size
                  for word, size in zip(("negative", "positive"), sizes[normalise], strict=True)]
        assert request["scores"] == pytest.approx(wanted, rel=1e-9)
        chosen.append(wanted.index(max(wanted)))
    assert [each["choice"] for each in found.requests] == chosen
    assert found.score("accuracy").value == pytest.approx(np.mean(np.equal(LABELS, chosen)))
    assert len(set(chosen)) == 1 and found.score("matthews").value == 0, "all answers are the same"
    assert [score.name for score in found.scores] == ["accuracy", "matthews"]


def test_normalisation_by_length_can_change_the_answer(tmp_path: Path) -> None:
    """Of " no" and " yes", 3 and 4 bytes and tokens, the longer one gains: all of these answers change."""
    model = asked(transformer(-0.125))
    cola(tmp_path)
    by = {each: ColaConfig(divide_by=each).measure(model, tmp_path, Conditions()) for each in ("none", "bytes",
                                                                                            "tokens")}
    for plain, size, token in zip(*(each.requests for each in by.values()), strict=True):
        assert plain["scores"] == pytest.approx(plain["log_probs"])
        assert size["scores"] == pytest.approx([plain["log_probs"][0] / 3, plain["log_probs"][1] / 4])
        assert token["scores"] == pytest.approx(size["scores"])
    assert by["none"].scores[0].name == "matthews"
    assert {each["choice"] for each in by["none"].requests} == {0}
    assert {each["choice"] for each in by["bytes"].requests} == {1}


def test_examples_are_drawn_from_train_by_the_seed_and_stand_before_each(tmp_path: Path) -> None:
    cola(cola(tmp_path), "train")
    model = transformer().eval()
    found = ColaConfig(shots=2, seed=5).measure(asked(model), tmp_path, Conditions(limit=1))
    drawn = random.Random(5).sample(range(len(SENTENCES)), 2)
    question = "\nQuestion: Does this sentence make sense?\nAnswer:"
    prompt = "".join(f"{SENTENCES[i]}{question} {('no', 'yes')[LABELS[i]]}\n\n" for i in drawn)
    assert found.example == f"{prompt}{SENTENCES[0]}{question}"
    assert found.requests[0]["log_probs"] == pytest.approx(
        [by_hand(model, found.example, f" {word}")[0] for word in ("no", "yes")], rel=1e-9)
    assert "examples: 2, drawn from train.tsv by seed 5" in found.protocol.describe() and len(found.requests) == 1
    again = ColaConfig(shots=2, seed=6).measure(asked(model), tmp_path, Conditions(limit=1))
    assert again.example != found.example
    with pytest.raises(InputError, match=r"shots: 11 examples, and train\.tsv has 10\. Give fewer"):
        ColaConfig(shots=11).measure(asked(model), tmp_path, Conditions())
    (tmp_path / "train.tsv").unlink()
    with pytest.raises(DataError, match=r"train\.tsv: no file of examples\. Add it, or leave out shots"):
        ColaConfig(shots=1).measure(asked(model), tmp_path / "dev.tsv", Conditions())


def classifier(labels: list[str] | None) -> Model:
    """An encoder with a head of two classes, or one with names."""
    torch.manual_seed(3)
    head: dict[str, Any] = {"kind": "pooled", "pool": "mean"} | ({"labels": labels} if labels else {"n_classes": 2})
    block = {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "mask": "bidirectional"}]}
    config = {"kind": "encoder", "vocab_size": V, "d_model": 8, "context": 24, "blocks": [block], "head": head,
              "embedding": {"std": 1.0}}
    model = parse_part(("encoder",), config).build(None).double()  # type: ignore[arg-type]
    assert isinstance(model, Model)
    return model


@pytest.mark.parametrize("labels", [None, ["positive", "negative"]])
def test_a_classifier_answers_by_its_class(labels: list[str] | None, tmp_path: Path) -> None:
    model = classifier(labels).eval()
    found = SST2Config().measure(asked(model, batch_size=3), sst2(tmp_path), Conditions())
    rows = [[END, *f"{text} ".encode()[:22], END] for text in SENTENCES]  # as long as the context, the end marked
    best = [answer.best[0] for answer in classify(model, rows)]
    wanted = [int(each == "positive") if labels else int(each) for each in best]
    assert [each["choice"] for each in found.requests] == wanted and 0 < sum(wanted) < len(wanted)
    assert found.score("accuracy").value == pytest.approx(np.mean(np.equal(LABELS, wanted)))
    assert found.score("matthews").value == pytest.approx(np.corrcoef(LABELS, wanted)[0, 1])
    assert "the class that the model's head finds most probable" in found.protocol.describe()
    with pytest.raises(InputError, match=r"shots, divide_by: a classifier reads no examples and scores no completions"):
        SST2Config(divide_by="bytes").measure(asked(model), tmp_path, Conditions())


def test_a_classifier_of_other_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"model\.head: the model's classes are 'cats', 'dogs'\. cola needs two, "
                                               r"called 0 and 1, or unacceptable and acceptable"):
        ColaConfig().measure(asked(classifier(["cats", "dogs"])), cola(tmp_path), Conditions())


def test_what_is_wrong_with_the_files_is_told_with_file_and_line(tmp_path: Path) -> None:
    model, file = asked(transformer()), tmp_path / "dev.tsv"
    for config, content, message in (
        (SST2Config(), "index\tsentence\n0\ta", r"dev\.tsv, line 1: the first line is 'index\\tsentence', not the n"),
        (SST2Config(), "sentence\tlabel\na\t1\nb", r"dev\.tsv, line 3: 1 values between tabs, not 2"),
        (SST2Config(), "sentence\tlabel\na\t2\n", r"dev\.tsv, line 2: the label is '2', not 0 or 1"),
        (SST2Config(), "sentence\tlabel\n", r"dev\.tsv: the file has no sentence"),
        (ColaConfig(), "gj04\t1\t\ta\ngj04\t1\ta", r"dev\.tsv, line 2: 3 values between tabs, not 4"),
        (ColaConfig(), "gj04\t-\t\ta", r"dev\.tsv, line 1: the label is '-', not 0 or 1\. Correct that line, or give"),
    ):
        file.write_text(content, "utf-8")
        with pytest.raises(DataError, match=message):
            config.measure(model, tmp_path, Conditions())
    with pytest.raises(DataError, match=r"test\.tsv: no such file"):
        SST2Config(split="test").measure(model, tmp_path, Conditions())
