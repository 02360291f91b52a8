"""The task of prefix language models: predict what follows a prefix, which is read in both directions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, Self

import torch

from weft.core.declarations import Trait
from weft.core.errors import DataError
from weft.core.layer import traits_of
from weft.core.model import LanguageModel, Model, ModelState
from weft.core.part_config import About
from weft.core.registry import register
from weft.data import Batch, PackedBatches, TokenStream
from weft.data.batches import MadeOfText
from weft.data.masking import with_drawn_prefixes, with_prompts
from weft.data.settings import DataSettings
from weft.evaluation.measuring import evaluating, exponential, finite, spread
from weft.tasks.base import BatchSums, Rows, Task, TaskConfig, TaskDeclared, TaskSettings, on_device
from weft.tasks.masked import HELD_OUT_SEED
from weft.tasks.text import TextColumns, text_batches, text_loss, text_rows
from weft.tasks.token_streams import HeldOut, Material, held_out_text, text_material
from weft.tasks.validation import Validation, part_measured
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

    def declares(self) -> TaskDeclared:
        return TaskDeclared(packs=True, smooths=True)

    def create(self, settings: TaskSettings) -> PrefixLM:
        return PrefixLM(self, settings)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(prefix="prompt")]


class PrefixLM(Task[PrefixLMConfig, TokenStream, TextColumns]):
    """Rows of a stream whose documents begin with a prefix. The loss is the summed negative log-likelihood of the
    tokens behind the prefixes.

    It measures that loss per token, the perplexity, and bits per byte, on whole held-out documents, which random
    prefixes divide at the same places in every run.
    """

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

    def batches(self, examples: TokenStream) -> MadeOfText[Rows[TextColumns]]:
        return MadeOfText(text_batches(self.settings, examples), partial(self._rows, seed=self.settings.seed))

    def _rows(self, batch: Batch, *, seed: int) -> Rows[TextColumns]:
        """Rows of text with their prefixes."""
        text, prefix = with_prompts(batch) if self.config.prefix == "prompt" else with_drawn_prefixes(batch, seed)
        made = text_rows(text)
        span = made.columns.span.replace(prefix=torch.from_numpy(prefix))
        return replace(made, columns=made.columns._replace(span=span))

    def loss(self, model: Model, columns: TextColumns, state: ModelState | None) -> BatchSums:
        return text_loss(model, columns, state, self.settings.objective)

    def measure(self, model: Model, examples: TokenStream, batches: int | None = None) -> Validation:
        """Measure whole documents, packed into rows; one that is longer than the context is cut."""
        assert isinstance(model, LanguageModel), "a model that does not fit is refused before"
        rows = PackedBatches(examples, rows=self.settings.rows, length=self.settings.context)
        whole = -(-rows.windows // rows.rows)
        nats, lost, tokens, size = 0.0, 0.0, 0, 0
        with evaluating(model) as device:
            for place in spread(range(whole), batches):
                batch = self._rows(rows.in_order(place), seed=HELD_OUT_SEED)
                inputs, targets, scored, span = on_device(batch.columns, device)
                h = model.hidden(inputs, None, span).y[scored][None]
                nats -= finite(model.readout.log_prob(h, targets[scored][None]).double().sum(), examples.corpus)
                tokens, size = tokens + batch.count.predictions, size + batch.count.bytes
                lost += batch.count.lost
        if not size:
            raise DataError(f"the {tokens} tokens to predict represent no text, so there are no bits per byte.",
                            where=examples.corpus, remedy="Give more text to hold out.")
        ends = "the prompt" if self.config.prefix == "prompt" else "a random place, the same in every run"
        protocol = (f"what follows a prefix up to {ends}; whole documents in rows of {self.settings.context} tokens, "
                    f"{rows.cut_documents} longer ones cut{part_measured(batches, whole)}")
        return Validation.of_text(nats, lost, tokens, size, protocol, {"perplexity": exponential(nats / tokens)})
