"""``strata chat``: a conversation in the terminal."""

import contextlib
import sys
from typing import Annotated

import typer

from strata.cli.console import Answer, Bar, interrupt, notices_on_stderr, say
from strata.cli.options import ENGINE_SETTINGS, with_settings
from strata.cli.run import Thinking, describe, thinking_values
from strata.cli.spoken import Spoken
from strata.engine.engine import Engine
from strata.engine.request import FinishReason, Message
from strata.engine.sampler import SamplingParams
from strata.errors import ContextTooLong, RequestError
from strata.settings import Settings

with contextlib.suppress(ImportError):
    import readline  # noqa: F401 - gives input() history and line editing where it exists

HELP = """\
/help   show this
/reset  begin a new conversation
/undo   take the last question and its answer back
/think  reason before each answer, or stop doing so; /think on, /think off
/quit   leave (so does Ctrl-D)
Ctrl-C stops an answer; pressed twice it leaves."""

PROMPT = "> "
# Commands, and what may be said after each.
_WORDS_AFTER: dict[str, tuple[str, ...]] = {
    "/help": (), "/reset": (), "/undo": (), "/think": ("on", "off"), "/quit": (),
}  # fmt: skip


class Chat:
    """The messages so far and what is done with each line typed."""

    def __init__(
        self, engine: Engine, sampling: SamplingParams, *, thinking: bool | None = None
    ) -> None:
        self._engine = engine
        self._sampling = sampling
        self._template_values = thinking_values(engine, thinking)
        self._first: list[Message] = []
        self.messages: list[Message] = []

    def begin(self, system: str | None) -> None:
        """Starts a new conversation, with this system message if there is one."""
        if system is not None:
            self._first = [{"role": "system", "content": system}]
        self.messages = list(self._first)

    def obey(self, line: str) -> bool:
        """Carries out a line that begins with a slash; false when it asks to leave."""
        name, *rest = line.split()
        if name not in _WORDS_AFTER:
            say(f"there is no command {name}; /help lists them.")
        elif rest and " ".join(rest) not in _WORDS_AFTER[name]:
            wanted = " or ".join((*_WORDS_AFTER[name], "nothing"))
            say(f"{name} takes {wanted}, not {' '.join(rest)!r}; nothing is changed.")
        elif name == "/quit":
            return False
        elif name == "/reset":
            self.begin(None)
            say("a new conversation.")
        elif name == "/undo":
            self._undo()
        elif name == "/think":
            was_on = bool(self._template_values.get("enable_thinking", False))
            self._set_thinking(rest == ["on"] if rest else not was_on)
        else:
            say(HELP)
        return True

    def answer(self, text: str) -> None:
        """Asks the model and writes its answer to stdout; Ctrl-C ends it early."""
        self.messages.append({"role": "user", "content": text})
        with Bar("reading") as reading:
            try:
                generation = self._engine.chat(
                    self.messages,
                    self._sampling,
                    on_progress=reading,
                    **self._template_values,
                )
                reply = self._stream(Answer(generation), reading)
            except RequestError as error:
                self.messages.pop()
                say(f"{error}")
                if isinstance(error, ContextTooLong):
                    say("  Or: /reset begins a new conversation.")
                return
        self.messages.append({"role": "assistant", "content": reply})

    def _stream(self, answer: Answer, reading: Bar) -> str:
        parts: list[str] = []
        spoken = Spoken(is_thinking=bool(self._template_values.get("enable_thinking")))
        while True:
            try:
                for event in answer:
                    reading.close()
                    parts.append(event.text)
                    spoken.add(event.text)
                    if event.finish_reason is not None:
                        spoken.end()
                        sys.stdout.write("\n")
                        sys.stdout.flush()
                        if event.timings is not None:
                            ending = event.finish_reason
                            note = "" if ending is FinishReason.STOP else f" ({ending})"
                            say(describe(event.timings) + note)
                return "".join(parts)
            except KeyboardInterrupt:
                # The rest of the loop reads the last event; a second Ctrl-C comes out below.
                answer.cancel()
                try:
                    answer.has_ended(timeout_s=3600.0)
                except KeyboardInterrupt:
                    interrupt(answer)
                    raise

    def _set_thinking(self, is_on: bool) -> None:  # noqa: FBT001 - what it is set to
        try:
            self._template_values = thinking_values(self._engine, is_on)
        except RequestError as error:
            say(f"{error}")
            return
        say("thinking is on." if is_on else "thinking is off.")

    def _undo(self) -> None:
        if len(self.messages) < len(self._first) + 2:
            say("there is nothing to take back.")
            return
        del self.messages[-2:]
        say("the last question and its answer are gone.")


@with_settings(*ENGINE_SETTINGS, "routing_trace")
def command(
    settings: Settings,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", help="End answers after this many tokens.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="0 always takes the likeliest token; 1 samples as trained.")
    ] = 0.7,
    top_k: Annotated[int, typer.Option(help="Sample among the K likeliest; 0 for all.")] = 20,
    top_p: Annotated[float, typer.Option(help="Sample within this share of probability.")] = 0.8,
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 0,
    thinking: Thinking = None,
) -> None:
    """Talk with the model. Type /help for what can be typed."""
    sampling = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, max_tokens=max_tokens
    )
    with (
        notices_on_stderr(),
        Bar("loading") as loading,
        Engine.from_settings(settings, on_progress=loading) as engine,
    ):
        loading.close()
        chat = Chat(engine, sampling, thinking=thinking)
        chat.begin(system)
        say(f"{engine.spec.name or 'model'}, context {engine.context_len} tokens. /help, Ctrl-D.")
        _converse(chat)


def _converse(chat: Chat) -> None:
    was_interrupted = False
    while True:
        try:
            line = _ask().strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            if was_interrupted:
                raise
            was_interrupted = True
            say("\nCtrl-C again, or Ctrl-D, leaves.")
            continue
        except UnicodeDecodeError:
            say("that line is not UTF-8; it was not sent.")
            continue
        was_interrupted = False
        if line.startswith("/"):
            if not chat.obey(line):
                return
        elif line:
            chat.answer(line)


def _ask() -> str:
    """One line typed. The prompt shows on a terminal only, so that a pipe gets answers alone."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return input(PROMPT)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
