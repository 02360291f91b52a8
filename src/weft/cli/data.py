"""``weft data``: prepare, inspect and sample the tokens that models are trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.closing import word
from weft.cli.mixture import mixture
from weft.cli.options import CONTEXT, Json, Plugin, Seed, guarded, prepare, print_json
from weft.cli.text import console, in_bytes, section, short, table

if TYPE_CHECKING:
    from rich.console import Console

    from weft.data import Repeated
    from weft.data.inspection import Inspection, PartFacts

data_app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None,
                       help="Tokenise text once, inspect it, and sample it; plan mixtures.")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder written by weft data prepare.")]
TRAIN = "train"
BORDER = "──── a document begins ────"


@data_app.command("prepare")
@guarded(lambda given: f"weft data inspect {word(given['out'])} shows what it holds, weft train transformer "
         f"data.path={word(given['out'])} trains on it")
def prepare_data(
        source: Annotated[str, typer.Argument(metavar="CONFIG|TEXT", help="A run's YAML or JSON file or a preset, "
                                              "whose data and tokenizer are used; or a file or folder of text, JSONL "
                                              "or Parquet.")],
        overrides: Annotated[list[str] | None, typer.Argument(metavar="data.key=value", help="Changes to those "
                                                              "sections: data.validation=0.05 "
                                                              "tokenizer.vocab_size=8192.")] = None,
        out: Annotated[Path, typer.Option("--out", help="Write here; the prepared folder.")] = ...,  # type: ignore[assignment]
        tokenizer: Annotated[str | None, typer.Option("--tokenizer", help="A tokenizer; a kind, a mapping such as "
                                                      "'{kind: bpe, vocab_size: 8192}', or a tokenizer.json; by "
                                                      "default the configuration's, else bytes.")] = None,
        replace: Annotated[bool, typer.Option("--replace", help="Replace a folder that Weft wrote; it is prepared "
                                                "again.")] = False,
        plugin: Plugin = None, json: Json = False) -> None:
    """Tokenise a text once, into shards of tokens with a manifest.

    Runs read the folder when data.path names it. A prepared folder in --out is kept if nothing has changed.
    """
    prepare(plugin)
    from weft import api

    made = api.data_prepare(source, overrides or [], out=out, tokenizer=tokenizer, replace=replace,
                            on_progress=None if json else lambda progress: typer.echo(progress.line(), err=True))
    manifest = made.data.manifest
    if json:
        print_json({"path": made.data.path, "reused": made.reused, "corpus": manifest.corpus,
                    "corpus_sha256": manifest.corpus_sha256, "tokenizer": manifest.tokenizer.model_dump(),
                    "tokens": {name: part.tokens for name, part in manifest.parts.items()},
                    "documents": {name: part.documents for name, part in manifest.parts.items()},
                    "documents_in_training": {name: part.in_training for name, part in manifest.parts.items()
                                              if name != TRAIN},
                    "share_in_training": {name: part.share_in_training for name, part in manifest.parts.items()
                                          if name != TRAIN}})
        return
    tokens = ", ".join(f"{name} {part.tokens:,} tokens" for name, part in manifest.parts.items())
    typer.echo(f"{'kept' if made.reused else 'prepared'} {made.data.path}: {tokens}; {manifest.tokenizer.name}")
    for line in _repeated(made.data.path, {name: part.repeated for name, part in manifest.parts.items()}):
        typer.echo(line)


def _repeated(folder: Path, parts: Mapping[str, Repeated | None]) -> list[str]:
    """Lines about held-out documents of a prepared folder that also stand in the training text."""
    from weft.data.settings import DataSettings

    return [f"{name}: {found.describe()} ({DataSettings(path=str(folder)).remedy})"
            for name, found in parts.items() if found is not None and found.told]


@data_app.command("inspect")
@guarded(lambda given: f"weft data sample {word(given['folder'])} shows the first windows that training reads")
def inspect_data(folder: Folder,
                 verify: Annotated[bool, typer.Option("--verify", help="Compare every byte of the shards with the "
                                                      "manifest, and the sources with what they were.")] = False,
                 plugin: Plugin = None, json: Json = False) -> None:
    """Show sizes, documents, bytes per token, frequent tokens, longest documents and hashes."""
    prepare(plugin)
    from weft import api

    found = api.data_inspect(folder, verify=verify)
    if json:
        print_json(found)
        return
    _show(found)


@data_app.command("sample")
@guarded(lambda given: f"weft train transformer data.path={word(given['folder'])} trains on it")
def sample_data(folder: Folder,
                windows: Annotated[int, typer.Option("-n", "--windows", help="Number of windows.")] = 3,
                context: Annotated[int, CONTEXT] = 128,
                part: Annotated[str, typer.Option("--part", help="Part of the text; train, validation or "
                                                  "test.")] = "train",
                seed: Seed = 0, plugin: Plugin = None, json: Json = False) -> None:
    """Show the first windows that training with this order seed reads, with document boundaries."""
    prepare(plugin)
    from weft import api

    found = api.data_sample(folder, part, windows=windows, context=context, seed=seed)
    if json:
        print_json([{"tokens": window.ids, "begins": window.begins, "pieces": window.pieces} for window in found])
        return
    for number, window in enumerate(found, 1):
        typer.echo(f"window {number} of {len(found)}, {window.tokens} tokens")
        typer.echo((f"{BORDER}\n" if window.begins else "") + f"\n{BORDER}\n".join(window.pieces))
        typer.echo()


def _show(found: Inspection) -> None:
    out = console()
    section(out, str(found.path), table("", "", header=False, rows=[
        ("text", found.corpus), ("sources", f"{found.sources} file{'' if found.sources == 1 else 's'}"),
        ("tokenizer", f"{found.tokenizer}, {found.vocab_size:,} ids"), ("fingerprint", found.tokenizer_sha256),
        ("state", _state(found))]))
    section(out, "parts", table(
        "part", ">documents", ">text", ">tokens", ">scored", ">bytes/token", ">shards", ">on disk", rows=[
            (part.name, f"{part.documents:,}", in_bytes(part.text_bytes), short(part.tokens),
             f"{part.scored_tokens / part.tokens:.1%}", f"{part.bytes_per_token:.3f}", str(part.shards),
             in_bytes(part.shard_bytes)) for part in found.parts]))
    for line in _repeated(found.path, {part.name: part.repeated for part in found.parts}):
        out.print(f"{line}\n")
    for part in found.parts:
        _show_part(out, part)


def _show_part(out: Console, part: PartFacts) -> None:
    section(out, f"{part.name}: most frequent tokens ({part.unused_ids:,} ids never occur)", table(
        "token", ">id", ">count", ">share", rows=[
            (repr(token.text), str(token.id), f"{token.count:,}", f"{token.count / part.tokens:.2%}")
            for token in part.frequent]))
    section(out, f"{part.name}: longest documents", table(">document", ">tokens", "begins", rows=[
        (str(document.number), f"{document.tokens:,}", repr(document.opening)) for document in part.longest]))


def _state(found: Inspection) -> str:
    if found.changed_sources is None:
        return "sizes and samples of the shards are as prepared (--verify compares every byte)"
    missing = sum(how == "missing" for how in found.changed_sources.values())
    return f"every byte of the shards is as prepared; sources unchanged{f', {missing} no longer there' * bool(missing)}"


data_app.command("mixture")(mixture)
