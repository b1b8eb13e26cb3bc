"""Rows of packed documents: plain text and synthetic conversations, made as they are needed.

Row n of a run is a function of the seed and n alone, whatever the number of workers.
"""

from __future__ import annotations

import lzma
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from training.chat_format import encode, render
from training.config import END_OF_TEXT_ID
from training.network import ANSWER, LOOK_UP, NOT_LEARNED, TEXT, Batch
from training.tasks import ALL_TASKS
from training.tasks.drills import LOOK_UPS
from training.tasks.drills import TASKS as DRILLS
from training.tasks.example import Example, Split

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

    from training.schedule import Phase

# Documents begin at multiples of this: the indexer's blocks of the trained model.
_ALIGN = 4
# A piece of text, in tokens, where rows are short and where they are long.
_SHORT_TEXT = (64, 400)
_LEAST = 16
# Examples drawn for the end of a row before text fills it.
_TRIES = 6
_SEPARATOR = "\n\x1e\n"
_LONG_TEXT = (64, 2048)
_LONG_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Corpus:
    """Plain text, tokenised once.

    Attributes:
        texts: documents.
        tokens: [N] uint16, documents one after the other, each ended by an end of text.
        starts: [documents + 1] int64.
    """

    texts: list[str]
    tokens: NDArray[np.uint16]
    starts: NDArray[np.int64]

    @classmethod
    def read(cls, path: Path, tokenizer: Tokenizer) -> Corpus:
        """From a file of ``training.corpus``; the first line of a document is its title."""
        with lzma.open(path, "rt", encoding="utf-8") as file:
            whole = file.read()
        texts = [text.split("\n", 1)[-1].strip() for text in whole.split(_SEPARATOR)]
        texts = [text for text in texts if text]
        encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        pieces = [np.array([*e.ids, END_OF_TEXT_ID], np.uint16) for e in encoded]
        starts = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])])
        return cls(texts, np.concatenate(pieces), starts.astype(np.int64))

    def paragraph(self, rng: random.Random) -> str:
        """Some paragraph of some document."""
        text = self.texts[rng.randrange(len(self.texts))]
        paragraphs = [part for part in text.split("\n\n") if 40 < len(part) < 1500]
        return rng.choice(paragraphs) if paragraphs else text[:400]

    def piece(self, rng: random.Random, length: int) -> NDArray[np.uint16]:
        """At most ``length`` tokens of one document, every token as likely to begin it."""
        at = rng.randrange(len(self.tokens))
        number = int(np.searchsorted(self.starts, at, side="right")) - 1
        first, end = int(self.starts[number]), int(self.starts[number + 1])
        # From the beginning if that is near, so that beginnings are learned too.
        at = first if at - first < length else at
        return self.tokens[at : min(end, at + length)]


LongTask = Callable[[random.Random, Callable[[random.Random], str]], Example]


class Rows(Dataset[dict[str, NDArray[Any]]]):
    """Rows of one phase.

    Args:
        corpus: plain text.
        tokenizer: of the model.
        phase: length and mixture.
        seed: of the run.
        first: number of the first row.
        count: rows.
        long_task: makes one example of some thousand tokens.
        split: which instances of the tasks are drawn.
        drill_factor: how many times their own weight drills and look-ups have.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        phase: Phase,
        *,
        seed: int,
        first: int,
        count: int,
        long_task: LongTask,
        split: Split = Split.TRAIN,
        drill_factor: float = 1.0,
    ) -> None:
        self._corpus = corpus
        self._tokenizer = tokenizer
        self._phase = phase
        self._seed = seed
        self._first = first
        self._count = count
        self._long_task = long_task
        self._split = split
        self._tasks = [task for task in ALL_TASKS if task.weight > 0]
        drills = {*LOOK_UPS, *(task.name for task in DRILLS)}
        self._weights = [
            task.weight * (drill_factor if task.name in drills else 1.0) for task in self._tasks
        ]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        rng = random.Random(f"{self._seed} {self._phase.length} {self._first + index}")
        length = self._phase.length
        row = _Row(length)
        num_text = 0
        if self._phase.is_long and rng.random() < _LONG_SHARE:
            example = self._long_task(rng, self._corpus.paragraph)
            row.add(*self._encoded(example))
        while row.room >= _LEAST:
            if num_text < self._phase.text_share * row.used:
                longest = rng.randint(*(_LONG_TEXT if self._phase.is_long else _SHORT_TEXT))
                num_text += self._add_text(row, rng, longest)
                continue
            if not self._add_task(row, rng):
                num_text += self._add_text(row, rng, row.room)
        return row.arrays()

    def _encoded(self, example: Example) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
        kind = LOOK_UP if example.task in LOOK_UPS else ANSWER
        segments = render(example.messages, example.tools, example.is_thinking)
        ids, learned = encode(segments, self._tokenizer)
        return ids, np.where(learned, kind, NOT_LEARNED).astype(np.uint8)

    def _add_task(self, row: _Row, rng: random.Random) -> bool:
        """One example; false if a few in succession are too long for what is left of the row."""
        for task in rng.choices(self._tasks, self._weights, k=_TRIES):
            if row.add(*self._encoded(task.generate(rng, self._split))):
                return True
        return False

    def _add_text(self, row: _Row, rng: random.Random, longest: int) -> int:
        ids = self._corpus.piece(rng, min(longest, row.room))
        row.add(ids, np.full(len(ids), TEXT, np.uint8))
        return len(ids)


class _Row:
    """A row being filled."""

    def __init__(self, length: int) -> None:
        self._tokens = np.full(length, END_OF_TEXT_ID, np.uint16)
        self._offset = np.zeros(length, np.uint16)
        self._kind = np.zeros(length, np.uint8)
        self.used = 0

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        return len(self._tokens) - self.used

    def add(self, ids: NDArray[np.uint16], kind: NDArray[np.uint8]) -> bool:
        """Appends a document and fills up its last block; false if it does not fit."""
        if len(ids) > self.room:
            return False
        here = slice(self.used, self.used + len(ids))
        self._tokens[here] = ids
        self._kind[here] = kind
        padded = min(-(-len(ids) // _ALIGN) * _ALIGN, self.room)
        self._offset[self.used : self.used + padded] = np.arange(padded)
        self.used += padded
        return True

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The row; what was not filled is a document of its own that is not learned."""
        self._offset[self.used :] = np.arange(self.room)
        return {"tokens": self._tokens, "offset": self._offset, "kind": self._kind}


def _collated(rows: list[dict[str, NDArray[Any]]]) -> dict[str, torch.Tensor]:
    return {
        name: torch.from_numpy(np.stack([row[name] for row in rows]).astype(np.int32))
        for name in rows[0]
    }


def batches(rows: Rows, batch_rows: int, *, num_workers: int, device: str) -> Iterator[Batch]:
    """Batches of the rows in order, on the device."""
    loader = DataLoader(
        rows,
        batch_size=batch_rows,
        num_workers=num_workers,
        collate_fn=_collated,
        pin_memory=device == "cuda",
        prefetch_factor=4 if num_workers else None,
        drop_last=True,
    )
    for stacked in loader:
        moved = {name: t.to(device, non_blocking=True).long() for name, t in stacked.items()}
        yield Batch(**moved)
