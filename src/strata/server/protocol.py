"""Messages between the HTTP process and the engine's process: plain data, one a frame.

Owns their encoding and version. Both sides import it, and it imports neither.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

# Raised with every change that an older or newer other side would misread.
PROTOCOL_VERSION: Final = 3


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, omit_defaults=True):
    """Root of every message; the class name travels as its tag."""


class ThinkBound(msgspec.Struct, frozen=True, array_like=True):
    """After ``budget`` tokens of reasoning ``end_ids`` are forced, ``mark_id`` among them."""

    budget: int
    end_ids: tuple[int, ...]
    mark_id: int


class RequiredForm(msgspec.Struct, frozen=True, array_like=True):
    """What the text of an answer must be; it begins behind ``begins_after``, if that is no ""."""

    grammar: str
    begins_after: str = ""


class Submit(Message, frozen=True):
    """Down: answer this prompt."""

    request_id: int
    prompt: bytes  # token ids, int32, little-endian
    options: dict[str, Any]  # of SamplingParams
    think_bound: ThinkBound | None = None
    form: RequiredForm | None = None
    caller: str = ""  # requests of one caller share their turns


class Cancel(Message, frozen=True):
    """Down: end that answer at the next token or chunk."""

    request_id: int


class AskStatus(Message, frozen=True):
    """Down: send a ``Status``."""


class SetLimit(Message, frozen=True):
    """Down: take at most so much memory of the card; send a ``LimitSet``."""

    question_id: int
    vram_mib: int | None  # None: what was planned at the start


class AskAlive(Message, frozen=True):
    """Down: send an ``Alive``."""


class Shutdown(Message, frozen=True):
    """Down: end the answers under way, give everything back, exit with 0."""


class Hello(Message, frozen=True):
    """Up, first of all: who is there."""

    version: int
    pid: int


class Loading(Message, frozen=True):
    """Up: bytes loaded so far, of all."""

    num_done: int
    num_total: int


class Ready(Message, frozen=True):
    """Up: requests are served from now on."""

    context_len: int
    vocab_size: int
    memory_bytes: dict[str, int]


class Notice(Message, frozen=True):
    """Up: a telemetry event, fit to show to a user."""

    key: str
    text: str


class Progress(Message, frozen=True):
    """Up: prompt tokens read, of all; the ones reused count as read."""

    request_id: int
    num_read: int
    num_total: int


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A picked token, its log-probability, and the likeliest ones at its place."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Tokens(Message, frozen=True):
    """Up: what one step added to an answer. Text may lag behind the tokens."""

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    made_s: float = 0.0
    """Of the monotonic clock, which all processes of a machine share."""


class Costs(msgspec.Struct, frozen=True, array_like=True):
    """What an answer cost: ``engine.request.Timings`` as it travels."""

    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    prompt_s: float
    decode_s: float
    ttft_s: float
    drafts_proposed: int = 0
    drafts_accepted: int = 0
    experts: dict[str, int] = {}
    """Sums of ``tiers.counters`` by name; empty where all experts are in one place."""


class Ended(Message, frozen=True):
    """Up: the answer is whole. ``reason`` is a ``FinishReason``."""

    request_id: int
    reason: str
    costs: Costs
    stop_text: str | None = None


class Refused(Message, frozen=True):
    """Up: this request cannot be served. ``kind`` is the class in ``strata.errors``."""

    request_id: int
    kind: str
    text: str


class Status(Message, frozen=True):
    """Up: the answer to ``AskStatus``."""

    current_id: int | None
    num_waiting: int
    num_answered: int
    memory_bytes: dict[str, int]
    conversations: dict[str, int] = {}
    """How often conversations were continued and from where, and what is kept of them."""


class LimitSet(Message, frozen=True):
    """Up: the answer to ``SetLimit``."""

    question_id: int
    is_done: bool = False  # else the next window does it
    kind: str = ""
    """Nothing was changed: the class in ``strata.errors`` that says why."""
    text: str = ""


class Alive(Message, frozen=True):
    """Up: the answer to ``AskAlive``, from the thread that listens, whatever the other one does."""

    is_busy: bool  # it loads, or has a request
    num_beats: int  # messages of that work so far
    cpu_s: float  # computed so far, by all threads
    num_blocks: int  # of the disk, read and written so far


class Failed(Message, frozen=True):
    """Up, last of all: the model could not be loaded, or the engine's loop died."""

    kind: str
    text: str
    is_loading: bool


Down = Submit | Cancel | AskStatus | SetLimit | AskAlive | Shutdown
Answers = Progress | Tokens | Ended | Refused
Up = Hello | Loading | Ready | Notice | Answers | Status | LimitSet | Alive | Failed

_ENCODER: Final = msgspec.msgpack.Encoder()
_DOWN: Final = msgspec.msgpack.Decoder(Down)
_UP: Final = msgspec.msgpack.Decoder(Up)


_HEAD: Final = struct.Struct("<I")


def encode(message: Down | Up) -> bytes:
    """One frame: its length, little-endian, and the message."""
    body = _ENCODER.encode(message)
    return _HEAD.pack(len(body)) + body


class Frames:
    """Bytes of a stream to the frames in them."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that are whole with ``data``, without their lengths."""
        self._rest += data
        begin = 0
        try:
            while len(self._rest) >= begin + _HEAD.size:
                (length,) = _HEAD.unpack_from(self._rest, begin)
                end = begin + _HEAD.size + length
                if len(self._rest) < end:
                    break
                frame, begin = self._rest[begin + _HEAD.size : end], end
                yield frame
        finally:
            self._rest = self._rest[begin:]


def decode_down(frame: bytes) -> Down:
    """A message for the engine's process. Raises msgspec.DecodeError for anything else."""
    return _DOWN.decode(frame)


def decode_up(frame: bytes) -> Up:
    """A message for the HTTP process. Raises msgspec.DecodeError for anything else."""
    return _UP.decode(frame)
