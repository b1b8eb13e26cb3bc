"""What the HTTP process needs of a model file: its tokenizer, its template, its facts. No weights.

Owns the words of thinking: whether a prompt opens it, and the tokens that close it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from strata.engine.default_model import default_model
from strata.engine.model_file import open_file
from strata.engine.model_text import ModelText
from strata.errors import CheckpointError, RequestError
from strata.server.protocol import ThinkBound
from strata.text.thoughts import THINK_END

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from strata.engine.request import Message
    from strata.model_spec import ModelSpec
    from strata.settings import Settings

_THINK_OPEN: Final = "<think>"
# The opening mark and what a template may write behind it.
_TAIL_TOKENS: Final = 8


@dataclass(frozen=True, slots=True)
class ModelSide:
    """The text side of one model, and how it is called."""

    name: str
    text: ModelText
    spec: ModelSpec
    created_s: int

    @classmethod
    def open(cls, settings: Settings, name: str | None = None) -> ModelSide:
        """The model these settings mean, called ``name`` or like its file.

        Raises:
            CheckpointError: the file is damaged, not of this architecture, or has no tokenizer.
        """
        path = default_model() if settings.model is None else settings.model
        with open_file(path) as model_file:
            if not model_file.has_tokenizer:
                raise CheckpointError(
                    "this model file has no tokenizer, so nothing can be served from it.\n"
                    f"  file: {path}\n  Try: a file that was converted with its tokenizer."
                )
            spec = model_file.spec
            text = ModelText.from_metadata(model_file.index.metadata, spec.vocab_size)
        return cls(name or _name_of(path), text, spec, int(time.time()))

    def chat(self, messages: Sequence[Message], values: Mapping[str, object]) -> list[int]:
        """Ids of a conversation up to where the assistant speaks.

        Raises:
            RequestError: the template refuses it.
        """
        return self.text.encode_chat(messages, values)

    def opens_thinking(self, ids: Sequence[int]) -> bool:
        """Whether the prompt ends inside the reasoning of the answer."""
        return self.text.decode(ids[-_TAIL_TOKENS:]).rstrip().endswith(_THINK_OPEN)

    def think_bound(self, budget: int) -> ThinkBound:
        """An end to thinking after ``budget`` tokens.

        Raises:
            RequestError: the model has no single token that ends it.
        """
        mark = self.text.token_id(THINK_END)
        if mark is None:
            raise RequestError(
                "this model has no token that ends its thinking, so it cannot be bounded.\n"
                "  Try: leave the budget out, or turn the thinking off."
            )
        end_ids = self.text.encode_more(f"\n{THINK_END}\n\n")
        return ThinkBound(budget, tuple(end_ids), mark)


def as_frame(ids: Sequence[int]) -> bytes:
    """Token ids as they cross to the engine's process."""
    return np.asarray(ids, dtype="<i4").tobytes()


def _name_of(path: Path) -> str:
    """The file's name without its ending and without the number of a shard."""
    stem = path.name.removesuffix(".gguf")
    head, _, tail = stem.rpartition("-of-")
    if head and tail.isdigit():
        return head.rpartition("-")[0] or head
    return stem
