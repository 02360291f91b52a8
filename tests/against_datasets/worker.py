"""What a process of its own does with a Hub: its address is read when the package is imported."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

from weft.core.errors import WeftError
from weft.data.saved_datasets import loaded_dataset
from weft.data.settings import DataSettings
from weft.data.source_settings import HubDataset, TextSource
from weft.data.source_texts import split_source
from weft.training import parse_run, train
from weft.training.material import prepare


def texts(given: dict[str, Any], fields: dict[str, str], max_bytes: int | None) -> None:
    """Print the texts of a data set, or the error."""
    hub = HubDataset.model_validate(given)
    try:
        corpus = loaded_dataset(hub.name, fields, config=hub.subset, split=hub.split, revision=hub.revision,
                                whole="prompt_field" in fields, max_bytes=max_bytes)
        found: Any = [[each.text, each.borders] for each in corpus.documents]
    except WeftError as error:
        found = str(error)
    print(json.dumps(found))


def trained(sources: dict[str, Any], out: str) -> None:
    """Train on a mixture, and go on with it; print the bytes of each source's text."""
    config = parse_run({
        "model": {"kind": "decoder", "d_model": 8, "context": 8, "blocks": [{"kind": "pre", "layers": ["lstm"]}]},
        "data": {"sources": sources}, "report": {"eval_batches": 1},
        "training": {"steps": 3, "batch_size": 4, "compute": {"matmul": "default"}}})
    train(config, Path(out))
    stream = prepare(config).train
    print(json.dumps({each.name: each.last - each.first for each in stream.sources.each}))


def grown(names: list[str]) -> None:
    """Print by how many bytes the largest resident size grows while the last of some data sets is read."""
    for name in names:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        split_source("web", TextSource(dataset=HubDataset(name=name), weight=1), DataSettings())
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)
