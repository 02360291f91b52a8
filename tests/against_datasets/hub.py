"""A Hub on this machine, which serves the files of folders as data sets: as much of its interface as reading needs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


@contextmanager
def hub(folder: Path) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Serve the data sets in ``folder``, in folders OWNER/NAME with one each of revisions, as long as inside ``with``.

    Yields:
        Its address, and a list to which the path of each file that is read is added, with the bytes that were sent.
    """
    sent: list[tuple[str, int]] = []

    class Handler(_Handler):
        root, log = folder, sent

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sent
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def commit_of(folder: Path) -> str:
    """The commit of a revision, of as many digits as git's."""
    return hashlib.sha1(str(folder).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    root: Path
    log: list[tuple[str, int]]

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def answer(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[0] == "api" and parts[1:2] == ["datasets"]:
            self.describe(parts[2:4], parts[4:])
        elif parts[0] == "datasets" and parts[3:4] == ["resolve"]:
            self.send_file(parts[1:3], parts[4], "/".join(parts[5:]))
        else:
            self.missing("EntryNotFound")

    def revision(self, name: list[str], asked: str) -> Path | None:
        """The folder of a revision, by its name or its commit; None, which has been answered, where there is none."""
        repository = self.root.joinpath(*name)
        if not repository.is_dir():
            self.missing("RepoNotFound")
            return None
        found = [each for each in repository.iterdir() if asked in (each.name, commit_of(each))]
        if not found:
            self.missing("RevisionNotFound")
        return found[0] if found else None

    def describe(self, name: list[str], rest: list[str]) -> None:
        """What data set this is, the files of a folder of it, or what is at some paths."""
        what, asked = rest[0] if rest else "revision", rest[1] if len(rest) > 1 else "main"
        folder = self.revision(name, asked)
        if folder is None:
            return
        entries = [_entry(folder, path) for path in sorted(folder.rglob("*"))]
        if what == "revision":
            files = [{"rfilename": entry["path"]} for entry in entries if entry["type"] == "file"]
            self.send_json({"id": "/".join(name), "sha": commit_of(folder), "siblings": files, "private": False,
                            "gated": False, "disabled": False, "downloads": 0, "likes": 0, "tags": []})
        elif what == "tree":
            place = "/".join(rest[2:])
            inside = [entry for entry in entries if entry["path"].startswith(f"{place}/" if place else "")]
            self.send_json(inside if "recursive=True" in self.path or "recursive=true" in self.path else
                           [entry for entry in inside if "/" not in entry["path"][len(place):].strip("/")])
        elif what == "paths-info":
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            given = json.loads(body)["paths"] if body.startswith("{") else [
                unquote(pair.partition("=")[2]).replace("+", " ") for pair in body.split("&") if pair[:6] == "paths="]
            self.send_json([entry for entry in entries if entry["path"] in given])
        else:
            self.missing("EntryNotFound")

    def send_json(self, found: Any) -> None:
        self.send(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def send_file(self, name: list[str], asked: str, place: str) -> None:
        folder = self.revision(name, asked)
        if folder is None:
            return
        if not (folder / place).is_file():
            self.missing("EntryNotFound")
            return
        content, first = (folder / place).read_bytes(), 0
        whole, status = len(content), 200
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit_of(folder),
                   "Accept-Ranges": "bytes"}
        if wanted := self.headers.get("Range"):
            begin, _, end = wanted.removeprefix("bytes=").partition("-")
            first, last, status = int(begin), min(int(end), whole - 1) if end else whole - 1, 206
            content = content[first:last + 1]
            headers["Content-Range"] = f"bytes {first}-{last}/{whole}"
        if self.command == "GET":
            self.log.append((place, len(content)))
        self.send(status, content, headers)

    def missing(self, code: str) -> None:
        self.send(404, b"", {"X-Error-Code": code})

    def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _entry(folder: Path, path: Path) -> dict[str, Any]:
    """A file or folder as the interface lists it."""
    name = path.relative_to(folder).as_posix()
    digest = hashlib.sha1(name.encode()).hexdigest()
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": digest, "size": 0}
    return {"type": "file", "path": name, "oid": digest, "size": path.stat().st_size}
