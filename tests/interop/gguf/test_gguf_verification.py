"""What llama.cpp, where it is installed, makes of a file is compared and noted; here others stand in for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from interop.gguf.gguf_models import case, loaded
from weft.checkpoints import save_checkpoint
from weft.cli.main import app
from weft.core.errors import FailedError
from weft.interop.convert import convert
from weft.interop.gguf import llama_cpp, target
from weft.interop.verify import logits_of
from weft.tokenizers import ByteTokenizer


def refusing(*args: Any, **options: Any) -> Any:
    raise ValueError("Failed to load model from file")


def test_the_difference_is_printed_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = case("llama", tmp_path)
    monkeypatch.setattr(target, "llama_logits", lambda path, tokens: logits_of(source.model, tokens) + 2.0 ** -12)
    done = convert(source, tmp_path / "a.gguf", to="gguf")
    assert done.reader == "llama.cpp" and done.foreign == pytest.approx(2.0 ** -12, rel=1e-2)
    monkeypatch.setattr(target, "llama_logits", lambda path, tokens: logits_of(source.model, tokens) + 0.01)
    with pytest.raises(FailedError, match=r"llama.cpp gives logits that differ by up to 0.01, where rounding explains"):
        convert(source, tmp_path / "b.gguf", to="gguf")
    assert not (tmp_path / "b.gguf").exists()


def test_without_llama_cpp_a_note_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "_llama", lambda: None)
    source = case("llama", tmp_path, ByteTokenizer())
    save_checkpoint(tmp_path / "a", source.model, None)
    done = CliRunner().invoke(app, ["convert", str(tmp_path / "a"), str(tmp_path / "a.gguf"), "--to", "gguf"])
    assert done.exit_code == 0, done.output
    assert "a.gguf as a llama model, in float32\nread again by Weft: logits differ by at most 0\n" in done.output
    assert "read by llama.cpp" not in done.output
    assert "note: llama.cpp has not opened the file here: install llama-cpp-python" in done.output


def test_a_file_that_llama_cpp_refuses_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "_llama", lambda: refusing)
    with pytest.raises(FailedError, match=r"llama.cpp rejects the file \(Failed to load model from file\)"):
        convert(case("llama", tmp_path), tmp_path / "a.gguf", to="gguf")
    assert not list(tmp_path.iterdir())


def test_other_tokens_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "tokenized", lambda path: [[1]] * (len(llama_cpp.SAMPLES) - 1) + [[97]])
    monkeypatch.setattr(target, "llama_logits", lambda path, tokens: None)
    raw = {"vocab_size": 257, "n_embd": 12, "n_layer": 1, "n_head": 3, "n_positions": 16}
    notes = convert(loaded("gpt2", raw, tmp_path, ByteTokenizer()), tmp_path / "a.gguf", to="gguf").notes
    noted = [note for note in notes if "llama.cpp gives other tokens for the text" in note]
    assert len(noted) == len(llama_cpp.SAMPLES) - 1
    assert "[1] where the tokenizer gives [72, 101, 108," in noted[0]
