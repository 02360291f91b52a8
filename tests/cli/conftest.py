"""One tiny trained run, and how commands are called."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from weft.cli.main import app

MODEL: dict[str, Any] = {
    "kind": "decoder", "d_model": 8, "context": 8,
    "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"},
                                          {"kind": "mlp", "d_ff": 16}]}]}
RUN: dict[str, Any] = {"model": MODEL, "tokenizer": "bytes", "data": {"path": "text.txt"},
                       "training": {"steps": 3, "batch_size": 2, "compute": {"matmul": "default"}},
                       "report": {"eval_batches": 1}}


@dataclass(frozen=True)
class Told:
    """What a command has told."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one JSON document it has printed."""
        assert self.code == 0, self.err
        return json.loads(self.out)


Weft = Callable[..., Told]


def call(*arguments: str | Path) -> Told:
    """Run a command in this process."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Told(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def weft() -> Weft:
    """Run a command in this process."""
    return call


@pytest.fixture
def refused() -> Callable[..., str]:
    """Run a command that refuses its input: exit code 2, nothing on standard output, no traceback. Its message on one
    line."""

    def refuse(*arguments: str | Path) -> str:
        told = call(*arguments)
        assert told.code == 2, told
        assert told.out == ""
        assert "Traceback" not in told.err
        return " ".join(told.err.split())

    return refuse


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, a run's configuration, and the run itself in ``run``."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "text.txt").write_text("".join(f"line {i % 17}: {i % 7} and {i % 5}\n" for i in range(300)), "utf-8")
    tiny = {**RUN, "data": {"path": str(folder / "text.txt")}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(tiny), "utf-8")
    (folder / "rows.json").write_text(json.dumps([[1, 2, 3], [4], {"tokens": [5, 6]}]), "utf-8")
    told = call("train", folder / "tiny.yaml", "--out", folder / "run")
    assert told.code == 0, told
    return folder


@pytest.fixture
def run(workplace: Path) -> Path:
    """The folder of a tiny run that has been trained."""
    return workplace / "run"
