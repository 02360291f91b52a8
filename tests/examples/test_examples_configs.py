"""The configurations in ``examples/``: every one is read, and trains for a step on a text of its kind."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import weft

EXAMPLES = Path(__file__).parents[2] / "examples"
STUDIES = {"six_ages.yaml", "equal_parameters.yaml"}
PLUGINS = {"min_gru.yaml"}
TEXTS = {
    "words.yaml": {f"ptb.{part}.txt": "the <unk> sat on the mat\nit was N years old\n" * 100
                   for part in ("train", "valid", "test")},
    "articles.yaml": {f"wiki.{part}.tokens": "".join(f" = Title {i} = \n\n A tale of {i} and {i * 7} . \n"
                                                     for i in range(200)) for part in ("train", "valid", "test")},
    "jsonl.yaml": {"records/a.jsonl": "".join(json.dumps({"body": f"record {i}, which tells of {i * i}"}) + "\n"
                                              for i in range(200))},
    "alternating.yaml": {"book.txt": "".join(f"chapter {i}, in which {i * i} things happen\n" for i in range(900))},
    "classify.yaml": {"reviews.csv": "review,stars\n" + "".join(f"review {i} is {'long ' * (i % 4)}done,{i % 3}\n"
                                                               for i in range(200))},
    "answers.yaml": {"questions.jsonl": "".join(json.dumps({"question": f"what is {i}? ", "answer": f"it is {i * i}"})
                                                + "\n" for i in range(200))}}
PAIRS = {f"{part}.{side}": "".join(f"{word} {i}\n" for i in range(120))
         for part in ("train", "valid", "test") for side, word in (("en", "number"), ("de", "Zahl"))}
TEXTS |= {f"transformer_{size}.yaml": PAIRS for size in ("base", "big")}
SMALL = ["training.tokens=null", "training.steps=1", "training.batch_size=2", "report.eval_batches=1"]
SIZES = {"words.yaml": [], "articles.yaml": ["tokenizer.vocab_size=300"], "jsonl.yaml": ["tokenizer.vocab_size=300"],
         "alternating.yaml": ["tokenizer.vocab_size=300"],
         "classify.yaml": ["tokenizer.vocab_size=280"], "answers.yaml": ["tokenizer.vocab_size=280"]}
NARROW = [f"{side}.{field}" for side in ("model", "model.encoder")
          for field in ("vocab_size=270", "d_model=32", "blocks.0.repeat=1")]
SIZES |= {f"transformer_{size}.yaml": ["tokenizer.vocab_size=270", "task.batch_tokens=600", *NARROW]
          for size in ("base", "big")}


def test_every_configuration_has_a_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.yaml")} == STUDIES | PLUGINS | set(TEXTS)


@pytest.mark.parametrize("name", TEXTS)
def test_it_trains_on_a_text_of_its_kind(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file, text in TEXTS[name].items():
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = weft.train(EXAMPLES / name, [*SMALL, *SIZES[name]], out="run")
    assert result.steps == 1 and 0 < result.validation.loss < math.inf
