"""How ``weft eval`` prints perplexities: a line for each length of windows, and a row for each document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from weft.cli.text import console, section, table

if TYPE_CHECKING:
    from weft.evaluation import Evaluation


def show_evaluations(found: Sequence[Evaluation], *, by_document: bool) -> None:
    """Print each evaluation, with ``by_document`` its documents, and the protocol of the last."""
    for each in found:
        typer.echo(_line(each))
        typer.echo(f"  {_other_means(each)}")
        if by_document:
            section(console(), "by document", table(
                ">document", ">tokens", ">bytes", ">nats", ">nats/token", ">perplexity", ">bits/byte", rows=[
                    (f"{one.index:,}", f"{one.tokens:,}", f"{one.bytes:,}", f"{one.nats:,.4f}", f"{one.loss:.4f}",
                     _short(one.perplexity), "" if one.bits_per_byte is None else f"{one.bits_per_byte:.4f}")
                    for one in each.documents]))
    typer.echo(f"protocol: {found[-1].protocol.describe()}")


def _line(found: Evaluation) -> str:
    from weft.tasks.validation import paid_for

    size = found.protocol.window
    reach = "whole documents" if size is None else f"context {size:,}"
    per_byte = found.bits_per_byte
    bits = ("no text" if not found.bytes else "bits/byte not known: what the tokenizer loses of the text was not "
            "recorded (prepare the data again)" if per_byte is None else
            f"{per_byte:.4f} bits/byte{paid_for(found.lost_bits_per_byte)}")
    never = f"; {found.impossible:,} tokens had probability zero" if found.impossible else ""
    return (f"{reach}: perplexity {found.perplexity:.4f} per token, {found.loss:.4f} nats/token, {bits} "
            f"({found.tokens:,} tokens, {found.bytes:,} bytes{never})")


def _other_means(found: Evaluation) -> str:
    """The same sums divided otherwise; other reports name each of them the perplexity."""
    word, mean = found.word_perplexity, found.mean_document_perplexity
    means = [f"{found.bits_per_token:.4f} bits/token"]
    if word is not None:
        means.append(f"perplexity {_short(word)} per word ({found.words:,} words)")
    if mean is not None:
        means.append(f"mean over {len(found.documents):,} document{'s' if len(found.documents) > 1 else ''} of the "
                     f"perplexity per token {_short(mean)}")
    return "; ".join(means)


def _short(perplexity: float) -> str:
    """A perplexity with four decimals, or with five digits where it is a million or more, as of an untrained model."""
    return f"{perplexity:,.4f}" if perplexity < 1e6 else f"{perplexity:.4e}"
