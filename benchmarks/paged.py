"""Paged memory for keys and values, as a prototype: what it saves, and what a step of attention costs.

    python benchmarks/paged.py

A field that grows can be kept in two ways. In *slots* every row has a stretch of the batch's capacity, side by side. In
*pages* rows take fixed pieces from one pool as they grow, and a table says which; a query reads them either gathered
into a stretch first, which needs no kernel of its own, or page by page, with the sums of each page's softmax brought
together (`streamed`). All three are held to one another in float64, then timed in turns; bytes are counted for rows
whose lengths are drawn as those of answers are. Results go to ``benchmarks/results/paged.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.training.compute import processor_name

HERE = Path(__file__).parent
PAGE = 64


@dataclass(frozen=True)
class Pages:
    """A growing field of the declared kind "pages": [P,K,page,E], and for each row the pages that hold it, in order.

    Attributes:
        pool: all pages.
        table: [B,N], the page of each stretch of a row; 0 beyond its last.
        seen: [B].
    """

    pool: Tensor
    table: Tensor
    seen: Tensor

    @staticmethod
    def of(slots: Tensor, seen: Tensor) -> Pages:
        """The same as [B,K,S,E] of slots; pages are handed out in a shuffled order, as after rows came and went."""
        batch, heads, size, width = slots.shape
        counts = [-(-int(count) // PAGE) for count in seen]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0)) + 1
        pool, table, given = slots.new_zeros(1 + sum(counts), heads, PAGE, width), torch.zeros(
            batch, size // PAGE, dtype=torch.int64), 0
        for row, count in enumerate(counts):
            for place in range(count):
                page = int(order[given])
                pool[page], table[row, place] = slots[row, :, place * PAGE : (place + 1) * PAGE], page
                given += 1
        return Pages(pool, table, seen)

    def gathered(self, length: int) -> Tensor:
        """[B,K,S,E], copied."""
        pages = self.table[:, : -(-length // PAGE)]
        found = self.pool.index_select(0, pages.flatten()).unflatten(0, pages.shape)
        return found.transpose(1, 2).flatten(2, 3)[:, :, :length]


def visible(seen: Tensor, length: int) -> Tensor:
    return (torch.arange(length)[None] < seen[:, None])[:, None, None]


def by_slots(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, length: int) -> Tensor:
    return F.scaled_dot_product_attention(q, k[:, :, :length], v[:, :, :length], attn_mask=visible(seen, length))


def by_gathering(q: Tensor, k: Pages, v: Pages, length: int) -> Tensor:
    return F.scaled_dot_product_attention(q, k.gathered(length), v.gathered(length),
                                          attn_mask=visible(k.seen, length))


def streamed(q: Tensor, k: Pages, v: Pages, length: int) -> Tensor:
    """Page by page: scores, their running maximum, and the sums of weights and of weighted values."""
    best = q.new_full((*q.shape[:3], 1), -torch.inf)
    total, mixed = torch.zeros_like(best), torch.zeros_like(q)
    for place in range(-(-length // PAGE)):
        pages = k.table[:, place]
        scores = q @ k.pool[pages].transpose(2, 3) / q.shape[3] ** 0.5
        there = (torch.arange(PAGE)[None] + place * PAGE < k.seen[:, None])[:, None, None]
        scores = scores.masked_fill(~there, -torch.inf)
        now = torch.maximum(best, scores.amax(3, keepdim=True))
        weights, kept = (scores - now).exp(), (best - now).exp()
        total, mixed, best = total * kept + weights.sum(3, keepdim=True), mixed * kept + weights @ v.pool[pages], now
    return mixed / total


def bytes_held(options: argparse.Namespace) -> dict[str, float]:
    """Of a pool that serves as many rows as the slots do: lengths uniform up to the capacity, each row somewhere on its
    way, the mean over draws and the most of all."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, options.capacity + 1, (4096, options.rows), generator=generator)
    now = (torch.rand(lengths.shape, generator=generator) * lengths).long() + 1
    share = ((now + PAGE - 1) // PAGE).sum(1) * PAGE / (options.capacity * options.rows)
    return {"mean": float(share.mean()), "most": float(share.max())}


def measured(length: int, options: argparse.Namespace, clock: Callable[[], float]) -> dict[str, float]:
    """Microseconds of one layer's attention for one token in every row, after holding all ways equal."""
    generator = torch.Generator().manual_seed(2)
    shape = (options.rows, options.kv_heads, options.capacity, options.head)
    found: dict[str, list[float]] = {}
    for dtype in (torch.float64, torch.float32):
        q = torch.randn(options.rows, options.kv_heads, options.group, options.head, generator=generator, dtype=dtype)
        k, v = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))
        seen = torch.randint(length // 2, length + 1, (options.rows,), generator=generator)
        paged = Pages.of(k, seen), Pages.of(v, seen)
        ways: dict[str, Callable[[], Tensor]] = {
            "slots": lambda q=q, k=k, v=v, seen=seen: by_slots(q, k, v, seen, length),
            "gathered": lambda q=q, paged=paged: by_gathering(q, *paged, length),
            "streamed": lambda q=q, paged=paged: streamed(q, *paged, length)}
        if dtype == torch.float64:
            for way in ways.values():
                torch.testing.assert_close(way(), ways["slots"](), rtol=1e-12, atol=1e-12)
            continue
        found = {name: [] for name in ways}
        for _ in range(options.repeats):
            for name, way in ways.items():
                begun = clock()
                way()
                found[name].append(clock() - begun)
    return {name: 1e6 * statistics.median(times) for name, times in found.items()}


def table(report: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["| keys of a row | slots | pages, gathered | pages, streamed |", "| --- | --- | --- | --- |"]
    for length, found in report["microseconds"].items():
        lines.append(f"| up to {length} | {found['slots']:.0f} | {found['gathered']:.0f} "
                     f"({found['gathered'] / found['slots']:.1f}x) | {found['streamed']:.0f} "
                     f"({found['streamed'] / found['slots']:.1f}x) |")
    held = report["share_of_the_slots_bytes"]
    return "\n".join([*lines, "", f"Microseconds of one layer's attention for one token in {report['shape']['rows']} "
                      f"rows, medians. Pages hold {held['mean']:.0%} of the slots' bytes on the mean of draws and "
                      f"{held['most']:.0%} at most.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"rows": 8, "kv-heads": 2, "group": 4, "head": 64, "capacity": 4096, "repeats": 60,
                        "threads": torch.get_num_threads()}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--cpu-time", action="store_true",
                        help="time of the processor, with one thread, where the machine is not idle")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    before = os.getloadavg()[0]
    with torch.inference_mode():
        lengths = [length for length in (256, 1024, 4096) if length <= options.capacity]
        report = {"shape": {name: getattr(options, name) for name in ("rows", "kv_heads", "group", "head", "capacity")},
                  "page": PAGE, "threads": options.threads, "cpu_time": options.cpu_time, "processor": processor_name(),
                  "torch": torch.__version__,
                  "microseconds": {length: measured(length, options, clock) for length in lengths},
                  "share_of_the_slots_bytes": bytes_held(options), "load_before": before,
                  "load_after": os.getloadavg()[0]}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "paged.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.out / "paged.md").write_text(table(report))
    print(table(report))


if __name__ == "__main__":
    main()
