"""The decoder: embeddings, positions, a list of blocks, a readout, for causal language models of any layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from torch import Tensor, nn

from weft.core.clock import Clock
from weft.core.compiling import Direct, calls_forward_alone, compiler_traces
from weft.core.config import SHAREABLE, PartField, SharedParts, rule
from weft.core.layer import LayerState
from weft.core.model import LanguageModel, ModelConfig, ModelState
from weft.core.part_config import About, Dims, ModuleConfig, Settings, Shared, expand
from weft.core.registry import register
from weft.core.span import Memory, Output, Span
from weft.core.state import child_field
from weft.heads.adaptive_embedding import AdaptiveEmbedding, ClusterSettings
from weft.heads.base import ClassifierConfig, HeadConfig
from weft.heads.readout import LinearReadoutConfig, ReadoutConfig
from weft.linear.linear import Linear, unadapted
from weft.linear.rewrite import rewritten
from weft.models.stack import Blocks, build_stack
from weft.models.width_transfer import WidthTransferSettings, transferred
from weft.norms.base import NoNormConfig, NormConfig
from weft.ops.dropout import Dropout
from weft.ops.embedding import embedding
from weft.positions.base import NoPositionConfig, PositionConfig, PositionScheme, least_limit


@dataclass(frozen=True)
class DecoderState(ModelState):
    """The state of the blocks."""

    stack: LayerState = child_field()


class EmbeddingSettings(Settings):
    """Token embeddings. If ``scale`` or ``std`` is left out, it is as the positions prescribe, if they do (sinusoidal
    ones, `PositionConfig.embedding_defaults`).

    Attributes:
        d_embedding: features of an embedding, which a linear map without bias brings to d_model; None: d_model, no map.
        scale: a factor; None: 1; ``sqrt_width``: the square root of the number of features.
        round_scale: whether the factor is rounded to the dtype of the embeddings before the multiplication (Gemma;
            sqrt(3072) is 55.5 in bfloat16). In float32 this changes only the last bits.
        dropout: probability with which a number is dropped in training, of the sum with positions after the norm.
        norm: of the sum with positions.
        std: standard deviation of initial embeddings; ``inverse_sqrt_width``: one over that square root, so that a
            vector has length 1 and a readout that is tied to it begins with logits of deviation 1 behind a norm,
            whatever the width (the released code of Vaswani et al. 2017).
        adaptive: clusters of ids whose vectors are the narrower, the rarer they are (`AdaptiveEmbedding`);
            ``d_embedding`` is then the width of the first cluster, and each cluster has a map of its own to d_model.
            None: all have the same width. Left out of files where it is None.
    """

    d_embedding: int | None = Field(default=None, gt=0)
    scale: float | Literal["sqrt_width"] | None = None
    round_scale: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)
    norm: Annotated[NormConfig, PartField("norm")] = NoNormConfig()
    std: Annotated[float, Field(gt=0)] | Literal["inverse_sqrt_width"] = "inverse_sqrt_width"
    adaptive: ClusterSettings | None = None

    def factor(self, width: int) -> float:
        """The factor of embeddings of ``width`` features."""
        return width ** 0.5 if self.scale == "sqrt_width" else 1.0 if self.scale is None else self.scale

    def deviation(self, width: int) -> float:
        """The standard deviation of initial embeddings of ``width`` features."""
        return width ** -0.5 if self.std == "inverse_sqrt_width" else self.std


class StackedConfig(ModelConfig):
    """Base of the configurations of models made of blocks.

    Attributes:
        d_model: width of the residual stream D, in features.
        embedding: how token ids become vectors of D features.
        position: a scheme that acts on embeddings, once; those that act in every layer are declared in the layers.
        shared: parts by name that are built once and used wherever ``{shared: NAME}`` stands.
        blocks: the blocks in order, or ``{repeat: N, of: [...]}``.
        norm: behind the last block; ``none``: there is none.
        head: predictions of a task from the last vectors; None: no head.
    """

    d_model: int = Field(gt=0)
    embedding: EmbeddingSettings = EmbeddingSettings()
    position: Annotated[PositionConfig, PartField("position")] = NoPositionConfig()
    shared: dict[str, Annotated[ModuleConfig, PartField(*SHAREABLE)]] = Field(default_factory=dict)
    blocks: Blocks
    norm: Annotated[NormConfig, PartField("norm")] = NoNormConfig()
    head: Annotated[HeadConfig, PartField("head")] | None = None

    def stack(self) -> list[ModuleConfig]:
        return self.blocks

    def in_words(self, d_model: int = 0) -> str:
        """Blocks that are alike are said once: ``4 layers, width 112, 4 heads / 2 kv, RoPE, SwiGLU 290``."""
        blocks = [block.in_words(self.d_model) for _, block in expand(self.blocks)]
        alike = Counter(blocks)
        said = [f"{count} × {words}" if 1 < count < len(blocks) else words for words, count in alike.items()]
        parts = [f"{len(blocks)} {'layer' if len(blocks) == 1 else 'layers'}", f"width {self.d_model:,}",
                 self.position.in_words(self.d_model), "; ".join(said)]
        return ", ".join(each for each in parts if each)

    def labels(self) -> tuple[str, ...]:
        return self.head.names if isinstance(self.head, ClassifierConfig) else ()

    @model_validator(mode="before")
    @classmethod
    def _as_positions_prescribe(cls, data: Any) -> Any:
        """Add what the positions prescribe to the configuration, so that a checkpoint records the values even if a
        later version prescribes others."""
        return _prescribed(data) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _check(self) -> Self:
        require_stack(self.blocks, self.shared)
        return self


def require_stack(blocks: list[ModuleConfig], shared: Mapping[str, ModuleConfig]) -> None:
    """Refuse a model without blocks, and shared parts with names that no module may have."""
    if not blocks:
        raise rule("blocks", "a model without blocks does nothing.", "List at least one block.")
    for name in shared:
        if not name.isidentifier() or name in dir(nn.ModuleDict()):
            raise rule("shared", f"{name!r} cannot name a part.", "Choose another word, such as 'table'.")


def _prescribed(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a model of blocks with the values that its positions prescribe for embeddings. Invalid fields are
    left as they are; their own validators report them."""
    settings, scheme = data.get("embedding", {}), _scheme(data.get("position"), data.get("shared"))
    fields = settings.model_dump(exclude_unset=True) if isinstance(settings, EmbeddingSettings) else settings
    if scheme is None or not scheme.embedding_defaults or not isinstance(fields, Mapping):
        return data
    return {**data, "embedding": {**scheme.embedding_defaults, **fields}}


