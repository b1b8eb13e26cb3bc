"""A server whose engine says what a script tells it to: a stand-in that agents can be tried with.

    python -m tests.agents.stand_in --port 0 SCRIPT.json

The script is a list of rules ``{"when": regex, "results": n, "say": text}``. An answer is the text
of the first rule whose pattern is found in the prompt and whose number of tool results in it, if
the rule has one, is right. Everything else is the real thing: HTTP, templates, the parser of calls.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tests.fakes import FakeModel, FakeSession

from strata.cli.console import say
from strata.engine.default_model import default_model
from strata.engine.engine import Engine
from strata.engine.model_file import open_file
from strata.engine.model_text import ModelText
from strata.engine.parts import Parts
from strata.server.serve import ServeOptions, serve
from strata.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.engine.session import Logits, OnProgress

CONTEXT_LEN = 200_000
SPEAKS = "<|im_start|>assistant\n"
THINKS = "<think>"
THOUGHT = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
RESULT = "<tool_response>"
SILENT = "ok"


@dataclass(frozen=True, slots=True)
class Rule:
    """What is said to which prompt."""

    when: str
    say: str
    results: int | None = None

    def fits(self, prompt: str) -> bool:
        if self.results is not None and prompt.count(RESULT) != self.results:
            return False
        return re.search(self.when, prompt, re.DOTALL) is not None


class ScriptedSession(FakeSession):
    """Its next token is the next one of the text the rules give for the prompt."""

    def __init__(self, rules: Sequence[Rule], text: ModelText, vocab_size: int) -> None:
        super().__init__(vocab_size, CONTEXT_LEN, cut_tokens=1)
        self._rules = rules
        self._text = text
        self._begin_id = text.encode_chat([{"role": "user", "content": ""}], {})[0]
        self._end_id = min(text.end_ids)
        self._think_end_id = text.token_id("</think>") or self._end_id
        self._answers: dict[bytes, str] = {}

    def logits_of(self, history: Sequence[int], state: int) -> Logits:
        logits = np.zeros(self.vocab_size, np.float32)
        logits[self._next_id(list(history))] = 100.0
        return logits

    def _next_id(self, history: list[int]) -> int:
        if self._begin_id not in history:
            return self._end_id  # a text without turns
        begin = len(history) - 1 - history[::-1].index(self._begin_id)
        tail = self._text.decode(history[begin:])
        if not tail.startswith(SPEAKS):
            return self._end_id  # inside a prompt: nobody asks for what follows here
        said = THOUGHT.sub("", tail[len(SPEAKS) :])
        if said.lstrip().startswith(THINKS):
            return self._think_end_id
        answer = self._answer(history[:begin])
        said = said.lstrip("\n")
        rest = answer[len(said) :] if answer.startswith(said) else ""
        return self._text.encode(rest)[0] if rest else self._end_id

    def _answer(self, prompt: Sequence[int]) -> str:
        key = np.asarray(prompt, np.int32).tobytes()
        if key not in self._answers:
            text = self._text.decode(prompt)
            said = (rule.say for rule in self._rules if rule.fits(text))
            self._answers[key] = next(said, SILENT)
        return self._answers[key]


class ScriptedModel(FakeModel):
    """Makes such sessions."""

    def __init__(self, rules: Sequence[Rule], text: ModelText, vocab_size: int) -> None:
        super().__init__(vocab_size, cut_tokens=1)
        self._rules = rules
        self._text = text

    def new_session(self, capacity: int) -> FakeSession:
        session = ScriptedSession(self._rules, self._text, self.vocab_size)
        self.sessions.append(session)
        return session


class OpenScripted:
    """Opens the stand-in in the engine's process; the tokenizer is the shipped model's."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules

    def __call__(self, *, on_progress: OnProgress) -> Engine:
        with open_file(default_model()) as file:
            spec = file.spec
            text = ModelText.from_metadata(file.index.metadata, spec.vocab_size)
        model = ScriptedModel(self._rules, text, spec.vocab_size)
        model.spec = spec
        parts = Parts(model, text, spec.vocab_size, CONTEXT_LEN, model.close)
        return Engine(parts, Settings(checkpoints=0))


def main(args: Sequence[str]) -> None:
    _, port, path = args
    rules = [Rule(**plain) for plain in json.loads(Path(path).read_text(encoding="utf-8"))]
    serve(
        Settings(),
        ServeOptions(port=int(port), aliases=("*",), fit_max_tokens=True),
        on_listening=lambda address: say(f"listening on {address}; loading the model."),
        on_ready=lambda model: say(f"ready: {model}"),
        open_engine=OpenScripted(rules),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
