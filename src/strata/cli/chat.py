"""``strata chat``: a conversation in the terminal."""

import contextlib
import sys
from typing import Annotated

import typer

from strata.cli.chat_files import ChatFile, open_chat
from strata.cli.console import Answer, Bar, interrupt, notices_on_stderr, say
from strata.cli.options import ENGINE_SETTINGS, with_settings
from strata.cli.run import Thinking, describe, thinking_values
from strata.cli.spoken import Spoken
from strata.engine.engine import Engine
from strata.engine.request import FinishReason, Message
from strata.engine.sampler import SamplingParams
from strata.errors import ContextTooLong, RequestError, SettingsError
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
# Of a conversation that goes on, so that it is known again.
_SHOWN_MESSAGES = 4
_SHOWN_CHARS = 1500
# Commands, and what may be said after each.
_WORDS_AFTER: dict[str, tuple[str, ...]] = {
    "/help": (), "/reset": (), "/undo": (), "/think": ("on", "off"), "/quit": (),
}  # fmt: skip


class Chat:
    """The messages so far and what is done with each line typed."""

    def __init__(
        self,
        engine: Engine,
        sampling: SamplingParams,
        *,
        thinking: bool | None = None,
        file: ChatFile | None = None,
    ) -> None:
        self._engine = engine
        self._file = file or ChatFile()
        self._sampling = sampling
        self._template_values = thinking_values(engine, thinking)
        self._first: list[Message] = []
        self.messages: list[Message] = []

    def begin(self, system: str | None) -> None:
        """Starts a new conversation, with this system message if there is one."""
        if system is not None:
            self._first = [{"role": "system", "content": system}]
        self.messages = list(self._first)

    def go_on(self) -> None:
        """Puts the conversation of the file in place, and shows its last turns."""
        file, self.messages = self._file, list(self._file.messages)
        self._first = self.messages[:1] if self.messages[0]["role"] == "system" else []
        say(f"going on with {file.name}, {len(self.messages)} messages:")
        for message in self.messages[len(self._first) :][-_SHOWN_MESSAGES:]:
            mark = PROMPT if message["role"] == "user" else ""
            say(mark + _shortened(str(message["content"])))
        if file.model != self._model:
            say(f"note: it was led with {file.model}; this is {self._model}.")

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
            self._file = self._file.renewed()
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
        self._keep()

    @property
    def _model(self) -> str:
        return self._engine.spec.name or "model"

    def _keep(self) -> None:
        """Saves what was said, and the state behind it; a folder that refuses ends no talk."""
        try:
            self._file.save(self.messages, self._model)
        except SettingsError as error:
            say(f"{error}")
        self._engine.settle()

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
        self._keep()
        say("the last question and its answer are gone.")


@with_settings(*ENGINE_SETTINGS, "routing_trace", "conversation_dir", "conversation_disk")
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
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the conversation kept last, or with the one of --chat."
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            "--chat",
            metavar="NAME|FILE",
            help="Keep this conversation by this name in --conversation-dir, or in a file of its "
            "own; go on with it if it is there.",
        ),
    ] = None,
) -> None:
    """Talk with the model. Type /help for what can be typed."""
    file = open_chat(settings.conversation_dir, name, is_resumed=resume)
    if file.messages and system is not None:
        raise SettingsError(
            f"{file.name} has begun already, so it takes no --system.\n  Try: another --chat"
        )
    sampling = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, max_tokens=max_tokens
    )
    with (
        notices_on_stderr(),
        Bar("loading") as loading,
        Engine.from_settings(settings, on_progress=loading) as engine,
    ):
        loading.close()
        chat = Chat(engine, sampling, thinking=thinking, file=file)
        chat.begin(system)
        if file.messages:
            chat.go_on()
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
            say("Ctrl-C again, or Ctrl-D, leaves.")
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


def _shortened(text: str) -> str:
    """The end of a long text."""
    return text if len(text) <= _SHOWN_CHARS else f"[...] {text[-_SHOWN_CHARS:]}"


def _ask() -> str:
    """One line typed. The prompt shows on a terminal only, so that a pipe gets answers alone."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        try:
            return input(PROMPT)
        except (EOFError, KeyboardInterrupt):
            sys.stdout.write("\n")  # what follows, the shell's own prompt too, begins a line
            raise
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
