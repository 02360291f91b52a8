"""Fully connected networks of images: deep classifiers, autoencoders, stacks of restricted Boltzmann machines."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.config import rule
from weft.core.images import LayeredModel, WayBack
from weft.core.model import EncoderInputs, ModelState
from weft.core.part import Part
from weft.core.part_config import About, Dims, Settings
from weft.core.registry import register
from weft.core.span import WHOLE, Output, Span
from weft.heads.classifier import LayerClasses, LayerClassesConfig
from weft.linear.linear import EVERYTHING, Linear
from weft.linear.rewrite import rewritten
from weft.models.image_inputs import ImageInput, patches_of
from weft.models.image_model import ImageModelConfig, PatchedModel
from weft.ops.activations import ACTIVATIONS, Activation


class BackSettings(Settings):
    """The way back from the units of each layer to its inputs.

    Attributes:
        tied: whether a layer's matrix is used transposed, W' = W^T; otherwise the way back has a matrix of its own.
        output: the function that gives the lowest layer's inputs, the pixels; those of a layer above are units, for
            which it is the network's activation.
    """

    tied: bool = True
    output: Literal["sigmoid", "identity"] = "sigmoid"


@register
class DenseConfig(ImageModelConfig):
    """Layers h_l = f(W_l h_{l-1} + b_l) of an image, which is one vector h_0 = x, and a head.

    Attributes:
        widths: units of each layer, from the lowest.
        activation: f.
        back: the way back, with which it is an autoencoder and, with sigmoids and tied, a stack of restricted Boltzmann
            machines; None: none. A classifier that starts from such a network keeps it and does not change it.
    """

    kind: ClassVar[str] = "dense"
    about = About(
        also_called=("autoencoder", "stacked_autoencoder", "rbm", "boltzmann", "dbn", "deep_belief_network",
                     "perceptron", "fully_connected"),
        source="Bengio et al. 2006, sections 2 and 4; Hinton et al. 2006",
        equation=r"h_0 = x, \qquad h_l = f(W_l h_{l-1} + b_l), \qquad x' = g(W' h + b')",
        differs=(("image_encoder", "reads an image as one vector, without patches, positions or attention."),))

    context: int = Field(default=1, gt=0)
    widths: tuple[Annotated[int, Field(gt=0)], ...] = Field(min_length=1)
    activation: Activation = "sigmoid"
    back: BackSettings | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.back is not None and self.rewrites:
            raise rule("rewrites", "a network with a way back uses its matrices in both directions, which a rewrite "
                       "would lose.", "Leave out one of them.")
        return self

    def build(self, dims: Dims | None = None) -> Dense:
        return rewritten(Dense(self), self.rewrites)

    @classmethod
    def examples(cls) -> list[Self]:
        image = {"height": 3, "width": 2}
        return [
            cls.model_validate({"image": image, "widths": [7, 5],
                                "head": {"kind": "pooled", "n_classes": 3, "dropout": 0.1}}),
            cls.model_validate({"image": {**image, "pixel_scaling": "standard", "per": "feature"}, "widths": [5],
                                "activation": "tanh", "back": {"tied": False, "output": "identity"}}),
            cls.model_validate({"image": image, "widths": [7, 5], "back": {}, "head": {"kind": "layer_classes",
                                                                                    "n_classes": 3}}),
        ]


class LayerBack(Part):
    """The way back of a layer: ``bias`` [P], and ``weight`` [P,D] if it is not tied; P inputs, D units."""

    def __init__(self, layer: Linear, tied: bool) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(layer.in_features))
        self.weight = None if tied else nn.Parameter(Linear(layer.out_features, layer.in_features).weight.detach())

    def forward(self, units: Float[Tensor, "... D"], matrix: Float[Tensor, "D P"]) -> Float[Tensor, "... P"]:
        """a = W' units + b' before the function, with ``matrix`` that of the layer."""
        return F.linear(units, matrix.t() if self.weight is None else self.weight, self.bias)


class Dense(PatchedModel, LayeredModel):
    """Layers of units h_l = f(W_l h_{l-1} + b_l), h_0 = x, with an optional way back x' = g(W' h + b') from each.

    An image is one token [1,P], and rows of several are computed each by itself. The initial weights and biases are
    uniform in +-1/sqrt(inputs), and biases of the way back are zero.
    """

    def __init__(self, config: DenseConfig) -> None:
        super().__init__(config)
        self.input = ImageInput(config.image, (config.image.height, config.image.width))
        self.activation, self.depth, back = ACTIVATIONS[config.activation], len(config.widths), config.back
        self.way_back = None if back is None else WayBack(back.tied, config.activation, back.output,
                                                          config.image.pixel_scaling)
        sizes = (self.input.features, *config.widths)
        allows = EVERYTHING if config.back is None else frozenset()
        made = [Linear(a, b, allows=allows) for a, b in pairwise(sizes)]
        self.layers = nn.ModuleList(made)
        self.back = None if config.back is None else nn.ModuleList(LayerBack(each, config.back.tied) for each in made)
        dims, head = Dims(config.widths[-1]).at("head"), config.head
        self.head = (None if head is None else head.build_for(dims, config.widths)
                     if isinstance(head, LayerClassesConfig) else head.build(dims))
        self.scores_layers = isinstance(self.head, LayerClasses)

    def vectors(self, inputs: EncoderInputs, span: Span | None = None) -> Output[ModelState]:
        """The units of the highest layer, [B,S,D], zero beyond each row's count. Raises `InputError`: there are no
        images, or inputs that it does not read."""
        patches = patches_of(inputs, self.input.features)
        span = (WHOLE if span is None else span).resolve(None, patches)
        x = self.scaled(span.clean(patches))
        for index in range(len(self.layers)):
            x = self.up(index, x)
        return Output(span.clean(x), None)

    def pixels(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B P"]:
        """The lowest layer's inputs of images. Raises `InputError`: images of another size."""
        patches = self.images(images).patches
        assert patches is not None, "images become patches"
        return self.scaled(patches)[:, 0]

    def scaled(self, patches: Float[Tensor, "B S P"]) -> Float[Tensor, "B S P"]:
        """The lowest layer's inputs h_0."""
        scaled: Tensor = self.input(patches, self.dtype())
        return scaled

    def up(self, layer: int, x: Float[Tensor, "... P"]) -> Float[Tensor, "... D"]:
        """The units of a layer from its inputs."""
        y: Tensor = self.activation(self.layers[layer](x))
        return y

    def back_sum(self, layer: int, units: Float[Tensor, "... D"]) -> Float[Tensor, "... P"]:
        """a = W' units + b' of a layer; its inputs are a function of it, see `back_function`."""
        assert self.back is not None, "a network without a way back is refused before"
        a: Tensor = self.back[layer](units, self.layers[layer].weight)
        return a

    def back_function(self, layer: int, a: Tensor) -> Tensor:
        """The function of the way back: the sigmoid or the identity for pixels, the activation for units."""
        if layer:
            return self.activation(a)
        assert self.way_back is not None, "a network without a way back is refused before"
        return torch.sigmoid(a) if self.way_back.output == "sigmoid" else a

    def free_energy(self, layer: int, x: Float[Tensor, "... P"]) -> Float[Tensor, "..."]:
        """F(x) = -b'x - sum_j log(1 + exp(W_j x + b_j)) of the restricted Boltzmann machine with the energy E(x,h) =
        -b'x - b h - h W x, so that p(x) is proportional to exp(-F(x)); in nats."""
        assert self.back is not None, "a network without a way back is refused before"
        bias: Tensor = self.back[layer].get_parameter("bias")
        return -(x * bias).sum(-1) - F.softplus(self.layers[layer](x)).sum(-1)

    def gibbs(self, layer: int, x: Float[Tensor, "... P"], steps: int) -> Float[Tensor, "... P"]:
        """Inputs after steps of Gibbs sampling from ``x``: units drawn given the inputs, and inputs given the units."""
        with torch.no_grad():
            for _ in range(steps):
                units = torch.bernoulli(torch.sigmoid(self.layers[layer](x)))
                x = torch.bernoulli(torch.sigmoid(self.back_sum(layer, units)))
        return x

    def layer_scores(self, layer: int, units: Float[Tensor, "B D"]) -> Float[Tensor, "B C"]:
        """The scores of classes from a layer's units, by a head with classes of each layer."""
        assert isinstance(self.head, LayerClasses), "a network without such a head is refused before"
        return self.head.layer_scores(layer, units)