def _scheme(position: Any, shared: Any) -> PositionConfig | None:
    """The position scheme of a model, perhaps declared under ``shared``; None if there is none or it is invalid."""
    try:
        scheme = None if position is None else PartField("position").resolve(position)
        if isinstance(scheme, Shared) and isinstance(shared, Mapping) and scheme.shared in shared:
            scheme = PartField("position").resolve(shared[scheme.shared])
    except PydanticCustomError:
        return None
    return scheme if isinstance(scheme, PositionConfig) else None


def looked_up(table: nn.Module, numbers: Tensor) -> Tensor:
    """Rows of an embedding table in training; of a table that has been adapted, what it returns itself."""
    if not unadapted(table, nn.Embedding):
        adapted: Tensor = table(numbers)
        return adapted
    weight: Tensor = table.weight  # type: ignore[assignment]  # under torch.func a tensor, and no parameter
    return embedding(numbers, weight)


class Embedding(Direct):
    """Token embeddings with the positions that act on embeddings."""

    def __init__(self, settings: EmbeddingSettings, position: PositionConfig, dims: Dims) -> None:
        super().__init__()
        self.position: PositionScheme = position.build(dims.at("position"))
        if self.position.acts_on - {"embeddings"}:
            raise dims.problem("position", f"{position.kind!r} acts inside attention, not on embeddings.",
                               "Put it in the attention's `position`.")
        if self.position.width >= dims.d_model:
            raise dims.problem("position", f"its {self.position.width} features leave no room in d_model "
                               f"{dims.d_model}.", "Choose a larger d_model.")
        width = dims.d_model - self.position.width
        narrow = settings.d_embedding
        self.tokens: nn.Embedding | AdaptiveEmbedding
        if settings.adaptive is None:
            self.tokens = nn.Embedding(dims.vocab_size, width if narrow is None else narrow)
        else:
            self.tokens = AdaptiveEmbedding(settings.adaptive, width, narrow, dims.at("embedding", "adaptive"))
        self.projection = (None if narrow is None or settings.adaptive is not None
                           else Linear(narrow, width, bias=False))
        for table in self.tokens.modules():
            if isinstance(table, nn.Embedding):
                nn.init.normal_(table.weight, std=settings.deviation(table.embedding_dim))
        self.scale, self.round_scale = settings.factor(self.tokens.embedding_dim), settings.round_scale
        self.norm = settings.norm.build(dims.at("embedding", "norm"))
        self.dropout = Dropout(settings.dropout)

    def forward(self, tokens: Tensor, span: Span, more: Tensor | None = None) -> Tensor:
        """Embeddings [B,T,D] with positions, zero beyond each row's count.

        Args:
            tokens: ids [B,T].
            more: added before the norm, [B,T,D] (embeddings of segments).
        """
        children: Any = self._modules  # by name torch looks a child up in a function of Python's
        table = children["tokens"]
        if self.training:
            x = looked_up(table, tokens)
        elif (type(table) is nn.Embedding and table.max_norm is None and not compiler_traces()
              and calls_forward_alone(table)):
            weight: Any = table._parameters["weight"]
            x = torch.embedding(weight, tokens)  # what four functions of PyTorch's lead to
        else:
            x = table(tokens)
        if self.scale != 1.0:
            x = x * (float(torch.tensor(self.scale, dtype=x.dtype)) if self.round_scale else self.scale)
        x = x if self.projection is None else self.projection(x)
        position = children["position"]
        x = position.embed(x, span.ticks) if position.acts_on else x
        x = children["norm"](x if more is None else x + more, span.ticks.valid)
        dropout = children["dropout"]
        y: Tensor = dropout(x) if dropout.training else x
        return y if span.count is None else span.clean(y)


