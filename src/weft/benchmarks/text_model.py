"""`TextModel`: a model that answers in text, as benchmarks ask it. How text becomes rows is decided here alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from weft.checkpoints import Loaded
from weft.core.errors import InputError
from weft.core.model import Classifier, LanguageModel, language_model
from weft.data.labelled import Frame
from weft.decoding import GREEDY, Ending, Row, Sampling, stream
from weft.evaluation.completions import Completion, Likelihood, Progress, likelihoods
from weft.tasks.answers import classify
from weft.tokenizers import Tokenizer

CLASSIFIED = 64
"""Texts that a classifier reads between two reports of progress."""


@dataclass(frozen=True)
class Question:
    """A prompt and the texts that may follow it.

    Attributes:
        prompt: text; may be empty if the tokenizer has a token that begins a document.
        completions: each of which is scored after the prompt.
    """

    prompt: str
    completions: tuple[str, ...]


@dataclass(frozen=True)
class Writing:
    """How a text is continued.

    Attributes:
        max_new_tokens: the most tokens.
        stops: strings before which the text ends; the tokens that end a document or a turn end it too.
        sampling: how tokens are chosen.
        seed: of the random numbers; those of a prompt depend on it and on the prompt's place alone.
    """

    max_new_tokens: int
    stops: tuple[str, ...] = ()
    sampling: Sampling = GREEDY
    seed: int = 0


@final
class TextModel:
    """A checkpoint that is asked in text.

    Args:
        loaded: with a tokenizer.
        context: the most tokens of a row; None: the model's own context.
        batch_size: rows that run together; it does not change the results.
        progress: told how many of the rows asked for are done.

    Raises:
        InputError: the checkpoint has no tokenizer, or the context is below 2.
    """

    def __init__(self, loaded: Loaded, *, context: int | None = None, batch_size: int = 8,
                 progress: Progress | None = None) -> None:
        if loaded.tokenizer is None:
            raise InputError("the checkpoint has no tokenizer, and the data are text.", where=str(loaded.path),
                             remedy="Give a checkpoint with its tokenizer.")
        limit, own = loaded.model.limit(), loaded.config.context
        self._loaded, self.tokenizer = loaded, loaded.tokenizer
        self.context = (own if limit is None else min(own, limit)) if context is None else context
        self._rows, self._progress = batch_size, progress
        if self.context < 2:
            raise InputError(f"{self.context} tokens.", where="context", remedy="Give 2 or more.")

    @property
    def name(self) -> str:
        """The checkpoint's path."""
        return str(self._loaded.path)

    @property
    def fingerprint(self) -> str:
        """The model's fingerprint."""
        return self._loaded.model.fingerprint

    @property
    def classifies(self) -> bool:
        """Whether the model's head predicts the class of a whole text, instead of tokens."""
        head = self._loaded.model.head
        return isinstance(head, Classifier) and head.pooled and not head.values

    @property
    def opening(self) -> int | None:
        """The id put before every prompt; None: none is."""
        return None if self.tokenizer.conventions.adds_bos is False else self.beginning

    @property
    def beginning(self) -> int | None:
        """The id that begins a document, or without one the id that ends the document before."""
        return self.tokenizer.eos_id if self.tokenizer.bos_id is None else self.tokenizer.bos_id

    def language_model(self, purpose: str) -> LanguageModel:
        """The model, for a purpose that needs probabilities of the next token. Raises `UnsupportedError`: it predicts
        no next token."""
        return language_model(self._loaded.model, purpose, where=self.name)

    def answers(self, questions: Sequence[Question]) -> list[tuple[Likelihood, ...]]:
        """The likelihood of each completion of each question; see `encoded_pair` for how they are encoded.

        Raises:
            UnsupportedError: the model predicts no next token, or decodes from a source.
            InputError: a completion has more tokens than the context; or an empty prompt, and no token begins a
                document.
            TokenizerError: the tokenizer cannot express a text.
        """
        self.language_model("completing text")
        found = iter(self.completed([pair for question in questions for pair in self._pairs(question)]))
        return [tuple(next(found) for _ in question.completions) for question in questions]

    def completed(self, completions: Sequence[Completion]) -> list[Likelihood]:
        """The likelihood of each completion in ids; see `weft.evaluation.completions.likelihoods`."""
        model = self.language_model("completing text")
        return likelihoods(model, completions, window=self.context, batch_size=self._rows, progress=self._progress)

    def _pairs(self, question: Question) -> Iterator[Completion]:
        prompt = self.tokenizer.encode(question.prompt.rstrip())
        for completion in question.completions:
            context, targets = encoded_pair(self.tokenizer, question.prompt, completion, prompt)
            opens = self.opening if question.prompt.strip() else self.beginning
            context = context if opens is None else (opens, *context)
            if not context:
                raise InputError("an empty prompt, and the tokenizer has no token that begins a document.",
                                 where=f"the prompt of {completion!r}", remedy="Give at least one example, or a "
                                 "checkpoint whose tokenizer has one.")
            yield Completion(context, targets)

    def continuations(self, prompts: Sequence[str], writing: Writing) -> list[str]:
        """A text that follows each prompt; see `continued`."""
        return self.continued([self._prompt(prompt) for prompt in prompts], writing)

    def continued(self, rows: Sequence[tuple[int, ...]], writing: Writing) -> list[str]:
        """A text that follows each row of ids, without the string that ended it. Rows that leave no room for the new
        tokens are cut on the left.

        Raises:
            UnsupportedError: the model predicts no next token, or decodes from a source.
            InputError: as many new tokens as the context has; or an empty prompt, and no token begins a document.
        """
        model, room = self.language_model("generating text"), self._room(writing)
        texts, done = [""] * len(rows), 0
        if not rows:
            return texts
        self._tell(0, len(rows))
        for new in stream(model, [Row(row[-room:]) for row in rows], max_new_tokens=writing.max_new_tokens,
                          sampling=writing.sampling, ending=Ending(self.tokenizer.end_ids, writing.stops),
                          tokenizer=self.tokenizer, start=self.beginning, seed=writing.seed, batch_size=self._rows):
            texts[new.row] += new.text or ""
            if new.finish:
                done += 1
                self._tell(done, len(rows))
        return texts

    def _room(self, writing: Writing) -> int:
        """Tokens of a prompt at most."""
        room = self.context - writing.max_new_tokens
        if room < 1:
            raise InputError(f"{writing.max_new_tokens} new tokens, and a row has {self.context}.",
                             where="max_new_tokens", remedy="Give fewer, or a larger context.")
        return room

    def cut(self, prompts: Sequence[str], writing: Writing) -> list[int]:
        """How many tokens of each prompt `continuations` leaves out, on the left."""
        return [max(0, len(self._prompt(prompt)) - self._room(writing)) for prompt in prompts]

    def _prompt(self, prompt: str) -> tuple[int, ...]:
        return (*(() if self.opening is None else (self.opening,)), *self.tokenizer.encode(prompt))

    def classes(self, texts: Sequence[str]) -> list[str]:
        """The most probable class of each text, in a row as the task `classify` makes it. Raises `UnsupportedError`:
        the model has no head that predicts classes."""
        found, frame = list[str](), Frame(self.tokenizer, self.context)
        self._tell(0, len(texts))
        for first in range(0, len(texts), CLASSIFIED):
            rows = [tuple(frame.around([self.tokenizer.measure(text)])[0].tolist())
                    for text in texts[first : first + CLASSIFIED]]
            found += [answer.best[0] for answer in classify(self._loaded.model, rows)]
            self._tell(len(found), len(texts))
        return found

    def class_names(self) -> tuple[str, ...]:
        """Names of the classes of the model's head, or their numbers."""
        head = self._loaded.model.head
        assert isinstance(head, Classifier), "asked of a model that classifies"
        return head.labels or tuple(map(str, range(head.n_outputs)))

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)


