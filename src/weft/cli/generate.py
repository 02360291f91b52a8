"""``weft generate``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, final

import typer

from weft.cli.closing import word
from weft.cli.options import Common, Seed, guarded, print_json

if TYPE_CHECKING:
    from weft.api import Ends
    from weft.checkpoints import Loaded
    from weft.decoding import RowLike, Sampling
    from weft.tokenizers import Tokenizer

R = TypeVar("R")
Checkpoint = Annotated[Path, typer.Argument(
    metavar="CHECKPOINT", help="A checkpoint, a run's folder, or a model on the Hub (org/name).")]
Template = Annotated[str | None, typer.Option(
    "--template", help="The chat template: a name among the model's own, a Jinja file, or plain, chatml, llama2.")]


@final
@dataclass(frozen=True)
class TokenChoice:
    """How the next token is chosen, and the text that ends an answer, as options say it; None: not given."""

    greedy: Annotated[bool, typer.Option("--greedy", help="Always take the most probable token.")] = False
    temperature: Annotated[float | None, typer.Option("--temperature", min=0, help="Divide the logits by this; default "
                                                      "1.")] = None
    top_k: Annotated[int | None, typer.Option("--top-k", min=1, help="Sample among the k most probable tokens.")] = None
    top_p: Annotated[float | None, typer.Option("--top-p", help="Sample among the most probable tokens whose "
                                                "probabilities sum to p.")] = None
    min_p: Annotated[float | None, typer.Option("--min-p", help="Sample among tokens at least p times as probable as "
                                                "the best.")] = None
    repetition_penalty: Annotated[float | None, typer.Option("--repetition-penalty", help="Above 1, repeated tokens "
                                                             "become less probable.")] = None
    stop: Annotated[list[str] | None, typer.Option("--stop", help="Stop at this text. May be repeated.")] = None

    def named(self) -> dict[str, float | None]:
        """The options of sampling by the names of `weft.decoding.Sampling`'s fields. Raises `InputError`: both a
        temperature and greedy."""
        from weft.core.errors import InputError

        if self.greedy and self.temperature is not None:
            raise InputError(f"greedy decoding has no temperature, got {self.temperature:g}.",
                             where="--greedy, --temperature", remedy="Give one of them.")
        return {"temperature": 0.0 if self.greedy else self.temperature, "top_k": self.top_k, "top_p": self.top_p,
                "min_p": self.min_p, "repetition_penalty": self.repetition_penalty}


@guarded(lambda given: f"weft score {word(given['checkpoint'])} --text TEXT shows how probable each token of a text is")
def generate(checkpoint: Checkpoint, *,
             prompt: Annotated[list[str] | None, typer.Option(
                 "--prompt", help="Text to continue. May be repeated.")] = None,
             rows: Annotated[Path | None, typer.Option("--rows", help="A JSON file of rows of token ids.")] = None,
             messages: Annotated[Path | None, typer.Option(
                 "--messages", help="A JSON file of messages; they are answered in the model's chat "
                 "template.")] = None,
             template: Template = None,
             requests: Annotated[Path | None, typer.Option(
                 "--requests", help="A file with a request of OpenAI's batch format on each line.")] = None,
             out: Annotated[Path | None, typer.Option("--out", help="Write here; the answers to --requests.")] = None,
             model_name: Annotated[str | None, typer.Option(
                 "--model-name", help="What --requests call the model; by default the name of its folder.")] = None,
             max_new_tokens: Annotated[int | None, typer.Option(min=0, help="Most new tokens; default 200.")] = None,
             choice: TokenChoice,
             beams: Annotated[int | None, typer.Option("--beams", min=1, help="Beams of the search for the most "
                                                       "probable continuation; without it, tokens are drawn one by "
                                                       "one.")] = None,
             length_penalty: Annotated[float | None, typer.Option(
                 "--length-penalty", min=0, help="Exponent a of the length by which log-probabilities of beams are "
                 "divided; 1 (default) gives their mean, 0 their sum.")] = None,
             ignore_end: Annotated[bool, typer.Option("--ignore-end", help="Continue after the end symbol.")] = False,
             compile: Annotated[bool, typer.Option(
                 "--compile", help="Compile the model first, which takes a minute; faster for long outputs.")] = False,
             seed: Seed = 0, common: Common) -> None:
    """Continue texts or rows of token ids, or answer a conversation.

    Where an option is not given, the settings of the model's own generation_config.json apply, and are named."""
    common.prepare()
    from weft import api
    from weft.decoding import read_rows

    loaded, json, stop = common.load(checkpoint, "generating text"), common.json, choice.stop
    drawn = choice.named()
    if any(each is not None for each in (requests, out, model_name)):
        single = (prompt, rows, messages, max_new_tokens, stop, beams, length_penalty, *drawn.values())
        _answered(loaded, requests, out, template, model_name, compile or ignore_end or json or seed != 0 or any(
            each is not None for each in single))
        return
    ends = api.Ends(tuple(stop or ()), at_end=not ignore_end)
    if messages is None and template is None:
        given: list[str | RowLike] = [*texts_or_rows(prompt, rows, "--prompt", read_rows)]
    else:
        given, ends = _conversation(loaded, messages, template, ends, bool(prompt) or rows is not None)
    beamed = beams is not None or length_penalty is not None
    sampling, most, line = api.decoding_defaults(loaded, {"max_new_tokens": max_new_tokens, **drawn}, draws=True,
                                                 beams=beamed)
    typer.echo(line, err=True, nl=bool(line))
    if beamed:
        chosen = bool(stop) or compile or any(option is not None for option in drawn.values())
        _searched(loaded, given, most, beams, length_penalty, ends, chosen, json)
    elif json or len(given) > 1 or loaded.tokenizer is None:
        _whole(loaded, given, most, sampling, ends, seed, json, compile)
    else:
        _streamed(loaded, given[0], most, sampling, ends, seed, compile)


