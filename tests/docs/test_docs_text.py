"""Commands that pages show as text, because they need what a reader has: each is one that this Weft takes, and those of
the page of families run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from interop.huggingface.test_from_text import BERT, TEXTS
from weft import api
from weft.checkpoints import save_checkpoint
from weft.cli.main import app
from weft.core.model import parse_model
from weft.tokenizers import BPETokenizer, Tokenizer, WordPieceTokenizer

ROOT = Path(__file__).parents[2]
FAMILIES = ROOT / "docs" / "families.md"


def commands(page: Path) -> list[str]:
    """The lines of a page's ``text`` blocks that are commands of Weft or targets of make, without their comments."""
    found = re.findall(r"^```text\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("$ ") for block in found for line in block.splitlines()]
    return [re.sub(r"\s+(# .*|> \S+|  .*)$", "", line) for line in lines if re.match(r"(weft|make) \S", line)]


SHOWN = [(page.name, line) for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
         for line in commands(page)]


@pytest.mark.parametrize(("page", "line"), SHOWN, ids=[f"{page}: {line}" for page, line in SHOWN])
def test_a_command_that_is_shown_is_one_that_there_is(page: str, line: str) -> None:
    program, *words = shlex.split(re.split(r" && | #", line)[0], comments=True)
    if program == "make":
        assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
        return
    group: Any = typer.main.get_command(app)
    while words:
        name, group, words = group.resolve_command(group.context_class(group), words)
        if not hasattr(group, "resolve_command"):
            break
    group.make_context(name, words)  # which refuses an option that the command does not have


def saved(folder: Path, model: dict[str, Any], tokenizer: Tokenizer) -> Path:
    save_checkpoint(folder, parse_model({**model, "vocab_size": tokenizer.vocab_size}).build(), tokenizer)
    return folder


def run(line: str, **names: Path) -> str:
    """What a command prints with these files in place of the names of the page."""
    words = [str(names.get(word, word)) for word in shlex.split(line, comments=True)[1:]]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"{words}: {done.output}"
    return done.output


def test_commands_for_folders_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [{"kind": "attention", "n_heads": 8, "position": "rope"}, {"kind": "glu", "d_ff": 16}]
    llama = {"kind": "decoder", "d_model": 32, "context": 64, "norm": "rmsnorm", "blocks": [{
        "kind": "pre", "norm": "rmsnorm", "layers": layers}]}
    checkpoint = saved(tmp_path / "checkpoint", llama, BPETokenizer.train(TEXTS, 270))
    api.convert(checkpoint, tmp_path / "dir", to="hf")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.json").write_text("[[1, 2, 3], [4, 5]]", encoding="utf-8")
    shown = [line for line in commands(FAMILIES) if re.search(r"\b(DIR|CHECKPOINT)\b", line) and "--text" not in line]
    assert len(shown) >= 7, "the page has another form"
    left = ("gguf", "weft check")  # which needs an extra; which takes half a minute
    for place, line in enumerate(line for line in shown if not any(word in line for word in left)):
        run(line, DIR=tmp_path / "dir", CHECKPOINT=checkpoint, OUT=tmp_path / f"out{place}")
    assert (tmp_path / "out.safetensors").is_file()


def test_the_lines_for_a_bert_classifier_run_and_its_predictions_come_along(tmp_path: Path,
                                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = WordPieceTokenizer.train(TEXTS, 48)
    masked = {**BERT, "head": {"kind": "masked_token", "activation": "gelu", "norm": BERT["embedding"]["norm"]}}
    api.convert(saved(tmp_path / "bert", masked, tokenizer), tmp_path / "dir", to="hf")
    records = [f"the film is {'good' if place % 2 else 'bad'} {'ab' * place},{place % 2}" for place in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *records]))
    (tmp_path / "fine_tuned.yaml").write_text(json.dumps({
        "start": str(tmp_path / "dir"), "task": "classify", "model": {"head": {"kind": "pooled"}},
        "data": {"path": str(tmp_path / "rows.csv")}, "training": {"steps": 2, "batch_size": 4}}))
    monkeypatch.chdir(tmp_path)
    score, train, convert = [line for line in commands(FAMILIES) if "--text" in line or "runs/fine" in line]
    run(score, DIR=tmp_path / "dir")
    run(train)
    run(convert, OUT=tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == ["BertForSequenceClassification"]
    ours, theirs = (api.classify(folder, ["a bad plot"])[0] for folder in ("runs/fine", "out"))
    assert ours.scores[0] == pytest.approx(theirs.scores[0])
