"""Models on the Hub: the real `huggingface_hub`, asking a small server of our own."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, final
from urllib.parse import unquote

import pytest
import torch
from huggingface_hub import constants

import weft
from weft.checkpoints import save_checkpoint
from weft.checkpoints.hub import hub_model, resolve
from weft.core.config import parse_part
from weft.core.errors import CheckpointError, InputError, MissingExtra
from weft.core.model import LanguageModel, ModelConfig
from weft.tokenizers import ByteTokenizer

MODEL = {"kind": "decoder", "vocab_size": 257, "d_model": 8, "context": 8,
         "blocks": [{"kind": "pre", "layers": ["lstm"]}]}
MAIN, OLD = "1" * 40, "2" * 40


@final
class FakeHub:
    """A server with the parts of the Hub's interface that a download asks for.

    Attributes:
        commits: files by repository and commit.
        refs: commits by repository and revision.
        gated: repositories whose files are for those with the token ``secret``.
        asked: paths, in order.
    """

    def __init__(self) -> None:
        self.commits: dict[tuple[str, str], dict[str, bytes]] = {}
        self.refs: dict[tuple[str, str], str] = {}
        self.gated: set[str] = set()
        self.asked: list[str] = []

    def add(self, name: str, revision: str, commit: str, files: dict[str, bytes]) -> None:
        """A repository's revision."""
        self.commits[name, commit] = files
        self.refs[name, revision] = self.refs[name, commit] = commit

    def answer(self, path: str, token: str | None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        self.asked.append(path)
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/?]+))?(?:\?.*)?", path)
        if found is None:
            return self._file(path, token)
        name, kind, revision = found[1], found[2], unquote(found[3] or "main")
        if not any(each == name for each, _ in self.refs):
            return 401, {"X-Error-Code": "RepoNotFound"}, b""
        if (name, revision) not in self.refs:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        commit = self.refs[name, revision]
        files = self.commits[name, commit]
        if kind == "tree":
            listed = [{"type": "file", "path": file, "size": len(content), "oid": _sum(content)}
                      for file, content in files.items()]
            return 200, {"Content-Type": "application/json"}, json.dumps(listed).encode()
        info = {"id": name, "modelId": name, "sha": commit, "private": False, "tags": [], "downloads": 0, "likes": 0,
                "siblings": [{"rfilename": file} for file in files]}
        return 200, {"Content-Type": "application/json"}, json.dumps(info).encode()

    def _file(self, path: str, token: str | None) -> tuple[int, dict[str, str], bytes]:
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/([^?]+)(?:\?.*)?", path)
        assert found is not None, path
        name, commit, file = found[1], self.refs[found[1], unquote(found[2])], unquote(found[3])
        if name in self.gated and token != "Bearer secret":
            return 401, {"X-Error-Code": "GatedRepo"}, b""
        content = self.commits[name, commit][file]
        return 200, {"ETag": f'"{_sum(content)}"', "X-Repo-Commit": commit}, content


