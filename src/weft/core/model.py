"""`Model`, and below it `LanguageModel` and `Encoder`: all that the rest of Weft knows of a model.

    Model           vectors(inputs, span) -> Output(h, None, losses)        what a head reads, of rows read whole
    LanguageModel   hidden(tokens[B,T], state, span) -> Output(h, state, losses)
                    readout.logits(h)  readout.log_prob(h, targets)
                    forward = logits of hidden
    Encoder         forward = the vectors

A head turns vectors into what a task asks for: a `Readout` into probabilities of tokens, a `Classifier` into scores of
classes, or values, for each token or each row.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from pydantic import Field
from torch import Tensor, nn

from weft.core.clock import Clock
from weft.core.config import PartField, parse_part
from weft.core.errors import ConfigError, InputError, StateError, UnsupportedError
from weft.core.facts import require_read
from weft.core.layer import LayerState, Part, beginning, facts_of
from weft.core.output import Loss, Output
from weft.core.part_config import Dims, PartConfig
from weft.core.span import WHOLE, Memory, Span
from weft.core.state import fact_field
from weft.core.traits import Trait

MODELS = ("model", "encoder")
"""The groups of parts that are models."""


@dataclass(frozen=True)
class ModelState(LayerState):
    """Base of model states: knows which configuration it belongs to.

    Attributes:
        owner: fingerprint of the model's configuration.
    """

    owner: str = fact_field()


class ModelConfig(PartConfig):
    """Base of model configurations: vocabulary and the window they are trained on, in tokens."""

    group: ClassVar[str] = "model"

    vocab_size: int = Field(gt=0)
    context: int = Field(default=256, gt=0)
    rewrites: list[Annotated[PartConfig, PartField("rewrite")]] = Field(default_factory=list)
    """What is done to its linear maps once it is built, in order."""

    def dump(self) -> dict[str, Any]:
        plain = super().dump()
        if not self.rewrites:  # a model without them is the model that it was before there were any
            del plain["rewrites"]
        return plain

    def build(self, dims: Dims | None = None) -> Model:
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")

    def labels(self) -> tuple[str, ...]:
        """Names of the classes that its head tells apart, in the order of their ids; none without such a head."""
        return ()

    def fingerprint(self) -> str:
        """A hash of the whole resolved configuration."""
        text = json.dumps(self.dump(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_model(plain: Any, *, where: str | None = None) -> ModelConfig:
    """The configuration of a model of any kind, from plain data.

    Raises:
        ConfigError: listing every problem.
    """
    found = parse_part(MODELS, plain, where=where)
    assert isinstance(found, ModelConfig), "the groups of models hold model configurations"
    return found


class Head(Part, ABC):
    """From a model's hidden vectors to what a task asks for."""

    role = "logits"


