"""``weft serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.closing import word
from weft.cli.generate import Checkpoint, Template
from weft.cli.options import CONTEXT, Common, guarded


@guarded(lambda given: f"weft generate {word(given['checkpoint'])} --prompt TEXT continues a text without a server")
def serve(checkpoint: Checkpoint, *,
          host: Annotated[str, typer.Option("--host", help="The address to listen to; others than this machine's own "
                                            "need a key.")] = "127.0.0.1",
          port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes one that is "
                                            "free.")] = 8000,
          name: Annotated[str | None, typer.Option("--name", help="What clients call the model; by default the name "
                                                   "of its folder.")] = None,
          template: Template = None,
          adapter: Annotated[list[str] | None, typer.Option("--adapter", metavar="NAME=FOLDER", help="Serve the model "
                                                            "with this adapter too, under a name of its own. May be "
                                                            "repeated.")] = None,
          max_rows: Annotated[int, typer.Option("--max-rows", min=1, help="Most rows that run together.")] = 64,
          context: Annotated[int | None, CONTEXT] = None,
          queue_requests: Annotated[int, typer.Option("--queue-requests", min=1, help="Most requests that "
                                                      "wait.")] = 256,
          queue_tokens: Annotated[int, typer.Option("--queue-tokens", min=1, help="Most tokens of prompts that "
                                                    "wait.")] = 1 << 20,
          prefix_bytes: Annotated[int, typer.Option("--prefix-bytes", min=0, help="Most bytes of states that are kept "
                                                    "for prompts that begin alike; 0 keeps none.")] = 256 << 20,
          draft: Annotated[str | None, typer.Option("--draft", metavar="prompt|MODEL", help="Guess tokens ahead: "
                                                    "from the row itself, or by a small model of the same tokenizer. "
                                                    "Texts stay the same.")] = None,
          api_key_file: Annotated[Path | None, typer.Option("--api-key-file", help="A file with a key on each line, of "
                                                            "which clients send one; also WEFT_API_KEY.")] = None,
          tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="A certificate (PEM), for HTTPS.")] = None,
          tls_key: Annotated[Path | None, typer.Option("--tls-key", help="The certificate's key (PEM).")] = None,
          drain_seconds: Annotated[float, typer.Option("--drain-seconds", min=0, help="Seconds that running answers "
                                                       "have to end after SIGTERM or Ctrl-C.")] = 30.0,
          max_body: Annotated[int, typer.Option("--max-body", min=1024, help="Most bytes of a request.")] = 4 << 20,
          log_bodies: Annotated[bool, typer.Option("--log-bodies", help="Write what clients send into the log, with "
                                                   "their texts.")] = False,
          common: Annotated[Common, "device dtype threads kernels plugin revision offline allow_pickles"]) -> None:
    """Serve a model over HTTP, to OpenAI's clients and to a page in a browser.

    The address is printed once requests are answered; a log of them, without what they say, goes to the standard error.
    SIGTERM and Ctrl-C let running answers end; a second one does not.
    """
    common.prepare()
    from weft.server.endpoints import HttpLimits
    from weft.server.running import Listening
    from weft.server.serve_model import serve as run
    from weft.serving.requests import EngineLimits

    limits = EngineLimits(rows=max_rows, context=context, queue_requests=queue_requests, queue_tokens=queue_tokens,
                          prefix_bytes=prefix_bytes)
    run(common.folder(checkpoint), Listening(host, port, tls_cert, tls_key), name=name, template=template,
        limits=limits, device=common.device, dtype=common.dtype, adapters=_adapters(adapter or []), draft=draft,
        http=HttpLimits(body=max_body), key_file=api_key_file, drain=drain_seconds, note_bodies=log_bodies,
        told=lambda line: typer.echo(line))


def _adapters(given: list[str]) -> dict[str, Path]:
    """The folders of adapters by their names. Raises `InputError`: one is not NAME=FOLDER, or a name is given twice."""
    from weft.core.errors import InputError

    pairs = [each.partition("=") for each in given]
    names = [name for name, _, _ in pairs]
    wrong = next((each for each, (name, _, folder) in zip(given, pairs, strict=True)
                  if not name or not folder or names.count(name) > 1), None)
    if wrong is not None:
        raise InputError(f"{wrong!r} does not name an adapter, or names one again.", where="--adapter",
                         remedy="Give NAME=FOLDER, each name once.")
    return {name: Path(folder) for name, _, folder in pairs}
