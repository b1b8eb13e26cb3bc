"""``python -m training.vocabulary CORPUS.xz``: the demo's byte-level BPE vocabulary.

Owns the mix of text it is counted on, the family's special tokens and the files tokenizer.json and
tokenizer_config.json. The same text gives the same files.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors, trainers
from tokenizers import models as token_models
from tokenizers.pre_tokenizers import ByteLevel

from strata.text.pretokenizer import build_pre_tokenizer
from training.chat_format import render
from training.config import NUM_BPE_TOKENS
from training.documents import read_documents
from training.tasks import ALL_TASKS
from training.tasks.example import Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FOLDER: Final = Path(__file__).parent / "data"

END_OF_TEXT: Final = "<|endoftext|>"
TURN_END: Final = "<|im_end|>"

SPECIAL_TOKENS: Final = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>",
    "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
    "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>",
    "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
    "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
    "<tts_text_bos_single>", "<|audio_pad|>",
)  # fmt: skip
"""The family's, in its order; their ids follow the byte pairs."""

USER_DEFINED: Final = frozenset(
    {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
)
"""Those that are text as well: found in any text, and shown when generated."""

# Text the pairs are counted on.
CORPUS_BYTES: Final = 6_000_000
TASK_BYTES: Final = 2_600_000
_SEED: Final = 20_260_901


def train(texts: Iterable[str], num_tokens: int = NUM_BPE_TOKENS) -> Tokenizer:
    """A tokenizer of ``num_tokens`` byte pairs, counted on ``texts``, and the special tokens.

    Raises:
        ValueError: the texts hold too few pairs.
    """
    tokenizer = Tokenizer(token_models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = build_pre_tokenizer("qwen35")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        min_frequency=2,
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    found = tokenizer.get_vocab_size()
    if found != num_tokens:
        raise ValueError(f"the texts give {found} tokens, expected {num_tokens}; give more text")
    tokenizer.add_tokens(
        [
            AddedToken(text, special=text not in USER_DEFINED, normalized=False)
            for text in SPECIAL_TOKENS
        ]
    )
    return tokenizer


def corpus_texts(documents: Sequence[str], num_bytes: int) -> Iterator[str]:
    """``num_bytes`` of the documents, those with the lowest checksums."""
    left = num_bytes
    for text in sorted(documents, key=lambda text: (zlib.crc32(text.encode()), text)):
        if left <= 0:
            return
        left -= len(text.encode())
        yield text


def task_texts(num_bytes: int) -> Iterator[str]:
    """About ``num_bytes`` of conversations of the synthetic tasks, drawn as in training."""
    rng = random.Random(_SEED)
    weights = [task.weight for task in ALL_TASKS]
    left = num_bytes
    while left > 0:
        (task,) = rng.choices(ALL_TASKS, weights)
        example = task.generate(rng, Split.TRAIN)
        for segment in render(example.messages, example.tools, example.is_thinking):
            if not segment.is_control:
                left -= len(segment.text.encode())
                yield segment.text


def write(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json; the chat template lies beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = json.loads(tokenizer.to_str())
    # One entry a line keeps differences readable.
    text = json.dumps(stored, ensure_ascii=False, indent=0)
    (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
    }
    text = json.dumps(settings, indent=2)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains the vocabulary on a corpus and on the tasks, and writes it."""
    parser = argparse.ArgumentParser(prog="python -m training.vocabulary", description=main.__doc__)
    parser.add_argument("corpus", type=Path, help="file of training.corpus")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to")
    options = parser.parse_args(arguments)
    documents = read_documents(options.corpus)
    texts = [*corpus_texts(documents, CORPUS_BYTES), *task_texts(TASK_BYTES)]
    tokenizer = train(texts)
    write(tokenizer, options.out)
    num_bytes = sum(len(text.encode()) for text in texts)
    sys.stdout.write(f"{options.out}: {tokenizer.get_vocab_size()} ids from {num_bytes} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
