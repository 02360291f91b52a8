"""The task of pre-training the layers of a `dense` model, one after another or all at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from jaxtyping import Int64
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from weft.core.config import rule
from weft.core.images import LayeredModel
from weft.core.model import Model, ModelState
from weft.core.part_config import About
from weft.core.registry import register
from weft.data.images import Images
from weft.data.settings import DataSettings
from weft.evaluation.measuring import evaluating, finite, in_batches, spread
from weft.tasks.base import BatchSums, TaskDeclared, TaskSettings, on_device
from weft.tasks.classify_images import negative_log_likelihood
from weft.tasks.images import (
    ImageColumns,
    ImageExamples,
    ImageTask,
    ImageTaskConfig,
    image_columns,
    image_parts,
    require_size,
)
from weft.tasks.protocols import HasClasses
from weft.tasks.validation import Validation, part_measured

TOGETHER = -1
"""The stage in which all layers are trained at once."""


@register
class PretrainLayersConfig(ImageTaskConfig, HasClasses):
    """Train the layers of a ``dense`` model before it learns its task.

    Attributes:
        method: ``autoencoder``: a layer's inputs are reconstructed from its units; ``boltzmann``: a layer is a
            restricted Boltzmann machine, trained by contrastive divergence; ``supervised``: classes are predicted from
            a layer's units by a map that is not used later (``head: layer_classes``).
        loss: of an autoencoder's reconstruction: ``cross_entropy``, for inputs between 0 and 1 and sigmoids, or
            ``squared``.
        gibbs_steps: k, steps of Gibbs sampling of contrastive divergence.
        batches_per_layer: batches that train each layer, from the lowest, while those below do not change; the highest
            is trained to the end of the run. None: all layers together, as one deep autoencoder.
    """

    kind: ClassVar[str] = "pretrain_layers"
    about = About(
        also_called=("pretrain", "reconstruct", "autoencode", "contrastive_divergence", "greedy_pretraining"),
        source=("Bengio et al. 2006, sections 2 and 4; Hinton 2002, section 3 (contrastive divergence); Hinton et al. "
                "2006, section 4"),
        equation=(r"L_l = -\sum_j \left( h_{l-1,j} \log \hat{h}_j + (1 - h_{l-1,j}) \log (1 - \hat{h}_j) \right), "
                  r"\qquad \hat{h} = g(W'_l h_l + b'_l)"),
        differs=(("classify_images", "each layer learns to give back what it reads, before any class is learned."),),
        pictured=(("pixels", "pixels"),
                  ("units of layer 1", "units of layer 1"),
                  ("units of layer 2", "units of layer 2")))

    method: Literal["autoencoder", "boltzmann", "supervised"] = "autoencoder"
    loss: Literal["cross_entropy", "squared"] = "cross_entropy"
    gibbs_steps: int = Field(default=1, gt=0)
    batches_per_layer: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _fields_of_the_method(self) -> Self:
        if self.gibbs_steps != 1 and self.method != "boltzmann":
            raise rule("gibbs_steps", f"{self.gibbs_steps} steps, which the method {self.method!r} does not have.",
                       "Leave it out.")
        if self.loss != "cross_entropy" and self.method != "autoencoder":
            raise rule("loss", f"{self.loss!r}, while the method {self.method!r} has a loss of its own.",
                       "Leave it out.")
        if self.batches_per_layer is None and self.method != "autoencoder":
            raise rule("batches_per_layer", f"missing: the method {self.method!r} trains layers one after another.",
                       "Say how many batches train each layer.")
        return self

    def declares(self) -> TaskDeclared:
        return replace(super().declares(), measured_in="nats" if self.loss == "cross_entropy" else "squared error")

    def create(self, settings: TaskSettings) -> PretrainLayers:
        return PretrainLayers(self, settings)

    def labels(self, data: DataSettings) -> tuple[str, ...]:
        return image_parts(data, self.images).train.class_names() if self.method == "supervised" else ()

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(method="autoencoder", loss="squared", batches_per_layer=100),
                cls(method="boltzmann", gibbs_steps=2, batches_per_layer=100),
                cls(method="supervised", batches_per_layer=100, images=1000)]


class PretrainLayers(ImageTask[PretrainLayersConfig]):
    """Reconstructions of images, whose summed loss over all pixels or units is the loss of an image; or classes.

    It measures the loss of each layer's reconstruction of its own inputs, and, as ``loss``, that of the pixels from the
    units of the highest layer; with classes the accuracy of each layer, and the loss of the highest.
    """

    def problems(self, model: Model) -> list[str]:
        if not isinstance(model, LayeredModel):
            return [f"model: a model of kind {model.config.kind!r} has no layers to pre-train. Give kind: dense."]
        found, config, back = super().problems(model), self.config, model.way_back
        if config.method == "supervised":
            return found if model.scores_layers else [
                *found, "model.head: no scores from each layer. Give head: {kind: layer_classes} with n_classes or "
                "labels."]
        if back is None:
            return [*found, "model.back: missing, so there is no way back to the inputs. Give back: {tied: true}."]
        boltzmann = config.method == "boltzmann"
        if boltzmann and not back.tied:
            found.append("model.back.tied: false, and a restricted Boltzmann machine has one matrix. Give true.")
        if boltzmann or config.loss == "cross_entropy":
            what = "a restricted Boltzmann machine" if boltzmann else "cross-entropy"
            sigmoids = {"activation": back.activation, "back.output": back.output}
            found += [f"model.{name}: {value!r}, and {what} needs sigmoids. Give sigmoid." for name, value in
                      sigmoids.items() if value != "sigmoid" and (name != "activation" or model.depth > 1 or boltzmann)]
            if back.scaling == "standard":
                found.append(f"model.image.pixel_scaling: standard, and {what} needs pixels between 0 and 1. "
                             "Give min_max.")
        return found

    def ids(self, images: Images) -> Int64[np.ndarray, " n"]:
        return (images.ids(self.settings.labels) if self.config.method == "supervised" else
                np.zeros(len(images), dtype=np.int64))

    def stage(self, step: int) -> int:
        return TOGETHER if self.config.batches_per_layer is None else step // self.config.batches_per_layer

    def loss(self, model: Model, columns: ImageColumns, state: ModelState | None) -> BatchSums:
        net = layered(model)
        x = net.pixels(columns.pixels)
        if columns.stage == TOGETHER:
            found = self._through(net, x).sum()
            return BatchSums(found.detach(), found)
        layer = min(columns.stage, net.depth - 1)
        with torch.no_grad():
            for below in range(layer):
                x = net.up(below, x)
        if self.config.method == "supervised":
            scores = net.layer_scores(layer, net.up(layer, x))
            found = negative_log_likelihood(scores, columns.labels).sum()
            return BatchSums(found.detach(), found)
        error = self._reconstruction(net, layer, x).sum()
        if self.config.method == "autoencoder":
            return BatchSums(error.detach(), error)
        return BatchSums(error.detach(), contrastive_divergence(net, layer, x, self.config.gibbs_steps).sum())

    def _reconstruction(self, net: LayeredModel, layer: int, x: Tensor) -> Tensor:
        """The loss [B] of a layer's inputs, reconstructed from its units."""
        return self._error(net, layer, net.back_sum(layer, net.up(layer, x)), x)

    def _through(self, net: LayeredModel, x: Tensor) -> Tensor:
        """The loss [B] of the pixels, reconstructed from the units of the highest layer."""
        units, count = x, net.depth
        for layer in range(count):
            units = net.up(layer, units)
        for layer in range(count - 1, 0, -1):
            units = net.back_function(layer, net.back_sum(layer, units))
        return self._error(net, 0, net.back_sum(0, units), x)

    def _error(self, net: LayeredModel, layer: int, a: Tensor, x: Tensor) -> Tensor:
        """The loss [B] of inputs x whose reconstruction is the function of the way back of ``a``, in float32 or wider;
        cross-entropy from ``a`` itself, since logarithms of sigmoids would overflow."""
        wide = torch.promote_types(a.dtype, torch.float32)
        a, x = a.to(wide), x.to(wide)
        if self.config.loss == "cross_entropy":
            return F.binary_cross_entropy_with_logits(a, x, reduction="none").sum(-1)
        return (net.back_function(layer, a) - x).square().sum(-1)

    def guess(self, model: Model) -> float:
        features = math.prod(layered(model).image_size)
        if self.config.method == "supervised":
            return math.log(max(2, len(self.settings.labels)))
        return features * (math.log(2) if self.config.loss == "cross_entropy" else 1.0)

    def measure(self, model: Model, examples: ImageExamples, batches: int | None = None) -> Validation:
        """Measure each image once, in order."""
        net, name = layered(model), examples.images.name
        require_size(net, examples.images)
        groups, rows = in_batches(len(examples), self.settings.rows), 0
        sums = torch.zeros(net.depth + 1, dtype=torch.float64)
        with evaluating(model) as device:
            for places in spread(groups, batches):
                found = self._measured(net, on_device(image_columns(examples, places), device))
                finite(found.sum(), name)
                sums, rows = sums + found.cpu(), rows + len(places)
        means = (sums / rows).tolist()
        part = part_measured(batches, len(groups))
        each = "accuracy" if self.config.method == "supervised" else "reconstruction"
        return Validation(None, means[-1], rows, 0, f"each held-out image once{part}",
                          {f"{each}_{layer + 1}": value for layer, value in enumerate(means[:-1])}, "loss",
                          unit=self.declared.unit)

    def _measured(self, net: LayeredModel, columns: ImageColumns) -> Tensor:
        """Sums over a batch: a measure of each layer, and the loss of the whole."""
        x = net.pixels(columns.pixels)
        found: list[Tensor] = []
        whole = None if self.config.method == "supervised" else self._through(net, x)
        for layer in range(net.depth):
            if whole is not None:
                found.append(self._reconstruction(net, layer, x))
            x = net.up(layer, x)
            if whole is None:
                scores = net.layer_scores(layer, x)
                found.append((scores.argmax(-1) == columns.labels).double())
                last = negative_log_likelihood(scores, columns.labels)
        return torch.stack([each.double().sum() for each in (*found, last if whole is None else whole)])


def contrastive_divergence(net: LayeredModel, layer: int, x: Tensor, k: int) -> Tensor:
    """F(x) - F(x_k) [B], with x_k after k steps of Gibbs sampling from x and held constant.

    Its gradient is the negative of the update of contrastive divergence, <h x>_0 - <h x>_k for the matrix, with the
    probabilities of the units in place of samples in both terms (Hinton 2002, section 3). As k grows it tends to the
    gradient of the negative log-likelihood.
    """
    return net.free_energy(layer, x) - net.free_energy(layer, net.gibbs(layer, x, k))


def layered(model: Model) -> LayeredModel:
    """``model``, of which `PretrainLayers.problems` has found its kind."""
    assert isinstance(model, LayeredModel), "a model that does not fit is refused before"
    return model
