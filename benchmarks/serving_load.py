"""A server under load: crowds of clients, clients that leave, slow ones, and mixed load for a long time.

    python benchmarks/serving_load.py                    a tiny model, half an hour of mixed load
    python benchmarks/serving_load.py RUN_OR_FOLDER --minutes 60

`weft serve` runs as a process of its own, and its resident memory and processor time are read from the system. After
every phase its own accounting, as ``/metrics`` tells it, must be exactly zero: rows, slots, waiting requests, bytes of
states. The crowd comes at once; who is refused must be told 429, and everybody else gets a whole answer. A tenth of
the mixed load leaves early, a tenth reads slowly, half of it streams, and half of the prompts begin alike. The result
goes to ``benchmarks/results/serving_load.json``. Linux, since it reads ``/proc``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SECONDS = 900.0
"""Within which an answer must have come: a crowd waits for each other."""
TINY: dict[str, Any] = {
    "kind": "decoder", "vocab_size": 257, "d_model": 32, "context": 512, "blocks": [{"repeat": 2, "of": [
        {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"},
                                   {"kind": "mlp", "d_ff": 64}]}]}]}


@dataclass
class Server:
    """A server that runs.

    Attributes:
        process: its number.
        seen: how requests have ended: ``finished``, ``left``, or a status of HTTP that is not 200.
        refused: seconds that refusals took.
    """

    port: int
    process: int
    seen: Counter[str] = field(default_factory=Counter)
    refused: list[float] = field(default_factory=list)

    def memory(self) -> float:
        """Its resident memory in MB."""
        told = Path(f"/proc/{self.process}/status").read_text(encoding="ascii")
        return int(told.split("VmRSS:")[1].split()[0]) / 1024

    def busy(self) -> float:
        """The seconds of a processor that it has used."""
        told = Path(f"/proc/{self.process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")

    async def ask(self, body: dict[str, Any], *, leave: float | None = None, pause: float = 0.0) -> None:
        """Ask for an answer, and note how it ended.

        Args:
            leave: seconds after which the client leaves; None: it stays.
            pause: seconds that it waits before it reads on, each time.
        """
        begun, writer = time.monotonic(), None
        try:
            async with asyncio.timeout(SECONDS if leave is None else leave):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                content = json.dumps(body).encode()
                writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
                             b"application/json\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
                told = b""
                while piece := await reader.read(1 << 12 if pause else 1 << 16):
                    told += piece
                    await asyncio.sleep(pause)
            status = told.split(b" ")[1].decode() if told else "nothing"
            whole = b'"finish_reason":"' in told and (b"[DONE]" in told) == body["stream"]
            self.seen["finished" if status == "200" and whole else status if status != "200" else "cut"] += 1
            if status == "429":
                self.refused.append(time.monotonic() - begun)
        except TimeoutError:
            self.seen["late" if leave is None else "left"] += 1
        except OSError as error:
            self.seen[f"no connection: {error.strerror}"] += 1
        finally:
            if writer is not None:
                writer.transport.abort()

    async def figures(self) -> dict[str, float]:
        """The numbers of ``/metrics``."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        told = (await reader.read()).decode()
        writer.close()
        return {name: float(value) for name, value in re.findall(r"^(weft_\w+) ([0-9.e+-]+)$", told, re.MULTILINE)}

    async def settle(self) -> dict[str, float]:
        """Wait until nothing is left, and return what the accounting then says: all of it must be 0."""
        last = time.monotonic() + SECONDS
        while True:
            told = await self.figures()
            left = {name: told[f"weft_{name}"] for name in ("running", "waiting", "waiting_tokens", "slots",
                                                            "state_bytes")}
            if not any(left.values()) or time.monotonic() > last:
                return left
            await asyncio.sleep(0.05)


def request(draw: random.Random, new: int = 24) -> dict[str, Any]:
    """A body: half of them stream, and half begin alike."""
    begin = "In the beginning there was a long text that many prompts share. " * 2
    prompt = (begin if draw.random() < 0.5 else "") + f"{draw.random()} and then"
    return {"prompt": prompt, "max_tokens": draw.randint(1, new), "ignore_eos": True, "stream": draw.random() < 0.5}


async def crowd(server: Server, clients: int, draw: random.Random) -> dict[str, Any]:
    """So many clients at once."""
    server.seen.clear()
    server.refused.clear()
    before, most = server.memory(), [server.memory()]

    async def watch() -> None:
        while True:
            most.append(server.memory())
            await asyncio.sleep(0.1)

    watching, begun = asyncio.ensure_future(watch()), time.monotonic()
    await asyncio.gather(*(server.ask(request(draw)) for _ in range(clients)))
    seconds = time.monotonic() - begun
    watching.cancel()
    return {"clients": clients, "seconds": round(seconds, 1), "ended": dict(server.seen),
            "refused_p95_seconds": round(sorted(server.refused)[int(0.95 * len(server.refused))], 3)
            if server.refused else None,
            "memory_mb": {"before": round(before), "most": round(max(most))}, "left": await server.settle()}


