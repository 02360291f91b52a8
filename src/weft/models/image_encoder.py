"""The image encoder: patches of an image as tokens of a list of blocks (the Vision Transformer, with any mixer).

A model of images for another size of image: its table of positions is interpolated, everything else stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.config import SHAREABLE, PartField, SharedParts, rule
from weft.core.errors import ConfigError, UnsupportedError
from weft.core.model import EncoderInputs, Model, ModelState, parse_model
from weft.core.part import Part
from weft.core.part_config import About, Dims, ModuleConfig
from weft.core.registry import register
from weft.core.span import WHOLE, Output, Span
from weft.heads.classifier import PooledConfig
from weft.linear.linear import Linear
from weft.linear.rewrite import rewritten
from weft.models.decoder import require_stack
from weft.models.image_inputs import ImageInput, patches_of
from weft.models.image_model import ImageModelConfig, PatchedModel
from weft.models.stack import Blocks, build_stack
from weft.norms.base import NoNormConfig, NormConfig
from weft.ops.dropout import Dropout
from weft.positions.base import PositionConfig, PositionScheme, least_limit
from weft.positions.learned import LearnedPosition, LearnedPositionConfig

STD = 0.02
"""Standard deviation of the initial patch embedding and class token, as in the released code of the Vision Transformer
for its positions, and as models of text have it."""


@register
class ImageEncoderConfig(ImageModelConfig):
    """patches -> linear map -> positions -> blocks -> norm -> head. Its attention layers have ``mask: bidirectional``.

    Attributes:
        patch: height and width of a patch, in pixels, which divide those of the image.
        class_token: whether a learned vector stands before the patches, whose last vector a head with ``pool: first``
            reads. Without one, a head with ``pool: mean`` reads the mean of the patches.
        dropout: probability with which a number is dropped in training, of the sum of patches and positions.
        context: tokens of an image; it is counted from the image and the patch if it is left out.
        d_model: width of the residual stream D, in features.
        position: a scheme that acts on the patches' vectors, once.
        shared: parts by name that are built once and used wherever ``{shared: NAME}`` stands.
        blocks: the blocks in order, or ``{repeat: N, of: [...]}``.
        norm: behind the last block; ``none``: there is none.
    """

    kind: ClassVar[str] = "image_encoder"
    about = About(
        also_called=("vit", "vision_transformer", "vision", "image_transformer"),
        source="Dosovitskiy et al. 2021, section 3.1, equations 1 to 4",
        equation=(r"h_0 = [x_{\text{class}};\, E p_1;\, \ldots;\, E p_N] + P, \qquad h_l = "
                  r"\operatorname{block}_l(h_{l-1}), \qquad h = \operatorname{norm}(h_L)"),
        differs=(("encoder", "its tokens are patches of an image that a linear map makes vectors."),
                 ("dense", "patches attend to one another, where dense reads all pixels as one vector.")))

    patch: tuple[int, int] = (4, 4)
    class_token: bool = True
    d_model: int = Field(gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    position: Annotated[PositionConfig, PartField("position")] = LearnedPositionConfig()
    shared: dict[str, Annotated[ModuleConfig, PartField(*SHAREABLE)]] = Field(default_factory=dict)
    blocks: Blocks
    norm: Annotated[NormConfig, PartField("norm")] = NoNormConfig()

    @model_validator(mode="before")
    @classmethod
    def _count_tokens(cls, data: Any) -> Any:
        """Fill in ``context``. Fields that cannot be used are left to their own validators."""
        if not isinstance(data, Mapping) or "context" in data:
            return data
        image, patch = data.get("image"), data.get("patch", cls.model_fields["patch"].default)
        sides = [image.get(name) if isinstance(image, Mapping) else getattr(image, name, None)
                 for name in ("height", "width")]
        try:
            cells = (sides[0] // patch[0]) * (sides[1] // patch[1])
            return {**data, "context": cells + bool(data.get("class_token", True))}
        except (TypeError, LookupError, ZeroDivisionError, ValueError):
            return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        require_stack(self.blocks, self.shared)
        for side, whole, part in zip(("height", "width"), self.image.size[1:], self.patch, strict=True):
            if part < 1 or whole % part:
                raise rule("patch", f"patches of {part} pixels do not divide a {side} of {whole}.",
                           f"Choose a divisor of {whole}.")
        pooled = self.head if isinstance(self.head, PooledConfig) else None
        if self.class_token and pooled is not None and pooled.pool != "first":
            raise rule("head", f"pool: {pooled.pool}, which would read the class token with the patches.",
                       "Give pool: first, or class_token: false.")
        return self

    def build(self, dims: Dims | None = None) -> ImageEncoder:
        return rewritten(ImageEncoder(self), self.rewrites)

    @classmethod
    def examples(cls) -> list[Self]:
        image = {"height": 8, "width": 8}
        attention, mlp = {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}, {"kind": "mlp", "d_ff": 12}
        turned = {**attention, "position": {"kind": "axial_rope", "grid": [4], "first": 1}}
        return [
            cls.model_validate({"image": image, "patch": [2, 2], "d_model": 8, "dropout": 0.1, "norm": "layernorm",
                                "blocks": [{"repeat": 2, "of": [{"kind": "pre", "layers": [attention, mlp]}]}],
                                "head": {"kind": "pooled", "n_classes": 3}}),
            cls.model_validate({"image": {**image, "channels": 3, "pixel_scaling": "standard", "per": "feature"},
                                "patch": [2, 1], "d_model": 8, "class_token": False, "position": "none",
                                "blocks": [{"kind": "pre", "layers": ["gru", mlp]}],
                                "head": {"kind": "pooled", "pool": "mean", "n_classes": 2}}),
            cls.model_validate({"image": image, "patch": [2, 2], "d_model": 16,
                                "position": {"kind": "axial_sinusoidal", "grid": [4], "first": 1},
                                "blocks": [{"kind": "pre", "layers": [turned, mlp]}]}),
        ]


class PatchEmbedding(Part):
    """Embeddings of patches, z_0 = [x_class; x_1 E; ...; x_N E] + positions (equation 1 of the paper).

    ``projection`` [D,P] with a bias is E; ``first`` [D] is the class token. The first place of each row, and of each
    document of a packed row, is that of the class token: what an input holds there is not read.
    """

    def __init__(self, config: ImageEncoderConfig, position: PositionScheme, features: int) -> None:
        super().__init__()
        self.projection = Linear(features, config.d_model)
        nn.init.normal_(self.projection.weight, std=STD)
        nn.init.zeros_(self.projection.bias)
        self.first = nn.Parameter(torch.randn(config.d_model) * STD) if config.class_token else None
        self.position, self.dropout = position, Dropout(config.dropout)

    def forward(self, patches: Float[Tensor, "B S P"], span: Span) -> Float[Tensor, "B S D"]:
        """Embeddings with positions, zero beyond each row's count."""
        x, ticks = self.projection(patches), span.ticks
        if self.first is not None:
            x = torch.where(begins_of(span), self.first, x)
        x = self.position.embed(x, ticks) if self.position.acts_on else x
        y: Tensor = span.clean(self.dropout(x))
        return y


