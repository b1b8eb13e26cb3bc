"""Items of the Responses API to the conversation templates read, and its wishes to wishes.

Owns where they differ: calls and reasoning are items of their own, which belong to one turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strata.server.bodies import as_struct, checked_sampling, refuse
from strata.server.chat_words import budget_of, thinking_of, wish_of_tools
from strata.server.faults import bad_request
from strata.server.form_words import format_wish
from strata.server.openai_models import Function, Tool
from strata.server.pictures import Pictures, refused, text_for_picture
from strata.server.responses_compaction import turn_of
from strata.server.responses_models import (
    INCLUDABLE,
    INCLUDED_LOGPROBS,
    REFUSED,
    CallItem,
    CallOutputItem,
    ChosenTool,
    CompactionItem,
    InputImage,
    InputText,
    Item,
    MessageItem,
    NamespaceTool,
    OutputText,
    PlainText,
    ReasoningItem,
    Refusal,
    ResponsesRequest,
)
from strata.server.serving import ChatWish, ToolWish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.server.form_words import FormWish
    from strata.server.responses_models import AnyTool, FunctionTool, Part
    from strata.server.structs import Json

Turn = dict[str, Any]


def wish_of(
    body: ResponsesRequest, items: Sequence[Item], pictures: Pictures = Pictures.REFUSE
) -> ChatWish:
    """What a body asks for.

    Args:
        body: checked field by field.
        items: the whole conversation, items of earlier responses included.
        pictures: what is done with them.

    Raises:
        Fault: 400, a field cannot be honoured.
    """
    refuse({name: getattr(body, name) for name in REFUSED}, REFUSED)
    for name in body.include or []:
        if name not in INCLUDABLE:
            raise bad_request(f"there is no {name!r} to include.", "include")
    has_logprobs = wants_logprobs(body)
    options = {
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "logprobs": (body.top_logprobs or 0) if has_logprobs else None,
    }
    effort = None if body.reasoning is None else body.reasoning.effort
    return ChatWish(
        messages=turns_of(body.instructions, items, pictures),
        options=checked_sampling(
            options, {"max_tokens": "max_output_tokens", "logprobs": "top_logprobs"}
        ),
        thinking=thinking_of(effort),
        think_budget=budget_of(effort),
        tools=_tools(body),
        form=_form(body),
    )


def _form(body: ResponsesRequest) -> FormWish | None:
    given = None if body.text is None else body.text.format
    return None if given is None else format_wish(given.type, given.schema, "text.format")


def wants_logprobs(body: ResponsesRequest) -> bool:
    """Whether the answer tells log-probabilities."""
    return bool(body.top_logprobs) or INCLUDED_LOGPROBS in (body.include or [])


def plain_items(given: str | list[Json] | None) -> list[Json]:
    """An input as items; a text is a message of the user."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return list(given or [])


def items_of(plain: Sequence[Json]) -> list[Item]:
    """The items of an input, checked.

    Raises:
        Fault: 400, one is malformed or of a kind that does not exist here.
    """
    return [_item(item, index) for index, item in enumerate(plain)]


def turns_of(
    instructions: str | None, items: Sequence[Item], pictures: Pictures = Pictures.REFUSE
) -> list[Turn]:
    """The conversation for the template.

    Raises:
        Fault: 400, it is empty or a part is no text.
    """
    systems = [instructions] if instructions else []
    turns: list[Turn] = []
    for index, item in enumerate(items):
        where = f"input[{index}]"
        match item:
            case MessageItem(role="system" | "developer") if not turns:
                systems.append(_text(item.content, where, pictures))
            case MessageItem(role="assistant"):
                _answer_of(turns)["content"] += _text(item.content, where, pictures)
            case MessageItem():
                # Templates take instructions at the beginning only.
                turns.append({"role": "user", "content": _text(item.content, where, pictures)})
            case ReasoningItem():
                thought = _thought(item)
                turn = _answer_of(turns)
                turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
            case CallItem():
                _answer_of(turns).setdefault("tool_calls", []).append(_call(item))
            case CompactionItem(encrypted_content=sealed):
                turns.append(turn_of(sealed, where))
            case CallOutputItem():
                text = _text(item.output, where, pictures)
                turns.append({"role": "tool", "content": text, "tool_call_id": item.call_id})
    head = [{"role": "system", "content": "\n\n".join(systems)}] if systems else []
    if not turns and not head:
        raise bad_request("there is no input.", "input")
    return head + turns