def tokenizer_name(tokenizer: Tokenizer) -> str:
    """Kind, size and the beginning of the fingerprint, for reports."""
    return f"{tokenizer.name} ({tokenizer.fingerprint()[:12]})"


def encoded_pair(tokenizer: Tokenizer, prompt: str, completion: str, known: Sequence[int] | None = None, *,
                 specials: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids of a prompt and those of the completion that follows it.

    Both are encoded as one text, as a reader would meet them, and the completion's ids are those after as many as the
    prompt has alone. White space at the end of the prompt is moved to the beginning of the completion, since most
    vocabularies join a space to the word behind it. Where an id spans the border and none is left for the completion,
    the completion is encoded by itself. All but the last rule are those of lm-eval (Gao et al. 2021).

    Args:
        prompt: text, which may be empty.
        known: the ids of the prompt without its white space at the end, if they are known.
        specials: whether special tokens that the texts spell are recognised; only for trusted text.

    Raises:
        InputError: the completion has no tokens.
        TokenizerError: the tokenizer cannot express a text.
    """
    bare = prompt.rstrip()
    completion = prompt[len(bare):] + completion
    context = tokenizer.encode(bare, specials=specials) if known is None else known
    targets = tokenizer.encode(bare + completion, specials=specials)[len(context):]
    targets = targets or tokenizer.encode(completion, specials=specials)
    if not targets:
        raise InputError("the completion has no tokens.", where=repr(completion), remedy="Give text.")
    return tuple(context), tuple(targets)
