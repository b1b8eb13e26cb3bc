"""What a first request would make for all later ones, made while the model loads.

Owns what that is on this side: how bodies are read, the template run once, and the memory a long
text needs on its way to tokens. Leaves nothing behind that an answer or a count could show.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

import msgspec

from strata.errors import StrataError
from strata.server.anthropic_models import MessagesRequest
from strata.server.openai_models import ChatRequest, CompletionRequest
from strata.server.responses_models import ResponsesRequest

if TYPE_CHECKING:
    from strata.server.model_side import ModelSide

_BODIES: Final = (ChatRequest, CompletionRequest, MessagesRequest, ResponsesRequest)
# Some thousands of tokens, in a few milliseconds; memory of an ended thread is the next one's.
_TEXT: Final = "Of what the first one asks for, most is there before 1 word of it is read.\n" * 300


def begin_first_use(model: ModelSide) -> None:
    """Makes it in a thread that nobody waits for: a file's template may never end."""
    threading.Thread(target=make_first_use, args=(model,), name="first-use", daemon=True).start()


def make_first_use(model: ModelSide) -> None:
    """Makes it, in some 20 ms."""
    for kind in _BODIES:
        with contextlib.suppress(msgspec.ValidationError):
            msgspec.convert({}, kind)
    with contextlib.suppress(StrataError):
        if model.text.has_chat_template:
            ids = model.chat([{"role": "user", "content": _TEXT}], {})
        else:  # a plain one is told of, to whoever uses it
            ids = model.text.encode(_TEXT)
        model.opens_thinking(ids)
