"""The struct every body is made of."""

from __future__ import annotations

from typing import Any

import msgspec

Json = dict[str, Any]


class Struct(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A JSON object whose fields are all known."""