class Readout(Head, ABC):
    """From hidden vectors to probabilities of tokens: of the next one, or of the one that stands in their place."""

    @abstractmethod
    def logits(self, h: Tensor) -> Float[Tensor, "B T V"]:
        """Unnormalised log-probabilities of every token."""

    @abstractmethod
    def log_prob(self, h: Tensor, targets: Int64[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Log-probability, in nats, of each target; equal to gathering from the log-softmax of `logits`, without
        holding [B,T,V]."""

    def cross_entropy(self, h: Float[Tensor, "B T D"], targets: Int64[Tensor, "B T"], scored: Bool[Tensor, "B T"], *,
                      smoothing: float = 0.0, z_loss: float = 0.0) -> tuple[Tensor, Tensor] | None:
        """The sums over ``scored`` tokens of the negative log-likelihood, without a gradient, and of what is minimised
        with these terms, for a readout that has a form of its own for them; None: its `log_prob` and `logits` are all
        that there is."""
        return None

    def inner(self, h: Tensor) -> tuple[Readout, Tensor]:
        """The readout that this one ends in, and what it reads of ``h``: itself and ``h``, unless something stands
        before it. A loss that has a form of its own for a readout looks there."""
        return self, h


class Classifier(Head, ABC):
    """From hidden vectors to scores of classes, or to values, of each token or of each row.

    Attributes:
        n_outputs: C, scores or values.
        labels: names of the classes, in the order of their ids; none where they have no names.
        pooled: whether a row has one answer; otherwise each of its tokens has.
        values: whether it gives values, not unnormalised log-probabilities of classes.
    """

    n_outputs: int
    labels: tuple[str, ...] = ()
    pooled: ClassVar[bool] = False
    values: bool = False

    @abstractmethod
    def scores(self, h: Float[Tensor, "B T D"], span: Span) -> Tensor:
        """[B,C] where it is ``pooled``, else [B,T,C].

        Args:
            h: hidden vectors, zero beyond each row's count.
            span: whose ``count`` says how many tokens of each row exist.
        """


@dataclass(frozen=True)
class EncoderInputs:
    """What a model reads of rows that it reads whole. Exactly one of ``tokens`` and ``patches`` is given.

    Attributes:
        tokens: ids [B,S].
        types: segment ids [B,S] (BERT's sentence A and B).
        globals_: True where a token attends to all and is seen by all (Longformer).
        patches: image patches [B,S,P].
    """

    tokens: Int64[Tensor, "B S"] | None = None
    types: Int64[Tensor, "B S"] | None = None
    globals_: Bool[Tensor, "B S"] | None = None
    patches: Float[Tensor, "B S P"] | None = None


class Model(Part, ABC):
    """What is built from a `ModelConfig`, and trained, saved, checked and planned.

    Attributes:
        config: what it was built from.
        vocab_size: number of token ids.
        fingerprint: of the configuration.
        head: what turns its vectors into answers, besides a language model's readout; None without one.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.fingerprint = config.fingerprint()
        self.head: Head | None = None

    def reads(self) -> dict[str, int]:
        """The fields of `EncoderInputs` that it reads, ``tokens`` or ``patches`` among them, and their sizes: how many
        ids of tokens or types there are, how many features a patch has, 2 for ``globals_``. The others it refuses."""
        return {"tokens": self.vocab_size}

    @abstractmethod
    def vectors(self, inputs: EncoderInputs, span: Span | None = None) -> Output[ModelState]:
        """Hidden vectors [B,S,D] of rows that are read whole, zero beyond each row's count, with the model's own losses
        and no state. Of what `reads` names, all but tokens and patches may be left out.

        Raises:
            InputError: it does not read that.
        """

    def limit(self) -> int | None:
        """The most tokens a document may have (learned positions); None when there is no limit."""
        return None


class Encoded(NamedTuple):
    """An encoded source, and the losses of the encoder's own (load balance of experts)."""

    memory: Memory
    losses: tuple[Loss, ...] = ()


class LanguageModel(Model, ABC):
    """A distribution over the next token given those before, threaded by a state. One law:
    running rows in any pieces, threading the state, equals running them whole."""

    readout: Readout
    takes_source: ClassVar[bool] = False
    """Whether it reads a source through `encode` (an encoder-decoder)."""

    source_vocab_size: int = 0
    """Number of ids of the source; 0 without one."""

    def init_state(self, batch: int, *, capacity: int | None = None, dtype: torch.dtype | None = None,
                   device: torch.device | str | None = None, memory: Memory | None = None,
                   horizon: int | Tensor | None = None) -> ModelState:
        """The state before the first token; the arguments are those of `Layer.init_state`."""
        clock, kind = beginning(self, batch, capacity=capacity, dtype=dtype, device=device, horizon=horizon)
        return self.start(clock, capacity=capacity, dtype=kind, memory=memory)

    @abstractmethod
    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> ModelState:
        """The state before the first token on ``clock``."""

    @abstractmethod
    def run(self, tokens: Tensor, state: ModelState | None, span: Span) -> Output[ModelState]:
        """Hidden vectors of a chunk and the state after it. ``span`` is resolved."""

    def hidden(self, tokens: Int64[Tensor, "B T"], state: ModelState | None = None,
               span: Span | None = None) -> Output[ModelState]:
        """What the readout reads, for every token of the chunk.

        Args:
            tokens: ids [B,T].
            state: where earlier chunks left off; consumed. None: start fresh and keep nothing.
            span: what this call does; None: every row advances by all T tokens.

        Raises:
            StateError: the state belongs to another model, or has another number of rows.
        """
        span = self._resolve(tokens, state, span)
        out = self.run(tokens, state, span)
        return out if span.count is None else out._replace(y=span.clean(out.y))

    def forward(self, tokens: Int64[Tensor, "B T"], state: ModelState | None = None,
                span: Span | None = None) -> Output[ModelState]:
        """Logits [B,T,V] of the next token after each, zero beyond each row's count, with the state and the losses of
        `hidden`."""
        span = self._resolve(tokens, state, span)
        out = self.hidden(tokens, state, span)
        logits = self.readout.logits(out.y)
        return out._replace(y=logits if span.full else span.clean(logits))

    def vectors(self, inputs: EncoderInputs, span: Span | None = None) -> Output[ModelState]:
        extra = [name for name, value in vars(inputs).items() if value is not None and name != "tokens"]
        if extra or inputs.tokens is None:
            raise InputError(f"a language model reads tokens alone, not {extra[0] if extra else 'nothing'}.",
                             where="inputs", remedy="Give ids [B,S].")
        return self.hidden(inputs.tokens, None, span)

    def encode(self, inputs: EncoderInputs, span: Span | None = None) -> Memory:
        """The memory that a source gives; only encoder-decoders have one.

        Raises:
            StateError: this model takes no source.
        """
        return self.encoded(inputs, span).memory

    def encoded(self, inputs: EncoderInputs, span: Span | None = None) -> Encoded:
        """`encode`, with the encoder's own losses, for training."""
        raise StateError("this model has no encoder, so it takes no source.", where=type(self).__name__,
                         remedy="Give rows of tokens alone.")

    def _resolve(self, tokens: Tensor, state: ModelState | None, span: Span | None) -> Span:
        if state is not None:
            self._require_own(state, tokens.shape[0])
        span = WHOLE if span is None else span
        if span.facts and span.moment is None:
            require_read(span.facts, facts_of(self))
        return span.resolve(None if state is None else state.clock, tokens)

    def _require_own(self, state: ModelState, batch: int) -> None:
        if not isinstance(state, ModelState) or state.owner != self.fingerprint:
            raise StateError("the state belongs to another model.", where="state",
                             remedy="Use a state from this model's init_state, or load the model it came from.")
        rows = state.clock.seen.shape[0]
        if rows != batch:
            raise StateError(f"a state of {rows} rows for {batch} rows of tokens.", where="state",
                             remedy="Select the rows first, or start a state of that batch.")


class Encoder(Model, ABC):
    """A bidirectional model: sees all of its input at once and keeps no state."""

    prefix = "encoder"
    own_law = True

    def own_traits(self) -> frozenset[Trait]:
        return frozenset({Trait.BIDIRECTIONAL})

    def forward(self, inputs: EncoderInputs, span: Span | None = None) -> Float[Tensor, "B S D"]:
        """The hidden vectors of `vectors`."""
        return self.vectors(inputs, span).y


def built_model(config: ModelConfig) -> Model:
    """What a configuration builds.

    Raises:
        ConfigError: it cannot be built, or is no model.
    """
    built = config.build()
    if isinstance(built, Model):
        return built
    raise ConfigError([f"model: what a model of kind {config.kind!r} builds is no weft.core.model.Model. Derive it "
                       "from LanguageModel or Encoder."])


def language_model(model: Model, purpose: str, *, where: str = "model") -> LanguageModel:
    """``model``, for a purpose that needs probabilities of the next token.

    Raises:
        UnsupportedError: it is none, such as an encoder.
    """
    if isinstance(model, LanguageModel):
        return model
    raise UnsupportedError(f"{purpose} needs a language model, and a model of kind {model.config.kind!r} predicts no "
                           "next token.",
                           where=where, remedy="Give a decoder or another model of the next token.")


def parameter_count(module: nn.Module) -> int:
    """Numbers of the parameters, shared ones counted once."""
    return sum(p.numel() for p in module.parameters())


def trained_count(module: nn.Module) -> int:
    """Numbers that training changes: those of the parameters that do not stand still, shared ones counted once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


class Resizable(ABC):
    """A model with buffers whose sizes its configuration does not tell, such as tables of counts."""

    @abstractmethod
    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Give the buffers the sizes of a checkpoint that is about to be read.

        Args:
            shapes: the shape of every tensor in the checkpoint, by its name in ``state_dict``.
        """


class Counted(LanguageModel):
    """A language model that one pass over the text fits; its traits name NOT_DIFFERENTIABLE."""

    @abstractmethod
    def fit(self, tokens: Int64[Tensor, " N"], begins: Bool[Tensor, " N"] | None = None) -> None:
        """Count ``tokens``, in which a document begins wherever ``begins`` is true (None: one document). What was
        counted before is replaced."""
