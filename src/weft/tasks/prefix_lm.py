"""The task of prefix language models: predict what follows a prefix, which is read in both directions."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self, final

import torch

from weft.core.errors import DataError
from weft.core.layer import traits_of
from weft.core.model import LanguageModel, Model, ModelState
from weft.core.part_config import About
from weft.core.registry import register
from weft.core.traits import Trait
from weft.data import Batch, Batches, PackedBatches, TokenStream
from weft.data.prefixes import PrefixedRows, with_drawn_prefixes, with_prompts
from weft.data.settings import DataSettings
from weft.evaluation.measuring import evaluating, exponential, finite, spread
from weft.tasks.base import BatchSource, BatchSums, Count, HeldOut, Task, TaskConfig, TaskSettings
from weft.tasks.masked import HELD_OUT_SEED
from weft.tasks.material import Material, held_out_text, text_material
from weft.tasks.text import MadeOfText, TextGiven, given_text, text_batches, text_loss
from weft.tasks.validation import Validation
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig


@register
class PrefixLMConfig(TaskConfig):
    """Predict what follows a prefix of each document, whose tokens attend to one another in both directions; by a
    language model whose mask has a prefix (``causal | prefix``).

    The loss of a document x_1 .. x_n with a prefix of p tokens is the sum over t > p of -ln P(x_t | x_1 .. x_(t-1)), in
    which x_1 .. x_p are read in both directions.

    Attributes:
        prefix: ``random``: each document, or what a row has of it, is divided at a random place, another one in every
            epoch; ``prompt``: the prefix is the record's prompt (``data.prompt_field``).
    """

    kind: ClassVar[str] = "prefix_lm"
    about = About(
        also_called=("prefix_language_modeling", "prefix_language_model", "prefixlm"),
        source="Raffel et al. 2020, sections 3.2.1 and 3.2.3; Dong et al. 2019, section 2.2",
        equation=r"L = -\sum_{t > p} \log p(x_t \mid x_{<t}), \qquad x_1, \ldots, x_p \text{ read in both directions}",
        differs=(("next_token", "the prefix is read in both directions and does not count."),
                 ("span_corruption", "what is predicted follows the text in place of filling its gaps.")),
        pictured=(("the", ""), ("cat", ""), ("sat", "on"), ("on", "the"), ("the", "mat")))

    prefix: Literal["random", "prompt"] = "random"

    def create(self, settings: TaskSettings) -> PrefixLM:
        return PrefixLM(self, settings)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(prefix="prompt")]


@final
class PrefixBatches(MadeOfText[Batches]):
    """Batches of running text with prefixes, each a pure function of seed and step."""

    def __init__(self, text: Batches, task: PrefixLM) -> None:
        super().__init__(text)
        self._task = task

    def batch(self, step: int, *, rank: int = 0, world: int = 1) -> PrefixedRows:
        """The batch of that step, or one rank's rows of it."""
        return self._task.prefixed(self.text.batch(step, rank=rank, world=world), self._task.settings.seed)


