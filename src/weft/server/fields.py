"""The bodies of requests: every field that is honoured, those that are accepted and have no effect here, and those that
are refused with a reason. Any other field is refused by its name.

The records are OpenAI's, with the fields of other servers for the sampling that OpenAI does not have. The table of the
documentation and ``/openapi.json`` are made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from weft.decoding.beam import MOST_PENALTY

INERT = "no effect"
"""Marks a field that is accepted since clients send it, and that changes nothing here."""
MOST_CHOICES, MOST_STOPS, MOST_TOP, WHOLE = 128, 16, 20, 2**63 - 1

Ids: TypeAlias = list[Annotated[int, Field(ge=0, le=WHOLE)]]
Count: TypeAlias = Annotated[int, Field(ge=1, le=MOST_CHOICES)]
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
Bias: TypeAlias = Annotated[float, Field(ge=-100, le=100)]
Stop: TypeAlias = (Annotated[str, Field(min_length=1)]
                   | Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MOST_STOPS)])


class Body(BaseModel):
    """Base of bodies: types are taken strictly, unknown fields are refused, numbers are finite."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Named(Body):
    """A body that may name the model, and what clients add to any of them."""

    model: str | None = Field(None, description="Name of the model or of an adapter, as /v1/models lists them; "
                              "left out: the model itself.")
    user: str | None = Field(None, description=INERT)


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool = Field(False, description="Send the number of tokens in a last chunk, without choices.")
    include_obfuscation: bool = Field(False, description=INERT)


