"""Classes that configurations or tasks inherit from to offer what few tasks have; training asks for it by class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np

from weft.core.model import Model
from weft.data.settings import DataSettings
from weft.tokenizers.config import TokenizerConfig


class OwnTexts(ABC):
    """A configuration whose training texts, from which a tokenizer learns, are not those of ``data.path`` as running
    text."""

    @abstractmethod
    def texts(self, data: DataSettings) -> Iterable[str]:
        """The training texts. Raises `DataError`: they cannot be read."""


class MakesIds(ABC):
    """A configuration of a task whose rows are ids, which it makes or reads by itself, and not text."""

    @abstractmethod
    def vocabulary(self, data: DataSettings) -> int:
        """Number of ids, answers included. Raises `DataError`: the data cannot be read."""


class AddsIds(ABC):
    """A configuration of a task that needs ids after those of the tokenizer, such as one for the mask."""

    @abstractmethod
    def extra_ids(self, tokenizer: TokenizerConfig) -> int:
        """The number of these ids."""


class HasClasses(ABC):
    """A configuration of a task on records with classes, which a head names that gives no names itself."""

    @abstractmethod
    def labels(self, data: DataSettings) -> tuple[str, ...]:
        """Names of the classes in the training records; empty where it predicts something else. Raises `DataError`:
        they cannot be read."""


class FitsByCounting(ABC):
    """A task that fits models that are counted, not trained by gradients."""

    @abstractmethod
    def fit(self, model: Model, examples: Any) -> None:
        """Fit a model. Raises `ConfigError`: the model is not counted, or the examples cannot be."""


class FitsInputs(ABC):
    """A task that measures how a model's inputs are scaled."""

    @abstractmethod
    def begin(self, model: Model, examples: Any) -> None:
        """Prepare a model with random weights for its first step, from the examples to train on alone. A model that
        starts from other weights has this from them."""


class ComparesWithStart(ABC):
    """A task whose loss compares the model with the one that the run starts from, which is asked once."""

    @abstractmethod
    def compared(self, examples: Any, reference: Model) -> Any:
        """The examples, completed by what the reference, the model that the run starts from, says of them."""

    @abstractmethod
    def with_reference(self, examples: Any, values: np.ndarray) -> Any:
        """The examples, completed by the numbers that `reference_of` returned for the same ones. Raises `DataError`:
        they are not as many as needed, or not finite."""

    @abstractmethod
    def reference_of(self, examples: Any) -> np.ndarray:
        """The reference model's results for examples that `compared` returned, as numbers in float64."""
