"""Anthropic's messages to the conversation templates read, and its tools to tools.

Owns where they differ: results of calls lie inside user turns, reasoning is a block, an answer may
be begun by the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strata.server.anthropic_models import (
    REFUSED,
    AnthropicTool,
    DocumentBlock,
    ImageBlock,
    KeptTurns,
    MessagesRequest,
    RedactedBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from strata.server.bodies import checked_sampling, refuse
from strata.server.chat_words import budget_of, wish_of_tools
from strata.server.faults import THREAD_UNSUPPORTED, bad_request
from strata.server.form_words import format_wish
from strata.server.openai_models import Function, Tool
from strata.server.pictures import Pictures, refused, text_for_bytes, text_for_picture
from strata.server.serving import ChatWish, ToolWish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.server.anthropic_models import CountRequest, Turn
    from strata.server.form_words import FormWish


def wish_of(
    body: CountRequest, *, has_thinking: bool, pictures: Pictures = Pictures.REFUSE
) -> ChatWish:
    """What a body asks for.

    Args:
        body: of either route.
        has_thinking: whether the model can be told to think or not.
        pictures: what is done with them.

    Raises:
        Fault: 400, a field cannot be honoured.
    """
    refuse({name: getattr(body, name) for name in REFUSED}, REFUSED)
    if isinstance(body, MessagesRequest) and body.thread is not None:
        text = "this server keeps no threads.\n  Try: the whole conversation in messages."
        raise bad_request(text, "thread", code=THREAD_UNSUPPORTED)
    turns, prefill = _turns(body.messages, pictures)
    if system := _joined(body.system, "system", pictures):
        turns.insert(0, {"role": "system", "content": system})
    _forget_thoughts(turns, body)
    thinking = body.thinking
    if thinking is not None and thinking.type == "adaptive" and not has_thinking:
        thinking = None  # it leaves the choice to the model, which has none
    is_on = thinking is not None and thinking.type != "disabled"
    budget = None if thinking is None else thinking.budget_tokens
    if is_on and budget is None and body.output_config is not None:
        budget = budget_of(body.output_config.effort)
    if budget is not None and budget < 0:
        raise bad_request("it must not be negative.", "thinking.budget_tokens")
    return ChatWish(
        messages=turns,
        options=_options(body) if isinstance(body, MessagesRequest) else {},
        # Reasoning only on request, as this API's clients expect.
        thinking=is_on if is_on or has_thinking else None,
        think_budget=budget,
        tools=_tools(body),
        prefill=prefill,
        form=_form(body),
    )


def _forget_thoughts(turns: Sequence[dict[str, Any]], body: CountRequest) -> None:
    """Takes the reasoning out of the older turns, where the client wants it so."""
    management = body.context_management
    for edit in (management.edits if management is not None else None) or []:
        keep = edit.keep
        if keep == "all" or (isinstance(keep, KeptTurns) and keep.type == "all"):
            continue
        num_kept = 1 if keep is None or keep.value is None else keep.value
        if num_kept < 1:
            raise bad_request("it must be at least 1.", "context_management.edits.keep.value")
        for turn in [turn for turn in turns if "reasoning_content" in turn][:-num_kept]:
            del turn["reasoning_content"]


def _form(body: CountRequest) -> FormWish | None:
    config = body.output_config
    newer = None if config is None else config.format
    found = [
        (given, field)
        for given, field in ((newer, "output_config.format"), (body.output_format, "output_format"))
        if given is not None
    ]
    if len(found) > 1:
        raise bad_request("an answer has one form, but there are two.", "output_format")
    return format_wish(found[0][0].type, found[0][0].schema, found[0][1]) if found else None


def _options(body: MessagesRequest) -> dict[str, Any]:
    options = {
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": body.stop_sequences,
    }
    return checked_sampling(options, {"stop": "stop_sequences"})


def _turns(messages: Sequence[Turn], pictures: Pictures) -> tuple[list[dict[str, Any]], str]:
    """The conversation, and the beginning of the answer where the client wrote one."""
    if not messages:
        raise bad_request("there is no message.", "messages")
    turns: list[dict[str, Any]] = []
    for index, turn in enumerate(messages):
        where = f"messages[{index}].content"
        if turn.role == "assistant":
            turns += _assistant_turn(turn, where)
        else:
            turns += _user_turns(turn, where, pictures)
    if messages[-1].role == "assistant" and turns and "tool_calls" not in turns[-1]:
        last = turns.pop()
        return turns, str(last["content"]).rstrip()
    return turns, ""


def _user_turns(turn: Turn, where: str, pictures: Pictures) -> list[dict[str, Any]]:
    """Results of calls first, for they answer the turn before; then what was said."""
    if isinstance(turn.content, str):
        return [{"role": "user", "content": turn.content}]
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for index, block in enumerate(turn.content):
        match block:
            case ToolResultBlock():
                text = _joined(block.content, f"{where}[{index}].content", pictures)
                text = f"Error: {text}" if block.is_error else text
                call_id = block.tool_use_id
                results.append({"role": "tool", "content": text, "tool_call_id": call_id})
            case _:
                texts.append(_text(block, f"{where}[{index}]", pictures))
    said = [{"role": "user", "content": "\n".join(texts)}] if texts or not results else []
    return results + said


def _assistant_turn(turn: Turn, where: str) -> list[dict[str, Any]]:
    if isinstance(turn.content, str):
        return [{"role": "assistant", "content": turn.content}] if turn.content else []
    made: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(turn.content):
        match block:
            case TextBlock(text=text):
                made["content"] += text
            case ThinkingBlock(thinking=thought):
                made["reasoning_content"] = made.get("reasoning_content", "") + thought
            case ToolUseBlock():
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
            case RedactedBlock():
                pass  # sealed by another service; the template has no place for it
            case _:
                raise refused(
                    type(block).__name__.removesuffix("Block").lower(), f"{where}[{index}]"
                )
    if calls:
        made["tool_calls"] = calls
    return [made] if made["content"] or len(made) > 2 else []


def _joined(content: str | Sequence[object] | None, where: str, pictures: Pictures) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = [_text(block, f"{where}[{i}]", pictures) for i, block in enumerate(content)]
    return "\n".join(texts)


def _text(block: object, where: str, pictures: Pictures) -> str:
    """What a block says."""
    match block:
        case TextBlock(text=text):
            return text
        case ImageBlock(source={"type": "base64", **rest}):
            data = (rest.get("media_type"), rest.get("data"))
            return text_for_bytes(*data, f"{where}.source", pictures)
        case ImageBlock(source=source):
            return text_for_picture(source.get("url"), f"{where}.source", pictures)
        case DocumentBlock(source={"type": "text", "data": str(text)}, title=title):
            return text if title is None else f"{title}\n\n{text}"
        case _:
            raise refused(type(block).__name__.removesuffix("Block").lower(), where)


def _tools(body: CountRequest) -> ToolWish:
    choice = body.tool_choice
    if choice is None:
        return wish_of_tools([_tool(tool) for tool in body.tools or []])
    if choice.type == "none":
        return ToolWish()
    if (choice.name is not None) != (choice.type == "tool"):
        raise bad_request("a name belongs to type tool, and only there.", "tool_choice.name")
    return wish_of_tools(
        [_tool(tool) for tool in body.tools or []],
        must_call=choice.type in ("any", "tool"),
        must_call_name=choice.name,
        is_one_call=choice.disable_parallel_tool_use or choice.type == "tool",
    )


def _tool(tool: AnthropicTool) -> Tool:
    return Tool(
        function=Function(
            name=tool.name,
            description=tool.description,
            parameters=tool.input_schema,
            strict=tool.strict,
        )
    )
