"""Reading, tokenising and packing against the ``tokenizers`` library alone, interleaved, medians of one run.

    python benchmarks/data.py [--megabytes 8] [--rounds 5] [--vocabulary 4096]

Both encode the same documents with the same byte-level BPE and all threads. The library's side is one ``encode_batch``
on texts in memory; Weft's reads the files, encodes, counts bytes, hashes and writes the shards. Cutting batches out of
the mapped shards is timed by itself, against the same windows copied out of one array in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tokenizers

from weft.data import ShuffledBatches, embedded_corpus
from weft.data.settings import DataSettings
from weft.tokenizers import BPETokenizer
from weft.tokenizers.config import TokenizerFileConfig
from weft.training.material import prepare_folder

ROWS, LENGTH, STEPS = 8, 512, 200


def main() -> None:
    """Print the figures as one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("megabytes", 8), ("rounds", 5), ("vocabulary", 4096)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), given.megabytes, given.rounds, given.vocabulary), indent=1))


def measure(folder: Path, megabytes: int, rounds: int, vocabulary: int) -> dict[str, object]:
    """All figures; ratios above one favour Weft."""
    corpus = embedded_corpus(max_bytes=megabytes * 10**6)
    for number, document in enumerate(corpus.documents):
        path = folder / "text" / f"{number:05d}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(document.text, encoding="utf-8")
    BPETokenizer.train(corpus.limited(10**6).texts(), vocabulary).save(folder / "tokenizer")
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    config = TokenizerFileConfig(path=str(folder / "tokenizer"), eos="<|endoftext|>")
    settings = DataSettings(path=str(folder / "text"), validation=0.01)
    texts = corpus.texts()
    encode = interleaved({
        "tokenizers": lambda: library.encode_batch(texts, add_special_tokens=False),
        "weft": lambda: prepare_folder(settings, config, folder / "prepared", replace=True)}, rounds)
    data = prepare_folder(settings, config, folder / "small", shard_tokens=1 << 18).data
    stream = data.stream("train")
    batches = ShuffledBatches(stream, rows=ROWS, length=LENGTH)
    whole, places = np.asarray(stream.tokens), np.arange(LENGTH + 1)
    starts = np.random.default_rng(0).integers(0, len(whole) - LENGTH - 1, (STEPS, ROWS, 1))
    cut = interleaved({
        "numpy": lambda: [whole[row + places].astype(np.int64) for row in starts],
        "weft": lambda: [batches.batch(step) for step in range(STEPS)]}, rounds)
    return {
        "bytes": corpus.size_bytes, "documents": len(texts), "tokens": data.manifest.parts["train"].tokens,
        "tokenising": {**encode, "ratio": encode["tokenizers"] / encode["weft"]},
        "cutting batches": {**cut, "tokens/s": STEPS * ROWS * LENGTH / cut["weft"],
                            "shards": len(data.manifest.parts["train"].shards)},
        "machine": {"cores": os.cpu_count(), "load": os.getloadavg(), "python": platform.python_version(),
                    "tokenizers": tokenizers.__version__, "numpy": np.__version__}}


def interleaved(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            begun = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


if __name__ == "__main__":
    main()