class Sampled(Named):
    """Fields of bodies that a model continues."""

    n: Count | None = Field(None, description="Number of answers to each prompt; default 1.")
    temperature: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Divides the logits; 0 takes the most probable token. Default: the model's own file, else 1.")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Sample among the most probable tokens whose probabilities sum to p.")
    top_k: Annotated[int, Field(ge=1, le=WHOLE)] | None = Field(
        None, description="Sample among the k most probable tokens (not OpenAI's).")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Sample among tokens at least p times as probable as the best (not OpenAI's).")
    repetition_penalty: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Above 1, tokens of prompt and answer become less probable (not OpenAI's).")
    presence_penalty: Penalty | None = Field(None, description="Subtracted from the logit of every token of the answer "
                                             "so far.")
    frequency_penalty: Penalty | None = Field(None, description="Subtracted likewise, once for each time it was "
                                              "chosen.")
    logit_bias: dict[str, Bias] | None = Field(None, description="Added to the logits, by token id.")
    seed: Annotated[int, Field(ge=-WHOLE - 1, le=WHOLE)] | None = Field(
        None, description="Seed of the random numbers: the same body with the same seed has the same answer, whoever "
                          "else is served.")
    stop: Stop | None = Field(None, description=f"Text or up to {MOST_STOPS} texts before which an answer ends.")
    ignore_eos: bool = Field(False, description="Go on after the model's own end symbols (not OpenAI's).")
    stream: bool | None = Field(None, description="Send the answer as events while it is made.")
    stream_options: StreamOptions | None = Field(
        None, description="include_usage: tell the number of tokens in a last chunk. Needs stream.")
    metadata: dict[str, str] | None = Field(None, description=INERT)
    store: bool | None = Field(None, description=INERT)
    service_tier: Literal["auto", "default"] | None = Field(None, description=INERT)
    safety_identifier: str | None = Field(None, description=INERT)
    prompt_cache_key: str | None = Field(None, description=INERT)


class CompletionBody(Sampled):
    """The body of ``/v1/completions``."""

    prompt: str | list[str] | Ids | list[Ids] = Field(
        description="A text, texts, a list of token ids, or lists of them; the source, for an encoder-decoder.")
    max_tokens: Annotated[int, Field(ge=0, le=WHOLE)] | None = Field(
        None, description="Most new tokens; 0 with echo reads the prompt alone. Default: the model's own file, else "
                          "16, or 50 more than a source has.")
    best_of: Count | None = Field(None, description="Make this many answers, and return the n of the largest mean "
                                  "log-probability of their tokens; at least n, and not streamed above it. Of a beam "
                                  "search, the number of beams.")
    use_beam_search: bool | None = Field(None, description="Search the n most probable answers with best_of beams; not "
                                         "with stream, logprobs, echo, stop or drawn tokens (vLLM's, not OpenAI's).")
    length_penalty: Annotated[float, Field(ge=0, le=MOST_PENALTY)] | None = Field(
        None, description="Exponent of the length by which log-probabilities of beams are divided; default 1.")
    echo: bool | None = Field(None, description="Begin the answer with the prompt, and its log-probabilities with "
                              "those of the prompt.")
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = Field(
        None, description="Tell the log-probability of every token, and of so many of the most probable ones.")


class TextContent(Body):
    """A piece of text of a message."""

    type: Literal["text", "input_text", "output_text", "reasoning_text", "summary_text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: list[Any] | None = Field(None, description=INERT)


class CalledFunction(Body):
    """The function of a call."""

    name: str
    arguments: str = Field(description="JSON.")


class ToolCall(Body):
    """A call that the assistant made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Body):
    """A message. ``refusal``, ``audio``, ``function_call`` and ``annotations`` are empty in what this server sends, and
    clients send them back so."""

    role: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")] = Field(
        description="system, user, assistant, tool, or another that the template defines; developer means system.")
    content: str | list[TextContent] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(None, description="The thoughts of an answer, for templates that keep them.")
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


class Function(Body):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON Schema of the arguments, which is given to the "
                                              "template.")
    strict: bool | None = Field(None, description="Hold the arguments to the schema wherever the model calls it.")


class Tool(Body):
    """A tool."""

    type: Literal["function"]
    function: Function


class JsonSchema(Body):
    """A schema that the answer is held to."""

    name: str = Field(description=INERT)
    description: str | None = Field(None, description=INERT)
    schema_: dict[str, Any] = Field(alias="schema", description="JSON Schema.")
    strict: bool | None = Field(None, description="The answer is held to the schema either way.")


class PlainFormat(Body):
    """An answer of any text, or one that is a JSON object."""

    type: Literal["text", "json_object"]


class SchemaFormat(Body):
    """An answer that a JSON Schema describes."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat: TypeAlias = Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")]


class ChatBody(Sampled):
    """The body of ``/v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)] = Field(
        description="The conversation, which the model's own template renders. An assistant's message at the end is "
                    "continued.")
    max_tokens: Annotated[int, Field(ge=1, le=WHOLE)] | None = Field(
        None, description="The older name of max_completion_tokens.")
    max_completion_tokens: Annotated[int, Field(ge=1, le=WHOLE)] | None = Field(
        None, description="Most new tokens. Default: the model's own file, else as many as the context has room for.")
    logprobs: bool | None = Field(None, description="Tell the log-probability of every token.")
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = Field(
        None, description="Tell so many of the most probable tokens too; needs logprobs.")
    response_format: ResponseFormat | None = Field(
        None, description="Hold the answer to JSON: text, json_object, or json_schema.")
    tools: list[Tool] | None = Field(None, description="Functions, for a template that takes tools.")
    tool_choice: Literal["none", "auto", "required"] | Tool | None = Field(
        None, description="auto gives the tools to the template, none does not; required, or the name of a function, "
                          "holds the answer to calls whose arguments their schemas describe.")
    parallel_tool_calls: bool | None = Field(None, description="false: an answer makes one call at most.")
    reasoning_effort: str | None = Field(None, description="Given to a template that reads it.")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Further variables of the template, such as enable_thinking (not OpenAI's).")
    modalities: list[Literal["text"]] | None = Field(None, description="text alone.")


class InputItem(Body):
    """An item of a conversation as ``/v1/responses`` has it: what it needs depends on its type."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = Field(None, description="Of a message.")
    content: str | list[TextContent] | None = Field(None, description="Of a message or of thoughts.")
    summary: list[TextContent] | None = Field(None, description="Of thoughts, which are read where they are whole.")
    call_id: str | None = Field(None, description="Of a call and of its output.")
    name: str | None = Field(None, description="Of the function of a call.")
    arguments: str | None = Field(None, description="Of a call, in JSON.")
    output: str | list[TextContent] | None = Field(None, description="Of the function that was called.")
    id: str | None = Field(None, description=INERT)
    status: Literal["in_progress", "completed", "incomplete"] | None = Field(None, description=INERT)


class FunctionTool(Function):
    """A function, as ``/v1/responses`` has it."""

    type: Literal["function"]


class NamedSchema(JsonSchema):
    """A schema that the answer is held to, as ``/v1/responses`` has it."""

    type: Literal["json_schema"]


class ResponseBody(Sampled):
    """The body of ``/v1/responses``."""

    n: Literal[1] | None = Field(None, description="One answer is made.")
    input: str | Annotated[list[InputItem], Field(min_length=1)] = Field(
        description="A text, or the items of the conversation: messages, calls with their outputs, thoughts.")
    instructions: str | None = Field(None, description="A message of the system, before the others.")
    max_output_tokens: Annotated[int, Field(ge=1, le=WHOLE)] | None = Field(
        None, description="Most new tokens. Default: the model's own file, else as many as the context has room for.")
    text: dict[Literal["format"], PlainFormat | NamedSchema] | None = Field(
        None, description="Its format holds the answer to JSON: text, json_object, or json_schema.")
    tools: list[FunctionTool] | None = Field(None, description="Functions, for a template that takes tools; there are "
                                             "no tools of the server's own.")
    tool_choice: Literal["none", "auto", "required"] | FunctionTool | None = Field(
        None, description="auto gives the tools to the template, none does not; required, or the name of a function, "
                          "holds the answer to calls whose arguments their schemas describe.")
    parallel_tool_calls: bool | None = Field(None, description="false: an answer makes one call at most.")
    reasoning: dict[Literal["effort"], str | None] | None = Field(
        None, description="Its effort is given to a template that reads reasoning_effort.")
    include: list[Literal["message.output_text.logprobs"]] | None = Field(
        None, description="Tell the log-probability of every token of the text.")
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = Field(
        None, description="Tell so many of the most probable tokens too; needs include.")
    truncation: Literal["disabled"] | None = Field(None, description="Nothing is left out; send what fits.")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Further variables of the template, such as enable_thinking (not OpenAI's).")
    store: Literal[False] | None = Field(None, description="Nothing is stored, so true is refused.")


Texts: TypeAlias = str | Annotated[list[str], Field(min_length=1)] | Ids | Annotated[list[Ids], Field(min_length=1)]
Pair: TypeAlias = Annotated[list[str], Field(min_length=2, max_length=2)]


class EmbeddingBody(Named):
    """The body of ``/v1/embeddings``."""

    input: Texts = Field(description="A text, texts, a list of token ids, or lists of them.")
    encoding_format: Literal["float", "base64"] | None = Field(None, description="float (default), or base64 of "
                                                               "float32, little-endian.")


class ClassifyBody(Named):
    """The body of ``/classify``."""

    input: Texts | list[Pair] = Field(
        description="A text, texts, pairs of texts, a list of token ids, or lists of them.")


class TokenizeBody(Named):
    """The body of ``/tokenize``."""

    prompt: str = Field(description="The text.")
    add_special_tokens: bool = Field(True, description="Begin with the token that begins a document, as a prompt does.")


class DetokenizeBody(Named):
    """The body of ``/detokenize``."""

    tokens: Ids = Field(description="Token ids.")


REFUSED: Mapping[str, str] = MappingProxyType({
    "suffix": "Models are asked for what follows, not for what stands between.",
    "functions": "Give tools.", "function_call": "Give tool_choice.",
    "audio": "Models answer in text alone.", "prediction": "No text is predicted in advance.",
    "web_search_options": "No search is made.", "verbosity": "Say it in a message.",
    "previous_response_id": "Nothing is stored; send the whole conversation.",
    "conversation": "Nothing is stored; send the whole conversation.",
    "background": "Nothing is stored; keep the connection.",
    "max_tool_calls": "No tool is called here; parallel_tool_calls limits the calls that are asked of you.",
    "dimensions": "Vectors have the model's own width.",
})
"""Fields of OpenAI's or of other servers that are refused, each with the reason or the way."""
