"""What an engine is made of, as seen by it. ``engine.build`` makes the parts; tests fake them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from strata.engine.generation import AnswerText
    from strata.engine.request import Message
    from strata.engine.session import Model
    from strata.engine.tiers import ExpertTiers
    from strata.text.token_masks import MaskVocabulary


class Text(Protocol):
    """Between text and token ids, for one model."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""

    @property
    def has_chat_template(self) -> bool:
        """Whether ``encode_chat`` works."""

    @property
    def has_thinking(self) -> bool:
        """Whether the chat template can be told to think first or not (``enable_thinking``)."""

    def encode(self, text: str, /) -> list[int]:
        """Ids of text to be continued as it stands."""

    def encode_chat(
        self, messages: Sequence[Message], values: Mapping[str, object], /
    ) -> list[int]:
        """Ids of a conversation, up to where the assistant speaks next.

        Raises:
            RequestError: no template, or the template refuses the messages.
        """

    @property
    def mask_vocabulary(self) -> MaskVocabulary:
        """The vocabulary as forms of answers need it.

        Raises:
            RequestError: no tokenizer, or nothing ends an answer.
        """

    def new_answer(self, stops: Sequence[str]) -> AnswerText:
        """A decoder for one answer."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A loaded model, its text side, and the decided size of a conversation.

    ``device`` is what computes: "cpu" or "cuda". ``turn_id`` begins a message of a chat, where the
    vocabulary has such a token. ``identity`` is what states on disk belong to; empty keeps none.
    """

    model: Model
    text: Text
    vocab_size: int
    context_len: int
    close: Callable[[], None]
    device: str = "cpu"
    tiers: ExpertTiers | None = None
    after_request: Callable[[], None] | None = None
    turn_id: int | None = None
    identity: str = ""
