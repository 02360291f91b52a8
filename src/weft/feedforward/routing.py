"""How a router's logits become the experts of each token and their gates.

    s = softmax(l), or sigmoid(l), of the logits l [N]
    p = s + b, with a correction b that takes part in the choice alone
    groups of neighbouring experts: those are open whose score is largest, the best p in them or the two best added
    chosen: the k open experts of the largest p
    gates: g_n = factor s_n, divided by the sum of the chosen s where renormalised

Mixtral and Qwen take the softmax without groups. DeepSeek-V2 (arXiv:2405.04434, section 2.2.2) scores groups by their
best expert; DeepSeek-V3 (arXiv:2412.19437, equations 12 to 16) takes the sigmoid, a correction and the sum of two.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int64
from pydantic import Field, model_validator
from torch import Tensor

from weft.core.config import rule
from weft.core.part_config import Settings
from weft.ops.expert_dispatch import one_hot
from weft.positions.frequencies import Constant

SMALLEST = 1e-20
"""Added to the sum of the chosen sigmoids, which may all be 0 in float32; as in the released code."""


class RoutingSettings(Settings):
    """How experts are chosen and weighted.

    Attributes:
        score_function: the softmax of the logits, or the sigmoid of each by itself.
        n_expert_groups: groups of as many neighbouring experts each, of which a token may use few (one device holds a
            group).
        top_groups: groups that are open to a token; None: all.
        group_score: a group's score: that of its ``best`` expert (DeepSeek-V2), or of the ``best_two`` added (V3).
        factor: on the gates.
        correction: each expert has a number that is added to its score in the choice, and not in the gates. Training
            moves it without gradients, so that experts are used alike without a loss that asks for it.
        correction_rate: by how much every step moves it: down where an expert was chosen more often than the average of
            the batch's tokens, up where less often (Wang et al. 2024, arXiv:2408.15664, algorithm 1); 0: never.
        bias: each expert's logit has a learned number added (gpt-oss).
    """

    score_function: Literal["softmax", "sigmoid"] = "softmax"
    n_expert_groups: int = Field(default=1, gt=0)
    top_groups: int | None = Field(default=None, gt=0)
    group_score: Literal["best", "best_two"] = "best"
    factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    correction: bool = False
    correction_rate: float = Field(default=0.001, ge=0, allow_inf_nan=False)
    bias: bool = False

    @model_validator(mode="after")
    def _groups_can_be_chosen(self) -> RoutingSettings:
        if self.top_groups is not None and self.top_groups > self.n_expert_groups:
            raise rule("top_groups", f"{self.top_groups} groups for a token, but there are only "
                       f"{self.n_expert_groups}.", "Lower top_groups or raise n_expert_groups.")
        return self

    def problem(self, n_experts: int, top_k: int) -> tuple[str, str, str] | None:
        """Field, fault and remedy where this does not fit so many experts; None where it does."""
        each, left = divmod(n_experts, self.n_expert_groups)
        if left:
            return ("n_expert_groups", f"{n_experts} experts do not divide into {self.n_expert_groups} groups.",
                    "Choose a divisor.")
        if self.group_score == "best_two" and each < 2:
            return ("group_score", f"'best_two' of groups with {each} expert each.", "Use 'best', or fewer groups.")
        if self.open * each < top_k:
            return ("top_groups", f"{self.open} of {self.n_expert_groups} groups have {self.open * each} experts, and "
                    f"{top_k} are chosen for each token.", "Raise top_groups, or lower top_k.")
        return None

    @property
    def open(self) -> int:
        """The number of groups that are open to a token."""
        return self.n_expert_groups if self.top_groups is None else self.top_groups


class RankedExperts(NamedTuple):
    """The open experts of each row, best first, and of equals the lower one first.

    Attributes:
        experts: their numbers; closed ones come last.
        scores: by which they are ranked; -inf where they are closed.
        groups: scores of the groups, best first; None where all are open.
    """

    experts: Int64[Tensor, "rows N"]
    scores: Float[Tensor, "rows N"]
    groups: Float[Tensor, "rows groups"] | None


def rank(logits: Float[Tensor, "rows N"], settings: RoutingSettings,
         correction: Float[Tensor, " N"] | None = None) -> RankedExperts:
    """Rank the experts of each row of logits, from which no gradient flows."""
    preference, groups = logits.detach(), None
    if correction is not None or settings.group_score != "best":
        # Both kinds of scores rise with the logits, which differ where scores round to 1.
        scores = preference.softmax(-1) if settings.score_function == "softmax" else preference.sigmoid()
        preference = scores if correction is None else scores + correction.to(scores.dtype)
    if settings.open < settings.n_expert_groups:
        preference, groups = _closed(preference, settings)
    scores, experts = preference.sort(dim=-1, descending=True, stable=True)
    return RankedExperts(experts, scores, groups)


def margin(ranked: RankedExperts, k: int, settings: RoutingSettings) -> Float[Tensor, " rows"]:
    """How far the choice of k experts is from another: from the last chosen expert to the best open one that was not,
    or, if it is less, from the last open group to the best closed one; relative to the largest score."""
    gap = _gap(ranked.scores, k)
    if ranked.groups is not None:
        gap = gap.minimum(_gap(ranked.groups, settings.open))
    finite = ranked.scores[ranked.scores.isfinite()]
    return gap / finite.abs().max() if finite.numel() else gap


def gates(logits: Float[Tensor, "rows N"], chosen: Int64[Tensor, "rows k"], settings: RoutingSettings, *,
          renormalise: bool) -> Float[Tensor, "rows k"]:
    """The weights of the chosen experts."""
    # Not a gather, nor the sorted values: Inductor (torch 2.13, CPU) loses their gradient beside the router's losses.
    picked = one_hot(chosen, logits.shape[1])
    best = torch.where(picked, logits[:, None], torch.zeros((), dtype=logits.dtype, device=logits.device)).sum(-1)
    if settings.score_function == "sigmoid":
        found = best.sigmoid()
        found = found / (found.sum(-1, keepdim=True) + SMALLEST) if renormalise else found
    elif renormalise:
        found = best.softmax(-1)
    else:
        found = (best - logits.logsumexp(-1, keepdim=True)).exp()
    return found if settings.factor == 1.0 else found * settings.factor


def probabilities(logits: Float[Tensor, "rows N"], settings: RoutingSettings) -> Float[Tensor, "rows N"]:
    """Scores that add up to 1, of which the balancing loss takes the mean (DeepSeek-V3, equation 19, for sigmoids)."""
    if settings.score_function == "softmax":
        return logits.softmax(-1)
    scores = logits.sigmoid()
    return scores / (scores.sum(-1, keepdim=True) + SMALLEST)


def _closed(preference: Tensor, settings: RoutingSettings) -> tuple[Tensor, Tensor]:
    """The preferences with -inf in groups that are closed to the row, and the scores of groups, best first."""
    grouped = preference.unflatten(1, (settings.n_expert_groups, -1))
    best = grouped.sort(dim=-1, descending=True).values[..., :1 if settings.group_score == "best" else 2].sum(-1)
    scores, groups = best.sort(dim=-1, descending=True, stable=True)
    kept = one_hot(groups[:, :settings.open], settings.n_expert_groups).any(1)
    return grouped.masked_fill(~kept[..., None], -torch.inf).flatten(1), scores


def _gap(ranked: Tensor, k: int) -> Tensor:
    """The k-th largest score of each row less the next; infinity where there is none."""
    if k == ranked.shape[1]:
        return ranked.new_full(ranked.shape[:1], torch.inf)
    return ranked[:, k - 1] - ranked[:, k]


class Tally(Constant):
    """How often each expert was chosen since the last step of training: zeros between steps, so that they are neither
    saved nor cast, and written anew where a model is moved."""

    def __init__(self, n_experts: int) -> None:
        super().__init__([0.0] * n_experts)

    @torch.no_grad()
    def add(self, chosen: Int64[Tensor, "rows k"], valid: Tensor | None) -> None:
        """Count the choices of the real rows."""
        picks = one_hot(chosen, self.numbers.shape[0]).sum(1)
        picks = picks if valid is None else picks.masked_fill(~valid[:, None], 0)
        self.numbers.add_(picks.sum(0).to(self.numbers.dtype))
