"""Conversations as clients send them, to the messages templates read.

Owns where they differ: developer turns, system turns in the middle, empty turns, parts that are no
text, and the wish for tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from strata.server.faults import bad_request
from strata.server.openai_models import (
    AssistantMessage,
    ChatReasoning,
    DeveloperMessage,
    ImagePart,
    NamedTool,
    RefusalPart,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
)
from strata.server.pictures import Pictures, refused, text_for_picture
from strata.server.serving import ToolWish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.server.openai_models import Call, ChatMessage, ChatRequest, Content, Tool

Turn = dict[str, Any]

# Efforts above these think as long as it takes.
_BUDGETS: Final = {"minimal": 512, "low": 2048, "medium": 8192}


def turns_of(messages: Sequence[ChatMessage], pictures: Pictures = Pictures.REFUSE) -> list[Turn]:
    """The conversation for the template.

    Raises:
        Fault: 400, it is empty or a part is no text.
    """
    turns: list[Turn] = []
    systems: list[str] = []
    for index, message in enumerate(messages):
        text = _text(message.content, f"messages[{index}].content", pictures)
        match message:
            case SystemMessage() | DeveloperMessage() if not turns:
                systems += [text] if text else []
            case SystemMessage() | DeveloperMessage() | UserMessage():
                # Templates take instructions at the beginning only.
                turns.append({"role": "user", "content": text})
            case AssistantMessage():
                turns += _assistant_turn(message, text)
            case ToolMessage():
                turn = {"role": "tool", "content": text, "tool_call_id": message.tool_call_id}
                turns.append(turn if message.name is None else {**turn, "name": message.name})
    head = [{"role": "system", "content": "\n\n".join(systems)}] if systems else []
    if not head and not turns:
        raise bad_request("there is no message.", "messages")
    return head + turns


def tool_wish(body: ChatRequest) -> ToolWish:
    """Which tools there are, and which must be called.

    Raises:
        Fault: 400, a tool is named twice or not there.
    """
    tools = body.tools or []
    is_one_call = body.parallel_tool_calls is False
    match body.tool_choice:
        case "none":
            return ToolWish()
        case "required":
            return wish_of_tools(tools, must_call=True, is_one_call=is_one_call)
        case NamedTool(function=function):
            return wish_of_tools(
                tools, must_call=True, must_call_name=function.name, is_one_call=True
            )
        case _:
            return wish_of_tools(tools, is_one_call=is_one_call)


def wish_of_tools(
    tools: Sequence[Tool],
    *,
    must_call: bool = False,
    must_call_name: str | None = None,
    is_one_call: bool = False,
) -> ToolWish:
    """The same from plain wishes, for every API.

    Raises:
        Fault: 400, a tool is named twice or not there.
    """
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise bad_request("two tools have one name.", "tools")
    if must_call and not tools:
        raise bad_request("tool_choice requires a call, but there are no tools.", "tool_choice")
    if must_call_name is not None and must_call_name not in names:
        raise bad_request(f"there is no tool {must_call_name!r} to call.", "tool_choice")
    if must_call and len(names) == 1:
        must_call_name = names[0]
    return ToolWish(
        tools=[_described(tool) for tool in tools],
        schemas={tool.function.name: tool.function.parameters or {} for tool in tools},
        must_call=must_call,
        must_call_name=must_call_name,
        is_one_call=is_one_call,
        strict_names=frozenset(tool.function.name for tool in tools if tool.function.strict),
    )


def thinking_of(effort: str | None) -> bool | None:
    """Whether an effort means thinking; None leaves it to the template."""
    return None if effort in (None, "default") else effort != "none"


def budget_of(effort: str | None) -> int | None:
    """Most tokens of thinking an effort is worth; None for as many as it takes."""
    return _BUDGETS.get(effort or "")


def reasoning_of(body: ChatRequest) -> tuple[bool | None, int | None]:
    """Whether is thought, and with how many tokens at most.

    Raises:
        Fault: 400, two fields disagree, or a budget is negative.
    """
    given = body.reasoning or ChatReasoning()
    efforts = {item for item in (body.reasoning_effort, given.effort) if item is not None}
    budgets = {
        item for item in (body.reasoning_budget_tokens, given.max_tokens) if item is not None
    }
    if len(efforts) > 1 or len(budgets) > 1:
        raise bad_request("it disagrees with the other fields of reasoning.", "reasoning")
    effort, budget = next(iter(efforts), None), next(iter(budgets), None)
    if budget is not None and budget < 0:
        raise bad_request("a budget of reasoning must not be negative.", "reasoning_budget_tokens")
    thinking = thinking_of(effort)
    if given.enabled is not None:
        if thinking is not None and thinking != given.enabled:
            raise bad_request("enabled and effort disagree.", "reasoning.enabled")
        thinking = given.enabled
    return thinking, budget_of(effort) if budget is None else budget


def _described(tool: Tool) -> dict[str, object]:
    function: dict[str, object] = {"name": tool.function.name}
    if tool.function.description is not None:
        function["description"] = tool.function.description
    parameters = tool.function.parameters
    function["parameters"] = (
        {"type": "object", "properties": {}} if parameters is None else parameters
    )
    return {"type": "function", "function": function}


def _assistant_turn(message: AssistantMessage, text: str) -> list[Turn]:
    """The turn; none where nothing was said, which templates do not expect."""
    turn: Turn = {"role": "assistant", "content": text or message.refusal or ""}
    if thought := message.reasoning_content or message.reasoning:
        turn["reasoning_content"] = thought
    if message.tool_calls:
        turn["tool_calls"] = [_call(call) for call in message.tool_calls]
    return [turn] if len(turn) > 2 or turn["content"] else []


def _call(call: Call) -> dict[str, object]:
    function = {"name": call.function.name, "arguments": call.function.arguments or {}}
    return {"id": call.id, "type": "function", "function": function}


def _text(content: Content, where: str, pictures: Pictures) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        match part:
            case TextPart(text=text) | RefusalPart(refusal=text):
                texts.append(text)
            case ImagePart(image_url=url):
                address = url if isinstance(url, str) else url.get("url")
                texts.append(text_for_picture(address, f"{where}[{index}]", pictures))
            case _:
                tag = str(part.__struct_config__.tag)
                raise refused("audio" if tag == "input_audio" else tag, f"{where}[{index}]")
    return "\n".join(texts)
