"""One answer being made: an iterator of ``TokenEvent`` that can be cancelled from any thread.

Owns the order of things inside a request: read the prompt, pick, decode, stop. Does not know what
a file is, nor how a prompt became token ids; ``engine.Engine`` makes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from strata.engine.request import Completion, FinishReason, Timings, TokenEvent
from strata.engine.step import DraftCounts, Propose, advance, propose_nothing
from strata.errors import EngineStopped, RequestError, StrataError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from strata.engine.conversation_history import Suspended
    from strata.engine.picks import Picks
    from strata.engine.sampler import Sampled
    from strata.engine.session import Logits, OnProgress, ShouldStop, Tokens
    from strata.engine.tiers import ExpertTiers
    from strata.engine.turn import Turn
    from strata.tiers.counters import TierCounts


class AnswerText(Protocol):
    """Token ids in, text out, with the request's stop texts looked for."""

    @property
    def stop_text(self) -> str | None:
        """The stop text that was met, once one was."""

    def push(self, token_id: int, /) -> tuple[str, bool]:
        """Text that is certain now, and whether a stop text was met."""

    def finish(self) -> str:
        """What was held back."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, checked and in token ids."""

    request_id: int
    prompt: Tokens  # [N] int32
    max_tokens: int
    end_ids: frozenset[int]  # empty to ignore end tokens
    picks: Picks
    text: AnswerText
    propose: Propose = propose_nothing
    on_progress: OnProgress | None = None
    should_yield: ShouldStop | None = None


@dataclass(slots=True)
class _Progress:
    """What has happened so far in one request. Its own clock stands still in others' turns."""

    called_s: float
    left_s: float | None = None  # when another's turn began
    others_s: float = 0.0  # how long others' turns took
    num_reused: int = 0
    prompt_s: float = 0.0
    ttft_s: float = 0.0  # for whoever waits, so by a clock that goes on
    first_token_s: float | None = None  # of its own clock, as the last
    last_token_s: float = 0.0
    num_generated: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)
    tiers: ExpertTiers | None = None
    turn_began: TierCounts | None = None  # while it has the session
    experts: TierCounts | None = None  # of the turns it has had

    def clock_s(self) -> float:
        """Its own time."""
        return time.perf_counter() - self.others_s

    def begin_turn(self) -> None:
        """From now on time is its own, and experts are asked for by it, if not before."""
        if self.left_s is not None:
            self.others_s += time.perf_counter() - self.left_s
            self.left_s = None
        if self.tiers is not None and self.turn_began is None:
            self.turn_began = self.tiers.tier_counts()

    def end_turn(self) -> None:
        """Time, and what is asked for from now on, is another's."""
        self.left_s = time.perf_counter()
        if self.tiers is not None and self.turn_began is not None:
            found = self.tiers.tier_counts() - self.turn_began
            self.experts = found if self.experts is None else self.experts + found
            self.turn_began = None

    def count(self, num_tokens: int) -> None:
        self.last_token_s = self.clock_s()
        if self.first_token_s is None:
            self.first_token_s = self.last_token_s
            self.ttft_s = time.perf_counter() - self.called_s
        self.num_generated += num_tokens

    def timings(self, num_prompt: int) -> Timings:
        first_s = self.first_token_s
        self.begin_turn()  # one that was cancelled before its first turn has asked for none
        self.end_turn()
        return Timings(
            prompt_tokens=num_prompt,
            reused_tokens=self.num_reused,
            generated_tokens=self.num_generated,
            prompt_s=self.prompt_s,
            decode_s=0.0 if first_s is None else self.last_token_s - first_s,
            ttft_s=self.ttft_s,
            drafts_proposed=tuple(self.drafts.proposed),
            drafts_accepted=tuple(self.drafts.accepted),
            experts=self.experts,
        )


