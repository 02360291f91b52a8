"""``weft generate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import Device, Dtype, Json, Plugin, Seed, Threads, guarded, prepare, print_json

if TYPE_CHECKING:
    from weft.checkpoints import Loaded
    from weft.decoding import RowLike, Sampling

Checkpoint = Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint, or a run's folder.")]
TokensFile = Annotated[Path | None, typer.Option("--tokens", help="A JSON file of rows of token ids.")]


@guarded
def generate(checkpoint: Checkpoint,
             prompt: Annotated[list[str] | None, typer.Option("--prompt", help="Text. May be repeated.")] = None,
             tokens: TokensFile = None,
             max_new_tokens: Annotated[int, typer.Option(min=0, help="Tokens to add at most.")] = 200,
             greedy: Annotated[bool, typer.Option("--greedy", help="Take the most probable token.")] = False,
             temperature: Annotated[float | None, typer.Option(min=0, help="Divides the logits; 1.")] = None,
             top_k: Annotated[int | None, typer.Option(min=1, help="Among the k most probable.")] = None,
             top_p: Annotated[float | None, typer.Option(help="Among the most probable that sum to p.")] = None,
             min_p: Annotated[float | None, typer.Option(help="At least p times as probable as the best.")] = None,
             repetition_penalty: Annotated[float, typer.Option(help="Above 1, repeating costs.")] = 1.0,
             stop: Annotated[list[str] | None, typer.Option("--stop", help="Stop at this text.")] = None,
             ignore_end: Annotated[bool, typer.Option("--ignore-end", help="Go on after the end symbol.")] = False,
             seed: Seed = 0, device: Device = "cpu", dtype: Dtype = None, threads: Threads = None,
             plugin: Plugin = None, json: Json = False) -> None:
    """Continue texts, or rows of token ids."""
    prepare(plugin, threads)
    from weft import api

    loaded = api.load(checkpoint, device=device, dtype=dtype)
    rows = texts_or_rows(prompt, tokens, "--prompt")
    sampling = api.Sampling(temperature=_temperature(greedy, temperature), top_k=top_k, top_p=top_p, min_p=min_p,
                            repetition_penalty=repetition_penalty)
    ends = api.Ends(tuple(stop or ()), at_end=not ignore_end)
    if json or len(rows) > 1 or loaded.tokenizer is None:
        _whole(loaded, rows, max_new_tokens, sampling, ends, seed, json)
    else:
        _streamed(loaded, rows[0], max_new_tokens, sampling, ends, seed)


def _temperature(greedy: bool, temperature: float | None) -> float:
    from weft.core.errors import InputError

    if greedy and temperature is not None:
        raise InputError(f"greedy decoding has no temperature, got {temperature:g}.", where="--greedy, --temperature",
                         remedy="Give one of them.")
    return 0.0 if greedy else 1.0 if temperature is None else temperature


def texts_or_rows(texts: list[str] | None, tokens: Path | None, option: str) -> list[str | RowLike]:
    """What the user gave: texts, or the rows of a file; one of them.

    Raises:
        InputError: both or neither.
    """
    from weft.core.errors import InputError
    from weft.decoding import read_rows

    if bool(texts) == (tokens is not None):
        what = "both text and rows of tokens" if texts else "neither text nor rows of tokens"
        raise InputError(f"{what}.", where=f"{option}, --tokens", remedy="Give one of them.")
    return list(texts or []) if tokens is None else list(read_rows(tokens))


def _whole(loaded: Loaded, rows: list[str | RowLike], max_new_tokens: int, sampling: Sampling, ends: object, seed: int,
           json: bool) -> None:
    from weft import api

    assert isinstance(ends, api.Ends)
    result = api.generate(loaded, rows, max_new_tokens=max_new_tokens, sampling=sampling, ends=ends, seed=seed)
    if json:
        print_json({"rows": [{"tokens": row.tokens, "text": row.text} for row in result.rows]})
        return
    for given, row in zip(rows, result.rows, strict=True):
        shown = given if isinstance(given, str) else ""
        typer.echo(f"{shown}{row.text if row.text is not None else list(row.tokens)}")
        typer.echo("---")


def _streamed(loaded: Loaded, prompt: str | RowLike, max_new_tokens: int, sampling: Sampling, ends: object,
              seed: int) -> None:
    from weft import api

    assert isinstance(ends, api.Ends)
    waiting = prompt if isinstance(prompt, str) else ""  # until the model has taken it
    for new in api.stream(loaded, prompt, max_new_tokens=max_new_tokens, sampling=sampling, ends=ends, seed=seed):
        typer.echo(f"{waiting}{new.text or ''}", nl=False)
        waiting = ""
    typer.echo(waiting)
