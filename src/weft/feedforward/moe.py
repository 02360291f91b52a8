"""Dropless mixture of experts with its router's losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int64
from pydantic import Field, model_validator
from torch import Tensor, nn

from weft.core.clock import Clock
from weft.core.config import PartField, rule
from weft.core.declarations import Adjustable, Declared, StepHooks, Trait
from weft.core.layer import Choice, Chooser, LayerState, Pointwise, advance
from weft.core.part_config import About, Dims, Shared
from weft.core.registry import register
from weft.core.span import Loss, Memory, Output, Span
from weft.feedforward.base import FeedForwardConfig
from weft.feedforward.glu import GLUConfig
from weft.feedforward.routing import RoutingSettings, Tally, gates, margin, probabilities, rank
from weft.linear.linear import Linear, unadapted
from weft.ops.expert_dispatch import EXPERT_DISPATCH, DispatchCall, Expert, one_hot
from weft.ops.forms import REFERENCE

Dispatch = Literal["auto", "grouped", "dense"]
FORMS: dict[Dispatch, str | None] = {"auto": None, "grouped": "grouped", "dense": REFERENCE}
"""Of the operation ``expert_dispatch``."""

DEFAULT = RoutingSettings()


class MixtureOfExperts(Chooser, Adjustable, StepHooks):
    """A dropless mixture of experts (Shazeer et al. 2017, equation 1; Mixtral, Jiang et al. 2024, section 2.1).

        l = W_router x in R^N        y = sum over the k largest l_n of g_n expert_n(x)
        l = W_router x + b                                 (``routing.bias``; gpt-oss)
        g = softmax of the k chosen logits                 (``renormalise``)
        g = the chosen entries of softmax(l)               (otherwise; Switch for k = 1)
        other scores, groups of experts, a correction      (``routing``, see `weft.feedforward.routing`)
        y + s(x), or y + sigmoid(w.x) s(x)                 with a shared expert s (DeepSeekMoE; Qwen 2's is gated)

    x, y [B,T,D]; ``router.weight`` [N,D]; ``experts`` are N feed-forwards of one configuration, each with its
    own weights. No expert has a capacity: no token is dropped, so a row never depends on its neighbours (up to the last
    bits, where a matrix product's rounding depends on its number of rows). Of equal logits the lower expert is chosen.
    ``shared`` sees every token, beside the k; ``shared_gate`` holds w as a matrix [1,D].
    Routing and gates are computed in float32 or wider; an adapted router is called as it is, in its own dtype. The
    state is the clock alone.

    Losses, over the real tokens of the call only, each times its coefficient (none for the coefficient 0):

        load_balance   N sum_n f_n P_n, f_n the share of all choices that fell on n, P_n its mean probability (of
                       sigmoids: each divided by their sum)
                       (Fedus et al. 2022, equations 4 to 6); 1 when balanced. Mixtral's released code counts choices
                       per token, which is k times this.
        router_z       mean (log sum_n exp l_n)^2          (Zoph et al. 2022, equation 5)

    ``correction`` [N], where routing has one, is a buffer that gradients never reach. In training each call counts its
    choices, and `after_step` moves the buffer after every step of the optimiser, by the counts of all processes: within
    a step all calls choose alike, so that activations may be computed again, and the laws hold in training too.

    ``dispatch``: ``grouped`` runs each expert on its own tokens and reads the group sizes on the host, which
    ``torch.compile(fullgraph=True)`` and CUDA graphs cannot do; ``dense`` runs every expert on every token, N/k times
    the arithmetic, in static shapes. ``auto`` is grouped where that pays (`weft.ops.expert_dispatch`), and dense under
    `torch.compile` and the transforms of `torch.func`.

    Points: ``choices``, the experts of each token [B,T,k], best first, and their ``gates`` [B,T,k].
    """

    points = ("choices", "gates")
    correction: Tensor | None

    def __init__(self, d_model: int, experts: list[Pointwise], top_k: int, *, renormalise: bool = True,
                 balance_loss: float = 0.01, z_loss: float = 0.001, dispatch: Dispatch = "auto",
                 shared: Pointwise | None = None, gated: bool = False,
                 routing: RoutingSettings = DEFAULT) -> None:
        super().__init__()
        self.routing = routing
        self.register_buffer("correction", torch.zeros(len(experts)) if routing.correction else None)
        self.tally = Tally(len(experts)) if routing.correction and routing.correction_rate else None
        self.top_k, self.renormalise, self.dispatch = top_k, renormalise, dispatch
        self.balance_loss, self.z_loss = balance_loss, z_loss
        self.router = Linear(d_model, len(experts), bias=routing.bias, allows=frozenset({"adapt"}))
        self.experts = nn.ModuleList(experts)
        self.shared = shared
        self.shared_gate = Linear(d_model, 1, bias=False) if gated else None

    def declares(self) -> Declared:
        numbers = sum(parameter.numel() for parameter in self.experts.parameters())
        host = frozenset({Trait.HOST_CHOICE} if self.dispatch == "grouped" else ())
        # The correction is exact: a step of training moves it by less than bfloat16 can add to it.
        return replace(super().declares(), traits=super().declares().traits | host,
                       idle_parameters=numbers - numbers * self.top_k // len(self.experts),
                       exact=() if self.correction is None else (self.correction,))

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        return LayerState(clock)

    def run(self, x: Float[Tensor, "B T D"], state: LayerState | None, span: Span) -> Output[LayerState]:
        rows = x.flatten(0, 1)
        valid = None if span.ticks.valid is None else span.ticks.valid.flatten()
        logits = self._logits(rows)
        chosen = rank(logits, self.routing, self.correction).experts[:, :self.top_k]
        weights = gates(logits, chosen, self.routing, renormalise=self.renormalise)
        if self.tally is not None and self.training and torch.is_grad_enabled():
            self.tally.add(chosen, valid)
        if self.asked is not None:
            self.asked.give("choices", chosen.unflatten(0, x.shape[:2]))
            self.asked.give("gates", weights.unflatten(0, x.shape[:2]))
        y = self._dispatch(rows, chosen, weights, valid).reshape(x.shape)
        y = y if self.shared is None else y + self._shared(x, self.shared)
        return Output(y, advance(state, span), self._losses(logits, chosen, valid))

    def _shared(self, x: Float[Tensor, "B T D"], expert: nn.Module) -> Float[Tensor, "B T D"]:
        """The output of the expert that sees every token, times its gate if it has one."""
        y: Tensor = expert(x).y
        return y if self.shared_gate is None else self.shared_gate(x).sigmoid() * y

    def choose(self, x: Float[Tensor, "B T D"]) -> Choice:
        ranked = rank(self._logits(x.flatten(0, 1)), self.routing, self.correction)
        chosen, gap = ranked.experts[:, :self.top_k], margin(ranked, self.top_k, self.routing)
        return Choice(chosen.unflatten(0, x.shape[:2]), gap.unflatten(0, x.shape[:2]))

    @torch.no_grad()
    def after_step(self, total: Callable[..., list[float]]) -> bool:
        if self.tally is None or self.correction is None:
            return False
        counts = torch.tensor(total(*self.tally.numbers.tolist()), dtype=torch.float64)
        moved = self.routing.correction_rate * (counts.mean() - counts).sign()
        self.correction.add_(moved.to(self.correction))
        self.tally.numbers.zero_()
        return True

    def _logits(self, rows: Tensor) -> Float[Tensor, "rows N"]:
        wide = torch.promote_types(rows.dtype, torch.float32)
        if not unadapted(self.router, Linear):
            logits: Tensor = self.router(rows)
            return logits.to(wide)
        with torch.autocast(rows.device.type, enabled=False):
            scores = rows.to(wide) @ self.router.weight.to(wide).T
            return scores if self.router.bias is None else scores + self.router.bias.to(wide)

    def _dispatch(self, rows: Tensor, chosen: Tensor, weights: Tensor, valid: Tensor | None) -> Tensor:
        experts = [_single(expert) for expert in self.experts]
        return EXPERT_DISPATCH(DispatchCall(rows, experts, chosen, weights, valid), FORMS[self.dispatch])

    def _losses(self, logits: Tensor, chosen: Tensor, valid: Tensor | None) -> tuple[Loss, ...]:
        losses = []
        if self.balance_loss:
            losses.append(Loss("load_balance", self.balance_loss * load_balancing_loss(
                probabilities(logits, self.routing), chosen, valid)))
        if self.z_loss:
            losses.append(Loss("router_z", self.z_loss * router_z_loss(logits, valid)))
        return tuple(losses)


def _single(expert: nn.Module) -> Expert:
    """An expert as a map of rows; it is called as a module, so that its hooks run."""
    def apply(rows: Tensor) -> Tensor:
        y: Tensor = expert(rows[None]).y
        return y[0]

    return apply


def load_balancing_loss(shares: Float[Tensor, "rows N"], chosen: Int64[Tensor, "rows k"],
                        valid: Bool[Tensor, " rows"] | None) -> Float[Tensor, ""]:
    """N sum_n f_n P_n over the real rows; 0 when there are none. The gradient flows through P alone."""
    n_experts = shares.shape[1]
    picks = one_hot(chosen, n_experts).to(shares.dtype).mean(1)
    share, probability = _mean(picks, valid), _mean(shares, valid)
    return n_experts * (share * probability).sum()


def router_z_loss(logits: Float[Tensor, "rows N"], valid: Bool[Tensor, " rows"] | None) -> Float[Tensor, ""]:
    """mean (log sum_n exp l_n)^2 over the real rows; 0 when there are none."""
    return _mean(logits.logsumexp(-1).square(), valid)


def _mean(values: Tensor, valid: Tensor | None) -> Tensor:
    """The mean over real rows."""
    if valid is None:
        return values.sum(0) / max(values.shape[0], 1)
    real = valid.reshape(-1, *[1] * (values.dim() - 1))
    kept = torch.where(real, values, torch.zeros((), dtype=values.dtype, device=values.device))
    return kept.sum(0) / valid.sum().clamp(min=1)


@register
class MixtureOfExpertsConfig(FeedForwardConfig):
    """Dropless mixture of experts with top-k routing. ``shared_expert``: one more, which sees every token;
    ``shared_gate``: its output is multiplied by a sigmoid of a linear map of the token (Qwen 2). ``routing``: other
    scores, groups of experts and a correction, as in DeepSeek-V2 and V3.

    Attributes:
        expert: the configuration of every expert.
        shared_expert: one more, which sees every token; None: none.
        shared_gate: whether its output is multiplied by a sigmoid of a linear map of the token.
        n_experts: experts N.
        top_k: experts k that each token uses.
        renormalise: whether the gates of the k chosen experts are divided by their sum.
        balance_loss: coefficient of the loss that asks for equal use of experts.
        z_loss: coefficient of the loss on the size of the router's logits.
        dispatch: ``grouped``: each expert runs on its own tokens; ``dense``: on all of them; ``auto``: what pays.
        routing: how experts are scored, grouped and corrected.
    """

    kind: ClassVar[str] = "moe"
    about = About(
        source=("Shazeer et al. 2017 (arXiv:1701.06538), equation 1; Jiang et al. 2024 (arXiv:2401.04088), section "
                "2.1; Dai et al. 2024 (arXiv:2401.06066), section 3.2 (shared); DeepSeek-AI 2024 (arXiv:2412.19437), "
                "section 2.1.2 (corrected routing)"),
        equation=(r"l = W_{\text{router}}\, x, \qquad y = \sum_{n \in \text{top-}k(l)} g_n "
                  r"\operatorname{expert}_n(x), \qquad g = \operatorname{softmax}(l_{\text{top-}k})"),
        differs=(("glu", "a token uses k of N such layers, so that parameters grow and operations do not."),))

    expert: Annotated[FeedForwardConfig, PartField("feedforward")] = GLUConfig()
    shared_expert: Annotated[FeedForwardConfig, PartField("feedforward")] | None = None
    shared_gate: bool = False
    n_experts: int = Field(default=8, gt=0)
    top_k: int = Field(default=2, gt=0)
    renormalise: bool = True
    balance_loss: float = Field(default=0.01, ge=0)
    z_loss: float = Field(default=0.001, ge=0)
    dispatch: Dispatch = "auto"
    routing: RoutingSettings = DEFAULT

    def in_words(self, d_model: int = 0) -> str:
        beside = "" if self.shared_expert is None else f", beside a shared {self.shared_expert.in_words(d_model)}"
        return f"{self.top_k} of {self.n_experts} experts, each {self.expert.in_words(d_model)}{beside}"

    @model_validator(mode="after")
    def _experts_can_be_chosen(self) -> MixtureOfExpertsConfig:
        if self.top_k > self.n_experts:
            raise rule("top_k", f"{self.top_k} experts per token, but there are only {self.n_experts}.",
                       "Lower top_k or raise n_experts.")
        if isinstance(self.expert, Shared):
            raise rule("expert", f"the shared part {self.expert.shared!r} would be the same weights in every expert.",
                       "Write the expert's configuration here.")
        unfit = self.routing.problem(self.n_experts, self.top_k)
        if unfit is not None:
            raise rule(f"routing.{unfit[0]}", *unfit[1:])
        if self.shared_gate and self.shared_expert is None:
            raise rule("shared_gate", "true, but there is no shared expert whose output it would gate.",
                       "Give a shared_expert, or set shared_gate to false.")
        return self

    def build(self, dims: Dims) -> MixtureOfExperts:
        experts = [self._expert(self.expert, dims.at("expert")) for _ in range(self.n_experts)]
        every = self.shared_expert
        shared = None if every is None else self._expert(every, dims.at("shared_expert"))
        return MixtureOfExperts(dims.d_model, experts, self.top_k, renormalise=self.renormalise,
                                balance_loss=self.balance_loss, z_loss=self.z_loss, dispatch=self.dispatch,
                                shared=shared, gated=self.shared_gate, routing=self.routing)

    def _expert(self, config: FeedForwardConfig, dims: Dims) -> Pointwise:
        expert = config.build(dims)
        if isinstance(expert, Pointwise):
            return expert
        raise dims.problem("", f"{config.kind!r} does not treat every token by itself, so it cannot be an expert.",
                           "Use 'mlp' or 'glu'.")

    @classmethod
    def examples(cls) -> list[MixtureOfExpertsConfig]:
        small = GLUConfig(d_ff=6)
        return [cls(expert=small, n_experts=4), cls(expert=small, n_experts=3, top_k=1, renormalise=False, z_loss=0.0),
                cls(expert=small, n_experts=3, balance_loss=0.5, z_loss=0.5, dispatch="dense"),
                cls(expert=small, n_experts=2, balance_loss=0.0, dispatch="grouped"),
                cls(expert=small, n_experts=3, shared_expert=GLUConfig(d_ff=5), shared_gate=True),
                cls(expert=small, n_experts=3, shared_expert=small),
                cls(expert=small, n_experts=6, shared_expert=small, renormalise=False, routing=RoutingSettings(
                    n_expert_groups=3, top_groups=2, factor=2.5)),
                cls(expert=small, n_experts=8, routing=RoutingSettings(
                    score_function="sigmoid", n_expert_groups=4, top_groups=2, group_score="best_two",
                    correction=True)),
                cls(expert=small, n_experts=4, renormalise=False, routing=RoutingSettings(
                    score_function="sigmoid", correction=True, correction_rate=0.0)),
                cls(expert=small, n_experts=3, routing=RoutingSettings(bias=True))]