def _conversation(loaded: Loaded, messages: Path | None, template: str | None, ends: Ends,
                  other: bool) -> tuple[list[str | RowLike], Ends]:
    """A conversation in its template, as one row of ids, and what ends its answer."""
    from weft.api import Ends
    from weft.chat.messages import read_messages
    from weft.chat.template import chat_template
    from weft.core.errors import InputError
    from weft.decoding import Row

    if messages is None or other:
        raise InputError("a template without messages." if messages is None else "messages beside other prompts.",
                         where="--messages, --template",
                         remedy="Give --messages FILE, and --template where the model has none of its own.")
    form = chat_template(require_tokenizer(loaded), template)
    turns = read_messages(messages)
    unfinished = turns[-1]["role"] == "assistant"
    row = Row(tuple(form.encode(turns, add_generation_prompt=not unfinished, continue_final=unfinished)))
    tokens = form.end_ids if ends.at_end else ()
    return [row], Ends((*ends.strings, *form.stops), ends.at_end, tokens, tuple(form.marks.values()))


def require_tokenizer(loaded: Loaded) -> Tokenizer:
    """The model's tokenizer. Raises `InputError`: it has none."""
    from weft.core.errors import InputError

    if loaded.tokenizer is None:
        raise InputError("the checkpoint has no tokenizer, so it cannot read text.", where=str(loaded.path),
                         remedy="Use weft generate --rows with rows of token ids.")
    return loaded.tokenizer


def texts_or_rows(texts: list[str] | None, file: Path | None, option: str,
                  read: Callable[[Path], Sequence[R]]) -> list[str | R]:
    """The texts of an option, or the rows of a file as ``read`` reads them; one of the two. Raises `InputError`: both
    or neither."""
    from weft.core.errors import InputError

    if bool(texts) == (file is not None):
        what = "both text and rows of tokens" if texts else "neither text nor rows of tokens"
        raise InputError(f"{what}.", where=f"{option}, --rows", remedy="Give one of them.")
    return [*(texts or [])] if file is None else [*read(file)]


def _answered(loaded: Loaded, requests: Path | None, out: Path | None, template: str | None, name: str | None,
              single: bool) -> None:
    """Answer a file of requests. Raises `InputError`: a file is missing, or options of ``single`` texts are given."""
    from weft.cli.benchmark import showing_progress
    from weft.core.errors import InputError
    from weft.server.serve_model import answer_requests

    if requests is None or out is None or single:
        raise InputError("options of single texts beside a file of requests." if single else "one without the other.",
                         where="--requests, --out", remedy="Give both, and what each request asks for in its body.")
    with showing_progress() as told:
        found = answer_requests(loaded, requests, out, name=name, template=template, told=told)
    typer.echo(f"{found.now:,} of {found.total:,} requests answered, {found.wrong:,} of them by errors; "
               f"{found.before:,} were before.", err=True)


def _whole(loaded: Loaded, rows: list[str | RowLike], max_new_tokens: int, sampling: Sampling, ends: Ends, seed: int,
           json: bool, compile: bool) -> None:
    from weft import api

    result = api.generate(loaded, rows, max_new_tokens=max_new_tokens, sampling=sampling, ends=ends, seed=seed,
                          compile=compile)
    if json:
        print_json({"rows": [{"tokens": row.tokens, "text": row.text} for row in result.rows]})
        return
    for given, row in zip(rows, result.rows, strict=True):
        shown = given if isinstance(given, str) else ""
        typer.echo(f"{shown}{row.text if row.text is not None else list(row.tokens)}")
        typer.echo("---")


def _searched(loaded: Loaded, rows: list[str | RowLike], max_new_tokens: int, beams: int | None,
              length_penalty: float | None, ends: Ends, drawn: bool, json: bool) -> None:
    """Print the best continuation of each row by beam search; with JSON, all beams."""
    from weft import api
    from weft.core.errors import InputError

    if beams is None or drawn:
        what = "a length penalty without --beams" if beams is None else "a search takes the most probable tokens"
        raise InputError(f"{what}.", where="--length-penalty" if beams is None else "--beams",
                         remedy="Give --beams, without options of sampling, --stop and --compile.")
    found = api.beam_search(loaded, rows, max_new_tokens=max_new_tokens, beams=beams, ends=ends,
                            length_penalty=1.0 if length_penalty is None else length_penalty)
    if json:
        print_json(found)
        return
    for given, row in zip(rows, found.rows, strict=True):
        shown = given if isinstance(given, str) else ""
        typer.echo(f"{shown}{row[0].text if row[0].text is not None else list(row[0].tokens)}")
        if len(rows) > 1 or loaded.tokenizer is None:
            typer.echo("---")


def _streamed(loaded: Loaded, prompt: str | RowLike, max_new_tokens: int, sampling: Sampling, ends: Ends,
              seed: int, compile: bool) -> None:
    from weft import api

    waiting = prompt if isinstance(prompt, str) else ""  # printed once the model has read it
    for new in api.stream(loaded, prompt, max_new_tokens=max_new_tokens, sampling=sampling, ends=ends, seed=seed,
                          compile=compile):
        typer.echo(f"{waiting}{new.text or ''}", nl=False)
        waiting = ""
    typer.echo(waiting)
