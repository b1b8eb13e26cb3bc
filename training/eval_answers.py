"""Questions of the synthetic tasks put to an engine, and how many answers are right.

Owns the asking: seeds of the cases, length limits, where an answer begins after the thinking.
What a right answer is, is the tasks' business; which share is enough, that of ``eval_checks``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from strata.engine.sampler import SamplingParams
from training.eval_drafts import DraftTotals
from training.tasks.example import Split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from strata.engine.request import Timings
    from training.tasks.example import Example, Message, Task, Tool

SEED = 20261129
THINK_END = "</think>"
# An answer may be longer than the expected one before it counts as running away.
SPARE_TOKENS = 48
# Wrong answers kept for the report, of each task.
MAX_KEPT = 5

OnCase = Callable[[int, int], None]  # (cases done, cases in all)


class Completed(Protocol):
    """What is read of a ``strata.Completion``."""

    @property
    def text(self) -> str:
        """The whole answer."""

    @property
    def token_ids(self) -> Sequence[int]:
        """Its tokens."""

    @property
    def timings(self) -> Timings:
        """What it cost; the drafts are counted there."""


class Started(Protocol):
    """What is used of a ``strata.Generation``."""

    def complete(self) -> Completed:
        """The whole answer at once."""


class ChatEngine(Protocol):
    """What is used of ``strata.Engine``; the tests fake it."""

    @property
    def context_len(self) -> int:
        """Tokens prompt and answer may have together."""

    def tokenize(self, prompt: str) -> Sequence[int]:
        """Token ids of a text."""

    def chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams | None,
        *,
        enable_thinking: bool,
        tools: Sequence[Tool],
    ) -> Started:
        """The assistant's next message; what has a name reaches the chat template."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; ``text`` is what follows the thinking, empty where the thinking never ended."""

    reasoning: str
    text: str
    num_tokens: int
    drafts_proposed: tuple[int, ...] = ()
    drafts_accepted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WrongAnswer:
    """A case for the report: the last question, what was expected and what came."""

    question: str
    expected: str
    found: str


@dataclass(slots=True)
class Tally:
    """Right answers of one task."""

    name: str
    num_cases: int = 0
    num_right: int = 0
    num_json: int = 0  # answers that are JSON, whatever they say
    num_tokens: int = 0
    drafts: DraftTotals = field(default_factory=DraftTotals)
    wrong: list[WrongAnswer] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Right answers of all; 0 without cases."""
        return self.num_right / self.num_cases if self.num_cases else 0.0

    def add(self, example: Example, answer: Answer, *, is_right: bool) -> None:
        """Counts one case."""
        self.num_cases += 1
        self.num_right += is_right
        self.num_json += is_json(answer.text)
        self.num_tokens += answer.num_tokens
        self.drafts.add(answer.drafts_proposed, answer.drafts_accepted)
        if not is_right and len(self.wrong) < MAX_KEPT:
            question = shortened(str(example.prompt[-1].get("content")))
            found = f"{answer.reasoning}{THINK_END}{answer.text}"
            self.wrong.append(
                WrongAnswer(
                    question, expected_text(example), found if example.is_thinking else answer.text
                )
            )

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return {**asdict(self), "share": self.share}


def greedy(max_tokens: int) -> SamplingParams:
    """Always the likeliest token."""
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


def expected_text(example: Example) -> str:
    """The example's own answer as text, for length limits and reports."""
    message: Mapping[str, Any] = example.messages[-1]
    parts = [message.get("reasoning_content"), message.get("content")]
    calls = message.get("tool_calls")
    if calls:
        parts.append(json.dumps([call["function"] for call in calls], ensure_ascii=False))
    return "\n".join(str(part) for part in parts if part)


def ask(engine: ChatEngine, example: Example) -> Answer:
    """The engine's greedy answer to the example's prompt, up to twice the expected length."""
    limit = 2 * len(engine.tokenize(expected_text(example) or "-")) + SPARE_TOKENS
    return complete_greedily(engine, example, limit)


def complete_greedily(engine: ChatEngine, example: Example, max_tokens: int) -> Answer:
    """The engine's greedy answer to the example's prompt, of at most that many tokens."""
    generation = engine.chat(
        example.prompt,
        greedy(max_tokens),
        enable_thinking=example.is_thinking,
        tools=example.tools,
    )
    completion = generation.complete()
    reasoning, text = split_thinking(completion.text, is_thinking=example.is_thinking)
    timings = completion.timings
    return Answer(
        reasoning,
        text,
        len(completion.token_ids),
        timings.drafts_proposed,
        timings.drafts_accepted,
    )


def split_thinking(text: str, *, is_thinking: bool) -> tuple[str, str]:
    """What was thought and what is the answer; the prompt ends inside the thinking if it is on."""
    before, end, after = text.rpartition(THINK_END)
    if end:
        return before.strip(), after.strip()
    return (text.strip(), "") if is_thinking else ("", text.strip())


def shortened(text: str, most: int = 400) -> str:
    """The text, its middle left out where it is long."""
    return text if len(text) <= most else f"{text[: most // 2]} [...] {text[-most // 2 :]}"


def is_json(text: str) -> bool:
    """Whether the text is one JSON value and nothing else."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def case_rng(name: str, number: int) -> random.Random:
    """The generator of one case; cases do not depend on how many are asked."""
    return random.Random(f"{SEED} {name} {number}")


def run_task(
    engine: ChatEngine, task: Task, num_cases: int, on_case: OnCase | None = None
) -> Tally:
    """Held-out cases of one task, one after the other."""
    tally = Tally(task.name)
    for number in range(num_cases):
        example = task.generate(case_rng(task.name, number), Split.HELD_OUT)
        answer = ask(engine, example)
        tally.add(example, answer, is_right=task.grade(example, answer.text))
        if on_case is not None:
            on_case(number + 1, num_cases)
    return tally
