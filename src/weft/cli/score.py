"""``weft score``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.closing import word
from weft.cli.generate import Checkpoint, texts_or_rows
from weft.cli.options import Common, guarded, print_json

if TYPE_CHECKING:
    from weft.checkpoints import Loaded
    from weft.decoding import Row, RowLike, WordsRow
    from weft.evaluation import Scored
    from weft.tasks.answers import Answer


@guarded(lambda given: f"weft eval {word(given['checkpoint'])} --data FILE measures the model on a whole text")
def score(checkpoint: Checkpoint, *,
          text: Annotated[list[str] | None, typer.Option("--text", help="Text to read; it is scored. May be "
                                                         "repeated.")] = None,
          second: Annotated[list[str] | None, typer.Option("--second", help="Second text of a pair, one for each "
                                                           "--text, for a model trained to classify.")] = None,
          rows: Annotated[Path | None, typer.Option(
              "--rows", help="A JSON file of rows of token ids; or of words, [{\"words\": [...]}], for a model that "
              "gives each word a class.")] = None,
          logits: Annotated[Path | None, typer.Option(
              "--logits", help="Write the logits, row_0, row_1, ... [T,V] in float32, to this new safetensors file; of "
              "an encoder what its head gives, or its hidden vectors [T,D] if it has none.")] = None,
          common: Common) -> None:
    """Show the log-probability of every token, in nats; for a classifier, of every class."""
    common.prepare()
    from weft import api
    from weft.core.errors import InputError
    from weft.core.model import Classifier, LanguageModel
    from weft.decoding import read_rows_or_words
    from weft.disk.ownership import require_free
    from weft.evaluation import write_logits
    from weft.tasks.next_token import NextTokenConfig

    if logits is not None:
        require_free(logits, single=True)
    loaded, json = common.load(checkpoint), common.json
    given = texts_or_rows(text, rows, "--text", read_rows_or_words)
    predicts = isinstance(loaded.model, LanguageModel)
    if isinstance(loaded.model.head, Classifier) and not (predicts and api.task_kind(loaded) == NextTokenConfig.kind):
        _classified(loaded, _paired(given, second), json=json, logits=logits)
        return
    if second:
        raise InputError("second texts, for a model that was not trained to classify.", where="--second",
                         remedy="Leave it out.")
    result = api.score(loaded, without_words(given), logits=logits is not None)
    if logits is not None:
        write_logits(logits, result)
    if json:
        print_json(result)
        return
    _show(loaded, result)
    if logits is not None:
        typer.echo(f"wrote {logits}")


def _show(loaded: Loaded, result: Scored) -> None:
    """Print each row with its tokens; where only what the model gives is known, its shape."""
    for index, row in enumerate(result.rows):
        if result.logits is not None and not row.scored and len(row.tokens) > 1:
            typer.echo(f"row {index}: no tokens scored; values of shape {list(result.logits[index].shape)}")
            continue
        shown = "" if row.perplexity is None else f", perplexity {row.perplexity:.4g}"
        tokens = "token" if row.scored == 1 else "tokens"
        typer.echo(f"row {index}: {row.scored} {tokens} scored, {row.total:.4f} nats{shown}")
        typer.echo(_tokens(loaded, result, index))


def _paired(rows: list[str | Row | WordsRow], second: list[str] | None) -> list[str | tuple[str, str] | Row | WordsRow]:
    """The rows, as pairs with their second texts if there are any."""
    from weft.core.errors import InputError

    texts = [row for row in rows if isinstance(row, str)]
    if second and len(second) != len(texts):
        raise InputError(f"{len(second)} second texts, and --text gives {len(texts)}.", where="--second",
                         remedy="Give one --second for each --text, in the same order.")
    return [*zip(texts, second, strict=True)] if second else [*rows]


def without_words(rows: list[str | Row | WordsRow]) -> list[str | RowLike]:
    """The rows, of which none is of words. Raises `InputError`: one is."""
    from weft.core.errors import InputError
    from weft.decoding import WordsRow

    if any(isinstance(row, WordsRow) for row in rows):
        raise InputError("rows of words, for a model that was not trained to classify words.", where="--rows",
                         remedy="Give rows of token ids.")
    return [row for row in rows if not isinstance(row, WordsRow)]


def _classified(loaded: Loaded, rows: list[str | tuple[str, str] | Row | WordsRow], *, json: bool,
                logits: Path | None) -> None:
    """Print the classes or values of each row, or of each of its tokens or words."""
    from weft import api
    from weft.core.errors import InputError
    from weft.core.model import LanguageModel
    from weft.decoding import WordsRow
    from weft.evaluation import write_logits

    if logits is not None and isinstance(loaded.model, LanguageModel):
        raise InputError("logits of the next token, for a model that was trained to classify.", where="--logits",
                         remedy="Leave it out.")
    found = api.classify(loaded, rows)
    if logits is not None:
        read = [answer.tokens if isinstance(row, WordsRow) else row for row, answer in zip(rows, found, strict=True)]
        write_logits(logits, api.score(loaded, read, logits=True))
    if json:
        print_json({"rows": found})
        return
    for index, answer in enumerate(found):
        for place, scores in enumerate(answer.scores):
            token = _which(loaded, answer, place)
            names = answer.labels or tuple(f"value {number}" for number in range(len(scores)))
            best = f" {answer.best[place]}" if answer.best else ""
            shown = ", ".join(f"{name} {value:.3f}" for name, value in zip(names, scores, strict=True))
            typer.echo(f"row {index}{token}:{best} ({shown})")
    if logits is not None:
        typer.echo(f"wrote {logits}")


def _which(loaded: Loaded, answer: Answer, place: int) -> str:
    """Which token or word a prediction is for; nothing where it is for the row."""
    if answer.pooled:
        return ""
    if answer.words:
        return f", word {place} {answer.words[place]!r}"
    spelled = "" if loaded.tokenizer is None else (
        f" {loaded.tokenizer.decode([answer.tokens[place]], specials=True)!r}")
    return f", token {place}{spelled}"


def _tokens(loaded: Loaded, result: Scored, index: int) -> str:
    """Each token of a row with its log-probability."""
    row, shown = result.rows[index], []
    for token, value in zip(row.tokens, row.log_probs, strict=True):
        name = repr(loaded.tokenizer.decode([token])) if loaded.tokenizer is not None else str(token)
        shown.append(f"{name} {'given' if value is None else f'{value:.3f}'}")
    return "  " + "  ".join(shown)