def begins_of(span: Span) -> Tensor:
    """True at the first place of each document, [#B,S,1]."""
    return (span.ticks.order == span.ticks.begin)[..., None]


class ImageEncoder(PatchedModel):
    """A bidirectional model of an image's patches, with a head for a task if one is configured."""

    def __init__(self, config: ImageEncoderConfig) -> None:
        super().__init__(config)
        self.input = ImageInput(config.image, config.patch, blanks=int(config.class_token))
        self.shared = SharedParts(config.shared)
        dims = Dims(config.d_model, context=config.context, shared=self.shared)
        position = config.position.build(dims.at("position"))
        if position.acts_on - {"embeddings"} or position.width:
            raise dims.problem("position", f"{config.position.kind!r} is not added to embeddings.",
                               "Put it in the attention's `position`, or give learned or axial_sinusoidal.")
        self.embedding = PatchEmbedding(config, position, self.input.features)
        self.stack = build_stack(config.blocks, dims)
        self.norm = config.norm.build(dims.at("norm"))
        self.head = None if config.head is None else config.head.build(dims.at("head"))
        self.shared.require_used()

    def vectors(self, inputs: EncoderInputs, span: Span | None = None) -> Output[ModelState]:
        """Hidden vectors [B,S,D], the class token's first if there is one, zero beyond each row's count.

        Args:
            inputs: patches [B,S,P] of unscaled pixels, from `images`; with a class token the first of each row is a
                blank in its place.
            span: the number of places of each row, if they differ.

        Raises:
            InputError: there are no patches, or inputs that it does not read.
        """
        patches = patches_of(inputs, self.input.features)
        span = (WHOLE if span is None else span).resolve(None, patches)
        patches = span.clean(patches)
        if self.embedding.first is not None:
            patches = torch.where(begins_of(span), torch.zeros((), dtype=patches.dtype, device=patches.device), patches)
        x = self.embedding(self.input(patches, self.dtype()), span)
        out = self.stack(x, None, span)
        return Output(span.clean(self.norm(out.y, span.ticks.valid)), None, out.losses)

    def limit(self) -> int | None:
        return least_limit(self)


