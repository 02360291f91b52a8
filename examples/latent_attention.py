"""A mixer from outside Weft: attention whose keys and values are kept as one short vector, from which every head makes
its own. It overrides the stages that project, store and mix."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from weft.core.clock import Ticks
from weft.core.layer import LayerState
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.core.span import Span
from weft.linear.linear import Linear
from weft.mixers.attention import Attention, AttentionConfig
from weft.mixers.heads import HeadSizes
from weft.mixers.key_value import KeyValueShape, Stored
from weft.positions.base import PositionScheme


@register
class LatentAttentionConfig(AttentionConfig):
    """k_h = [U_h c, r] and v_h = V_h c, of a latent c of ``d_latent`` features and ``d_turned`` features r that all
    heads share and that alone are turned by the positions."""

    kind: ClassVar[str] = "latent_attention"
    source: ClassVar[str] = "DeepSeek-AI 2024 (DeepSeek-V2), section 2.1, equations 9 to 19, queries uncompressed"
    state_size: ClassVar[str] = "d_latent + d_turned numbers a token"
    d_latent: int = Field(default=16, gt=0)
    d_turned: int = Field(default=8, gt=0)

    def build(self, dims: Dims) -> LatentAttention:
        sizes = self.sizes(dims)
        return LatentAttention(self, sizes, self.scheme(sizes.heads, self.d_turned, dims), dims)

    @classmethod
    def examples(cls) -> list[Any]:
        return [cls.model_validate({"n_heads": 2, "d_head": 4, "d_latent": 5, "d_turned": 2, "position": "rope"})]


class LatentAttention(Attention):
    """Scores (U_h^T q_h) c + q_r r, so that keys are read as they are kept, by all heads at once; V_h follows the
    weighted sum of latents."""

    def __init__(self, config: LatentAttentionConfig, sizes: HeadSizes, position: PositionScheme, dims: Dims) -> None:
        super().__init__(config, sizes, position, dims)
        heads, self.latent, self.turned = sizes.heads, config.d_latent, config.d_turned
        wide = sizes.d_head + self.turned
        self.qkv = Linear(dims.d_model, heads * wide + self.latent + self.turned, bias=False)
        self.up = nn.Parameter(torch.randn(heads, sizes.d_head, self.latent) * self.latent ** -0.5)
        self.down = nn.Parameter(torch.randn(heads, sizes.d_value, self.latent) * self.latent ** -0.5)
        self.scale = wide ** -0.5

    def stored_sizes(self) -> KeyValueShape:
        return KeyValueShape(1, self.latent + self.turned, 0)

    def project(self, x: Tensor, ticks: Ticks) -> tuple[Tensor, Tensor, Tensor]:
        heads, size = self.sizes.heads, self.sizes.d_head
        q, latent, shared = self.qkv(x).split([heads * (size + self.turned), self.latent, self.turned], -1)
        content, own = q.unflatten(-1, (heads, size + self.turned)).split([size, self.turned], -1)
        own, shared = self.position.rotate(torch.cat([own, shared[:, :, None]], 2), ticks).split([heads, 1], 2)
        q = torch.cat([torch.einsum("bthe,hel->bthl", content, self.up), own], -1)
        k = torch.cat([latent[:, :, None], shared], -1)
        return q, k, k[..., :0]

    def store(self, state: LayerState | None, k: Tensor, v: Tensor, span: Span) -> Stored:
        stored = super().store(state, k, v, span)
        return stored._replace(v=stored.k[..., : self.latent])

    def mix(self, y: Tensor) -> Tensor:
        return super().mix(torch.einsum("bthl,hfl->bthf", y, self.down))
