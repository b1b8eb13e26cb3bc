"""What went wrong, as HTTP says it: status, type, code and the field it is about.

Owns the table from error class to status. The classes of ``strata.errors`` know no HTTP; the error
bodies of each API are made here from the same four words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from strata import errors


class Fault(Exception):
    """An answer that is an error.

    Args:
        status: of HTTP.
        text: fit to show to a user.
        code: OpenAI's machine-readable word, where there is one.
        field: the field of the body it is about.
        retry_after_s: when it makes sense to ask again.
    """

    def __init__(
        self,
        status: int,
        text: str,
        *,
        code: str | None = None,
        field: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.code = code
        self.field = field
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        return {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}


# Anthropic's clients send the whole conversation themselves when they read this.
THREAD_UNSUPPORTED: Final = "thread_unsupported_request"
_STATUS_OF: Final = {
    "SettingsError": (400, None),
    "RequestError": (400, None),
    "ContextTooLong": (400, "context_length_exceeded"),
}
_OPENAI_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}
_ANTHROPIC_TYPES: Final = {
    **_OPENAI_TYPES,
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}


def fault_of_kind(kind: str, text: str) -> Fault:
    """The fault of an error class by its name, as the engine's process tells it."""
    status, code = _STATUS_OF.get(kind, (503, None))
    return Fault(status, text, code=code)


def fault_of_limit(kind: str, text: str) -> Fault:
    """The fault of a limit the engine refuses: there is no card, too little, the card says no."""
    status = {"RequestError": 409, "PlanError": 400}.get(kind, 503)
    return Fault(status, text, field="vram" if status == 400 else None)


def fault_of(error: errors.StrataError) -> Fault:
    """The fault of an error raised in this process."""
    return fault_of_kind(type(error).__name__, str(error))


def bad_request(text: str, field: str | None = None, *, code: str | None = None) -> Fault:
    """400, about ``field``."""
    return Fault(400, text, field=field, code=code)


def openai_error(fault: Fault) -> dict[str, object]:
    """The body OpenAI's clients read."""
    return {
        "error": {
            "message": fault.text,
            "type": _OPENAI_TYPES.get(fault.status, "server_error"),
            "param": fault.field,
            "code": fault.code,
        }
    }


def anthropic_error(fault: Fault) -> dict[str, object]:
    """The body Anthropic's clients read."""
    kind = _ANTHROPIC_TYPES.get(fault.status, "api_error")
    text = fault.text if fault.field is None else f"{fault.field}: {fault.text}"
    error: dict[str, object] = {"type": kind, "message": text}
    if fault.code == THREAD_UNSUPPORTED:
        error["details"] = {"error_code": fault.code, "unsupported": [fault.field]}
    return {"type": "error", "error": error, "request_id": None}