def _call(item: CallItem) -> Turn:
    name = item.name if item.namespace is None else _in_namespace(item.namespace, item.name)
    function: Turn = {"name": name, "arguments": item.arguments or {}}
    return {"id": item.call_id, "type": "function", "function": function}


def _answer_of(turns: list[Turn]) -> Turn:
    """The answer that is open: reasoning, text and calls in a row are one turn."""
    if not turns or turns[-1]["role"] != "assistant":
        turns.append({"role": "assistant", "content": ""})
    return turns[-1]


def _item(plain: Json, index: int) -> Item:
    # A message need not say that it is one.
    named = plain if "type" in plain or "role" not in plain else {"type": "message", **plain}
    kinds: dict[object, type[Item]] = {
        "message": MessageItem,
        "function_call": CallItem,
        "function_call_output": CallOutputItem,
        "reasoning": ReasoningItem,
        "compaction": CompactionItem,
    }
    kind = kinds.get(named.get("type"))
    if kind is None:
        field = f"input[{index}].type"
        raise bad_request(f"there are no items of type {named.get('type')!r} here.", field)
    return as_struct(named, kind, where=f"input[{index}]")


def _thought(item: ReasoningItem) -> str:
    parts = item.content or item.summary or []
    return "".join(str(part.get("text", "")) for part in parts)


def _text(content: str | Sequence[Part], where: str, pictures: Pictures) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        match part:
            case InputText(text=text) | OutputText(text=text) | PlainText(text=text):
                texts.append(text)
            case Refusal(refusal=text):
                texts.append(text)
            case InputImage(image_url=url):
                texts.append(text_for_picture(url, f"{where}.content[{index}]", pictures))
            case _:
                kind = str(part.__struct_config__.tag).removeprefix("input_")
                raise refused(kind, f"{where}.content[{index}]")
    return "\n".join(texts)


def _tools(body: ResponsesRequest) -> ToolWish:
    tools = [_tool(tool, name) for name, (_, tool) in functions_of(body.tools).items()]
    choice = body.tool_choice
    if choice == "none":
        return ToolWish()
    is_named = isinstance(choice, ChosenTool)
    return wish_of_tools(
        tools,
        must_call=is_named or choice == "required",
        must_call_name=choice.name if isinstance(choice, ChosenTool) else None,
        is_one_call=is_named or body.parallel_tool_calls is False,
    )


def functions_of(tools: Sequence[AnyTool] | None) -> dict[str, tuple[str | None, FunctionTool]]:
    """The functions by the names the model knows them by, with the namespaces they came from.

    Raises:
        Fault: 400, two have one name.
    """
    found: dict[str, tuple[str | None, FunctionTool]] = {}
    for tool in tools or []:
        inside = tool.tools if isinstance(tool, NamespaceTool) else [tool]
        space = tool.name if isinstance(tool, NamespaceTool) else None
        for function in inside:
            name = function.name if space is None else _in_namespace(space, function.name)
            if name in found:
                raise bad_request(f"two tools are called {name!r}.", "tools")
            found[name] = (space, function)
    return found


def _in_namespace(space: str, name: str) -> str:
    return f"{space}__{name}"


def _tool(tool: FunctionTool, name: str) -> Tool:
    return Tool(
        function=Function(
            name=name,
            description=tool.description,
            parameters=tool.parameters,
            strict=tool.strict,
        )
    )
