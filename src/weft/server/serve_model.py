"""A model, its engine and its server put together."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Event

from weft.api.generating import start_of
from weft.api.models import load, load_language_model
from weft.checkpoints import Loaded
from weft.core.errors import InputError
from weft.core.model import LanguageModel
from weft.server.app import application
from weft.server.bodies import error_object, read_body
from weft.server.endpoints import HttpLimits
from weft.server.running import Listening, access_of, run
from weft.server.served import Served
from weft.serving.engine import Engine
from weft.serving.request_files import Answered, answer_file
from weft.serving.requests import EngineLimits
from weft.serving.speculation import Drafts, ModelDrafts, PromptDrafts
from weft.serving.thread import EngineThread

LONGEST_NAME = 200
GUESSES = 4
"""Tokens that are guessed ahead of a row."""


def serve(model: str | Path | Loaded, place: Listening, *, name: str | None = None, template: str | None = None,
          adapters: Mapping[str, Path] | None = None, limits: EngineLimits | None = None, device: str = "cpu",
          dtype: str | None = None, draft: str | None = None, http: HttpLimits | None = None,
          key_file: Path | None = None, drain: float = 30.0, note_bodies: bool = False,
          told: Callable[[str], None] = print) -> None:
    """Serve a model over HTTP until SIGTERM or Ctrl-C.

    Args:
        model: any model; one that predicts no next token has embeddings and classes alone.
        place: where to listen.
        name: by which clients ask for it; None: the name of its folder.
        template: name or file of its chat template; None: its own.
        adapters: folders of adapters on the model, by the names by which clients ask for them.
        limits: of the engine; None: the defaults.
        draft: what guesses tokens ahead: "prompt", the row itself, or a model of the same tokenizer; None: nothing.
        http: limits of what clients send; None: the defaults.
        key_file: keys of which clients send one, one on each line.
        drain: seconds that running answers have after the first signal.
        note_bodies: whether the log holds what clients send.
        told: is given a line once requests are answered.

    Raises:
        InputError: the address, the keys, the certificate or the template cannot be used.
        MissingExtra: the packages of a server are not installed.
    """
    access, limits, adapters = access_of(place, key_file), limits or EngineLimits(), adapters or {}
    place.require_tls()
    listening = place.open()
    try:
        loaded = load(model, device=device, dtype=dtype)
        loaded.model.eval()
        adapted = {name_of(own, loaded): load_language_model(
            load(folder, device=device, dtype=dtype), "an adapter")[1].eval() for own, folder in adapters.items()}
        served = Served(name_of(name, loaded), loaded, limits, tuple(adapted), template)
        if template is not None:
            served.dialects  # noqa: B018  # a template that cannot be used is told now
        drafting = drafting_of(draft, loaded, device, dtype)
        engine = Engine(loaded.model, loaded.tokenizer, start=start_of(loaded.tokenizer), limits=limits,
                        adapters=adapted, drafting=drafting) if isinstance(loaded.model, LanguageModel) else None
        thread, ending = None if engine is None else EngineThread(engine), Event()
        gate = application(served, engine, access=access, limits=http, ready=lambda: not ending.is_set(),
                           note_bodies=note_bodies)
        gc.freeze()  # all that is loaded stays, so collections of garbage need not walk it
        if thread is not None:
            thread.start()
        scheme, shown = "https" if place.certificate else "http", f"[{place.host}]" if ":" in place.host else place.host
        line = f"{served.name} is served at {scheme}://{shown}:{listening.getsockname()[1]} (Ctrl-C ends it)"
        try:
            run(gate, listening, place, thread, drain=drain, draining=ending.set, started=lambda: told(line))
        finally:
            if thread is not None:
                thread.stop()
    finally:
        listening.close()


def drafting_of(draft: str | Loaded | None, loaded: Loaded, device: str = "cpu",
                dtype: str | None = None) -> Callable[[], Drafts] | None:
    """A function that makes what guesses the tokens of one row; None without ``draft``, which is as that of `serve`.
    Raises `InputError`: the model that drafts has another tokenizer."""
    if draft is None or draft == "prompt":
        return None if draft is None else partial(PromptDrafts, GUESSES)
    other, small = load_language_model(load(draft, device=device, dtype=dtype), "drafting")
    own, theirs = loaded.tokenizer, other.tokenizer
    if own is None or theirs is None or own.spellings() != theirs.spellings():
        raise InputError("the model that drafts has another tokenizer.", where="--draft", remedy="Give one that was "
                         "trained with the tokenizer of this model, or prompt.")
    return partial(ModelDrafts, small.eval(), GUESSES)


def answer_requests(loaded: Loaded, source: Path, out: Path, *, name: str | None = None, template: str | None = None,
                    told: Callable[[int, int], None] = lambda done, total: None) -> Answered:
    """Answer a file of requests in OpenAI's batch format (`weft.serving.request_files`), as a server of the model
    would. A request that names another model than this one is answered by an error, as a server answers it.

    Args:
        source: the file of requests.
        name: by which requests call the model; None: the name of its folder.
        out: the file of answers. Where it holds some, of an earlier call with these requests, the others are added.
        template: name or file of the chat template; None: the model's own.
        told: is given the number of requests that were answered by this call, and of those that it has to answer.

    Raises:
        InputError: the model predicts no next token, or the template cannot be used; and what `answer_file` raises.
    """
    limits = EngineLimits()
    served = Served(name_of(name, loaded), loaded, limits, template=template)
    if template is not None:
        served.dialects  # noqa: B018  # as in `serve`
    model = served.require_language_model().eval()
    engine = Engine(model, loaded.tokenizer, start=start_of(loaded.tokenizer), limits=limits)
    try:
        return answer_file(engine, source, out, read=partial(read_body, served), refuse=error_object, told=told)
    finally:
        engine.close()


def name_of(given: str | None, loaded: Loaded) -> str:
    """By which clients ask for a model: that of the run's folder where it has one. Raises `InputError`: an empty or
    long name."""
    folder = loaded.path.resolve()
    own = folder.parent.parent.name if folder.parent.name == "checkpoints" else folder.name
    name = own if given is None else given
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise InputError(f"{name[:40]!r} is no name.", where="name", remedy=f"Give 1 to {LONGEST_NAME} printable "
                         "characters.")
    return name
