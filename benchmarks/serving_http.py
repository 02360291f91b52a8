"""Serving over HTTP: `weft serve` and llama.cpp's own server, of the same model, for the same clients and prompts.

    python benchmarks/serving_http.py --llama-server PATH        30M Llama, bfloat16, five rounds
    python benchmarks/serving_http.py --clients 1 4 --rounds 1 --layers 2

Every client streams one answer after the other over `/v1/completions`: 64 ids of prompt, drawn anew for each so that
no kept prefix helps, and 64 new tokens, greedily. Both servers run at once and are asked in turns, each idle while the
other works; figures are medians over rounds. ``engine`` is Weft's engine asked by as many callers in this process,
without HTTP. Without ``--llama-server`` Weft is measured alone. llama.cpp's server is built from its sources with
``cmake -DLLAMA_CURL=OFF`` and ``--target llama-server``. Results go to ``benchmarks/results/serving_http.json`` and
``.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from training_weft import model_of

from weft.api import load
from weft.checkpoints import save_checkpoint
from weft.interop.convert import convert
from weft.ops.processor import processor_name
from weft.tokenizers.bpe import BPETokenizer

HERE = Path(__file__).parent
Row = dict[str, Any]


def write_models(folder: Path, options: argparse.Namespace) -> None:
    """The model as a checkpoint, and in llama.cpp's format."""
    texts = [path.read_text(errors="ignore") for path in sorted(Path(os.__file__).parent.glob("*.py"))]
    tokenizer = BPETokenizer.train(texts, options.vocabulary)
    shape = {name: getattr(options, name) for name in ("layers", "width", "heads", "kv_heads", "d_ff", "context")}
    shape |= {"vocabulary": tokenizer.vocab_size, "batch": 1}
    model = model_of({"shape": shape, "dtype": "float32", "compile": False, "route": "default"}).to(torch.bfloat16)
    save_checkpoint(folder / "checkpoint", model, tokenizer)
    convert(load(folder / "checkpoint"), folder / "model.gguf", to="gguf", dtype=torch.bfloat16)


