"""The task of classifiers of images."""

from __future__ import annotations

import math
from typing import ClassVar, Self

import numpy as np
from jaxtyping import Int64
from torch import Tensor

from weft.core.model import Classifier, Model, ModelState
from weft.core.part_config import About
from weft.core.registry import register
from weft.core.span import WHOLE, Loss
from weft.data.images import Images
from weft.data.settings import DataSettings
from weft.evaluation.measuring import evaluating, finite, in_batches, spread
from weft.tasks.base import BatchSums, TaskSettings, head_scores, on_device
from weft.tasks.classes import ClassCounts
from weft.tasks.images import (
    ImageColumns,
    ImageExamples,
    ImageTask,
    ImageTaskConfig,
    image_columns,
    image_model,
    image_parts,
    require_size,
)
from weft.tasks.protocols import HasClasses
from weft.tasks.validation import Validation, part_measured


@register
class ClassifyImagesConfig(ImageTaskConfig, HasClasses):
    """Predict the class of an image, by a model of images with a head that pools each row."""

    kind: ClassVar[str] = "classify_images"
    about = About(
        also_called=("image_classification", "classify_image"), source="Dosovitskiy et al. 2021, section 3.1",
        equation=r"L = -\frac{1}{n} \sum_{i=1}^{n} \log \operatorname{softmax}(s(x_i))_{y_i}",
        differs=(("classify", "reads images."),
                 ("pixels", "the model sees the whole image in patches, in place of one pixel after another.")),
        pictured=(("class token", "seven"), ("patch 1", ""), ("patch 2", ""), ("patch 3", ""), ("patch 4", "")))

    def create(self, settings: TaskSettings) -> ClassifyImages:
        return ClassifyImages(self, settings)

    def labels(self, data: DataSettings) -> tuple[str, ...]:
        return image_parts(data, self.images).train.class_names()

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(images=100)]


class ClassifyImages(ImageTask[ClassifyImagesConfig]):
    """Images with classes, whose summed negative log-likelihood is the loss. It measures loss, accuracy and the mean of
    the classes' F1 scores."""

    def problems(self, model: Model) -> list[str]:
        found, head = super().problems(model), model.head
        if not isinstance(head, Classifier) or not head.pooled or head.values:
            has = "no head" if head is None else "a head that gives no class for each image"
            found.append(f"model.head: the model has {has}. Give head: {{kind: pooled}} with n_classes or labels.")
        return found

    def ids(self, images: Images) -> Int64[np.ndarray, " n"]:
        return images.ids(self.settings.labels)

    def loss(self, model: Model, columns: ImageColumns, state: ModelState | None) -> BatchSums:
        scores, losses = class_scores(model, columns.pixels)
        found = negative_log_likelihood(scores, columns.labels).sum()
        return BatchSums(found.detach(), found, None, losses)

    def guess(self, model: Model) -> float:
        assert isinstance(model.head, Classifier), "a model that does not fit is refused before"
        return math.log(max(2, model.head.n_outputs))

    def measure(self, model: Model, examples: ImageExamples, batches: int | None = None) -> Validation:
        """Measure each image once, in order."""
        assert isinstance(model.head, Classifier), "a model that does not fit is refused before"
        require_size(image_model(model), examples.images)
        groups, total, rows = in_batches(len(examples), self.settings.rows), 0.0, 0
        counts = ClassCounts(model.head.n_outputs)
        with evaluating(model) as device:
            for places in spread(groups, batches):
                columns = on_device(image_columns(examples, places), device)
                scores, _ = class_scores(model, columns.pixels)
                total += finite(negative_log_likelihood(scores, columns.labels).double().sum(), examples.images.name)
                rows += len(places)
                counts.add(columns.labels.cpu().numpy(), scores.argmax(-1).cpu().numpy())
        protocol = f"each held-out image once{part_measured(batches, len(groups))}"
        return Validation(None, total / rows, rows, 0, protocol,
                          {"accuracy": counts.accuracy, "macro_f1": counts.macro_f1}, "accuracy", rising=True,
                          unit=self.declared.unit)


def class_scores(model: Model, pixels: Tensor) -> tuple[Tensor, tuple[Loss, ...]]:
    """The scores of classes of images [B,C], in float32 or wider, and the model's auxiliary losses."""
    return head_scores(model, image_model(model).images(pixels), WHOLE)


def negative_log_likelihood(scores: Tensor, labels: Tensor) -> Tensor:
    """The negative log-likelihood of each row's class, in nats."""
    return -scores.log_softmax(-1).gather(-1, labels[:, None])[:, 0]
