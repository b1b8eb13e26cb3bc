"""Code words in long texts: found or not, by length of the text and depth of the word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from training.eval_answers import Tally, case_rng, complete_greedily
from training.tasks import code_words
from training.tasks.example import Split

if TYPE_CHECKING:
    from training.eval_answers import ChatEngine, OnCase
    from training.tasks.example import Example

LENGTHS = (512, 2048, 4096, 8192)
DEPTHS = (0.1, 0.5, 0.9)
# "The code word for the old mill is ..."; the generator keeps room for it.
ANSWER_TOKENS = 32

MakeExample = Callable[[int, int, float], "Example"]  # (case, tokens, depth)


@dataclass(frozen=True, slots=True)
class Cell:
    """One length and depth."""

    num_tokens: int
    depth: float
    num_cases: int
    num_right: int
    # Tokens of the shortest and longest user message.
    prompt_tokens: tuple[int, int]

    @property
    def share(self) -> float:
        """Words found of all."""
        return self.num_right / self.num_cases

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return {**asdict(self), "share": self.share}


def code_word_cells(
    engine: ChatEngine,
    num_cases: int,
    on_case: OnCase | None = None,
    *,
    lengths: tuple[int, ...] = LENGTHS,
    depths: tuple[float, ...] = DEPTHS,
) -> tuple[list[Cell], Tally]:
    """Every length at every depth, ``num_cases`` held-out words each; and what went wrong."""
    cells = []
    tally = Tally("code words in long texts")
    total = num_cases * len(lengths) * len(depths)
    for length in lengths:
        for depth in depths:
            before, sizes = tally.num_right, []
            for number in range(num_cases):
                example = code_words.make(
                    case_rng(f"code word {length} {depth}", number),
                    Split.HELD_OUT,
                    length,
                    depth,
                    lambda text: len(engine.tokenize(text)),
                )
                sizes.append(len(engine.tokenize(str(example.prompt[-1]["content"]))))
                answer = complete_greedily(engine, example, ANSWER_TOKENS)
                tally.add(example, answer, is_right=code_words.grade(example, answer.text))
                if on_case is not None:
                    on_case(tally.num_cases, total)
            num_right = tally.num_right - before
            cells.append(Cell(length, depth, num_cases, num_right, (min(sizes), max(sizes))))
    return cells, tally
