"""`weft draw`: the files that it writes, the numbers that it prints, and what it refuses."""

from __future__ import annotations

import importlib
import json
import re
import sys
import types
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import weft as library
from weft import api

Refuse = Callable[..., str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in an empty folder: one with the name of a preset would be taken for a checkpoint."""
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_configuration_becomes_a_page_and_a_file_of_each_picture(weft: Any, tmp_path: Path) -> None:
    told = weft("draw", "transformer", "model.d_model=64", "--out", tmp_path / "out")
    assert told.code == 0 and told.out == f"wrote {tmp_path / 'out'}: 6 files\n"
    assert files(tmp_path / "out") == ["MANIFEST.json", "architecture.svg", "index.html", "mask-0.svg",
                                       "position-0-proximity.svg", "position-0-wavelengths.svg"]
    for path in (tmp_path / "out").glob("*.svg"):
        ElementTree.fromstring(path.read_text("utf-8"))
    page = (tmp_path / "out/index.html").read_text("utf-8")
    assert ">1,024×64<" in page.replace("\u00a0", " ") and "not trained" in page
    assert re.findall(r'(?:src|href)="(?!#|data:)', page) == [] and "url(" not in page and "<script" not in page
    assert "default-src 'none'" in page.replace("&#x27;", "'")


def test_a_checkpoint_is_drawn_with_the_attention_of_a_text(weft: Any, run: Path, tmp_path: Path) -> None:
    found = weft("draw", run, "--text", "line 3", "--out", tmp_path / "out", "--json").json()
    assert [(each["layer"], each["head"]) for each in found["heads"]] == [("stack.layers.0.layers.0", 0),
                                                                          ("stack.layers.0.layers.0", 1)]
    assert {"index.html", "attention.json", "attention-0.svg"} <= set(found["files"])
    assert json.loads((tmp_path / "out/attention.json").read_text()) == found["heads"]
    page = (tmp_path / "out/index.html").read_text("utf-8")
    assert "Text, 7 tokens" in page and "<code>l</code>" in page
    told = weft("draw", run, "--text", "line 3", "--out", tmp_path / "again")
    lines = [line.split() for line in told.out.splitlines()]
    assert ["layer", "head", "entropy,", "nats", "first", "token", "first", "four", "learned", "sink"] in lines
    assert [line[:3] for line in lines if line[:1] == ["block"]] == [["block", "0", "0"], ["block", "0", "1"]]
    assert max(len(line) for line in told.out.splitlines()[:-1]) <= 80


def test_a_run_is_titled_by_its_name_and_not_by_its_newest_step(weft: Any, run: Path, tmp_path: Path) -> None:
    assert weft("draw", run, "--out", tmp_path / "a.html").code == 0
    title = re.search(r"<h1[^>]*>([^<]*)</h1>", (tmp_path / "a.html").read_text("utf-8"))
    assert title is not None and title[1].startswith(f"{run.name}, step "), title


def test_the_same_model_gives_the_same_bytes(weft: Any, run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        weft("draw", run, "--text", "x", "--out", tmp_path / name)
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}


def test_a_file_s_text_and_a_run_s_own_tokenizer(weft: Any, workplace: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("line 3\n")
    found = weft("draw", workplace / "tiny.yaml", "--text-file", tmp_path / "text.txt", "--out", tmp_path / "out",
                 "--json").json()
    assert len(found["heads"]) == 2


def test_single_files(weft: Any, tmp_path: Path) -> None:
    assert weft("draw", "lstm", "--out", tmp_path / "lstm.svg").out == f"wrote {tmp_path / 'lstm.svg'}\n"
    assert 'data-part="lstm"' in (tmp_path / "lstm.svg").read_text("utf-8")
    told = weft("draw", "ngram", "--out", tmp_path / "n.html")
    assert told.code == 0, told.err
    page = (tmp_path / "n.html").read_text("utf-8")
    assert "Architecture" in page and "order\u00a0" in page and "Unrolled" not in page
    assert weft("draw", "lstm", "--out", tmp_path / "lstm.html").code == 0
    assert "Unrolled in time" in (tmp_path / "lstm.html").read_text("utf-8")


def test_foreign_files_and_folders_stay(weft: Any, refused: Refuse, run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    (tmp_path / "a.svg").write_text("mine")
    for option in ([], ["--replace"]):
        assert "holds more than Weft wrote, so it is not replaced: no manifest of Weft's lists notes.txt" in refused(
            "draw", "lstm", "--out", tmp_path / "mine", *option)
    assert "there is a file at this path already" in refused("draw", "lstm", "--out", tmp_path / "a.svg")
    assert "nothing proves to be Weft's" in refused("draw", "lstm", "--out", tmp_path / "a.svg", "--replace")
    checkpoint = next((run / "checkpoints").iterdir())
    assert "it has no index.html of a drawing" in refused("draw", "lstm", "--out", checkpoint, "--replace")
    assert (tmp_path / "mine/notes.txt").read_text() == (tmp_path / "a.svg").read_text() == "mine"
    weft("draw", "lstm", "--out", tmp_path / "own")
    assert "replace it (--replace, replace=True)" in refused("draw", "lstm", "--out", tmp_path / "own")
    assert weft("draw", "ngram", "--out", tmp_path / "own", "--replace").code == 0
    assert files(tmp_path / "own") == ["MANIFEST.json", "architecture.svg", "index.html"]


def test_refusals(refused: Refuse, run: Path, workplace: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    assert "Did you mean 'transformer'" in refused("draw", "tranformer", *out)
    assert "without attention has no attention maps" in refused("draw", "lstm", "--text", "x", *out,
                                                                "tokenizer=bytes")
    assert "--text and --text-file both" in refused("draw", run, "--text", "a", "--text-file", "b", *out)
    assert "cannot be read as text" in refused("draw", run, "--text-file", tmp_path / "none.txt", *out)
    assert "a source without a text. Give --text" in refused("draw", run, "--source", "a", *out)
    assert "the model reads no source. Leave it out" in refused("draw", run, "--text", "a", "--source", "a", *out)
    assert "600 tokens, of which 512 are drawn at most" in refused("draw", run, "--text", "a" * 599, *out)
    assert "cannot be applied to a checkpoint" in refused("draw", run, "d_model=4", *out)
    assert "is one file. Give a folder" in refused("draw", run, "--png", "--out", tmp_path / "a.svg")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_is_yet_to_be_trained_is_told(refused: Refuse, workplace: Path, tmp_path: Path) -> None:
    message = refused("draw", workplace / "tiny.yaml", "tokenizer=characters", "model.vocab_size=9", "--text", "x",
                      "--out", tmp_path / "out")
    assert "is trained with the run, so there is none yet. Give a checkpoint of the run." in message


def test_a_model_alone_names_no_tokenizer(refused: Refuse, tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("kind: decoder\nvocab_size: 9\nd_model: 8\nblocks: [{kind: pre, layers: "
                                         "[{kind: attention, n_heads: 2}]}]\n")
    message = refused("draw", tmp_path / "model.yaml", "--text", "x", "--out", tmp_path / "out")
    assert "the configuration of a model alone names no tokenizer. Give a checkpoint, or the file of a run" in message


def test_from_python(tmp_path: Path) -> None:
    config = library.read_model("transformer")
    found = library.draw(config, out=tmp_path / "out")
    assert "architecture.svg" in found.files and found.heads == ()
    with pytest.raises(api.UserError, match="a configuration object names no tokenizer"):
        library.draw(config, out=tmp_path / "other", text=api.Text("x"))
    assert not (tmp_path / "other").exists()


def test_an_n_gram_model_has_no_attention(refused: Refuse, tmp_path: Path) -> None:
    message = refused("draw", "ngram", "tokenizer=bytes", "model.vocab_size=257", "--text", "x", "--out",
                      tmp_path / "out")
    assert "a model of kind 'ngram' without attention has no attention maps. Draw it without a text" in message


def test_png_needs_an_extra_and_says_so_before_it_draws(refused: Refuse, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    for option in (["--png", "--out", tmp_path / "out"], ["--out", tmp_path / "a.png"]):
        assert ("drawings as PNG needs the package 'resvg-py', which is not installed. Install it with: pip install "
                "'weft[draw]'") in refused("draw", "lstm", *option)
    assert files(tmp_path) == []


def test_png_files_are_what_the_converter_makes(weft: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def svg_to_bytes(svg_string: str, zoom: int) -> list[int]:
        assert svg_string.startswith("<?xml") and zoom == 2
        return list(b"\x89PNG made")

    made = types.ModuleType("resvg_py")
    made.svg_to_bytes = svg_to_bytes  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "resvg_py", made)
    assert importlib.import_module("resvg_py") is made
    assert weft("draw", "lstm", "--png", "--out", tmp_path / "out").code == 0
    assert (tmp_path / "out/unrolled.png").read_bytes() == b"\x89PNG made"
    weft("draw", "lstm", "--out", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == b"\x89PNG made"
