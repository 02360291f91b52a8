"""`ImageModel` and `LayeredModel`: the interfaces of models of images on which tasks and conversions depend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from weft.core.model import Encoder, EncoderInputs


class ImageModel(Encoder, ABC):
    """A model that reads images as rows of patches."""

    @property
    @abstractmethod
    def image_size(self) -> tuple[int, int, int]:
        """Channels, height and width of the images that it reads."""

    @property
    @abstractmethod
    def image_tokens(self) -> int:
        """Places of an image in a row: its patches, and those that the model fills in."""

    @abstractmethod
    def images(self, pixels: Float[Tensor, "B C H W"]) -> EncoderInputs:
        """Images as the model's inputs, with unscaled pixels. Raises `InputError`: images of another size."""

    @abstractmethod
    def fit_scaling(self, pixels: Float[Tensor, "n C H W"]) -> None:
        """Measure how pixels are scaled on the images to train on."""


class WayBack(NamedTuple):
    """How a layered model goes from units back to inputs.

    Attributes:
        tied: whether by the transposes of its matrices.
        activation: the function of its units, and of reconstructed units.
        output: the function of reconstructed pixels.
        scaling: of the pixels that it reads.
    """

    tied: bool
    activation: str
    output: str
    scaling: str


class LayeredModel(ImageModel, ABC):
    """A model of images whose layers can be trained one after another.

    Attributes:
        depth: number of layers.
        way_back: None without one.
        scores_layers: whether `layer_scores` gives scores of classes from each layer.
    """

    depth: int
    way_back: WayBack | None
    scores_layers: bool

    @abstractmethod
    def pixels(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B P"]:
        """The lowest layer's inputs. Raises `InputError`: images of another size."""

    @abstractmethod
    def up(self, layer: int, x: Float[Tensor, "... P"]) -> Float[Tensor, "... D"]:
        """The units of a layer from its inputs."""

    @abstractmethod
    def back_sum(self, layer: int, units: Float[Tensor, "... D"]) -> Float[Tensor, "... P"]:
        """a = W' units + b' of a layer; its inputs are a function of it, see `back_function`."""

    @abstractmethod
    def back_function(self, layer: int, a: Tensor) -> Tensor:
        """The function of the way back of a layer."""

    @abstractmethod
    def free_energy(self, layer: int, x: Float[Tensor, "... P"]) -> Float[Tensor, "..."]:
        """The free energy of a layer's inputs, as a restricted Boltzmann machine, in nats."""

    @abstractmethod
    def gibbs(self, layer: int, x: Float[Tensor, "... P"], steps: int) -> Float[Tensor, "... P"]:
        """Inputs of a layer after steps of Gibbs sampling from ``x``, without a gradient."""

    @abstractmethod
    def layer_scores(self, layer: int, units: Float[Tensor, "B D"]) -> Float[Tensor, "B C"]:
        """The scores of classes from a layer's units."""
