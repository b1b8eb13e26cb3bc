"""A small byte-level vocabulary and chat template for synthetic models.

Owns token names and ids of models that were never trained. Any text can be encoded with it.
"""

from __future__ import annotations

import numpy as np

from strata.errors import SettingsError
from strata.formats.convert_tokenizer import CONTROL, NORMAL, UNUSED, USER_DEFINED

# A few joins, so that merging is exercised; each makes one more token.
_MERGES = (
    "Ġ t", "h e", "Ġt he", "i n", "Ġ a", "e r", "o n", "Ġ s", "r e", "n d", "i t", "a t",
    "Ġa nd", "e n", "in g", "o r", "Ġ Ġ", "o u", "e s", "s t",
)  # fmt: skip

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
IMAGE_PAD = "<|image_pad|>"
_CONTROLS = (
    END_OF_TEXT, TURN_START, TURN_END, "<|vision_start|>", "<|vision_end|>", IMAGE_PAD,
    "<|video_pad|>",
)  # fmt: skip
_USER_DEFINED = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
)  # fmt: skip

_CONSONANTS, _VOWELS = "bdfghklmnprstvz", "aeiou"

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# Ids at the end that stand for no token, as in trained vocabularies.
_NUM_UNUSED = 16

LEAST_VOCAB = 256 + len(_MERGES) + len(_CONTROLS) + len(_USER_DEFINED)


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in GPT-2 vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def _word(number: int) -> str:
    """A pronounceable word with a leading space: what a synthetic model answers can be read.

    No merge leads to it, so it is never in a prompt. Three syllables, or more for large numbers.
    """
    syllables: list[str] = []
    while number or len(syllables) < 3:
        number, place = divmod(number, len(_CONSONANTS) * len(_VOWELS))
        syllables.append(_CONSONANTS[place // len(_VOWELS)] + _VOWELS[place % len(_VOWELS)])
    return "Ġ" + "".join(reversed(syllables))


def special_ids() -> dict[str, int]:
    """Id of every control and user-defined token."""
    first = 256 + len(_MERGES)
    return {token: first + place for place, token in enumerate((*_CONTROLS, *_USER_DEFINED))}


def synthetic_tokenizer(vocab_size: int) -> dict[str, object]:
    """The ``tokenizer.*`` keys of a vocabulary padded to ``vocab_size``.

    Raises:
        SettingsError: fewer ids than the smallest vocabulary needs.
    """
    if vocab_size < LEAST_VOCAB:
        raise SettingsError(
            f"a vocabulary of {vocab_size} is too small for the byte tokens.\n"
            f"  Try: at least {LEAST_VOCAB}."
        )
    merged = [merge.replace(" ", "") for merge in _MERGES]
    tokens = [*byte_characters(), *merged, *_CONTROLS, *_USER_DEFINED]
    types = [NORMAL] * (256 + len(merged))
    types += [CONTROL] * len(_CONTROLS) + [USER_DEFINED] * len(_USER_DEFINED)
    num_words = max(0, vocab_size - len(tokens) - _NUM_UNUSED)
    tokens += [_word(number) for number in range(num_words)]
    tokens += [f"[PAD{number}]" for number in range(len(tokens), vocab_size)]
    types += [NORMAL] * num_words
    types += [UNUSED] * (vocab_size - len(types))
    ids = special_ids()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": list(_MERGES),
        "tokenizer.ggml.bos_token_id": np.uint32(ids[END_OF_TEXT]),
        "tokenizer.ggml.eos_token_id": np.uint32(ids[TURN_END]),
        "tokenizer.ggml.padding_token_id": np.uint32(ids[END_OF_TEXT]),
        "tokenizer.ggml.add_bos_token": np.bool_(False),
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