@contextmanager
def server(command: list[str], port: int, log: Path) -> Iterator[float]:
    """A running server; gives the seconds until it answered."""
    begun = time.perf_counter()
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            while not ready(port):
                if process.poll() is not None or time.perf_counter() - begun > 120:
                    sys.exit(f"{command[0]} did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.05)
            yield time.perf_counter() - begun
        finally:
            process.terminate()


def ready(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as link:
            link.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return b" 200 " in link.recv(64)
    except OSError:
        return False


async def answer(port: int, prompt: list[int], new: int) -> tuple[float, float, int]:
    """Stream one answer: seconds to its first event and to its end, and how many events it had."""
    body = json.dumps({"prompt": prompt, "max_tokens": new, "temperature": 0, "stream": True,
                       "ignore_eos": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = time.perf_counter()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                 b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    first, events, status = 0.0, 0, await reader.readline()
    async for line in reader:
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - begun
            events += 1
    writer.close()
    if b" 200 " not in status or not events:
        sys.exit(f"port {port} answered {status!r} with {events} events")
    return first, time.perf_counter() - begun, events


async def load_of(port: int, clients: int, options: argparse.Namespace, draw: random.Random) -> Row:
    """New tokens a second of so many clients, and the 95th percentile of the first token's seconds."""
    each = max(2, options.answers // clients)
    prompts = [[[draw.randrange(300, options.vocabulary - 300) for _ in range(options.prompt)] for _ in range(each)]
               for _ in range(clients)]

    async def client(own: list[list[int]]) -> list[tuple[float, float, int]]:
        return [await answer(port, prompt, options.new) for prompt in own]

    begun = time.perf_counter()
    done = [one for found in await asyncio.gather(*map(client, prompts)) for one in found]
    seconds = time.perf_counter() - begun
    firsts = sorted(first for first, _, _ in done)
    return {"tokens_per_second": clients * each * options.new / seconds,
            "first_p95": firsts[min(len(firsts) - 1, int(0.95 * len(firsts)))]}


def engine_of(folder: Path, clients: int, options: argparse.Namespace, draw: random.Random) -> Row:
    """The same load put to the engine in this process, as many requests at a time."""
    from weft.decoding import Row as Prompt
    from weft.decoding import RowSettings
    from weft.serving.engine import Engine
    from weft.serving.requests import EngineLimits, Request

    loaded = load(folder / "checkpoint")
    engine = Engine(loaded.model, loaded.tokenizer, limits=EngineLimits(rows=64))  # type: ignore[arg-type]
    left = clients * max(2, options.answers // clients)

    def one_more(event: Any = None) -> None:
        nonlocal left
        if left and (event is None or getattr(event, "finish", None)):
            left -= 1
            ids = tuple(draw.randrange(300, options.vocabulary - 300) for _ in range(options.prompt))
            engine.submit(Request(Prompt(ids), RowSettings(options.new)), one_more)

    rounds = clients * max(2, options.answers // clients)
    begun = time.perf_counter()
    for _ in range(clients):
        one_more()
    while engine.step():
        pass
    seconds = time.perf_counter() - begun
    engine.close()
    return {"tokens_per_second": rounds * options.new / seconds, "first_p95": 0.0}


def measure(options: argparse.Namespace, folder: Path) -> Row:
    """All rounds, in turns."""
    ports = {name: options.port + place for place, name in enumerate(("weft", "llama.cpp"))}
    weft = [str(Path(sys.executable).with_name("weft")), "serve", str(folder / "checkpoint"), "--port",
            str(ports["weft"]), "--max-rows", "64", "--threads", str(options.threads)]
    llama = [str(options.llama_server), "-m", str(folder / "model.gguf"), "--port", str(ports["llama.cpp"]), "-np",
             "64", "-c", str(64 * options.context), "-t", str(options.threads)]
    draw, found = random.Random(0), dict[str, list[Row]]()
    with ExitStack() as running:
        starts = {"weft": running.enter_context(server(weft, ports["weft"], folder / "weft.log"))}
        if options.llama_server is not None:
            starts["llama.cpp"] = running.enter_context(server(llama, ports["llama.cpp"], folder / "llama.log"))
        for number in range(-1, options.rounds):  # the first one is not counted
            for clients in options.clients:
                for name in starts:
                    one = asyncio.run(load_of(ports[name], clients, options, draw))
                    found.setdefault(f"{name} {clients}", []).append(one)
                    print(number + 1, name, clients, {key: round(value, 3) for key, value in one.items()}, flush=True)
                found.setdefault(f"engine {clients}", []).append(engine_of(folder, clients, options, draw))
    rows = [{"name": name.split()[0], "clients": int(name.split()[1]),
             **{key: statistics.median(one[key] for one in rounds[1:] or rounds) for key in rounds[0]}}
            for name, rounds in found.items()]
    return {"starts": starts, "rows": rows}


def table(report: Row) -> str:
    """The results as Markdown."""
    speeds = {(row["name"], row["clients"]): row for row in report["rows"]}
    lines = ["| clients | Weft, tokens/s | llama.cpp, tokens/s | Weft over llama.cpp | first token, p95 s | "
             "llama.cpp's | engine without HTTP | HTTP costs |", "| --- " * 8 + "|"]
    for clients in sorted({row["clients"] for row in report["rows"]}):
        own, other, bare = (speeds.get((name, clients)) for name in ("weft", "llama.cpp", "engine"))
        speed = own["tokens_per_second"]
        rival = other and other["tokens_per_second"]
        lines.append(f"| {clients} | {speed:.0f} | {rival:.0f} | {speed / rival:.2f} | {own['first_p95']:.2f} | "
                     f"{other['first_p95']:.2f} |" if rival else f"| {clients} | {speed:.0f} | | | "
                     f"{own['first_p95']:.2f} | |")
        lines[-1] += f" {bare['tokens_per_second']:.0f} | {1 - speed / bare['tokens_per_second']:.0%} |"
    starts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report["starts"].items())
    return "\n".join(lines) + f"\n\nFrom its start to its first answer: {starts}. Processor: {report['processor']}, " \
        f"{report['threads']} threads.\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 8, "width": 512, "heads": 8, "kv-heads": 2, "d-ff": 1536, "vocabulary": 8192, "context": 256}
    runs = {"prompt": 64, "new": 64, "rounds": 5, "answers": 16, "threads": torch.get_num_threads(), "port": 8410}
    for name, value in (sizes | runs).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--llama-server", type=Path, help="the program llama-server")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        write_models(Path(place), options)
        report = measure(options, Path(place))
    report |= {"processor": processor_name(), "torch": torch.__version__, "threads": options.threads,
               "load_before": before, "load_after": os.getloadavg()[0],
               **{name: getattr(options, name) for name in ("layers", "width", "prompt", "new", "rounds", "answers")}}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "serving_http.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.out / "serving_http.md").write_text(table(report))
    print(table(report))


if __name__ == "__main__":
    main()