class Generation(Iterator[TokenEvent]):
    """The events of one answer, made as they are asked for.

    The engine is taken at the first event and given back with the last, at ``close()``, or when
    this object is dropped. ``cancel()`` may be called from any thread: the event after it is the
    last one and says ``cancelled``.
    """

    def __init__(self, turn: Turn, request: Request) -> None:
        self._turn = turn
        self._request = request
        self._is_cancelled = threading.Event()
        self._is_running = False
        self._progress = _Progress(time.perf_counter())
        self.suspended: Suspended | None = None
        self._events = self._run()
        self.finish_reason: FinishReason | None = None

    @property
    def request_id(self) -> int:
        """The number events of this answer carry."""
        return self._request.request_id

    def set_aside(self, suspended: Suspended) -> None:
        """Another request has the session; ``suspended`` is where this one will go on."""
        self.suspended = suspended
        self._progress.end_turn()

    def cancel(self) -> None:
        """Ends the answer at the next token, or the next chunk of the prompt."""
        self._is_cancelled.set()

    def close(self) -> None:
        """Ends the answer and gives the engine back. While a token is being made: only cancels."""
        self.cancel()
        if self._is_running:
            return
        try:
            self._events.close()
        except ValueError:
            # Another thread has just asked for a token; the answer ends with that one.
            if not self._is_running:
                raise

    def complete(self) -> Completion:
        """Reads the events left and returns them as one answer."""
        events = list(self)
        if not events or events[-1].finish_reason is None or events[-1].timings is None:
            raise RequestError("the generation was already read or closed.\n  Try: a new request.")
        return Completion(
            request_id=self.request_id,
            text="".join(event.text for event in events),
            token_ids=tuple(token for event in events for token in event.token_ids),
            finish_reason=events[-1].finish_reason,
            timings=events[-1].timings,
            logprobs=tuple(item for event in events for item in event.logprobs),
        )

    def __next__(self) -> TokenEvent:
        self._is_running = True
        try:
            event = next(self._events)
            if event.finish_reason is not None:
                # Whoever stops at the last event must not hold the engine.
                self._events.close()
            return event
        finally:
            self._is_running = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> Generator[TokenEvent, None, None]:
        self._turn.take(self)
        try:
            yield from self._answer()
        except GeneratorExit:
            self.finish_reason = self.finish_reason or FinishReason.CANCELLED
            raise
        except StrataError:
            self.finish_reason = FinishReason.ERROR
            self._turn.forget(self)
            raise
        except KeyboardInterrupt:
            # It can come in the middle of a step, and leave a half-made state behind.
            self.finish_reason = FinishReason.CANCELLED
            self._turn.forget(self)
            raise
        except BaseException as error:
            self.finish_reason = FinishReason.ERROR
            self._turn.stop(error)
            raise EngineStopped(
                f"the engine stopped at position {self._turn.conversation.position}: "
                f"{type(error).__name__}: {error}.\n"
                "  Try: open the model again; report this if it happens twice."
            ) from error
        finally:
            self._turn.give_back(self)

    def _answer(self) -> Iterator[TokenEvent]:
        request, conversation = self._request, self._turn.conversation
        self._progress = progress = _Progress(time.perf_counter(), tiers=self._turn.tiers)
        if self._is_cancelled.is_set():
            yield self._last_event(progress, FinishReason.CANCELLED)
            return
        self._enter()
        progress.num_reused = conversation.resume(request.prompt)
        while (logits := self._read()) is None and not self._is_cancelled.is_set():
            yield self._pause()
            self._enter()
        progress.prompt_s = progress.clock_s() - progress.called_s
        if logits is None:
            yield self._last_event(progress, FinishReason.CANCELLED)
            return
        tokens: list[int] = request.prompt.tolist()
        picked = [request.picks.after(logits, tokens)]
        while True:
            # A draft may reach past the wanted length.
            picked = picked[: request.max_tokens - progress.num_generated]
            tokens += [token.id for token in picked]
            event = self._event(progress, picked)
            yield event
            if event.finish_reason is not None:
                return
            if self._is_cancelled.is_set():
                yield self._last_event(progress, FinishReason.CANCELLED)
                return
            if self._enter():
                request.picks.interrupted()
            picked = advance(
                conversation,
                tokens,
                propose=request.propose,
                picks=request.picks,
                counts=progress.drafts,
            )

    def _enter(self) -> bool:
        """The session is this request's; whether another used it since the last time."""
        is_back = self._turn.enter(self)
        self._progress.begin_turn()
        return is_back

    def _read(self) -> Logits | None:
        """The prompt's last logits; None where it was cancelled, or others shall have a turn."""
        request, should_yield = self._request, self._request.should_yield

        def should_stop() -> bool:
            return self._is_cancelled.is_set() or (should_yield is not None and should_yield())

        return self._turn.conversation.read(
            request.prompt, on_progress=request.on_progress, should_stop=should_stop
        )

    def _pause(self) -> TokenEvent:
        """Nothing yet: the prompt is being read."""
        return TokenEvent(request_id=self.request_id, text="", token_ids=())

    def _event(self, progress: _Progress, picked: list[Sampled]) -> TokenEvent:
        request = self._request
        text = ""
        reason: FinishReason | None = None
        used: list[Sampled] = []
        for token in picked:
            used.append(token)
            if token.id in request.end_ids:
                reason = FinishReason.STOP
                text += request.text.finish()
                break
            piece, is_stopped = request.text.push(token.id)
            text += piece
            if is_stopped:
                reason = FinishReason.STOP
                break
        progress.count(len(used))
        if reason is None and progress.num_generated >= request.max_tokens:
            reason = FinishReason.LENGTH
            text += request.text.finish()
        self.finish_reason = reason
        return TokenEvent(
            request_id=request.request_id,
            text=text,
            token_ids=tuple(token.id for token in used),
            logprobs=tuple(token for token in used if token.logprob is not None),
            finish_reason=reason,
            timings=None if reason is None else progress.timings(len(request.prompt)),
            stop_text=request.text.stop_text,
        )

    def _last_event(self, progress: _Progress, reason: FinishReason) -> TokenEvent:
        self.finish_reason = reason
        return TokenEvent(
            request_id=self.request_id,
            text=self._request.text.finish(),
            token_ids=(),
            finish_reason=reason,
            timings=progress.timings(len(self._request.prompt)),
        )
