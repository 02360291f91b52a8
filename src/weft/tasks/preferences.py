"""The task of preferences: a model learns from pairs of answers which one people prefer, without a model of rewards."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Float, Int64
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import logsigmoid

from weft.core.config import rule
from weft.core.errors import DataError
from weft.core.model import LanguageModel, Model, ModelState
from weft.core.part_config import About
from weft.core.registry import register
from weft.core.span import Loss
from weft.data import Batch, TokenStream
from weft.data.batch_source import RowBatches
from weft.data.preference_pairs import PreferencePairs, kept_pairs, laid_out, rows_of, width_of
from weft.data.settings import DataSettings
from weft.evaluation.measuring import evaluating, finite, in_batches, spread
from weft.tasks.base import BatchSums, Count, Rows, Task, TaskDeclared, TaskSettings, on_device
from weft.tasks.conversations import ConversationConfig, causal_problems, conversation_material, held_out_stream
from weft.tasks.protocols import ComparesWithStart
from weft.tasks.text import TextColumns, text_columns
from weft.tasks.token_streams import HeldOut, Material
from weft.tasks.validation import LOSS, Validation
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig


@register
class PreferencesConfig(ConversationConfig):
    """Prefer the better of two answers to a prompt, while staying near the model that training starts from.

    With log p(y) the summed log-probability in nats of an answer's tokens given the prompt, w and l the better and the
    worse answer, and

        h = (log p(w) - log p(l)) - (log p_ref(w) - log p_ref(l))

    the loss of a pair is -log sigmoid(beta h) (``dpo``) or (h - 1/(2 beta))^2 (``ipo``, where beta is tau). The
    reference p_ref is the model that the run starts from (``start``). Its log-probabilities are computed once, before
    the first step, without dropout, and kept in the run's folder.

    Attributes:
        loss: ``dpo``, or ``ipo``.
        beta: how strongly the model is held to the reference. 0.1 is the default of the DPO paper (appendix B).
        label_smoothing: of ``dpo``: the probability e that a label is wrong, with the loss
            -(1-e) log sigmoid(beta h) - e log sigmoid(-beta h) (conservative DPO, Mitchell 2023).
        per_token: divide each log-probability, also of the reference, by the tokens of its answer. Neither paper's
            equation does so. `trl` does it for ``ipo`` and not for ``dpo``, and reports that the results of the IPO
            paper were obtained so.
    """

    kind: ClassVar[str] = "preferences"
    about = About(
        also_called=("dpo", "ipo", "preference", "alignment", "preference_optimization"),
        source="Rafailov et al. 2023, equation 7; Azar et al. 2023, equation 17",
        equation=(r"L = -\log \sigma(\beta h), \qquad h = \log \frac{p(w)}{p_{\text{ref}}(w)} - \log "
                  r"\frac{p(l)}{p_{\text{ref}}(l)}"),
        differs=(("answers", "compares two answers, and holds the model near the one that it started from."),),
        pictured=(("Who wrote it?", ""), ("better: Ada did.", "more probable"), ("worse: No idea.", "less probable")))
    pairs: ClassVar[bool] = True

    loss: Literal["dpo", "ipo"] = "dpo"
    beta: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    per_token: bool = False

    @model_validator(mode="after")
    def _smoothed_labels_are_of_dpo(self) -> Self:
        if self.label_smoothing and self.loss != "dpo":
            raise rule("label_smoothing", f"{self.label_smoothing:g}, which the loss {self.loss!r} does not have.",
                       "Leave it out, or give loss: dpo.")
        return self

    def declares(self) -> TaskDeclared:
        return TaskDeclared(unit="pair", measured_in="nats" if self.loss == "dpo" else "squared nats", rows_each=2)

    def create(self, settings: TaskSettings) -> Preferences:
        return Preferences(self, settings)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(label_smoothing=0.1), cls(template="chatml", loss="ipo", beta=0.2, per_token=True, too_long="cut")]


class PreferenceColumns(NamedTuple):
    """Pairs: the rows, the better answer of each pair before the worse; the scored tokens of each row [R]; and its
    log-probability under the reference [R]."""

    rows: TextColumns
    tokens: Tensor
    reference: Tensor


class Preferences(Task[PreferencesConfig, PreferencePairs, PreferenceColumns], ComparesWithStart):
    """Pairs of answers, both in one pass. The loss is a mean over pairs.

    With rewards r(y) = beta (log p(y) - log p_ref(y)) it measures ``accuracy``, the share of pairs with r(w) > r(l)
    (equal ones count half), ``margin``, the mean of r(w) - r(l), and the mean log-probabilities ``chosen`` and
    ``rejected``, each with its standard error.
    """

    def problems(self, model: Model) -> list[str]:
        return causal_problems(model, self.name) or super().problems(model)

    def material(self, data: DataSettings, tokenizer: TokenizerConfig) -> Material[PreferencePairs]:
        found = conversation_material(self.config, data, tokenizer)
        return Material(found.corpus, found.corpus_sha256, found.tokenizer, self._kept(found.train),
                        self._kept(found.validation))

    def held_out(self, data: DataSettings, tokenizer: Tokenizer, part: HeldOut = "validation") -> PreferencePairs:
        return self._kept(held_out_stream(self.config, data, tokenizer, part))

    def _kept(self, stream: TokenStream) -> PreferencePairs:
        return kept_pairs(stream, self.settings.context, self.config.too_long)

    def compared(self, examples: PreferencePairs, reference: Model) -> PreferencePairs:
        with evaluating(reference) as device:
            found = [self._log_probs(reference, on_device(text_columns(rows), device))[0].double().cpu().numpy()
                     for rows, _ in self._in_order(examples)]
        return self.with_reference(examples, np.concatenate(found))

    def with_reference(self, examples: PreferencePairs, values: np.ndarray) -> PreferencePairs:
        if values.shape != examples.starts.shape or not np.isfinite(values).all():
            raise DataError(f"{len(values)} log-probabilities of the reference, some perhaps not finite, for "
                            f"{len(examples.starts)} answers.", where=examples.stream.corpus,
                            remedy="Begin the run in another folder.")
        return replace(examples, reference=values)

    def reference_of(self, examples: PreferencePairs) -> np.ndarray:
        assert examples.reference is not None, "a run computes or reads them before its first step"
        return examples.reference

    def batches(self, examples: PreferencePairs) -> RowBatches[Rows[PreferenceColumns]]:
        order = self.settings.order(examples.size, examples.stream.corpus)

        def lay(chosen: Int64[np.ndarray, " B"], share: slice, step: int) -> Rows[PreferenceColumns]:
            columns = _columns(examples, chosen[share], laid_out(examples, chosen[share], width_of(examples, chosen)))
            return Rows(columns, Count(len(columns.tokens), len(columns.tokens) // 2))

        return RowBatches(order, lay, tokens=2 * order.rows * float(examples.lengths.mean()), rows_each=2,
                          notice=_described(examples, self.config.too_long))

    def loss(self, model: Model, columns: PreferenceColumns, state: ModelState | None) -> BatchSums:
        log_probs, losses = self._log_probs(model, columns.rows)
        found = self._losses(self._advantage(log_probs, columns)).sum()
        return BatchSums(found.detach(), found, None, losses)

    def _log_probs(self, model: Model, rows: TextColumns) -> tuple[Float[Tensor, " R"], tuple[Loss, ...]]:
        """The summed log-probability of each row's scored tokens."""
        assert isinstance(model, LanguageModel), "a model that does not fit is refused before"
        out = model.hidden(rows.inputs, None, rows.span)
        found = model.readout.log_prob(out.y, rows.targets)
        found = found.to(torch.promote_types(found.dtype, torch.float32))
        return torch.where(rows.scored, found, 0.0).sum(-1), out.losses

    def _advantage(self, log_probs: Float[Tensor, " R"], columns: PreferenceColumns) -> Float[Tensor, " B"]:
        """h of each pair."""
        gains = log_probs - columns.reference.to(log_probs.dtype)
        if self.config.per_token:
            gains = gains / columns.tokens
        better, worse = gains.view(-1, 2).unbind(-1)
        return better - worse

    def _losses(self, h: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        beta, wrong = self.config.beta, self.config.label_smoothing
        if self.config.loss == "ipo":
            return (h - 1 / (2 * beta)).square()
        return -(1 - wrong) * logsigmoid(beta * h) - wrong * logsigmoid(-beta * h)

    def guess(self, model: Model) -> float:
        """The loss of the reference itself, whose h is 0."""
        return float(self._losses(torch.zeros(1, dtype=torch.float64)))

    def measure(self, model: Model, examples: PreferencePairs, batches: int | None = None) -> Validation:
        """Measure each pair once, in order."""
        total, found = 0.0, list[np.ndarray]()
        with evaluating(model) as device:
            for rows, chosen in spread(list(self._in_order(examples)), batches):
                given = on_device(_columns(examples, chosen, rows), device)
                log_probs, _ = self._log_probs(model, given.rows)
                h = self._advantage(log_probs, given)
                total += finite(self._losses(h).double().sum(), examples.stream.corpus)
                found.append(torch.stack([h, *log_probs.view(-1, 2).unbind(-1)]).double().cpu().numpy())
        h, chosen, rejected = np.concatenate(found, axis=1)
        means = {"accuracy": (1 + np.sign(h)) / 2, "margin": self.config.beta * h, "chosen": chosen,
                 "rejected": rejected}
        part = "" if len(h) == examples.size else f"; {len(h):,} of {examples.size:,} pairs"
        protocol = (f"each held-out pair once{part}; {_described(examples, self.config.too_long)}; log-probabilities "
                    "of whole answers in nats, summed over their tokens")
        measures = {name: value for key, each in means.items() for name, value in _with_error(key, each)}
        return Validation(None, total / len(h), len(h), 0, protocol, measures, LOSS, unit=self.declared.unit)

    def _in_order(self, examples: PreferencePairs) -> Iterator[tuple[Batch, Int64[np.ndarray, " B"]]]:
        """All pairs, in batches of the run's size, each with its pairs' numbers."""
        for chosen in in_batches(examples.size, self.settings.rows):
            yield laid_out(examples, chosen, width_of(examples, chosen)), chosen


def _columns(examples: PreferencePairs, chosen: Int64[np.ndarray, " B"], rows: Batch) -> PreferenceColumns:
    """The columns of the pairs ``chosen``, which are laid out as ``rows``."""
    assert examples.reference is not None, "a run computes or reads them before its first step"
    text = text_columns(rows)
    return PreferenceColumns(text, text.scored.sum(-1), torch.from_numpy(examples.reference[rows_of(chosen)]))


def _with_error(name: str, values: np.ndarray) -> list[tuple[str, float]]:
    """The mean of independent values, and its standard error, s / sqrt(n), where there are two or more."""
    error = [] if len(values) < 2 else [(f"{name}_standard_error", float(values.std(ddof=1) / math.sqrt(len(values))))]
    return [(name, float(values.mean())), *error]


def _described(examples: PreferencePairs, rule: str) -> str:
    longer = "left out" if rule == "drop" else "cut at their ends"
    return f"{examples.size:,} of {examples.pairs:,} pairs; {examples.longer:,} longer than the context {longer}"
