"""What programs for llama.cpp's server look at before they talk to it: /props and /slots.

Owns those shapes, as far as they mean something here; what is asked after that has OpenAI's names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from strata.engine.sampling_params import SamplingParams
from strata.server.bodies import json_response
from strata.server.child import MOST_BEGUN
from strata.server.openai_words import FINGERPRINT
from strata.server.requests_log import Phase

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from strata.server.requests_log import Record
    from strata.server.serving import Serving

_TOLD: Final = (
    "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip


async def props(request: Request) -> Response:
    """What the server can do."""
    serving: Serving = request.app.state.serving
    defaults = SamplingParams()
    return json_response(
        {
            "default_generation_settings": {
                "n_ctx": _context_len(serving),
                "params": {name: getattr(defaults, name) for name in _TOLD},
            },
            "total_slots": MOST_BEGUN,
            "model_alias": serving.model.name,
            "model_path": serving.model.name,  # where it lies is nobody's business
            "chat_template": serving.model.text.template_source,
            "modalities": {"vision": False, "audio": False},
            "build_info": FINGERPRINT,
        }
    )


async def slots(request: Request) -> Response:
    """Requests that were begun, and room for more of them."""
    serving: Serving = request.app.state.serving
    begun = [item for item in serving.engine.log.open if item.phase is not Phase.WAITING]
    places: list[Record | None] = [*begun, *[None] * (MOST_BEGUN - len(begun))]
    context_len = _context_len(serving)
    return json_response([_slot(*place, context_len) for place in enumerate(places)])


def _slot(number: int, record: Record | None, context_len: int | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": number,
        "n_ctx": context_len,
        "is_processing": record is not None,
    }
    if record is not None:
        told["id_task"] = record.request_id
        told["n_prompt_tokens"] = record.num_prompt
        told["n_prompt_tokens_processed"] = record.num_read
        told["next_token"] = {"n_decoded": record.num_written}
    return told


def _context_len(serving: Serving) -> int | None:
    ready = serving.engine.ready
    return None if ready is None else ready.context_len