@final
class PrefixLM(Task[TokenStream, PrefixedRows]):
    """Rows of a stream whose documents begin with a prefix. The loss is the summed negative log-likelihood of the
    tokens behind the prefixes.

    It measures that loss per token, the perplexity, and bits per byte, on whole held-out documents, which random
    prefixes divide at the same places in every run.
    """

    name = PrefixLMConfig.kind
    packs = smooths = True

    def __init__(self, config: PrefixLMConfig, settings: TaskSettings) -> None:
        super().__init__(settings)
        self.config = config

    def problems(self, model: Model) -> list[str]:
        kind = model.config.kind
        if not isinstance(model, LanguageModel):
            return [f"model: a model of kind {kind!r} predicts no next token. Give a decoder whose attention has mask: "
                    "causal | prefix."]
        if model.takes_source:
            return [f"task: {self.name!r}, and a model of kind {kind!r} decodes from a source, which running text does "
                    "not have. Give a decoder, or task: span_corruption."]
        if Trait.PREFIX_FIRST not in traits_of(model):
            return ["model: no mask of this model has a prefix, so nothing would be read in both directions. Give its "
                    "attention mask: causal | prefix, or give task: next_token."]
        return super().problems(model)

    def material(self, data: DataSettings, tokenizer: TokenizerConfig) -> Material[TokenStream]:
        found = text_material(data, tokenizer)
        for stream in (found.train, found.validation):
            self._require_prompts(stream)
        return found

    def held_out(self, data: DataSettings, tokenizer: Tokenizer, part: HeldOut = "validation") -> TokenStream:
        found = held_out_text(data, tokenizer, part)
        self._require_prompts(found)
        return found

    def _require_prompts(self, stream: TokenStream) -> None:
        if self.config.prefix == "prompt" and stream.flags is None:
            raise DataError("no record has a prompt, which task.prefix: prompt makes the prefix.", where=stream.corpus,
                            remedy="Name its field as data.prompt_field, or give task.prefix: random.")

    def prefixed(self, text: Batch, seed: int) -> PrefixedRows:
        """Rows of text with their prefixes."""
        return with_prompts(text) if self.config.prefix == "prompt" else with_drawn_prefixes(text, seed)

    def batches(self, examples: TokenStream) -> PrefixBatches:
        return PrefixBatches(text_batches(self.settings, examples), self)

    def notice(self, batches: BatchSource[PrefixedRows]) -> str | None:
        text = batches.text if isinstance(batches, PrefixBatches) else None
        return text.describe() if isinstance(text, PackedBatches) else None

    def count(self, batch: PrefixedRows) -> Count:
        return Count(len(batch.prefix), batch.text.scored_tokens, batch.text.scored_bytes, lost=batch.text.lost)

    def given(self, batch: PrefixedRows, device: torch.device | str) -> TextGiven:
        found = given_text(batch.text, device)
        return found._replace(span=found.span.replace(prefix=torch.from_numpy(batch.prefix).to(device)))

    def loss(self, model: Model, given: TextGiven, state: ModelState | None) -> BatchSums:
        return text_loss(model, given, state, self.settings.objective)

    def guess(self, model: Model) -> float:
        return math.log(max(2, model.vocab_size))

    def measure(self, model: Model, examples: TokenStream, batches: int | None = None) -> Validation:
        """Measure whole documents, packed into rows; one that is longer than the context is cut."""
        assert isinstance(model, LanguageModel), "a model that does not fit is refused before"
        rows = PackedBatches(examples, rows=self.settings.rows, length=self.settings.context)
        whole = -(-rows.windows // rows.rows)
        nats, lost, tokens, size = 0.0, 0.0, 0, 0
        with evaluating(model) as device:
            for place in spread(range(whole), batches):
                batch = self.prefixed(rows.in_order(place), HELD_OUT_SEED)
                given = self.given(batch, device)
                h = model.hidden(given.inputs, None, given.span).y[given.scored][None]
                nats -= finite(model.readout.log_prob(h, given.targets[given.scored][None]).double().sum(),
                               examples.corpus)
                tokens, size = tokens + batch.text.scored_tokens, size + batch.text.scored_bytes
                lost += batch.text.lost
        if not size:
            raise DataError(f"the {tokens} tokens to predict represent no text, so there are no bits per byte.",
                            where=examples.corpus, remedy="Give more text to hold out.")
        ends = "the prompt" if self.config.prefix == "prompt" else "a random place, the same in every run"
        part = "" if batches is None or batches >= whole else f"; {batches} of {whole} batches"
        protocol = (f"what follows a prefix up to {ends}; whole documents in rows of {self.settings.context} tokens, "
                    f"{rows.cut_documents} longer ones cut{part}")
        return Validation.of_text(nats, lost, tokens, size, protocol, {"perplexity": exponential(nats / tokens)})