ON_GRID = ("axial_rope", "axial_sinusoidal")


@torch.no_grad()
def resized(model: Model, height: int, width: int) -> ImageEncoder:
    """The model for images of another height and width, with patches of the same size, so that it reads more or fewer
    of them (Dosovitskiy et al. 2021, section 3.2).

    A learned position is that of a place in the image: the table is interpolated on the grid of patches by cubic
    convolution, with corners of pixels aligned, and the class token's row is kept. Positions that are computed from the
    grid follow its number of columns.

    Args:
        model: an image encoder; it does not change.
        height: of the new images, in pixels.
        width: of the new images, in pixels.

    Raises:
        UnsupportedError: another kind of model.
        ConfigError: patches do not divide the new size.
    """
    if not isinstance(model, ImageEncoder):
        raise UnsupportedError(f"a model of kind {model.config.kind!r} has no patches of which an image may have more "
                               "or fewer.", where="model", remedy="Give an image encoder.")
    before = model.config.dump()
    columns = (model.input.grid[1], width // model.input.patch[1])
    plain = {key: value for key, value in before.items() if key != "context"}
    plain = _on_grid({**plain, "image": {**before["image"], "height": height, "width": width}}, *columns)
    position = model.embedding.position
    if isinstance(position, LearnedPosition):
        if position.offset or position.limit != model.input.tokens:
            raise ConfigError([f"model.position: a table of {position.limit} rows, while an image has "
                               f"{model.input.tokens} tokens, so its rows are not places of an image."])
        plain["position"] = {**before["position"], "max_length": None}
    made = parse_model(plain).build()
    assert isinstance(made, ImageEncoder), "the same kind of model"
    made.to(next(model.parameters()).dtype)
    tensors = model.state_dict()
    if isinstance(position, LearnedPosition):
        tensors["embedding.position.table"] = _interpolated(position.table, model, made)
    made.load_state_dict(tensors)
    return made.eval()


def _on_grid(value: Any, before: int, after: int) -> Any:
    """Plain data of a configuration in which positions on a grid of ``before`` columns have one of ``after``."""
    if isinstance(value, dict):
        found = {key: _on_grid(item, before, after) for key, item in value.items()}
        return {**found, "grid": [after]} if found.get("kind") in ON_GRID and found["grid"] == [before] else found
    return [_on_grid(item, before, after) for item in value] if isinstance(value, list) else value


def _interpolated(table: Tensor, before: ImageEncoder, after: ImageEncoder) -> Tensor:
    """The table of ``after``, from that of ``before``, in float32 or wider."""
    wide = table.to(torch.promote_types(table.dtype, torch.float32))
    kept, places = wide[:before.input.blanks], wide[before.input.blanks:]
    grid = places.reshape(1, *before.input.grid, -1).permute(0, 3, 1, 2)
    new = F.interpolate(grid, after.input.grid, mode="bicubic", align_corners=False)
    return torch.cat([kept, new.permute(0, 2, 3, 1).reshape(-1, places.shape[1])]).to(table.dtype)