async def leavers(server: Server, number: int, draw: random.Random, *, together: int = 50) -> dict[str, Any]:
    """So many clients that leave at random, streamed or not, some before anything has come."""
    server.seen.clear()
    for _ in range(number // together):
        await asyncio.gather(*(server.ask({**request(draw), "max_tokens": 400}, leave=draw.random() * 0.3)
                               for _ in range(together)))
    return {"clients": number, "ended": dict(server.seen), "left": await server.settle()}


async def slow(server: Server, number: int, draw: random.Random) -> dict[str, Any]:
    """Clients that send half a request or read slowly, while another is answered."""
    server.seen.clear()
    halves = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(number)]
    for place, (_, writer) in enumerate(halves):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"[:5 + place])
    readers = [asyncio.ensure_future(server.ask({**request(draw, 400), "stream": True}, pause=0.05))
               for _ in range(number)]
    begun = time.monotonic()
    await server.ask({**request(draw, 4), "max_tokens": 4})
    seconds = time.monotonic() - begun
    await asyncio.gather(*readers)
    for _, writer in halves:
        writer.transport.abort()
    return {"half_sent": number, "slow_readers": number, "ended": dict(server.seen),
            "seconds_of_another": round(seconds, 2), "left": await server.settle()}


async def mixed(server: Server, minutes: float, clients: int, draw: random.Random) -> dict[str, Any]:
    """Mixed load for so long, a tenth of which leaves early and a tenth of which reads slowly."""
    server.seen.clear()
    end, samples = time.monotonic() + 60 * minutes, list[float]()

    async def client() -> None:
        while time.monotonic() < end:
            kind = draw.random()
            await server.ask(request(draw), leave=draw.random() * 0.2 if kind < 0.1 else None,
                             pause=0.02 if kind > 0.9 else 0.0)

    async def watch() -> None:
        while True:
            samples.append(server.memory())
            await asyncio.sleep(max(0.2, 60 * minutes / 200))

    watching = asyncio.ensure_future(watch())
    await asyncio.gather(*(client() for _ in range(clients)))
    watching.cancel()
    quarters = [statistics.median(samples[len(samples) * part // 4:len(samples) * (part + 1) // 4] or samples)
                for part in range(4)]
    return {"minutes": minutes, "clients": clients, "ended": dict(server.seen), "left": await server.settle(),
            "memory_mb": [round(value, 1) for value in samples[::max(1, len(samples) // 40)]],
            "memory_mb_of_quarters": [round(value, 1) for value in quarters]}


@contextmanager
def serving(folder: Path, log: Path, *options: str) -> Iterator[Server]:
    """A server of a model."""
    command = [sys.executable, "-m", "weft", "serve", str(folder), "--port", "0", "--threads", "1", *options]
    with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        found = re.search(r":(\d+) \(", line)
        if found is None:
            sys.exit(f"the server did not start: {line}{log.read_text('utf-8')[-2000:]}")
        try:
            yield Server(int(found[1]), process.pid)
        finally:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text("utf-8")[-2000:]


async def measure(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """All phases."""
    draw, found = random.Random(0), dict[str, Any]()
    memory, busy = server.memory(), server.busy()
    await asyncio.sleep(options.idle)
    found["idle"] = {"seconds": options.idle, "cores": round((server.busy() - busy) / options.idle, 4),
                     "memory_mb": round(memory)}
    print(json.dumps(found["idle"]), flush=True)
    phases = {**{f"{clients} clients": partial(crowd, server, clients, draw) for clients in options.crowds},
              "leavers": partial(leavers, server, options.leavers, draw), "slow": partial(slow, server, 40, draw),
              "mixed": partial(mixed, server, options.minutes, 24, draw)}
    for name, phase in phases.items():
        busy = server.busy()
        found[name] = await phase()
        found[name]["processor_seconds"] = round(server.busy() - busy, 1)
        print(name, json.dumps(found[name]), flush=True)
    busy = server.busy()
    await asyncio.sleep(options.idle)
    found["idle again"] = {"cores": round((server.busy() - busy) / options.idle, 4),
                           "memory_mb": round(server.memory())}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="by default a tiny one, which is made")
    parser.add_argument("--crowds", nargs="+", type=int, default=[500, 2000])
    parser.add_argument("--leavers", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--idle", type=float, default=60)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    from weft.ops.processor import processor_name

    load = [round(os.getloadavg()[0], 1)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(options.model or Path(place) / "tiny")
        if options.model is None:
            write_tiny(folder)
        with serving(folder, Path(place) / "log") as server:
            found = asyncio.run(measure(server, options))
    load.append(round(os.getloadavg()[0], 1))
    report = {"model": options.model or "two layers of width 32 over bytes", "processor": processor_name(),
              "load_of_the_machine": load, **found}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "serving_load.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def write_tiny(folder: Path) -> None:
    """A model of a few thousand weights, so that what is measured is the server."""
    import torch

    from weft.checkpoints import save_checkpoint
    from weft.core.config import parse_part
    from weft.core.model import LanguageModel
    from weft.tokenizers import ByteTokenizer

    torch.manual_seed(0)
    model = parse_part(("model",), TINY).build(None)
    assert isinstance(model, LanguageModel)
    save_checkpoint(folder, model, ByteTokenizer())


if __name__ == "__main__":
    main()
