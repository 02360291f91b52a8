"""``weft convert``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.closing import Given, word
from weft.cli.options import Common, guarded, print_json
from weft.cli.text import console

if TYPE_CHECKING:
    from weft.interop.convert import Converted


def _after(given: Given) -> str:
    out, to = word(given["out"]), given["to"]
    if to in ("adapter", "peft"):
        return f"weft convert {out} FOLDER --to hf --base MODEL merges it into its model"
    if to == "gguf":
        return f"llama-cli -m {out} runs it"
    if str(out).endswith((".arpa", ".arpa.gz")):
        return f"weft convert {out} FOLDER --to weft reads it again"
    return f"weft generate {out} --prompt TEXT writes with it"


@guarded(_after)
def convert(source: Annotated[Path, typer.Argument(metavar="SRC", help="A checkpoint, a run's folder, a Hugging "
                                                   "Face folder, or the .arpa file of an n-gram model.")],
            out: Annotated[Path, typer.Argument(metavar="DST", help="The folder or file to write.")], *,
            to: Annotated[str | None, typer.Option("--to", help="The format: hf (a folder for transformers), weft "
                                                   "(a checkpoint), gguf (a file for llama.cpp), or of a model with "
                                                   "adapters these alone: adapter or peft. A DST that ends in .arpa or "
                                                   ".arpa.gz needs no --to.")] = None,
            cast: Annotated[str | None, typer.Option("--cast", help="Cast the weights to float32, float64, bfloat16 "
                                                      "or float16.")] = None,
            max_shard_size: Annotated[str, typer.Option("--max-shard-size", help="Largest size of one file of "
                                                        "weights.")] = "5GB",
            n_kv_heads: Annotated[int | None, typer.Option("--n-kv-heads", help="Average key and value heads down to "
                                                           "this number (MHA to GQA).")] = None,
            family: Annotated[str | None, typer.Option("--family", help="Write this family's format.")] = None,
            with_code: Annotated[bool, typer.Option("--with-code", help="With --to hf: where no class of transformers "
                                                    "can express the model, write a modelling file beside it, which "
                                                    "needs Weft.")] = False,
            tokenizer: Annotated[str | None, typer.Option("--tokenizer", help="A tokenizer; that whose pieces or ids "
                                                          "the words of an .arpa file are: a checkpoint, a tokenizer's "
                                                          "file, or bytes. By default they are words of text.")] = None,
            base: Annotated[str | None, typer.Option("--base", help="The model under an adapter, where it is not that "
                                                     "which the adapter or its run names.")] = None,
            replace: Annotated[bool, typer.Option("--replace", help="Replace a folder that Weft wrote; it must be "
                                                  "unchanged since.")] = False,
            strict: Annotated[bool, typer.Option("--strict", help="Of a Hugging Face folder, refuse unknown keys that "
                                                 "otherwise give a note, and weights that hold NaN.")] = False,
            common: Annotated[Common, "threads plugin json revision offline allow_pickles"]) -> None:
    """Write a model in another format.

    The result is read back, by Weft and by transformers or llama.cpp where they are installed, and its logits are
    compared with the model's.
    """
    common.prepare()
    from weft import api

    if common.revision is not None or not api.is_arpa(source):
        source = common.folder(source)
    with console(err=True).status("converting", spinner="line"):
        found = api.convert(source, out, to=to, dtype=cast, max_shard_size=max_shard_size, n_kv_heads=n_kv_heads,
                            family=family, with_code=with_code, tokenizer=tokenizer, base=base,
                            replace=replace, strict=strict)
    if common.json:
        print_json(found)
    else:
        _print(found)


def _print(found: Converted) -> None:
    named = f" as a {found.family} model" if found.family else ""
    typer.echo(f"wrote {found.path}{named}, in {found.dtype}")
    if found.merged is not None:
        typer.echo(f"merging rewrites into single matrices changed logits by up to {found.merged:.3g} (at most "
                   f"{found.merged_bound:.3g} is allowed)")
    if found.pooled is not None:
        typer.echo(f"pooling heads changed logits by up to {found.pooled:.3g}; train further before use")
    if found.cast is not None:
        typer.echo(f"cast from {found.source_dtype} to {found.dtype}: logits change by up to {found.cast:.3g} (the "
                   f"largest is {found.largest:.3g})")
    of = "" if found.cast is None else " from those of the cast model"
    typer.echo(f"read again by Weft: logits differ{of} by at most {found.difference:.3g}")
    if found.foreign is not None:
        typer.echo(f"read by {found.reader}: logits differ{of} by at most {found.foreign:.3g}")
    for note in found.notes:
        typer.echo(f"note: {note}")
