"""An answer's pieces to output items of the Responses API, and to the events that build them.

Owns the items' shapes and the order of events: whole answers are folded from the same events.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from strata.server.answers import Reasoning, Said, ToolArguments, ToolBegun, ToolEnded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from strata.server.answers import Piece, Step
    from strata.server.protocol import TokenLogprob

Event = dict[str, Any]
Logprobs = Callable[["Sequence[TokenLogprob]"], list[dict[str, Any]]]


class OutputItems:
    """The items of one answer as they are built; one is open at a time.

    Args:
        logprobs: log-probabilities as this API tells them.
        spaces: namespace and own name of the functions that are in one, by the model's name.
    """

    def __init__(self, logprobs: Logprobs, spaces: Mapping[str, tuple[str, str]]) -> None:
        self._logprobs = logprobs
        self._spaces = spaces
        self._waiting: list[dict[str, Any]] = []  # of tokens whose text has not come yet
        self.items: list[dict[str, Any]] = []
        self._is_open = False

    def add(self, step: Step) -> Iterator[Event]:
        """Events of one step."""
        self._waiting += self._logprobs(step.logprobs)
        for piece in step.pieces:
            yield from self._add(piece)

    def end(self, status: str) -> Iterator[Event]:
        """Events that end the open item."""
        if not self._is_open:
            return
        item = self.items[-1]
        item["status"] = status
        self._is_open = False
        match item["type"]:
            case "message":
                part = item["content"][0]
                part["logprobs"] += self._taken()
                done = {"text": part["text"], "logprobs": part["logprobs"]}
                yield self._event("response.output_text.done", content_index=0, **done)
                yield self._event("response.content_part.done", content_index=0, part=part)
            case "reasoning":
                part = item["content"][0]
                text = part["text"]
                yield self._event("response.reasoning_text.done", content_index=0, text=text)
                yield self._event("response.content_part.done", content_index=0, part=part)
            case _:
                yield self._event(
                    "response.function_call_arguments.done",
                    name=item["name"],
                    arguments=item["arguments"],
                )
        yield {
            "type": "response.output_item.done",
            "output_index": len(self.items) - 1,
            "item": item,
        }

    def _add(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case Reasoning(text):
                yield from self._into("reasoning")
                self.items[-1]["content"][0]["text"] += text
                yield self._event("response.reasoning_text.delta", content_index=0, delta=text)
            case Said(text):
                yield from self._into("message")
                part = self.items[-1]["content"][0]
                logprobs = self._taken()
                part["text"] += text
                part["logprobs"] += logprobs
                delta = {"delta": text, "logprobs": logprobs}
                yield self._event("response.output_text.delta", content_index=0, **delta)
            case ToolBegun(_, call_id, name):
                yield from self.end("completed")
                space, own = self._spaces.get(name, (None, name))
                head = {"call_id": call_id, "name": own, "arguments": ""}
                if space is not None:
                    head["namespace"] = space
                yield from self._begin("function_call", "fc", head)
            case ToolArguments(_, text):
                self.items[-1]["arguments"] += text
                yield self._event("response.function_call_arguments.delta", delta=text)
            case ToolEnded():
                yield from self.end("completed")

    def _into(self, kind: str) -> Iterator[Event]:
        """Goes on with an item of text of this kind, or begins one."""
        if self._is_open and self.items[-1]["type"] == kind:
            return
        yield from self.end("completed")
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield from self._begin(kind, "msg", {"role": "assistant", "content": [part]})
        else:
            part = {"type": "reasoning_text", "text": ""}
            yield from self._begin(kind, "rs", {"summary": [], "content": [part]})
        yield self._event("response.content_part.added", content_index=0, part={**part})

    def _begin(self, kind: str, prefix: str, rest: dict[str, Any]) -> Iterator[Event]:
        item_id = f"{prefix}_{uuid.uuid4().hex}"
        item = {"id": item_id, "type": kind, "status": "in_progress", **rest}
        self.items.append(item)
        self._is_open = True
        shown = {**item, "content": []} if "content" in item else dict(item)
        index = len(self.items) - 1
        yield {"type": "response.output_item.added", "output_index": index, "item": shown}

    def _taken(self) -> list[dict[str, Any]]:
        taken, self._waiting = self._waiting, []
        return taken

    def _event(self, kind: str, **rest: object) -> Event:
        index = len(self.items) - 1
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": index, **rest}
