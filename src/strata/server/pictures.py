"""What stands in a prompt for a picture, while no model here can see one.

Owns the rule and the check of a picture's address. Nothing is ever fetched: an address of another
machine is refused or stands for its picture unread.
"""

from __future__ import annotations

import binascii
from enum import StrEnum
from typing import Final

from strata.server.faults import Fault, bad_request

_SCHEMES: Final = ("https://", "http://")
_TEXT: Final = "[A picture was attached here. This model has no image input and cannot see it.]"


class Pictures(StrEnum):
    """What is done with pictures."""

    REFUSE = "refuse"
    TELL = "describe-as-missing"
    """A sentence in the prompt takes the picture's place."""


def text_for_picture(address: object, where: str, rule: Pictures) -> str:
    """The text that stands for a picture.

    Args:
        address: a data URL, or one of another machine.
        where: its place in the body.
        rule: of this server.

    Raises:
        Fault: 400, pictures are refused here, or this is none.
    """
    if rule is Pictures.REFUSE:
        raise refused("image", where)
    if not isinstance(address, str):
        raise bad_request(f"{where} has no address of a picture.", where)
    if not address.lower().startswith(_SCHEMES):
        _check_data(address, where)
    return _TEXT


def text_for_bytes(media_type: object, data: object, where: str, rule: Pictures) -> str:
    """The same for a picture whose bytes are given in base64; errors as above."""
    return text_for_picture(f"data:{media_type};base64,{data}", where, rule)


def refused(kind: str, where: str) -> Fault:
    """400: a part of this kind cannot be read by the model."""
    return bad_request(f"this model has no {kind} input ({where}).", where)


def _check_data(address: str, where: str) -> None:
    head, comma, data = address.partition(",")
    is_picture = head.lower().startswith("data:image/") and head.lower().endswith(";base64")
    if not comma or not is_picture:
        raise bad_request(f"{where} is no data URL of a picture.", where)
    try:
        raw = binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        raw = b""
    if not raw:
        raise bad_request(f"{where}: its base64 is damaged or empty.", where)
