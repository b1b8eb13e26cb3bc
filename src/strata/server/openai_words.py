"""OpenAI's words for what both its completion APIs tell: usage, timings, log-probabilities.

Owns the shapes of those objects, and the sampling fields' way to the engine's options.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from strata import __version__
from strata.server.bodies import checked_sampling
from strata.server.faults import bad_request
from strata.server.form_words import EXTRA_FIELDS, format_wish, one_wish

if TYPE_CHECKING:
    from strata.server.form_words import FormWish
    from strata.server.model_side import ModelSide
    from strata.server.openai_models import ResponseFormat, Sampling
    from strata.server.protocol import Costs, TokenLogprob

MAX_CHOICES: Final = 16
_TOKEN_ID: Final = re.compile("[0-9]{1,10}")
FINGERPRINT: Final = f"strata-{__version__}"


def options_of(body: Sampling, **rest: object) -> dict[str, Any]:
    """Options of ``SamplingParams``; what was not said is None.

    Raises:
        Fault: 400, two names for one wish disagree, or a value is impossible.
    """
    options = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "seed": body.seed,
        "stop": body.stop,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "repeat_penalty": either(body, "repeat_penalty", "repetition_penalty"),
        "penalty_last_n": either(body, "penalty_last_n", "repeat_last_n"),
        "logit_bias": _bias(body.logit_bias),
        "ignore_eos": body.ignore_eos,
        **rest,
    }
    # The name a client used is the one it is told.
    others = {
        "max_tokens": "max_completion_tokens",
        "logprobs": "top_logprobs",
        "repeat_penalty": "repetition_penalty",
        "penalty_last_n": "repeat_last_n",
    }
    names = {name: said for name, said in others.items() if getattr(body, said, None) is not None}
    return checked_sampling(options, names)


def form_wish(body: Sampling, given: ResponseFormat | None = None) -> FormWish | None:
    """The form a body asks for, by whichever of its fields.

    Raises:
        Fault: 400, two fields ask for one, or a schema is missing.
    """
    wished = None
    if given is not None:
        schema: object = given.schema
        where = "schema"
        if given.json_schema is not None:
            schema, where = given.json_schema.schema, "json_schema.schema"
        elif given.type == "json_schema" and schema is None:
            where = "json_schema"
        wished = format_wish(given.type, schema, "response_format", schema_field=where)
    names = (*EXTRA_FIELDS, "structured_outputs")
    return one_wish(wished, {name: getattr(body, name) for name in names})


def either(body: Sampling, first: str, second: str) -> Any:
    """The one of two fields that has a value.

    Raises:
        Fault: 400, both have, and they differ.
    """
    one, other = getattr(body, first), getattr(body, second)
    if one is not None and other is not None and one != other:
        raise bad_request(f"{first} and {second} are one wish, but differ.", second)
    return other if one is None else one


def num_choices(body: Sampling) -> int:
    """How many answers are wanted.

    Raises:
        Fault: 400, none or too many.
    """
    num = 1 if body.n is None else body.n
    if not 1 <= num <= MAX_CHOICES:
        raise bad_request(f"n must be 1 to {MAX_CHOICES}, not {num}.", "n")
    return num


def with_seed(options: dict[str, Any], index: int) -> dict[str, Any]:
    """Options of choice ``index``: each draws on its own, and repeatably if a seed was given."""
    seed = options.get("seed")
    return options if seed is None else {**options, "seed": seed + index}


def usage_of(costs: list[Costs], num_reasoning: int = 0, *, num_prompts: int = 1) -> dict[str, Any]:
    """The usage of answers; a prompt is counted once, however many answers it has."""
    num_prompt = sum(item.prompt_tokens for item in costs) * num_prompts // len(costs)
    num_generated = sum(item.generated_tokens for item in costs)
    num_reused = costs[0].reused_tokens if num_prompts == 1 else 0
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_generated,
        "total_tokens": num_prompt + num_generated,
        "prompt_tokens_details": {"cached_tokens": num_reused, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": num_reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def timings_of(costs: Costs) -> dict[str, Any]:
    """Timings by llama.cpp's names. Milliseconds."""
    num_read = costs.prompt_tokens - costs.reused_tokens
    num_after_first = max(costs.generated_tokens - 1, 0)
    return {
        "cache_n": costs.reused_tokens,
        "prompt_n": num_read,
        "prompt_ms": 1e3 * costs.prompt_s,
        "prompt_per_second": num_read / costs.prompt_s if costs.prompt_s > 0 else 0.0,
        "predicted_n": costs.generated_tokens,
        "predicted_ms": 1e3 * costs.decode_s,
        "predicted_per_second": num_after_first / costs.decode_s if costs.decode_s > 0 else 0.0,
        "draft_n": costs.drafts_proposed,
        "draft_n_accepted": costs.drafts_accepted,
    }


def chat_logprobs(model: ModelSide, items: list[TokenLogprob]) -> list[dict[str, Any]]:
    """Log-probabilities as chat completions tell them; the end of the answer is no token of it."""
    end_ids = model.text.end_ids
    return [
        {
            **_token(model, item.token_id, item.logprob),
            "top_logprobs": [_token(model, token_id, logprob) for token_id, logprob in item.top],
        }
        for item in items
        if item.token_id not in end_ids
    ]


def text_of_token(model: ModelSide, token_id: int) -> str:
    """A token as text; bytes that are no character by themselves are replaced."""
    return model.text.token_bytes(token_id).decode("utf-8", errors="replace")


def _token(model: ModelSide, token_id: int, logprob: float) -> dict[str, Any]:
    raw = model.text.token_bytes(token_id)
    # JSON has no infinity; this is OpenAI's number for "never".
    return {
        "token": raw.decode("utf-8", errors="replace"),
        "logprob": max(logprob, -9999.0),
        "bytes": list(raw),
    }


def _bias(given: dict[str, float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    for name in given:
        if not _TOKEN_ID.fullmatch(name):
            raise bad_request(f"logit_bias must be by token id, not {name[:40]!r}.", "logit_bias")
    return {int(name): value for name, value in given.items()}
