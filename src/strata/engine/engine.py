"""The library's front door: open a model, ask for text.

Owns the checks of a request and its translation to token ids. The loop is ``engine.generation``;
what is joined from files, processor and text is ``engine.build``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from strata.engine.build import open_parts
from strata.engine.conversation_build import open_conversation
from strata.engine.form_allow import FormAllow
from strata.engine.generation import Generation, Request
from strata.engine.picks import Allow, picks_of
from strata.engine.plan import foretell
from strata.engine.request import DEFAULT_MAX_TOKENS, Completion, Message, Prompt
from strata.engine.sampler import SamplingParams
from strata.engine.step import Propose, drafts_of
from strata.engine.turn import SharedTurn, Turn
from strata.errors import ContextTooLong, RequestError
from strata.settings import Settings
from strata.units import MiB

if TYPE_CHECKING:
    import os
    from types import TracebackType
    from typing import Self

    from strata.engine.parts import Parts
    from strata.engine.session import OnProgress, ShouldStop, Tokens
    from strata.model_spec import ModelSpec
    from strata.text.form import Form
    from strata.tiers.forecast import Forecast
    from strata.tiers.rates import TierRates


class Engine:
    """One model and one live conversation on this machine.

    One request at a time: while a ``Generation`` is under way, starting another raises
    ``RequestError``. Any thread may make requests, and cancel or close them. A request that begins
    like the one before it is not read again from the start (``Timings.reused_tokens``), and gives
    the same tokens as if it were.
    """

    def __init__(self, parts: Parts, settings: Settings) -> None:
        self.settings = settings
        self._parts = parts
        self._turn: Turn = Turn(open_conversation(parts, settings))
        self._turn.tiers, self._turn.after_request = parts.tiers, parts.after_request
        self._request_ids = itertools.count(1)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        on_progress: OnProgress | None = None,
        **settings: object,
    ) -> Engine:
        """An engine of the model in ``path``, or of a small built-in one without a path.

        Args:
            path: any shard of a GGUF file.
            on_progress: called while loading with (bytes done, bytes in all).
            settings: fields of ``strata.settings.Settings``.

        Raises:
            SettingsError: unknown or malformed setting.
            CheckpointError: the file is damaged, or not of this architecture.
            PlanError: it does not fit this machine.
        """
        options = dict(settings)
        if path is not None:
            options["model"] = path
        return cls.from_settings(Settings.from_options(options), on_progress=on_progress)

    @classmethod
    def from_settings(cls, settings: Settings, *, on_progress: OnProgress | None = None) -> Engine:
        """``open`` for settings that exist already."""
        return cls(open_parts(settings, on_progress=on_progress), settings)

    @property
    def spec(self) -> ModelSpec:
        """Geometry of the model."""
        return self._parts.model.spec

    @property
    def context_len(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self._turn.conversation.capacity

    @property
    def has_chat_template(self) -> bool:
        """Whether ``chat`` works with this model."""
        return self._parts.text.has_chat_template

    @property
    def has_thinking(self) -> bool:
        """Whether ``chat`` takes ``enable_thinking``: an answer with reasoning before it."""
        return self._parts.text.has_thinking

    def memory_report(self) -> Mapping[str, int]:
        """Bytes of host memory by what holds them."""
        report = dict(self._parts.model.memory_report())
        report["checkpoints"] = self._turn.conversation.checkpoint_bytes
        return report

    def conversation_report(self) -> Mapping[str, int]:
        """How often conversations were continued, from where, and what is kept of them."""
        return self._turn.conversation.report()

    def share(self) -> SharedTurn:
        """From now on several generations may be under way, asked for events by one thread."""
        shared = SharedTurn(self._turn.conversation)
        shared.tiers, shared.after_request = self._turn.tiers, self._turn.after_request
        self._turn = shared
        return shared

    def settle(self) -> None:
        """Hands the last conversation to ``Settings.conversation_dir``; for between requests.

        Costs a copy of what is new in it; the writing is another thread's.
        """
        self._turn.settle()

    def set_vram_limit(self, mib: int | None) -> bool:
        """Gives memory of the card back, or takes it again, while the model stays loaded.

        Only slots for experts come and go; texts stay the same. Any thread may ask.

        Args:
            mib: most memory taken on the card; None for what was planned at the start.

        Returns:
            Whether it is done. Else a request is under way, whose next window does it.

        Raises:
            RequestError: this model has no experts outside the card.
            PlanError: it is less than what is not slots takes.
            DeviceError: the card refuses; everything is as it was.
        """
        self._turn.check_alive()
        tiers = self._parts.tiers
        if tiers is None:
            raise RequestError(
                "this model has no experts that could leave the card.\n"
                "  Try: open it with --device cuda and --expert-cache."
            )
        tiers.limit_bytes(None if mib is None else mib * MiB)
        return self._turn.when_idle(tiers.carry_out_limit)

    def tier_rates(self) -> TierRates | None:
        """What experts cost in each place, as learned; None where all are in one place, or nothing
        is known yet."""
        tiers = self._parts.tiers
        return None if tiers is None else tiers.tier_rates()

    def foretold(self, num_tokens: int) -> Forecast | None:
        """What the planner expects of so many tokens from a cold start, with costs as learned here;
        None where ``tier_rates`` is. Takes about a second."""
        tiers, rates = self._parts.tiers, self.tier_rates()
        if tiers is None or rates is None:
            return None
        settings = self.settings
        return foretell(
            tiers.places(), self.spec.top_k, rates, num_tokens, share=settings.pcie_frac,
            policy=settings.expert_policy,
        )  # fmt: skip

    def tokenize(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, as ``generate`` would read it."""
        return self._token_ids(prompt).tolist()  # type: ignore[no-any-return]

    def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        allow: Allow | None = None,
        form: Form | None = None,
        form_after: str = "",
        propose: Propose | None = None,
        on_progress: OnProgress | None = None,
        should_yield: ShouldStop | None = None,
    ) -> Generation:
        """The answer to ``prompt``, as an iterator of events.

        The prompt is checked here; the work begins with the first event.

        Args:
            prompt: text to continue as it stands, or chat messages, or token ids.
            sampling: how tokens are picked and where the answer ends. ``max_tokens`` of ``None``
                means 512, or what the context leaves.
            allow: which tokens may come next, asked for every token; with ``form_after`` only
                up to where the form begins.
            form: what the text of the answer must be.
            form_after: the text in the answer behind which the form begins: the end of the
                reasoning. Empty: it begins at once.
            propose: source of drafts; they change speed, never text. ``None``: the model's draft
                layer, as far as ``Settings.draft_tokens`` wishes.
            on_progress: called while reading with (prompt tokens read, prompt tokens).
            should_yield: asked between chunks of the prompt; true gives an event with nothing in
                it, so that another generation may be asked for one. See ``share``.

        Raises:
            RequestError: empty prompt, unknown token id, no chat template, or a form that cannot
                be followed.
            ContextTooLong: prompt and ``max_tokens`` do not fit ``context_len``.
            EngineStopped: the engine has died or was closed.
        """
        self._turn.check_alive()
        sampling = (sampling or SamplingParams()).with_seed()
        token_ids = self._token_ids(prompt)
        text = self._parts.text
        if propose is None:
            propose = drafts_of(self._turn.conversation.drafter, self.settings.draft_tokens)
        allowed = allow
        if form is not None:
            allowed = self._allow_of(form, form_after, len(token_ids), sampling, allow)
        request = Request(
            request_id=next(self._request_ids),
            prompt=token_ids,
            max_tokens=self._room(len(token_ids), sampling.max_tokens),
            end_ids=frozenset() if sampling.ignore_eos else text.end_ids,
            picks=picks_of(sampling, allowed, self._turn.conversation.picker),
            text=text.new_answer(sampling.stop),
            propose=propose,
            on_progress=on_progress,
            should_yield=should_yield,
        )
        return Generation(self._turn, request)

    def generate_text(self, prompt: Prompt, sampling: SamplingParams | None = None) -> Completion:
        """The whole answer at once; arguments and errors as ``generate``."""
        return self.generate(prompt, sampling).complete()

    def chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams | None = None,
        *,
        form: Form | None = None,
        form_after: str = "",
        on_progress: OnProgress | None = None,
        **template_values: object,
    ) -> Generation:
        """The assistant's next message; arguments and errors as ``generate``.

        ``template_values`` reach the chat template by name (``enable_thinking`` and such).
        """
        token_ids = self._parts.text.encode_chat(messages, template_values)
        return self.generate(
            token_ids, sampling, form=form, form_after=form_after, on_progress=on_progress
        )

    def prepare_forms(self) -> None:
        """Makes now what the first answer of a required form would make; nothing without words."""
        with contextlib.suppress(RequestError):
            self._parts.text.mask_vocabulary.prepare()

    def close(self) -> None:
        """Ends the request under way and gives memory and threads back. May be called twice."""
        self._turn.close(self._free)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _allow_of(
        self,
        form: Form,
        form_after: str,
        num_prompt: int,
        sampling: SamplingParams,
        allow: Allow | None,
    ) -> Allow:
        """What holds an answer to its form."""
        if sampling.ignore_eos:
            raise RequestError(
                "an answer of a required form ends with it, so its end cannot be ignored.\n"
                "  Try: leave ignore_eos out."
            )
        if allow is not None and not form_after:
            raise RequestError(
                "a form and allowed tokens cannot both hold for one answer.\n"
                "  Try: one of them, or form_after for where the form begins."
            )
        vocabulary = self._parts.text.mask_vocabulary
        return FormAllow(vocabulary.compile(form), vocabulary, num_prompt, form_after, allow)

    def _free(self) -> None:
        try:
            self._turn.conversation.close()
        finally:
            self._parts.close()

    def _token_ids(self, prompt: Prompt) -> Tokens:
        if isinstance(prompt, str):
            ids: Collection[int] = self._parts.text.encode(prompt)
        elif len(prompt) > 0 and isinstance(prompt[0], Mapping):
            messages = cast("Sequence[Message]", prompt)
            ids = self._parts.text.encode_chat(messages, {})
        else:
            ids = cast("Sequence[int]", prompt)
        if len(ids) == 0:
            raise RequestError("the prompt is empty.\n  Try: give at least one token of text.")
        vocab_size = self._parts.vocab_size
        try:
            wide = np.asarray(ids)
        except ValueError:  # lists of different lengths
            wide = np.empty((0, 0))
        if wide.ndim != 1 or wide.dtype.kind not in "iu":
            raise RequestError(
                "a prompt must be text, chat messages, or whole numbers that are token ids.\n"
                "  Try: a plain str."
            )
        outside = wide[(wide < 0) | (wide >= vocab_size)]
        if outside.size:
            raise RequestError(
                f"token id {outside[0]} is not in the vocabulary of {vocab_size} tokens.\n"
                "  Try: ids of this model's own tokenizer."
            )
        return wide.astype(np.int32)

    def _room(self, num_prompt: int, max_tokens: int | None) -> int:
        """Tokens the answer may have."""
        if max_tokens is not None and max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, not {max_tokens}.\n  Try: 1")
        context_len = self.context_len
        wanted = 1 if max_tokens is None else max_tokens
        # The last token of an answer is never read back, so it needs no cell.
        room = context_len - num_prompt + 1
        if num_prompt > context_len or wanted > room:
            answer = "no room for an answer" if max_tokens is None else f"{max_tokens} to generate"
            raise ContextTooLong(
                f"the prompt has {num_prompt} tokens and {answer}, but the context holds "
                f"{context_len}.\n"
                f"  Try: --context {num_prompt + wanted}, a shorter prompt, or fewer tokens."
            )
        return min(DEFAULT_MAX_TOKENS, room) if max_tokens is None else max_tokens
