"""A server that cannot be started says why before it loads anything."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.fake_engine import served
from weft.cli.main import app
from weft.core.errors import InputError
from weft.server.gate import LOCAL
from weft.server.running import Listening, access_of
from weft.server.serve_model import drafting_of, name_of
from weft.serving.speculation import ModelDrafts, PromptDrafts
from weft.tokenizers import ByteTokenizer


def test_others_than_this_machine_need_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WEFT_API_KEY", raising=False)
    with pytest.raises(InputError, match=r"anybody who reaches 0\.0\.0\.0.*--api-key-file"):
        access_of(Listening("0.0.0.0"), None)
    assert access_of(Listening(), None).hosts == LOCAL
    monkeypatch.setenv("WEFT_API_KEY", "sesame")
    assert access_of(Listening("0.0.0.0"), None).keys == (b"sesame",)
    file = tmp_path / "keys"
    file.write_bytes(b"# of the team\none\n\n two \n")
    assert access_of(Listening("0.0.0.0"), file).keys == (b"one", b"two", b"sesame")
    assert access_of(Listening("0.0.0.0"), file).hosts == frozenset()


def test_files_of_keys_are_read_or_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        access_of(Listening(), tmp_path / "none")
    (tmp_path / "empty").write_text("# nothing\n\n", encoding="utf-8")
    with pytest.raises(InputError, match="has no key"):
        access_of(Listening(), tmp_path / "empty")


def test_certificates_are_read_before_anything_is_done(tmp_path: Path) -> None:
    (tmp_path / "no").write_text("nonsense", encoding="utf-8")
    with pytest.raises(InputError, match="belong together"):
        Listening(certificate=tmp_path / "no").require_tls()
    with pytest.raises(InputError, match="no certificate with its key"):
        Listening(certificate=tmp_path / "no", key=tmp_path / "no").require_tls()
    Listening().require_tls()


def test_an_address_that_is_taken_or_not_there_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(InputError, match="cannot be listened to"):
            Listening(port=other.getsockname()[1]).open()
    with pytest.raises(InputError, match=r"cannot be listened to|no address"):
        Listening("192.0.2.1").open()
    Listening(port=0).open().close()


@pytest.mark.parametrize("given", ["other", "=folder", "a=", "a=b --adapter a=c"])
def test_adapters_are_named_once(given: str, tmp_path: Path) -> None:
    words = ["serve", str(tmp_path), *f"--adapter {given}".split()]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 2 and "Give NAME=FOLDER, each name once." in told.stderr


def test_drafts_come_from_the_row_or_from_a_model_of_the_same_tokens() -> None:
    loaded = served().loaded
    assert drafting_of(None, loaded) is None
    for draft, kind in (("prompt", PromptDrafts), (served().loaded, ModelDrafts)):
        made = drafting_of(draft, loaded)
        assert made is not None and isinstance(one := made(), kind) and one is not made() and one.most == 4
    for other in (Shifted(), None):
        with pytest.raises(InputError, match="--draft: the model that drafts has another tokenizer"):
            drafting_of(replace(loaded, tokenizer=other), loaded)


class Shifted(ByteTokenizer):
    """Bytes with other ids."""

    def spellings(self) -> Sequence[bytes]:
        return super().spellings()[::-1]


def test_names_are_printable() -> None:
    loaded = served().loaded
    assert name_of(None, loaded) == "tiny" and name_of("a b", loaded) == "a b"
    for wrong in ("", "a\n", "a" * 201):
        with pytest.raises(InputError, match="is no name"):
            name_of(wrong, loaded)
