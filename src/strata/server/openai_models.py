"""Bodies of OpenAI's chat completions and completions: every field that is known, by name.

Owns the fields and which of them are refused or cannot change an answer. An unknown field is
refused by ``bodies``.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from strata.server.structs import Json, Struct


class TextPart(Struct, tag_field="type", tag="text"):
    """Text of a message."""

    text: str


class ImagePart(Struct, tag_field="type", tag="image_url"):
    """A picture of a message."""

    image_url: Json | str


class AudioPart(Struct, tag_field="type", tag="input_audio"):
    """Sound of a message."""

    input_audio: Json


class FilePart(Struct, tag_field="type", tag="file"):
    """A file of a message."""

    file: Json


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    """A refusal the assistant gave earlier."""

    refusal: str


Part = TextPart | ImagePart | AudioPart | FilePart | RefusalPart
Content = str | list[Part] | None


class CalledFunction(Struct):
    """Name and arguments of a call."""

    name: str
    arguments: str | Json = ""


class Call(Struct):
    """A call the assistant made earlier."""

    function: CalledFunction
    id: str = ""
    type: Literal["function"] = "function"
    index: int | None = None


class SystemMessage(Struct, tag_field="role", tag="system"):
    """Instructions."""

    content: Content
    name: str | None = None


class DeveloperMessage(Struct, tag_field="role", tag="developer"):
    """Instructions, by their newer name."""

    content: Content
    name: str | None = None


class UserMessage(Struct, tag_field="role", tag="user"):
    """What a person said."""

    content: Content
    name: str | None = None


class AssistantMessage(Struct, tag_field="role", tag="assistant"):
    """What was answered earlier, as clients send it back."""

    content: Content = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None
    audio: None = None
    function_call: None = None
    annotations: list[Json] | None = None


class ToolMessage(Struct, tag_field="role", tag="tool"):
    """What a call gave."""

    content: Content
    tool_call_id: str = ""
    name: str | None = None


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class Function(Struct):
    """A function that may be called."""

    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class Tool(Struct):
    """A tool that may be called; functions are the only kind."""

    function: Function
    type: Literal["function"] = "function"


class NamedFunction(Struct):
    """The function that must be called."""

    name: str


class NamedTool(Struct):
    """The tool that must be called."""

    function: NamedFunction
    type: Literal["function"] = "function"


class StreamOptions(Struct):
    """What a stream tells besides the answer."""

    include_usage: bool = False
    include_obfuscation: bool = False


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "default"]


class ChatReasoning(Struct):
    """How much is thought before the answer, as routers of many models write it."""

    effort: Effort | None = None
    max_tokens: int | None = None
    enabled: bool | None = None
    # Reasoning is given whole, which is more than any summary.
    summary: Literal["auto", "concise", "detailed"] | None = None
    exclude: Literal[False] | None = None


class JsonSchemaFormat(Struct):
    """A schema and its name. It is always followed, whether ``strict`` or not."""

    schema: Json | bool | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct):
    """The form an answer must have; llama.cpp has the schema right in it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema: Json | None = None


class Sampling(Struct):
    """Fields of sampling that both APIs have."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = None
    penalty_last_n: int | None = None
    repeat_last_n: int | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = None
    ignore_eos: bool | None = None
    # The form of an answer, by the names of llama.cpp, SGLang and vLLM.
    json_schema: Json | str | None = None
    grammar: str | None = None
    regex: str | None = None
    guided_json: Json | str | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: list[str] | None = None
    structured_outputs: Json | None = None
    # These cannot change an answer.
    user: str | None = None
    metadata: Json | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Json | None = None


class ChatRequest(Sampling, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = None
    reasoning: ChatReasoning | None = None
    reasoning_budget_tokens: int | None = None
    chat_template_kwargs: Json | None = None
    return_progress: bool | None = None
    modalities: list[Literal["text"]] | None = None
    service_tier: Literal["auto", "default"] | None = None
    verbosity: Literal["medium"] | None = None
    store: Literal[False] | None = None
    # A hint for speed: it cannot change an answer.
    prediction: Json | None = None
    # Refused by name, see REFUSED_OF_CHAT.
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    moderation: Any = None
    web_search_options: Any = None


class CompletionRequest(Sampling, kw_only=True):
    """Body of /v1/completions."""

    prompt: str | list[Any]  # ids, texts, or lists of ids
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: Any = None


REFUSED_OF_CHAT: Final = {
    "functions": "it was replaced by tools.",
    "function_call": "it was replaced by tool_choice.",
    "audio": "this model has no sound.",
    "moderation": "this server judges no texts.",
    "web_search_options": "this server searches nothing.",
}
REFUSED_OF_COMPLETIONS: Final = {
    "suffix": "this model fills no gaps.",
}


class TokenizeRequest(Struct):
    """Body of /tokenize: text as it stands, or a conversation."""

    content: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    model: str | None = None
    with_pieces: bool = False


class LoadRequest(Struct):
    """Body of /v1/load and /v1/unload, which may be left out."""

    model: str | None = None


class DetokenizeRequest(Struct):
    """Body of /detokenize."""

    tokens: list[int]
    model: str | None = None
