"""From two files of text to translations and their BLEU, by commands alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.conftest import Weft, call
from weft import api
from weft.api.translating import source_row
from weft.checkpoints import save_checkpoint
from weft.evaluation.bleu import bleu

Refuse = Callable[..., str]

WORDS = {"en": ("one", "two", "three", "four"), "de": ("eins", "zwei", "drei", "vier")}
BOTH_WAYS = {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}
MLP = {"kind": "mlp", "d_ff": 48}
POSITION = {"kind": "learned"}
MODEL: dict[str, Any] = {
    "kind": "encoder_decoder", "d_model": 24, "context": 16, "position": POSITION, "tied_source": True,
    "norm": "layernorm", "encoder": {"kind": "encoder", "d_model": 24, "context": 16, "position": POSITION,
                                     "norm": "layernorm", "blocks": [{"kind": "pre", "layers": [BOTH_WAYS, MLP]}]},
    "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2},
                                          {"kind": "cross_attention", "n_heads": 2}, MLP]}]}


def numerals(language: str, rows: range) -> list[str]:
    return [" ".join(WORDS[language][7 * row // 4**place % 4] for place in range(1 + row % 2)) for row in rows]


def files(folder: Path, name: str, rows: range) -> str:
    for language in WORDS:
        (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in numerals(language, rows)))
    return str(folder / f"{name}.{{}}")


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that translates numerals word by word."""
    place = tmp_path_factory.mktemp("translator")
    run = {"task": {"kind": "sequence_to_sequence", "source_field": "en", "target_field": "de", "batch_tokens": 100},
           "model": MODEL, "tokenizer": "words",
           "data": {"path": files(place, "train", range(160)), "test_path": files(place, "test", range(300, 320)),
                    "validation_path": files(place, "valid", range(320, 340))},
           "training": {"steps": 120, "optimizer": {"lr": 1e-2}, "compute": {"matmul": "default"}},
           "report": {"eval_every": 120, "log_every": 120}}
    (place / "run.yaml").write_text(yaml.safe_dump(run))
    told = call("train", place / "run.yaml", "--out", place / "run")
    assert told.code == 0, told.err
    return place


def test_lines_are_translated_line_by_line(weft: Weft, translator: Path, tmp_path: Path) -> None:
    told = weft("translate", translator / "run", translator / "test.en", "--batch-size", "7")
    assert told.code == 0, told.err
    lines = told.out.splitlines()
    right = sum(mine == its for mine, its in zip(lines, numerals("de", range(300, 320)), strict=True))
    assert right >= 18, lines
    assert weft("translate", translator / "run", translator / "test.en", "--out", tmp_path / "out.de").out == ""
    assert (tmp_path / "out.de").read_text().splitlines() == lines
    found = weft("translate", translator / "run", translator / "test.en", "--beams", "2", "--length-penalty", "1",
                 "--length-formula", "power", "--json").json()
    assert found["cut"] == 0
    for row in found["rows"]:
        for one in row["hypotheses"]:
            assert one["score"] == pytest.approx(one["log_prob"] / len(one["tokens"]), rel=1e-9)
    greedy = api.translate(translator / "run", numerals("en", range(300, 320)), api.Search(beams=1))
    assert greedy.texts == tuple(lines)


def test_settings_of_the_model_s_file_are_followed_and_named(weft: Weft, translator: Path, tmp_path: Path) -> None:
    loaded = api.load(translator / "run")
    loaded.facts["generation"] = {"num_beams": 2, "length_penalty": 2.0}
    save_checkpoint(tmp_path / "a", loaded.model, loaded.tokenizer, run=loaded.run, facts=loaded.facts)
    told = weft("translate", tmp_path / "a", translator / "test.en", "--json")
    assert "note: generation_config.json sets num_beams 2, length_penalty 2.0; options win over it." in told.err
    first = json.loads(told.out)["rows"][0]["hypotheses"]
    assert len(first) == 2
    assert all(each["score"] == pytest.approx(each["log_prob"] / len(each["tokens"]) ** 2) for each in first)
    told = weft("translate", tmp_path / "a", translator / "test.en", "--beams", "3", "--length-penalty", "0")
    assert "note" not in told.err
    with pytest.warns(UserWarning, match="sets num_beams 2, length_penalty 2.0"):
        assert len(api.translate(tmp_path / "a", ["one"]).beams.rows[0]) == 2


