"""Bodies of OpenAI's Responses: every field that is known, by name.

Owns the fields and which of them are refused or cannot change an answer. An unknown field is
refused by ``bodies``.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from strata.server.structs import Json, Struct

Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Struct, tag_field="type", tag="input_text"):
    """Text of a message."""

    text: str


class OutputText(Struct, tag_field="type", tag="output_text"):
    """Text of an earlier answer."""

    text: str
    annotations: list[Json] | None = None
    logprobs: list[Json] | None = None


class PlainText(Struct, tag_field="type", tag="text"):
    """Text, by the word of chat completions."""

    text: str


class Refusal(Struct, tag_field="type", tag="refusal"):
    """A refusal the assistant gave earlier."""

    refusal: str


class InputImage(Struct, tag_field="type", tag="input_image"):
    """A picture."""

    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class InputFile(Struct, tag_field="type", tag="input_file"):
    """A file."""

    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    detail: str | None = None


Part = InputText | OutputText | PlainText | Refusal | InputImage | InputFile


class MessageItem(Struct, tag_field="type", tag="message"):
    """A message. Its type may be left out."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    id: str | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class CallItem(Struct, tag_field="type", tag="function_call"):
    """A call of an earlier answer."""

    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None
    caller: Json | None = None
    namespace: str | None = None


class CallOutputItem(Struct, tag_field="type", tag="function_call_output"):
    """What a call gave."""

    call_id: str
    output: str | list[Part]
    id: str | None = None
    status: Status | None = None
    caller: Json | None = None


class ReasoningItem(Struct, tag_field="type", tag="reasoning"):
    """Reasoning of an earlier answer."""

    id: str | None = None
    summary: list[Json] | None = None
    content: list[Json] | None = None
    encrypted_content: str | None = None
    status: Status | None = None


class CompactionItem(Struct, tag_field="type", tag="compaction"):
    """A summary of what was said before."""

    encrypted_content: str
    id: str | None = None
    created_by: str | None = None


Item = MessageItem | CallItem | CallOutputItem | ReasoningItem | CompactionItem


class FunctionTool(Struct, tag_field="type", tag="function"):
    """A function that may be called."""

    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    output_schema: Json | None = None


class NamespaceTool(Struct, tag_field="type", tag="namespace"):
    """Functions under one name, as agents group their own."""

    name: str
    tools: list[FunctionTool]
    description: str | None = None


AnyTool = FunctionTool | NamespaceTool


class ChosenTool(Struct):
    """The function that must be called."""

    type: Literal["function"]
    name: str


class Reasoning(Struct):
    """How much is thought before the answer."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    # Reasoning is given whole, which is more than any summary.
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class Format(Struct):
    """The form an answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: Json | None = None
    strict: bool | None = None


class TextConfig(Struct):
    """Form and length of the text."""

    format: Format | None = None
    verbosity: Literal["medium"] | None = None


class ResponseStreamOptions(Struct):
    """What a stream tells besides the answer."""

    include_obfuscation: bool = False


class ResponsesRequest(Struct):
    """Body of /v1/responses."""

    model: str
    input: str | list[Json] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    tools: list[AnyTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    metadata: dict[str, str] | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    # These cannot change an answer.
    user: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Json | None = None
    client_metadata: Json | None = None
    # Refused by name, see REFUSED.
    conversation: Any = None
    prompt: Any = None
    max_tool_calls: Any = None
    context_management: Any = None
    moderation: Any = None


class InputTokensRequest(Struct):
    """Body of /v1/responses/input_tokens."""

    model: str | None = None
    input: str | list[Json] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[AnyTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    truncation: Literal["disabled"] | None = None
    conversation: Any = None


class CompactRequest(Struct):
    """Body of /v1/responses/compact."""

    model: str
    input: str | list[Json] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    # These cannot change an answer.
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Json | None = None
    service_tier: Literal["auto", "default"] | None = None


REFUSED: Final = {
    "conversation": "this server keeps responses, not conversations; use previous_response_id.",
    "prompt": "this server has no stored prompts.",
    "max_tool_calls": "this server calls no tools by itself.",
    "context_management": "conversations are read as they are sent.",
    "moderation": "this server judges no texts.",
}
INCLUDED_LOGPROBS: Final = "message.output_text.logprobs"
# What there is nothing of in an answer of this server can be asked for without a difference.
INCLUDABLE: Final = frozenset({INCLUDED_LOGPROBS, "reasoning.encrypted_content"})
