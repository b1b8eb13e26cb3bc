"""Bodies of Anthropic's messages: every field that is known, by name.

Owns the fields and which of them are refused or cannot change an answer. An unknown field is
refused by ``bodies``.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from strata.server.structs import Json, Struct


class _Block(Struct, tag_field="type"):
    # A hint of where a prompt may be kept; what was read is kept anyway.
    cache_control: Json | None = None


class TextBlock(_Block, kw_only=True, tag="text"):
    """Text."""

    text: str
    citations: list[Json] | None = None


class ImageBlock(_Block, kw_only=True, tag="image"):
    """A picture."""

    source: Json


class DocumentBlock(_Block, kw_only=True, tag="document"):
    """A file."""

    source: Json
    title: str | None = None
    context: str | None = None
    citations: Json | None = None


class ThinkingBlock(_Block, kw_only=True, tag="thinking"):
    """Reasoning of an earlier answer."""

    thinking: str
    signature: str = ""


class RedactedBlock(_Block, kw_only=True, tag="redacted_thinking"):
    """Reasoning of another service, which nobody here can read."""

    data: str


class ToolUseBlock(_Block, kw_only=True, tag="tool_use"):
    """A call of an earlier answer."""

    id: str
    name: str
    input: Json
    caller: Json | None = None
    toolset_name: str | None = None


class ToolResultBlock(_Block, kw_only=True, tag="tool_result"):
    """What a call gave."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = None
    toolset_name: str | None = None


Block = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | ThinkingBlock
    | RedactedBlock
    | ToolUseBlock
    | ToolResultBlock
)


class Turn(Struct):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class AnthropicTool(Struct):
    """A tool that may be called."""

    name: str
    input_schema: Json | None = None
    description: str | None = None
    type: Literal["custom"] | None = None
    cache_control: Json | None = None
    strict: bool | None = None
    # How arguments stream: here always as they are written.
    eager_input_streaming: bool | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None


class ToolChoice(Struct):
    """Which tool must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Struct):
    """Whether reasoning comes before the answer."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Struct):
    """The form an answer must have."""

    type: Literal["json_schema"]
    schema: Json


class OutputConfig(Struct):
    """How much effort an answer is worth, and its form."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class KeptTurns(Struct):
    """How many turns keep their reasoning."""

    type: Literal["thinking_turns", "all"]
    value: int | None = None


class ClearThinking(Struct, tag_field="type", tag="clear_thinking_20251015"):
    """Reasoning of older turns is left out of the prompt."""

    keep: Literal["all"] | KeptTurns | None = None


class ContextManagement(Struct):
    """What is left out of a long conversation."""

    edits: list[ClearThinking] | None = None


class CountRequest(Struct):
    """Body of /v1/messages/count_tokens."""

    model: str
    messages: list[Turn]
    system: str | list[TextBlock] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # its older place
    # A hint of where a prompt may be kept; what was read is kept anyway.
    cache_control: Json | None = None
    context_management: ContextManagement | None = None
    # Refused by name, see REFUSED.
    container: Any = None
    diagnostics: Any = None
    mcp_servers: Any = None
    compaction: Any = None
    fallbacks: Any = None
    fallback_credit_token: Any = None


class MessagesRequest(CountRequest, kw_only=True):
    """Body of /v1/messages."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    # These cannot change an answer.
    metadata: Json | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    inference_geo: str | None = None
    speed: Literal["standard"] | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None
    billing_policy: Json | str | None = None
    # Refused with a word that clients know, see messages_words.
    thread: Any = None


REFUSED: Final = {
    "container": "this server runs no code.",
    "diagnostics": "there are none of that kind.",
    "mcp_servers": "this server calls no other servers.",
    "compaction": "conversations are read as they are sent.",
    "fallbacks": "there is one model here.",
    "fallback_credit_token": "there is one model here.",
}
