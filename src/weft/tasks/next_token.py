"""The task of language models: predict each next token of running text."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
import torch

from weft.core.declarations import Trait
from weft.core.errors import ConfigError, DataError
from weft.core.layer import traits_of
from weft.core.model import Counted, LanguageModel, Model, ModelState
from weft.core.part_config import About
from weft.core.registry import register
from weft.data import TokenStream
from weft.data.batches import MadeOfText
from weft.data.joining import parted
from weft.data.settings import DataSettings
from weft.evaluation.evaluate import evaluate
from weft.tasks.base import BatchSums, Rows, Task, TaskConfig, TaskDeclared, TaskSettings
from weft.tasks.protocols import FitsByCounting
from weft.tasks.text import TextColumns, text_batches, text_loss, text_rows
from weft.tasks.token_streams import HeldOut, Material, held_out_text, text_material
from weft.tasks.validation import Validation, by_source
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig


@register
class NextTokenConfig(TaskConfig):
    """Predict each token of running text from those before it; any language model that needs no source."""

    kind: ClassVar[str] = "next_token"
    about = About(
        also_called=("language_modeling", "language_modelling", "lm", "causal_lm", "clm", "autoregressive"),
        source="Bengio et al. 2003, section 2", equation=r"L = -\frac{1}{T} \sum_{t=1}^{T} \log p(x_t \mid x_{<t})",
        differs=(("masked", "every token counts, and is predicted from earlier ones alone."),
                 ("prefix_lm", "nothing is read in both directions.")),
        pictured=(("the", "cat"), ("cat", "sat"), ("sat", "on"), ("on", "the"), ("the", "mat")))

    def declares(self) -> TaskDeclared:
        return TaskDeclared(carries=True, packs=True, smooths=True, cuts=True, mixes=True)

    def create(self, settings: TaskSettings) -> NextToken:
        return NextToken(self, settings)


class NextToken(Task[NextTokenConfig, TokenStream, TextColumns], FitsByCounting):
    """Windows of a stream, whose summed negative log-likelihood is the loss; each token is scored once an epoch.

    Rows are shuffled windows, packed documents, or lanes that carry a state from batch to batch with no gradient
    between them. Models that are counted are fitted by one pass over the stream. It measures bits per byte.
    """

    def problems(self, model: Model) -> list[str]:
        kind = model.config.kind
        if not isinstance(model, LanguageModel):
            return [f"model: a model of kind {kind!r} is not a language model. Give a model that predicts the next "
                    "token, or another task, such as masked."]
        if model.takes_source:
            return [f"task: {self.name!r}, and a model of kind {kind!r} decodes from a source, which running text does "
                    "not have. Give task: sequence_to_sequence."]
        if Trait.NOT_DIFFERENTIABLE in traits_of(model):
            return [] if isinstance(model, Counted) else [_neither(model)]
        return [*super().problems(model), *(self._uncarried(model) if self.settings.carry_state else [])]

    def _uncarried(self, model: LanguageModel) -> list[str]:
        """Why no state of this model can be carried along an endless text; empty if one can."""
        growing = [name for name, (_, spec) in model.init_state(1).tensors().items() if spec.grows is not None]
        limit = model.limit()
        if growing:
            return [f"training.carry_state: the state of this model grows with every token ({growing[0]}). Leave "
                    "carry_state out, or give its attention a window."]
        if limit is not None:
            return [f"training.carry_state: the model's positions end at {limit} tokens, and a carried row goes on. "
                    "Leave carry_state out, or use positions without a limit."]
        return []

    def material(self, data: DataSettings, tokenizer: TokenizerConfig) -> Material[TokenStream]:
        return text_material(data, tokenizer)

    def held_out(self, data: DataSettings, tokenizer: Tokenizer, part: HeldOut = "validation") -> TokenStream:
        return held_out_text(data, tokenizer, part)

    def batches(self, examples: TokenStream) -> MadeOfText[Rows[TextColumns]]:
        return MadeOfText(text_batches(self.settings, examples), text_rows)

    def loss(self, model: Model, columns: TextColumns, state: ModelState | None) -> BatchSums:
        return text_loss(model, columns, state, self.settings.objective)

    def measure(self, model: Model, examples: TokenStream, batches: int | None = None) -> Validation:
        """Measure windows of the context, each token once; documents do not attend to one another.

        Raises:
            DataError: there is nothing to predict, or only tokens that represent no text.
            FailedError: the loss is NaN.
        """
        assert isinstance(model, LanguageModel), "a model that does not fit is refused before"
        if examples.sources is not None:
            return by_source(examples.sources, parted(examples), partial(self.measure, model), batches)
        found = evaluate(model, examples, context=self.settings.context, batch_size=self.settings.rows, batches=batches)
        if not found.bytes:
            raise DataError(f"the {found.tokens} tokens to predict represent no text, so there are no bits per byte.",
                            where=examples.corpus, remedy="Give more text to hold out.")
        return Validation.of_text(found.nats, found.lost, found.tokens, found.bytes, found.protocol.describe())

    def fit(self, model: Model, examples: TokenStream) -> None:
        if not isinstance(model, Counted):
            raise ConfigError([_neither(model)])
        if examples.sources is not None:
            raise ConfigError([f"data.sources: weights, while a model of kind {model.config.kind!r} counts every token "
                               "once. Give data.path with the files of all sources, or train a model by gradients."])
        if examples.flags is not None:
            raise ConfigError([f"data: some tokens are read and not scored, while a model of kind "
                               f"{model.config.kind!r} counts every "
                               "token. Leave out data.prompt_field, or train a model by gradients."])
        model.fit(torch.from_numpy(examples.tokens.astype(np.int64)), torch.from_numpy(examples.begins.copy()))


def _neither(model: Model) -> str:
    return (f"model: a model of kind {model.config.kind!r} cannot be trained by gradients and is no Counted. Derive it "
            "from weft.core.model.Counted, or do not declare Trait.NOT_DIFFERENTIABLE.")