def test_a_source_is_encoded_as_in_training(translator: Path) -> None:
    loaded = api.load(translator / "run")
    tokenizer = loaded.tokenizer
    assert tokenizer is not None and tokenizer.eos_id is not None
    row = source_row(loaded, "one two")
    assert row.source == (*tokenizer.encode("one two"), tokenizer.eos_id) and row.tokens == (tokenizer.eos_id,)


def test_evaluation_gives_perplexity_and_bleu_of_the_held_out_pairs(weft: Weft, translator: Path,
                                                                    tmp_path: Path) -> None:
    told = weft("eval", translator / "run", "--part", "test", "--bleu", "--translations", tmp_path / "test.de")
    assert told.code == 0, told.err
    assert "perplexity 1." in told.out and "smooth:exp|version:" in told.out
    translations = (tmp_path / "test.de").read_text().splitlines()
    (found,) = weft("eval", translator / "run", "--part", "test", "--bleu", "--json").json()
    assert found["bleu"] == bleu(translations, numerals("de", range(300, 320))).to_json()
    assert "bleu" not in weft("eval", translator / "run", "--data", translator / "valid.{}", "--json").json()[0]


def test_a_source_beyond_the_encoders_limit_is_refused_or_cut_and_counted(weft: Weft, refused: Refuse,
                                                                         translator: Path, tmp_path: Path) -> None:
    (tmp_path / "long.en").write_text("one two\n" + "three " * 20 + "\n")
    said = refused("translate", translator / "run", tmp_path / "long.en")
    assert ("sources[1]: 21 tokens, and the encoder has positions for 16. Shorten it, or let sources be cut (--cut)."
            in said)
    told = weft("translate", translator / "run", tmp_path / "long.en", "--cut")
    assert told.code == 0 and len(told.out.splitlines()) == 2
    assert "1 of 2 sources were cut to the encoder's limit" in told.err
    rows = [{"source": [1] * 17, "target": [0]}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    said = refused("generate", translator / "run", "--rows", tmp_path / "rows.json")
    assert "rows[0].source: 17 tokens, and the encoder has positions for 16. Shorten the source." in said


def test_what_cannot_be_translated_is_refused(refused: Refuse, translator: Path, run: Path, tmp_path: Path) -> None:
    (tmp_path / "gap.en").write_text("one\n\ntwo\n")
    said = refused("translate", translator / "run", tmp_path / "gap.en")
    assert "gap.en, line 2: the line is empty, and a source has text. Fill it in, or remove it." in said
    (tmp_path / "empty.en").write_text("")
    assert "empty.en: the file is empty. Give one source a line." in refused(
        "translate", translator / "run", tmp_path / "empty.en")
    said = refused("translate", run, translator / "test.en")
    assert "a model of kind 'decoder' takes no source. Give an encoder-decoder, or continue texts" in said
    said = refused("translate", translator / "run", translator / "test.en", "--out", translator / "test.en")
    assert "there is a file at this path already" in said
    said = refused("translate", translator / "run", translator / "test.en", "--length-formula", "wu")
    assert "length_formula: unknown formula 'wu'. Give 'power' or 'gnmt'." in said
    assert "--bleu: BLEU compares translations, and this model was trained on running text" in refused(
        "eval", run, "--bleu")
    assert "--translations: a file for translations, and none are made. Give --bleu too." in refused(
        "eval", translator / "run", "--translations", tmp_path / "x")


def test_predictions_of_a_file_are_its_translations(weft: Weft, translator: Path, tmp_path: Path) -> None:
    told = weft("predict", translator / "run", translator / "test.en", "--out", tmp_path / "out.csv")
    assert told.code == 0, told.err
    assert told.out == f"wrote {tmp_path / 'out.csv'}: translations of 20 records\n"
    wanted = weft("translate", translator / "run", translator / "test.en")
    rows = (tmp_path / "out.csv").read_text().splitlines()[1:]
    assert [row.split(",")[1] for row in rows] == wanted.out.splitlines()
