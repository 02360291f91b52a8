"""The engine of serving against the slots that it decodes with; long prompts beside streams; shared prefixes.

    python benchmarks/engine.py                         a Llama-like model of 30M parameters in bfloat16
    python benchmarks/engine.py --only prefixes         one of speeds, beside, prefixes, adapters, drafts
    python benchmarks/engine.py --cpu-time              on a machine that others use

``speeds``: 1 to 64 rows are asked for at once, 64 tokens in and 64 out, greedily. ``slots`` reads them with one call of
`Slots.admit_all` and then steps; ``engine`` is given the same rows as requests. The two take turns in one process;
figures are medians of the rounds, in new tokens a second.

``beside``: the time between two tokens of eight streams, alone and while a long prompt is read, in milliseconds, for
attention, Mamba and both in turns. Streams of 64 tokens have 384 new ones and are followed by others, one at a time, so
that those beside the prompt read as many keys as those before it. ``--from`` gives the tokens of the prompt that an
earlier one shares, which is read first, so that its end can be measured in a short time.

``prefixes``: seconds to the first token of a prompt of 2,000 tokens that others share and 32 of its own, read whole and
continued from the kept state, for attention and for Mamba.

``adapters``: 16 rows of 1, 4 and 16 adapters of rank 8 (all maps), 64 tokens in and 64 out, in one batch and in a batch
for each adapter, beside 16 rows of the model itself; new tokens a second, medians of rounds that take turns.

``drafts``: rows that are continued by 128 tokens without guesses and with four from the row itself (prompt look-up),
and the share of guesses that were taken. Greedy texts of random weights fall into repeating themselves, which suits it.

Results go to ``benchmarks/results/engine.json``.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from weft.core.config import parse_part
from weft.core.model import LanguageModel
from weft.decoding import NewToken, Row, RowSettings, Slots
from weft.linear.lora import LoRAConfig
from weft.linear.low_rank import adapted_maps
from weft.linear.rewrite import rewritten
from weft.serving.engine import Engine
from weft.serving.requests import EngineLimits, Event, Request
from weft.serving.row_adapters import row_adapted
from weft.serving.scheduler import Ticket
from weft.serving.speculation import Drafts, PromptDrafts
from weft.training.compute import processor_name

HERE = Path(__file__).parent
ROPE = {"kind": "attention", "n_heads": 6, "n_kv_heads": 2, "position": "rope"}
LAYERS: dict[str, Any] = {"attention": [ROPE], "mamba": ["mamba"], "hybrid": [ROPE, "mamba"]}


def model_of(kind: str, options: argparse.Namespace) -> LanguageModel:
    torch.manual_seed(0)
    model = parse_part(("model",), {
        "kind": "decoder", "vocab_size": options.vocabulary, "context": 2048, "d_model": options.width,
        "norm": "rmsnorm", "blocks": [{"repeat": options.layers // len(LAYERS[kind]), "of": [{
            "kind": "pre", "norm": "rmsnorm", "layers": [layer, {"kind": "glu", "d_ff": 8 * options.width // 3}]}
            for layer in LAYERS[kind]]}]}).build(None)
    assert isinstance(model, LanguageModel)
    return model.eval().to(getattr(torch, options.dtype))


def prompts(count: int, length: int, vocabulary: int, seed: int) -> list[Row]:
    generator = torch.Generator().manual_seed(seed)
    return [Row(tuple(line)) for line in torch.randint(vocabulary, (count, length), generator=generator).tolist()]


def through_slots(model: LanguageModel, rows: list[Row], new: int, clock: Callable[[], float]) -> float:
    """New tokens a second."""
    begun = clock()
    slots = Slots(model, len(rows), capacity=256)
    slots.admit_all(rows, [RowSettings(new, row=index) for index in range(len(rows))])
    while slots.live:
        slots.step()
    slots.close()
    return len(rows) * new / (clock() - begun)


def through_engine(model: LanguageModel, rows: list[Row], new: int, clock: Callable[[], float]) -> float:
    """New tokens a second."""
    engine = Engine(model, None, limits=EngineLimits(prefix_bytes=0))
    begun = clock()
    events: list[Event] = []
    for index, row in enumerate(rows):
        engine.submit(Request(row, RowSettings(new, row=index), keep=False), events.append)
    while engine.step():
        pass
    spent = clock() - begun
    assert len(events) == len(rows) * (new + 1), events[:1]
    return len(rows) * new / spent


def speeds(options: argparse.Namespace) -> dict[str, Any]:
    model, ways = model_of("attention", options), {"slots": through_slots, "engine": through_engine}
    found: dict[str, Any] = {"parameters": sum(each.numel() for each in model.parameters())}
    for count in options.rows:
        times: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(options.rounds + 1):  # the first one is not counted
            for way, run in ways.items():
                times[way].append(run(model, prompts(count, 64, options.vocabulary, turn), 64, options.clock))
        middle = {way: statistics.median(each[1:]) for way, each in times.items()}
        found[f"{count} rows"] = {**middle, "engine over slots": middle["engine"] / middle["slots"]}
        print(count, found[f"{count} rows"], flush=True)
    return found


QUIET = 6000
"""Tokens of the streams before the long prompt."""


def beside(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds between two tokens of eight streams, by kind of model."""
    found = {}
    for kind in options.kinds:
        found[kind] = beside_of(kind, options)
        print(kind, found[kind], flush=True)
    return found


