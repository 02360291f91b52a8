"""The routes of matrix products that this machine has chosen, each once, in files of the cache folder.

Two measurements of one product may find different routes, whose results differ in the last bits. So what was found
first is kept and taken from then on, by every process, and one command gives one result. The folder is
``routes/PLACE`` in Weft's cache (``$WEFT_CACHE_DIR``, else ``$XDG_CACHE_HOME/weft``, else ``~/.cache/weft``). PLACE
names the processor, PyTorch's version and the number of threads, and ends with a hash of these, of the routes that
there are and of what the arithmetic returns. Each product has a file, which is linked into place when it is complete
unless one stands there, so of two processes that measure at once both take the route of the first. A file that is
damaged or another user's is not trusted and stays as it is.
"""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from weft.analysis.arithmetic import arithmetic
from weft.core.process_settings import cache_root, is_own
from weft.core.strict_json import Record, digest, dumps
from weft.disk.atomic import flush, text_in
from weft.ops.linear import Product
from weft.ops.processor import processor_name
from weft.ops.products import PRODUCT


@dataclass(frozen=True)
class KeptRoute(Record):
    """The route of a product, as a file of the cache holds it.

    Attributes:
        product: as `Product` is written.
        route: the form of the operation ``product`` that computes it; "reference" is PyTorch's own choice.
        gain: its speed as a multiple of that of PyTorch's own choice, when it was chosen.
        date: when that was, ISO 8601.
    """

    product: str
    route: str
    gain: float
    date: str


class RouteCache:
    """The routes that were chosen under the present conditions: processor, PyTorch, threads and arithmetic."""

    def __init__(self) -> None:
        self.place: dict[str, Any] = {
            "processor": processor_name(), "torch": str(torch.__version__), "threads": torch.get_num_threads(),
            "arithmetic": digest(arithmetic()), "routes": [form.name for form in PRODUCT.forms()]}
        name = "{processor} torch {torch} threads {threads} ".format_map(self.place) + digest(self.place)[:12]
        self.folder = _root() / re.sub(r"[^a-z0-9.]+", "-", name.lower())

    def __iter__(self) -> Iterator[KeptRoute]:
        """All that is kept, by name of the product; what is damaged is left out."""
        return (found for path in self._paths() if isinstance(found := self._tried(path), KeptRoute))

    def problems(self) -> list[str]:
        """Why files of the folder are not read, in sentences."""
        return [f"{found}." for path in self._paths() if isinstance(found := self._tried(path), str)]

    def route(self, product: Product) -> str | None:
        """The route that was chosen for a product; None: none was.

        Raises:
            ValueError: the file is not as Weft wrote it, or another user's.
            OSError: it cannot be read.
        """
        try:
            return self._read(self._file(str(product))).route
        except FileNotFoundError:
            return None

    def require_writable(self) -> None:
        """Make the folder, and check that a file can be written into it. Raises `OSError`: it cannot."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with text_in(self.folder, "{}\n"):
            pass

    def keep(self, kept: KeptRoute) -> str:
        """Keep a route, unless there is one for the product; the route that is kept now.

        Raises:
            ValueError: what is there already is not as Weft wrote it.
            OSError: the folder cannot be written to.
        """
        path = self._file(kept.product)
        with text_in(self.folder, self._text(kept)) as draft:
            try:
                os.link(draft, path)
            except FileExistsError:
                return self._read(path).route
        flush(self.folder)
        return kept.route

    def replace(self, kept: KeptRoute) -> None:
        """Put a route in the place of one that is kept.

        Raises:
            ValueError: what is there is not as Weft wrote it.
            OSError: the folder cannot be written to.
        """
        path = self._file(kept.product)
        with text_in(self.folder, self._text(kept)) as draft:
            self._read(path)
            os.link(draft, beside := draft.with_suffix(".new"))  # so that the draft is still there to be deleted
            os.replace(beside, path)
        flush(self.folder)

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("[!.]*.json"))

    def _tried(self, path: Path) -> KeptRoute | str:
        try:
            return self._read(path)
        except (OSError, ValueError) as error:
            return str(error)

    def _file(self, product: str) -> Path:
        return self.folder / f"{product.replace(' ', '-')}.json"

    def _text(self, kept: KeptRoute) -> str:
        whole = {**self.place, **kept.to_json()}
        return dumps({**whole, "sha256": digest(whole)}, indent=1) + "\n"

    def _read(self, path: Path) -> KeptRoute:
        whole = self._content(path)
        if whole is None or path != self._file(whole["product"]):
            raise ValueError(f"{path} was changed or is another user's, so it is not read. Move it away, and the "
                             "product is measured again")
        return KeptRoute(**{field.name: whole[field.name] for field in fields(KeptRoute)})

    def _content(self, path: Path) -> dict[str, Any] | None:
        """The content of a file, without its hash; None: it is not as a process of this user under these conditions
        wrote it."""
        try:
            text = path.read_bytes()
            whole = json.loads(text)
            sha256 = whole.pop("sha256")
            names = {*self.place, *(field.name for field in fields(KeptRoute))}
            wrote = digest(whole) == sha256 and whole.keys() == names
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        here = wrote and all(whole[name] == value for name, value in self.place.items())
        return whole if here and whole["route"] in self.place["routes"] and is_own(path) else None


def _root() -> Path:
    try:
        return cache_root() / "routes"
    except RuntimeError:  # the user has no home: a path at which no folder can be made, which the error then names
        return Path(os.devnull) / "routes"


def today() -> str:
    """The date, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()
