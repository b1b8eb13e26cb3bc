"""The program of this engine's process in a comparison; see ``bench_worker``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from strata.engine.bench import Measurement, measure
from strata.engine.bench_worker import serve
from strata.engine.build import open_parts
from strata.settings import Settings

if TYPE_CHECKING:
    from strata.engine.session import Logits


class OwnEngine:
    """This engine, one session."""

    description = "strata"

    def __init__(self, setup: dict[str, Any]) -> None:
        settings = Settings.from_options(setup["settings"])
        parts = open_parts(settings)
        self._draft_tokens = settings.draft_tokens
        self._session = parts.model.new_session(parts.context_len)

    def measure(self, prompt: list[int], num_decode: int) -> Measurement:
        """One round; the session is reset first."""
        return measure(
            self._session,
            np.array(prompt, dtype=np.int32),
            num_decode,
            draft_tokens=self._draft_tokens,
        )

    def next_logits(self, prompt: list[int]) -> Logits:
        """Logits [V] after a prompt; the session is reset first."""
        self._session.reset()
        return self._session.prefill(np.array(prompt, dtype=np.int32))


if __name__ == "__main__":
    serve(OwnEngine)