def beside_of(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    engine = Engine(model_of(kind, options), None, limits=EngineLimits(prefix_bytes=(4 << 30) * bool(options.head)))
    long, read, begun = prompts(1, options.long, options.vocabulary, 1)[0].tokens, list[Event](), list[float]()
    if options.head:
        engine.submit(Request(Row(long[:options.head]), RowSettings(1)), lambda event: None)
        while engine.step():
            pass

    def ended(tokens: int) -> bool:
        if tokens >= QUIET and not begun:
            engine.submit(Request(Row(long), RowSettings(1), keep=False), read.append)
            begun.append(options.clock())
        return bool(read)

    gaps = streamed(engine, options, ended)
    seconds = options.clock() - begun[0]
    engine.close()
    quiet, loaded = percentiles(gaps[QUIET // 4:QUIET]), percentiles(gaps[QUIET:])
    return {"tokens of the prompt": options.long - options.head, "seconds to read it": seconds,
            "quiet": quiet, "beside": loaded, "p95 beside over p95 quiet": loaded["p95"] / quiet["p95"]}


def streamed(engine: Engine, options: argparse.Namespace, ended: Callable[[int], bool]) -> list[float]:
    """Milliseconds between two tokens of any of eight streams, each followed by another one, until ``ended``, given
    their number so far. One begins at a time."""
    gaps, tickets = list[float](), dict[int, Ticket]()

    def begin(index: int, new: int) -> None:
        last = 0.0

        def tell(event: Event) -> None:
            nonlocal last
            if not isinstance(event, NewToken) or ended(len(gaps)):
                return
            now = options.clock()
            gaps.extend([1000 * (now - last)] if last else [])
            last = now
            if event.finish:
                begin(index, 384)

        row, = prompts(1, 64, options.vocabulary, len(gaps) + index)
        tickets[index] = engine.submit(Request(row, RowSettings(new, row=index), keep=False), tell)

    for index in range(8):
        begin(index, 48 * (index + 1))
    while not ended(len(gaps)):
        engine.step()
    for ticket in tickets.values():
        engine.cancel(ticket)
    return gaps


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": statistics.median(values), "p95": ordered[int(0.95 * (len(ordered) - 1))], "most": ordered[-1]}


def adapters(options: argparse.Namespace) -> dict[str, Any]:
    """New tokens a second of rows of several adapters."""
    model, found = model_of("attention", options), dict[str, Any]()
    rows = prompts(16, 64, options.vocabulary, 0)
    for count in (1, 4, 16):
        adapted = {str(number): rewritten(copy.deepcopy(model), [LoRAConfig(rank=8)]).eval() for number in range(count)}
        for each in adapted.values():
            for module in adapted_maps(each).values():
                module.perturb(torch.Generator().manual_seed(1))
        many = row_adapted(model, adapted)
        assert many is not None
        ways: dict[str, dict[str | None, LanguageModel]] = {
            "the model": dict.fromkeys((None, *adapted), model), "one batch": dict.fromkeys((None, *adapted), many),
            "a batch each": {None: model, **adapted}}
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.rounds + 1):  # the first one is not counted
            for way, models in ways.items():
                engine = Engine(model, None, limits=EngineLimits(prefix_bytes=0))
                engine._models.update(models)  # which the rows read too
                begun = options.clock()
                for index, row in enumerate(rows):
                    asked = Request(row, RowSettings(64, row=index), adapter=str(index % count))
                    engine.submit(asked, lambda event: None)
                while engine.step():
                    pass
                times[way].append(16 * 64 / (options.clock() - begun))
        found[f"{count} adapters"] = {way: statistics.median(each[1:]) for way, each in times.items()}
        print(count, found[f"{count} adapters"], flush=True)
    return found


def drafts(options: argparse.Namespace) -> dict[str, Any]:
    """New tokens a second with and without guesses."""
    model, found = model_of("attention", options), dict[str, Any]()
    ways: dict[str, Callable[[], Drafts] | None] = {"none": None, "prompt": lambda: PromptDrafts(4)}
    for count in (1, 8):
        times: dict[str, list[float]] = {way: [] for way in ways}
        taken = 0.0
        for turn in range(options.rounds + 1):  # the first one is not counted
            for way, drafting in ways.items():
                engine = Engine(model, None, limits=EngineLimits(prefix_bytes=0), drafting=drafting)
                begun = options.clock()
                for index, row in enumerate(prompts(count, 64, options.vocabulary, turn)):
                    engine.submit(Request(row, RowSettings(128, row=index)), lambda event: None)
                while engine.step():
                    pass
                times[way].append(count * 128 / (options.clock() - begun))
                taken = engine.figures().accepted / max(1, engine.figures().drafted)
        found[f"{count} rows"] = {way: statistics.median(each[1:]) for way, each in times.items()} | {"taken": taken}
        print(count, found[f"{count} rows"], flush=True)
    return found


def prefixes(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds to the first token after 2,000 shared tokens and 32 others."""
    found: dict[str, Any] = {}
    for kind in ("attention", "mamba"):
        engine = Engine(model_of(kind, options), None)
        shared, = prompts(1, 2000, options.vocabulary, 0)
        tails = prompts(options.rounds + 3, 32, options.vocabulary, 1)
        spent: dict[str, list[float]] = {"read": [], "reused": []}
        for turn, tail in enumerate(tails):
            whole = Row((*[(turn + 1 + token) % options.vocabulary for token in shared.tokens], *tail.tokens))
            for way, row in (("read", whole), ("reused", Row((*shared.tokens, *tail.tokens)))):
                events: list[Event] = []
                engine.submit(Request(row, RowSettings(1), keep=way == "reused"), events.append)
                begun = options.clock()
                while len(events) < 2:
                    engine.step()
                spent[way].append(options.clock() - begun)
                engine.step()
        second = spent["reused"][1]
        middle = {way: statistics.median(each[3:]) for way, each in spent.items()}
        found[kind] = {**middle, "the second of them": second, "times as soon": middle["read"] / middle["reused"]}
        print(kind, found[kind], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, number in (("width", 384), ("layers", 10), ("vocabulary", 16384), ("rounds", 5), ("long", 32000)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--kinds", nargs="*", default=list(LAYERS), choices=list(LAYERS), help="of ``beside``")
    parser.add_argument("--from", dest="head", type=int, default=0)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=HERE / "results" / "engine.json")
    kinds: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "speeds": speeds, "beside": beside, "prefixes": prefixes, "adapters": adapters,
        "drafts": drafts}
    parser.add_argument("--only", nargs="*", default=list(kinds), choices=list(kinds))
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    options.clock = time.process_time if options.cpu_time else time.perf_counter
    torch.set_num_threads(options.threads)
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.only:
        found[name] = kinds[name](options)
        found["machine"] = {
            "processor": processor_name(), "threads": options.threads, "torch": torch.__version__,
            "clock": "of the processor" if options.cpu_time else "of the wall", "load": os.getloadavg()[0],
            "dtype": options.dtype}
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
