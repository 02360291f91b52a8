"""`Model`: what is built from a `ModelConfig`, and trained, saved, checked and planned, whatever kind it is of.

Models on the meta device, with shapes and no storage.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from pydantic import Field
from torch import Tensor, nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

from weft.core.config import PartField, parse_part
from weft.core.errors import ConfigError
from weft.core.heads import Head
from weft.core.layer import LayerState
from weft.core.part import Part
from weft.core.part_config import Dims, ModuleConfig, PartConfig
from weft.core.span import Output, Span
from weft.core.state import fact_field

MODELS = ("model", "encoder")
"""The groups of parts that are models."""


@dataclass(frozen=True)
class ModelState(LayerState):
    """Base of model states.

    Attributes:
        owner: fingerprint of the configuration of the model to which the state belongs.
    """

    owner: str = fact_field()


class ModelConfig(ModuleConfig):
    """Base of model configurations.

    Attributes:
        vocab_size: number of token ids.
        context: tokens of a training window.
        rewrites: changes to its linear maps once the model is built, in order.
    """

    group: ClassVar[str] = "model"
    reads_tokens: ClassVar[bool] = True
    """Whether it reads token ids, so that a run fills in ``vocab_size``."""

    vocab_size: int = Field(gt=0)
    context: int = Field(default=256, gt=0)
    rewrites: list[Annotated[PartConfig, PartField("rewrite")]] = Field(default_factory=list)

    def build(self, dims: Dims | None = None) -> Model:
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")

    def stack(self) -> list[ModuleConfig]:
        """The blocks between what embeds tokens and what reads the result, its field ``blocks``; none for a model
        without such a list."""
        return []

    def labels(self) -> tuple[str, ...]:
        """Names of the classes of its head, in the order of their ids; empty without a head for classes."""
        return ()

    def source_limit(self) -> int | None:
        """The most tokens that a source may have, as `weft.core.model.LanguageModel.source_limit` says of the built
        model; None without a limit or without a source."""
        return None

    def fingerprint(self) -> str:
        """A hash of the whole resolved configuration, which stored states hold."""
        text = json.dumps(self.dump(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_model(plain: Any, *, where: str | None = None) -> ModelConfig:
    """The configuration of a model of any kind, from plain data. Raises `ConfigError`: listing every problem."""
    config = parse_part(MODELS, plain, where=where)
    assert isinstance(config, ModelConfig), "the groups of models contain model configurations alone"
    return config


@dataclass(frozen=True)
class EncoderInputs:
    """The inputs of a model that reads whole rows. Exactly one of ``tokens`` and ``patches`` is given.

    Attributes:
        tokens: ids [B,S].
        types: segment ids [B,S] (BERT's sentence A and B); None: 0 for every token.
        globals_: True where a token attends to all tokens and all attend to it (Longformer).
        patches: image patches [B,S,P].
    """

    tokens: Int64[Tensor, "B S"] | None = None
    types: Int64[Tensor, "B S"] | None = None
    globals_: Bool[Tensor, "B S"] | None = None
    patches: Float[Tensor, "B S P"] | None = None

    @classmethod
    def of(cls, x: Tensor) -> EncoderInputs:
        """Token ids [B,S], or floats [B,S,P] as patches."""
        return cls(patches=x) if x.is_floating_point() else cls(tokens=x)

    def given(self) -> tuple[str, ...]:
        """The names of the inputs that are there."""
        every = {"tokens": self.tokens, "types": self.types, "globals_": self.globals_, "patches": self.patches}
        return tuple(name for name, value in every.items() if value is not None)


class Model(Part, ABC):
    """Base of everything that a `ModelConfig` builds, and that is trained, saved, checked and planned.

    Attributes:
        config: its configuration.
        vocab_size: number of token ids.
        fingerprint: of the configuration.
        head: the map from its vectors to a task's results, besides a language model's readout; None without one.
        rate_factors: of its parameters whose learning rate its parametrization multiplies, by name, see
            `weft.models.width_transfer`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.fingerprint = config.fingerprint()
        self.head: Head | None = None
        self.rate_factors: Mapping[str, float] = {}

    def reads(self) -> dict[str, int]:
        """The fields of `EncoderInputs` that it reads, ``tokens`` or ``patches`` among them, with their sizes: the
        number of ids of tokens or types, the number of features of a patch, 2 for ``globals_``. It refuses others."""
        return {"tokens": self.vocab_size}

    @abstractmethod
    def vectors(self, inputs: EncoderInputs, span: Span | None = None) -> Output[ModelState]:
        """Hidden vectors [B,S,D] of whole rows, zero beyond each row's count, with the model's auxiliary losses and no
        state. Fields that `reads` names may be left out, except tokens and patches. Raises `InputError`: the model does
        not read one of the inputs."""

    def limit(self) -> int | None:
        """The most tokens a document may have (learned positions); None when there is no limit."""
        return None


TOO_LARGE = re.compile("overflow|allocate memory|not enough memory", re.I)
"""What PyTorch says of a tensor with more bytes than can be counted or reserved; its errors have no class for it."""
LINE = 160
"""Characters of a foreign message that are repeated."""


def built_model(config: ModelConfig) -> Model:
    """The model that a configuration builds. Raises `ConfigError`: it cannot be built, or is not a model."""
    try:
        built = config.build()
    except (RuntimeError, OverflowError, MemoryError) as error:
        if not TOO_LARGE.search(str(error)) and not isinstance(error, OverflowError | MemoryError):
            raise
        said = str(error).partition("\n")[0][:LINE]
        raise ConfigError([f"model: its tensors are larger than memory can hold ({said}). Make vocab_size, "
                           "d_model or another size smaller."]) from None
    if isinstance(built, Model):
        return built
    raise ConfigError([f"model: what a model of kind {config.kind!r} builds is no weft.core.model.Model. Derive it "
                       "from LanguageModel or Encoder."])


def parameter_count(module: nn.Module) -> int:
    """The number of parameters, shared ones counted once."""
    return sum(p.numel() for p in module.parameters())


def trained_count(module: nn.Module) -> int:
    """The number of parameters that training changes, shared ones counted once; frozen ones are left out."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


class Resizable(ABC):
    """A model with buffers whose sizes its configuration does not determine, such as tables of counts."""

    @abstractmethod
    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Give the buffers the sizes of a checkpoint that is about to be read.

        Args:
            shapes: the shape of every tensor in the checkpoint, by its name in ``state_dict``.
        """


FILLS = frozenset({Tensor.normal_, Tensor.uniform_, Tensor.zero_, Tensor.fill_, init.normal_, init.trunc_normal_,
                   init.uniform_, init.constant_, init.kaiming_uniform_, init.xavier_uniform_})


class WithoutInitialisation(TorchFunctionMode):
    """Skips the initialisation of meta tensors, which takes most of the time of building a model on the meta device."""

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        named = kwargs or {}
        if func in FILLS:
            filled = args[0] if args else named["tensor"]
            if filled.is_meta:
                return filled
        return func(*args, **named)


def built_empty(config: ModelConfig) -> Model:
    """The model of a configuration on the meta device, which suffices to count its parameters and to compare shapes.
    Only a model that reads values while it is built, such as tables of counts, takes memory: it is small before it is
    fitted. Raises `ConfigError`: as `built_model`."""
    try:
        with torch.device("meta"), WithoutInitialisation():
            return built_model(config)
    except (RuntimeError, NotImplementedError, TypeError):
        return built_model(config)
