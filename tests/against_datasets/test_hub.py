"""Data sets that the package `datasets` reads from a Hub, which these tests serve on this machine: its real client and
loader, streaming, revisions, splits, configurations and errors."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from pyarrow import parquet

from against_datasets.hub import hub
from against_datasets.worker import grown, texts, trained
from fresh import Fresh

ROWS = [{"ask": f"{i}?", "text": f"row {i} of {i * 31 % 100}", "n": i} for i in range(150)]
MIDDLE, SIZE = 80_000_000, 240_000_000
"""Bytes of two large data sets."""


def jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[tuple[str, int]], Path]]:
    """A Hub with data sets of JSON Lines and of Parquet."""
    root = tmp_path_factory.mktemp("hub")
    lines = root / "org/lines"
    jsonl(lines / "main/data/train-00000-of-00002.jsonl", ROWS[:100])
    jsonl(lines / "main/data/train-00001-of-00002.jsonl", ROWS[100:])
    jsonl(lines / "main/data/test-00000-of-00001.jsonl", ROWS[:3])
    jsonl(lines / "v1/data/train.jsonl", [{"ask": "", "text": "of before", "n": 0}])
    configured = root / "org/configured/main"
    configured.mkdir(parents=True)
    (configured / "README.md").write_text("---\nconfigs:\n- config_name: de\n  data_files: de/*\n- config_name: en\n"
                                          "  data_files: en/*\n---\n")
    for name in ("de", "en"):
        (configured / name).mkdir()
        parquet.write_table(arrow.Table.from_pylist([{"text": f"{name} {i}", "n": i} for i in range(9)]),
                            configured / name / "train.parquet")
    draw = random.Random(0)
    for name, size in (("middle", MIDDLE), ("large", SIZE)):
        words = "".join(draw.choice("etaoin shrdlu") for _ in range(10_000))
        jsonl(root / f"org/{name}/main/train.jsonl", [{"text": words}] * (size // 10_000))
    with hub(root) as (address, sent):
        yield address, sent, root


def printed(served: Any, folder: Path, work: Any, *arguments: object) -> Any:
    """What ``work(*arguments)`` prints last in a process that finds the Hub."""
    address, sent, _ = served
    sent.clear()
    done = Fresh(work, *arguments, folder=folder, environment={
        "HF_ENDPOINT": address, "HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1"}).end()
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_row_is_a_document_in_order(served: Any, tmp_path: Path) -> None:
    found = printed(served, tmp_path, texts, {"name": "org/lines"}, {"text_field": "text"}, None)
    assert found == [[row["text"], []] for row in ROWS]
    found = printed(served, tmp_path, texts, {"name": "org/lines", "split": "test"},
                    {"prompt_field": "ask", "text_field": "text"}, None)
    assert found == [[row["ask"] + row["text"], [0, len(row["ask"])]] for row in ROWS[:3]]


def test_revisions_and_configurations_are_those_asked_for(served: Any, tmp_path: Path) -> None:
    field = {"text_field": "text"}
    assert printed(served, tmp_path, texts, {"name": "org/lines", "revision": "v1"}, field, None) == [["of before", []]]
    found = printed(served, tmp_path, texts, {"name": "org/configured", "config": "en"}, field, None)
    assert found == [[f"en {i}", []] for i in range(9)]


@pytest.mark.parametrize(("given", "field", "message"), [
    ({"name": "org/absent"}, "text", "org/absent: the data set cannot be loaded (Dataset 'org/absent' doesn't exist"),
    ({"name": "org/lines", "split": "dev"}, "text", "org/lines: the data set cannot be loaded (Bad split: dev. Avail"),
    ({"name": "org/lines", "revision": "v7"}, "text", "org/lines: the data set cannot be loaded (Revision 'v7'"),
    ({"name": "org/configured"}, "text", "Config name is missing. Please pick one among the available configs"),
    ({"name": "org/lines"}, "body", "row 1: no field 'body'; the fields are: 'ask', 'text', 'n'. Name the one"),
    ({"name": "org/lines"}, "n", "row 1: the field 'n' holds a int, not text")])
def test_what_is_not_there_is_one_error(served: Any, tmp_path: Path, given: dict[str, str], field: str,
                                        message: str) -> None:
    found = printed(served, tmp_path, texts, given, {"text_field": field}, None)
    assert isinstance(found, str) and message in found, found


def test_a_run_trains_on_a_mixture_with_a_data_set_of_the_hub(served: Any, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("".join(f"line {i % 17} of {i % 7}\n" for i in range(200)))
    sources = {"hub": {"dataset": "org/lines", "weight": 2}, "own": {"path": str(tmp_path / "own.txt"), "weight": 1}}
    found = printed(served, tmp_path, trained, sources, str(tmp_path / "run"))
    whole = sum(len(row["text"]) + 1 for row in ROWS)  # a token for each byte and each beginning
    assert 0.8 * whole < found["hub"] < whole
    (line,) = (line for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()
               if json.loads(line)["event"] == "sources" and json.loads(line)["sources"][0]["realised"])
    assert [each["realised"] for each in json.loads(line)["sources"]] == [64, 32]


def test_a_limit_ends_the_download(served: Any, tmp_path: Path) -> None:
    found = printed(served, tmp_path, texts, {"name": "org/large"}, {"text_field": "text"}, 30_000)
    assert len(found) == 3
    assert sum(size for _, size in served[1]) < SIZE / 2


def test_a_large_data_set_takes_little_memory(served: Any, tmp_path: Path) -> None:
    """Texts go to a file as they come. The client and the loader hold blocks of some megabytes at a time, in all some
    300 MB for either size; 0 were measured as the growth from one to the other."""
    assert printed(served, tmp_path, grown, ["org/middle", "org/large"]) < (SIZE - MIDDLE) / 4
