"""A conversation made shorter: what was said becomes a summary that the model writes itself.

Owns the words the model is asked with, and the sealed text a summary travels in. It is sealed only
in form: whoever holds it may read it, as it is the client's own conversation.
"""

from __future__ import annotations

import binascii
import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec

from strata.server.faults import bad_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.server.structs import Json

Turn = dict[str, Any]

SUMMARY_TOKENS: Final = 1024
_MARK: Final = "strata.1."
_WISH: Final = (
    "Summarize this conversation for whoever goes on with it. Keep names, numbers, decisions, "
    "results of tools and what is still to be done. Write the summary only."
)
_HEAD: Final = "Summary of the conversation so far:\n"


def with_wish(turns: Sequence[Turn]) -> list[Turn]:
    """The conversation and the question for its summary."""
    return [*turns, {"role": "user", "content": _WISH}]


def turn_of(sealed: str, where: str) -> Turn:
    """A summary as the turn it is read as.

    Raises:
        Fault: 400, it was not made by this server.
    """
    try:
        head, text = sealed[: len(_MARK)], sealed[len(_MARK) :]
        summary = binascii.a2b_base64(text.encode(), strict_mode=True).decode()
    except ValueError:
        head, summary = "", ""
    if head != _MARK:
        raise bad_request(
            f"{where}.encrypted_content was not made by /v1/responses/compact of this server.",
            f"{where}.encrypted_content",
        )
    return {"role": "user", "content": _HEAD + summary}


def compacted(items: Sequence[Json], summary: str) -> list[Json]:
    """The shorter conversation: what people said as it was, and a summary of all of it."""
    sealed = _MARK + binascii.b2a_base64(summary.encode(), newline=False).decode()
    kept = [item for item in items if item.get("role") == "user"]
    new_id = f"cmp_{uuid.uuid4().hex}"
    return [*kept, {"type": "compaction", "id": new_id, "encrypted_content": sealed}]


def listed(items: Sequence[Json]) -> list[Json]:
    """Items as they are given out: each with an id, a state, and its text in parts."""
    return [_listed(item) for item in items]


def _listed(item: Json) -> Json:
    kind = item.get("type") or "message"
    prefix = {"message": "msg", "reasoning": "rs", "compaction": "cmp"}.get(kind, "fc")
    told = {
        "id": f"{prefix}_{uuid.uuid4().hex}",
        **{name: value for name, value in item.items() if value is not None},
        "type": kind,
    }
    if kind != "compaction":
        told.setdefault("status", "completed")
    if kind == "reasoning":
        told.setdefault("summary", [])
    if kind == "message":
        told["content"] = _parts(item)
    return msgspec.to_builtins(told)  # type: ignore[no-any-return]


def _parts(item: Json) -> list[Json]:
    """The text of a message in parts, as its role has them."""
    content = item.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if item.get("role") != "assistant":
        return [{**part, "type": "input_text"} if _is_plain(part) else part for part in parts]
    said: Json = {"annotations": [], "logprobs": []}
    return [{**said, **part, "type": "output_text"} if _is_plain(part) else part for part in parts]


def _is_plain(part: Json) -> bool:
    return part.get("type") in ("text", "input_text", "output_text")
