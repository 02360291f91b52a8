"""Opening and loading a sharded Llama-shaped folder: seconds, and memory over the weights.

    python benchmarks/loading.py                    1.2 billion parameters
    python benchmarks/loading.py --shape 7b         Llama-7B: 13.5 GB of bfloat16
    python benchmarks/loading.py --shape 7b --dtypes kept --folder /somewhere/with/room

The folder is a real one but for its numbers: the files have their whole size and are sparse, so that they cost little
disk and no time to write. Every measurement is a process of its own. Anonymous memory (RssAnon) is sampled while the
weights are loaded and is given over the bytes of the weights as asked for; pages of the files, which the system takes
back when it needs them, are in the peak of all resident memory (VmHWM).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
SHAPES: Mapping[str, Mapping[str, int]] = {
    "tiny": {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 4, "num_attention_heads": 8},
    "1b": {"hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 22, "num_attention_heads": 16},
    "7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}}
DTYPES = {"kept": None, "bfloat16": "bfloat16", "float32": "float32"}
VOCABULARY, SHARD = 32000, 2 * 10**9
OPENS, PAUSE = 5, 0.002
SPARE = 2 * 2**30
"""Bytes of memory that are left free."""


def main() -> None:
    """Measure, print and write the figures."""
    given = arguments()
    if given.measure:
        print(json.dumps(measured(Path(given.folder), given.measure)))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        written = write_folder(Path(place), SHAPES[given.shape])
        found: dict[str, Any] = {"shape": given.shape, "parameters": written // 2, "file_bytes": written,
                                 "torch": torch.__version__, "machine": platform.machine()}
        found |= {name: process(Path(place), name) for name in ("open", *given.dtypes) if fits(name, written)}
    text = json.dumps(found, indent=1)
    print(text)
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(text + "\n", encoding="utf-8")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--dtypes", nargs="*", choices=DTYPES, default=["kept", "float32"],
                        help="as stored (bfloat16), or cast; none: only opened")
    parser.add_argument("--folder", help="where the temporary folder is made")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "loading.json")
    parser.add_argument("--measure", choices=["open", *DTYPES], help=argparse.SUPPRESS)
    return parser.parse_args()


def shapes(sizes: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a Llama."""
    width, inner = sizes["hidden_size"], sizes["intermediate_size"]
    yield "model.embed_tokens.weight", (VOCABULARY, width)
    for layer in range(sizes["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        yield from ((f"{name}.self_attn.{each}_proj.weight", (width, width)) for each in "qkvo")
        yield from ((f"{name}.mlp.{each}_proj.weight", (inner, width)) for each in ("gate", "up"))
        yield f"{name}.mlp.down_proj.weight", (width, inner)
        yield from ((f"{name}.{each}_layernorm.weight", (width,)) for each in ("input", "post_attention"))
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (VOCABULARY, width)


def write_folder(folder: Path, sizes: Mapping[str, int]) -> int:
    """A folder of sparse shards; gives the bytes of its weights."""
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    for tensor in shapes(sizes):
        if sum(2 * math.prod(shape) for _, shape in (*shards[-1], tensor)) > SHARD:
            shards.append([])
        shards[-1].append(tensor)
    names = [f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors" for index in range(len(shards))]
    total = sum(write_shard(folder / name, shard) for name, shard in zip(names, shards, strict=True))
    places = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor, _ in shard}
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
              "torch_dtype": "bfloat16", **sizes}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return total


def write_shard(path: Path, tensors: list[tuple[str, tuple[int, ...]]]) -> int:
    """One file of zeros that takes no room; gives the bytes of its tensors."""
    entries, end = {}, 0
    for name, shape in tensors:
        begin, end = end, end + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    return end


def fits(name: str, stored: int) -> bool:
    """Whether the memory that is free takes the weights; says so where not."""
    needed = {"open": 0, "float32": 2 * stored}.get(name, stored)
    free = status("/proc/meminfo", "MemAvailable")
    if needed + SPARE > free:
        print(f"{name}: needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free; left out", file=sys.stderr)
    return needed + SPARE <= free


def process(folder: Path, name: str) -> dict[str, float]:
    """What a process of its own measures."""
    done = subprocess.run([sys.executable, __file__, "--measure", name, "--folder", str(folder)], check=True,
                          capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measured(folder: Path, name: str) -> dict[str, float]:
    """The figures of one way to open or load the folder."""
    from weft import api
    from weft.interop.huggingface.folder import open_folder

    if name == "open":
        seconds = []
        for _ in range(OPENS):
            begin = time.perf_counter()
            open_folder(folder)
            seconds.append(time.perf_counter() - begin)
        return {"first_seconds": round(seconds[0], 3), "median_seconds": round(statistics.median(seconds), 3)}
    open_folder(folder)  # imports what is needed
    with Watch() as watch:
        begin = time.perf_counter()
        model = api.load(folder, dtype=DTYPES[name]).model
        spent = time.perf_counter() - begin
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    return {"seconds": round(spent, 1), "weight_bytes": weights,
            "anonymous_over_weights": round(watch.most / weights, 3), "peak_resident_bytes": status(SELF, "VmHWM"),
            "peak_resident_over_weights": round(status(SELF, "VmHWM") / weights, 3)}


class Watch:
    """Samples how far anonymous memory rises above where it was; ``most``: the highest, in bytes."""

    def __init__(self) -> None:
        self.most, self._before, self._done = 0, status(SELF, "RssAnon"), threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(PAUSE):
            self.most = max(self.most, status(SELF, "RssAnon") - self._before)


SELF = "/proc/self/status"


def status(path: str, name: str) -> int:
    """Bytes of a line of a file of the kernel's, such as ``RssAnon:   1234 kB``."""
    line = next(line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