@register
class DecoderConfig(StackedConfig):
    """embeddings -> blocks -> norm -> readout, with any list of blocks that attend to no later tokens. A ``head`` reads
    the same vectors as the readout (for scores of classes of a row, for example). ``parametrization``: ``{kind: mup,
    base_width: 64}``, with which the best learning rate does not depend on the width, see
    `weft.models.width_transfer`; None: the usual one.

    Attributes:
        readout: from the last vectors to logits of the next token.
        parametrization: ``{kind: mup, base_width: 64}``, with which the best learning rate does not depend on the
            width; None: the usual one.
    """

    kind: ClassVar[str] = "decoder"
    about = About(
        source="Radford et al. 2018; Vaswani et al. 2017, section 3 (the decoder side)",
        equation=(r"h_0 = E_x, \qquad h_l = \operatorname{block}_l(h_{l-1}), \qquad p(x_{t+1} \mid x_{\le t}) = "
                  r"\operatorname{softmax}\left(\operatorname{readout}(\operatorname{norm}(h_{L,t}))\right)"),
        differs=(("encoder_decoder", "reads no source."),
                 ("encoder", "every token depends on earlier ones alone, so that it writes text."),
                 ("feedforward", "its context is as long as its layers reach, where that of feedforward is n - 1 "
                                 "tokens.")),
        state_size="the sum of its layers'")

    readout: Annotated[ReadoutConfig, PartField("readout")] = LinearReadoutConfig()
    parametrization: WidthTransferSettings | None = None

    def width_fields(self) -> tuple[str, ...]:
        return ("d_model",)

    def build(self, dims: Dims | None = None) -> Decoder:
        if self.parametrization is not None:
            return transferred(self, self.parametrization, Decoder)
        return rewritten(Decoder(self), self.rewrites)

    @classmethod
    def examples(cls) -> list[Self]:
        mlp = {"kind": "mlp", "d_ff": 12}
        pre = {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"}, mlp]}
        return [
            cls.model_validate({"vocab_size": 11, "context": 16, "d_model": 8, "norm": "layernorm",
                                "blocks": [{"repeat": 2, "of": [pre]}]}),
            cls.model_validate({"vocab_size": 11, "context": 32, "d_model": 8, "position": "learned",
                                "embedding": {"scale": 2.0, "norm": "rmsnorm", "dropout": 0.1},
                                "readout": {"kind": "linear", "tied": False},
                                "blocks": [{"kind": "post", "layers": ["s4d", mlp]}]}),
            cls.model_validate({"vocab_size": 11, "context": 32, "d_model": 8, "embedding": {"d_embedding": 5},
                                "readout": {"kind": "linear", "d_embedding": 5}, "blocks": [pre]}),
            cls.model_validate({"vocab_size": 11, "context": 32, "d_model": 8,
                                "embedding": {"adaptive": {"cutoffs": [3, 7], "div_val": 2}},
                                "readout": {"kind": "adaptive", "cutoffs": [3, 7], "div_val": 2, "projections": "all",
                                            "tied_projections": "tails", "bias": "all"}, "blocks": [pre]}),
            cls.model_validate({"vocab_size": 11, "context": 16, "d_model": 8, "blocks": [pre],
                                "parametrization": {"kind": "mup", "base_width": 4}}),
        ]


class Decoder(LanguageModel):
    """A decoder-only language model."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        dims = Dims(config.d_model, config.vocab_size, config.context, predicts=True)
        self.embedding, self.shared, dims = build_embedding(config, dims)
        self.stack = build_stack(config.blocks, dims)
        self.norm = config.norm.build(dims.at("norm"))
        self.readout = config.readout.build(dims.at("readout"))
        self.head = None if config.head is None else config.head.build(dims.at("head"))
        self.shared.require_used()

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> DecoderState:
        stack = self.stack.start(clock, capacity=capacity, dtype=dtype, memory=memory)
        return DecoderState(clock, self.fingerprint, stack)

    def run(self, tokens: Tensor, state: ModelState | None, span: Span) -> Output[ModelState]:
        inner = None
        if state is not None:
            assert isinstance(state, DecoderState)
            inner = state.stack
        children: Any = self._modules  # by name torch looks a child up in a function of Python's
        out = children["stack"](children["embedding"](tokens, span), inner, span)
        y = children["norm"](out.y, span.ticks.valid)
        return Output(y, None if state is None else DecoderState(span.after, state.owner, out.state), out.losses)

    def limit(self) -> int | None:
        return least_limit(self)


def build_embedding(config: StackedConfig, dims: Dims) -> tuple[Embedding, SharedParts, Dims]:
    """The embedding, the shared parts, which are built on their first use, and the dimensions with both."""
    shared = SharedParts(config.shared)
    dims = replace(dims, shared=shared)
    embedding = Embedding(config.embedding, config.position, dims)
    tokens = embedding.tokens
    if isinstance(tokens, AdaptiveEmbedding):
        return embedding, shared, replace(dims, clusters=tokens)
    return embedding, shared, replace(dims, tokens=tokens)