def _sum(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = hub.answer(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *rest: Any) -> None:
            return

    return Handler


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a tiny checkpoint of Weft."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("saved") / "model"
    config = parse_part(("model",), MODEL)
    assert isinstance(config, ModelConfig)
    model = config.build()
    assert isinstance(model, LanguageModel)
    save_checkpoint(folder, model, ByteTokenizer())
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(saved: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The server, with the models ``ours/tiny`` (and its tag ``v0``), ``ours/pickled`` and ``ours/gated``; the cache is
    empty."""
    found = FakeHub()
    found.add("ours/tiny", "v0", OLD, {**saved, "run_me.py": b"print('never')", "README.md": b"old"})
    found.add("ours/tiny", "main", MAIN, {**saved, "run_me.py": b"print('never')", "onnx/model.onnx": b"big"})
    found.add("ours/pickled", "main", MAIN, {"config.json": b"{}", "pytorch_model.bin": b"no pickle at all"})
    found.add("ours/gated", "main", MAIN, saved)
    found.gated.add("ours/gated")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(found))
    # It looks this often whether it is to end, and `shutdown` waits until it has looked.
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield found
    server.shutdown()
    server.server_close()


def test_a_model_is_loaded_by_its_id_and_nothing_but_its_files_is_fetched(hub: FakeHub,
                                                                         saved: dict[str, bytes]) -> None:
    loaded = weft.load("ours/tiny")
    assert loaded.path.name == MAIN and loaded.tokenizer is not None
    assert {path.name: path.read_bytes() for path in loaded.path.iterdir()} == saved
    assert not any("run_me" in path or "onnx" in path for path in hub.asked)
    assert weft.generate(loaded, ["a"], max_new_tokens=2).rows[0].text is not None


@pytest.mark.parametrize("given", [("ours/tiny@v0", None), ("ours/tiny", "v0"), (f"ours/tiny@{OLD}", None)])
def test_a_revision_is_a_tag_or_a_commit(hub: FakeHub, given: tuple[str, str | None]) -> None:
    assert resolve(given[0], revision=given[1]).name == OLD


def test_what_the_cache_holds_is_found_offline_without_a_question(hub: FakeHub) -> None:
    online = resolve("ours/tiny")
    asked = len(hub.asked)
    assert resolve("ours/tiny", offline=True) == online
    assert len(hub.asked) == asked
    with pytest.raises(CheckpointError, match=r"ours/tiny@v0: .* cache does not contain all .*\(offline\)\. Download"):
        resolve("ours/tiny@v0", offline=True)


def test_without_a_network_the_cache_serves_and_the_rest_is_told(hub: FakeHub,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    online = resolve("ours/tiny")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert resolve("ours/tiny") == online
    with pytest.raises(CheckpointError, match=r"runs/lates: no such folder here; taken for a model on the Hub, which "
                                              r"cannot be reached \(http://127\.0\.0\.1:9\)\. Check the network"):
        resolve("runs/lates")


def test_the_environment_can_say_offline(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="ours/tiny: no such folder here, and the Hub's cache"):
        resolve("ours/tiny")
    assert hub.asked == []


def test_what_is_not_there_is_told(hub: FakeHub) -> None:
    with pytest.raises(CheckpointError, match=r"ours/tyni: no such folder here, and no such model .*HF_TOKEN"):
        resolve("ours/tyni")
    with pytest.raises(CheckpointError, match=r"ours/tiny@v9: the model has no revision 'v9'\. Give a branch"):
        resolve("ours/tiny@v9")


def test_a_gated_model_needs_a_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match=r"ours/gated: its owners have restricted access .*\. Ask .*/ours/gated"):
        resolve("ours/gated")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert resolve("ours/gated").name == MAIN


def test_pickles_are_fetched_only_when_asked_for(hub: FakeHub) -> None:
    with pytest.raises(CheckpointError, match=r"ours/pickled: .*no weights in safetensors; pickles are .*--allow-"):
        resolve("ours/pickled")
    assert not any("pytorch_model.bin" in path for path in hub.asked)
    assert (resolve("ours/pickled", allow_pickles=True) / "pytorch_model.bin").read_bytes() == b"no pickle at all"


def test_a_folder_counts_before_an_id(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours/tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve("ours/tiny") == Path("ours/tiny") and hub.asked == []
    with pytest.raises(InputError, match="ours/tiny: revision 'v0' was given for a path; only models on the Hub"):
        resolve("ours/tiny", revision="v0")


@pytest.mark.parametrize("given", ["gpt2", "/abs/path", "a/b/c", "./a/b", "../b", "configs/mine.yaml", "a/b@", "a b/c"])
def test_what_does_not_look_like_an_id_is_a_path(given: str) -> None:
    assert hub_model(given) is None and resolve(given) == Path(given)


def test_two_revisions_are_refused() -> None:
    with pytest.raises(InputError, match=r"a/b@c: two revisions were given, 'c' and 'd'\. Give one"):
        resolve("a/b@c", revision="d")


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"a/b is no folder here; a model on the Hub needs .*'weft\[hub\]'"):
        resolve("a/b")
