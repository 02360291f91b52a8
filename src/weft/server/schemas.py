"""The objects that a server answers with, as ``/openapi.json`` describes them."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict


class ErrorDetail(TypedDict):
    """The message of an error; ``param`` is the field concerned."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class ErrorAnswer(TypedDict):
    """An error."""

    error: ErrorDetail


class CachedTokens(TypedDict):
    """Tokens of a prompt that were not computed again."""

    cached_tokens: int


class Usage(TypedDict):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class TokenLogProbs(TypedDict):
    """Log-probabilities of the tokens of a completion."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """A completion of a prompt."""

    index: int
    text: str
    logprobs: TokenLogProbs | None
    finish_reason: Literal["stop", "length"] | None


class CompletionAnswer(TypedDict):
    """Completions; of a stream, a piece of them."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class Alternative(TypedDict):
    """A token that might have been chosen."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenToken(Alternative):
    """A token, and the most probable ones at its place."""

    top_logprobs: list[Alternative]


class ChatLogProbs(TypedDict):
    """Log-probabilities of the tokens of a message."""

    content: list[ChosenToken]
    refusal: None


class MadeFunction(TypedDict):
    """A function and its arguments in JSON."""

    name: str
    arguments: str


class MadeCall(TypedDict):
    """A call of a function."""

    id: str
    type: Literal["function"]
    function: MadeFunction
    index: NotRequired[int]


class AssistantMessage(TypedDict):
    """A message of the assistant."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[MadeCall]]


class ChatChoice(TypedDict):
    """An answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogProbs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatAnswer(TypedDict):
    """Answers to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ServedModel(TypedDict):
    """A model or an adapter."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["weft"]
    context_length: int | None
    kind: str


class ModelList(TypedDict):
    """The model and its adapters."""

    object: Literal["list"]
    data: list[ServedModel]


class EmbeddedText(TypedDict):
    """The vector of a text: numbers, or base64 of float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class ReadTokens(TypedDict):
    """Numbers of tokens of what was only read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingAnswer(TypedDict):
    """Vectors of texts."""

    object: Literal["list"]
    model: str
    data: list[EmbeddedText]
    usage: ReadTokens


class ClassifiedText(TypedDict):
    """The classes of a text, or of each of its tokens; ``scores`` are log-probabilities in nats, or values."""

    index: int
    labels: list[str]
    best: list[str]
    scores: list[list[float]]


class ClassifyAnswer(TypedDict):
    """Classes of texts."""

    object: Literal["list"]
    model: str
    data: list[ClassifiedText]
    usage: ReadTokens


class TokenizeAnswer(TypedDict):
    """Token ids."""

    tokens: list[int]
    count: int
    max_model_len: int | None


class DetokenizeAnswer(TypedDict):
    """A text."""

    prompt: str


class HealthAnswer(TypedDict):
    """Whether the engine is alive, or the server ready."""

    status: Literal["ok", "stalled", "stopping"]


Document = dict[str, Any]
"""An OpenAPI document."""
