"""The text side of one model, joined for the engine: tokenizer, chat template, detokenizer.

Owns what an end token is and which ids have no text. Rules of each part are in ``strata.text``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strata import telemetry
from strata.errors import RequestError
from strata.text.chat_template import ChatTemplate
from strata.text.detokenizer import Detokenizer, StopMatcher
from strata.text.token_masks import MaskVocabulary
from strata.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from strata.engine.generation import AnswerText
    from strata.engine.request import Message

_NO_TOKENIZER = (
    "this model file has no tokenizer, so it cannot read or write text.\n"
    "  Try: give token ids, or a file with a tokenizer."
)


class StreamedAnswer:
    """Ids of one answer to text, until a stop text."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops)

    @property
    def stop_text(self) -> str | None:
        """The stop text that was met, once one was."""
        return self._matcher.matched

    def push(self, token_id: int) -> tuple[str, bool]:
        """Text certain now, and whether a stop text was met."""
        text = self._matcher.push(self._detokenizer.push(token_id))
        return text, self._matcher.matched is not None

    def finish(self) -> str:
        """What was held back."""
        return self._matcher.push(self._detokenizer.flush()) + self._matcher.flush()


class ModelText:
    """Tokenizer and template of one file."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._vocab_size = vocab_size
        self._masks: MaskVocabulary | None = None
        # Control tokens have no text; neither have the rows a file pads its vocabulary with.
        padding = range(tokenizer.vocab_size, vocab_size)
        self._silent_ids = tokenizer.special_ids | frozenset(padding)
        self.end_ids = tokenizer.eos_ids

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], vocab_size: int) -> ModelText:
        """The text side a GGUF file describes.

        Raises:
            CheckpointError: tokenizer or template is malformed.
            UnsupportedError: a kind of tokenizer Strata does not have.
        """
        tokenizer = Tokenizer.from_metadata(metadata)
        return cls(tokenizer, ChatTemplate.from_metadata(metadata, tokenizer), vocab_size)

    @property
    def has_chat_template(self) -> bool:
        """Whether the file brings a template; ``encode_chat`` works with a plain one without."""
        return self._template.notice is None

    @property
    def template_source(self) -> str:
        """The template as the file has it, or the plain one."""
        return self._template.source

    @property
    def has_thinking(self) -> bool:
        """Whether the template reads ``enable_thinking``."""
        return "enable_thinking" in self._template.source

    def encode(self, text: str) -> list[int]:
        """Ids of text to be continued; nothing in it becomes a control token."""
        ids = self._tokenizer.encode(text)
        if ids and self._tokenizer.adds_bos and self._tokenizer.bos_id is not None:
            return [self._tokenizer.bos_id, *ids]
        return ids

    def encode_more(self, text: str) -> list[int]:
        """Ids of text that goes on behind ids that are there already."""
        return self._tokenizer.encode(text)

    def token_id(self, literal: str) -> int | None:
        """The one token spelled ``literal``, if the vocabulary names one."""
        return self._tokenizer.token_id(literal)

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes a token stands for; control tokens give their literal text.

        Raises:
            RequestError: no such id.
        """
        return self._tokenizer.token_bytes(token_id)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` as a whole; invalid bytes become U+FFFD.

        Raises:
            RequestError: no such id.
        """
        return self._tokenizer.decode(ids)

    def encode_chat(self, messages: Sequence[Message], values: Mapping[str, object]) -> list[int]:
        """Ids of a conversation, up to where the assistant speaks next."""
        if self._template.notice is not None:
            telemetry.notice("chat-template", self._template.notice)
        options: dict[str, Any] = dict(values)
        return self._tokenizer.encode_spans(self._template.render(messages, **options))

    @property
    def mask_vocabulary(self) -> MaskVocabulary:
        """The vocabulary as forms of answers need it; made when first asked for.

        Raises:
            RequestError: no token ends an answer.
        """
        if self._masks is None:
            tokens = self._tokenizer.text_bytes()
            self._masks = MaskVocabulary(tokens, self.end_ids, self._vocab_size)
        return self._masks

    def new_answer(self, stops: Sequence[str]) -> AnswerText:
        """A decoder for one answer."""
        detokenizer = Detokenizer(self._tokenizer.token_bytes, self._silent_ids)
        return StreamedAnswer(detokenizer, stops)


class NoText:
    """The text side of a file without a tokenizer: ids only."""

    end_ids: frozenset[int] = frozenset()
    has_chat_template = False
    has_thinking = False

    def encode(self, _text: str) -> list[int]:
        """Refuses."""
        raise RequestError(_NO_TOKENIZER)

    def encode_chat(self, _messages: Sequence[Message], _values: Mapping[str, object]) -> list[int]:
        """Refuses."""
        raise RequestError(_NO_TOKENIZER)

    @property
    def mask_vocabulary(self) -> MaskVocabulary:
        """Refuses."""
        raise RequestError(_NO_TOKENIZER)

    def new_answer(self, stops: Sequence[str]) -> AnswerText:
        """A decoder that gives no text."""
        if stops:
            raise RequestError(_NO_TOKENIZER)
        return _Silent()


class _Silent:
    stop_text = None

    def push(self, _token_id: int) -> tuple[str, bool]:
        return "", False

    def finish(self) -> str:
        return ""
