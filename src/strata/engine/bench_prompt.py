"""Prompts that are measured with: random ids, or a text.

Speed does not depend on the tokens, except where drafts do: a draft layer guesses what a text goes
on with, and nothing of random ids. So drafts are measured on a text, without one given on the
package's own sources, which every installation has.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import strata
from strata.engine.bench import random_prompt
from strata.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from strata.engine.parts import Text
    from strata.engine.session import Tokens

SEED = 20261127
_BYTES_PER_TOKEN = 16  # more than any tokenizer's mean; a text is not encoded much further


def prompts(
    text: Text, vocab_size: int, *, file: Path | None, is_text: bool
) -> Callable[[int], Tokens]:
    """Gives a prompt of a wanted length, [N] int32.

    Args:
        text: the model's tokenizer.
        vocab_size: of the model.
        file: a text to take instead of the package's sources.
        is_text: without a file: the sources, not random ids.

    Raises:
        SettingsError: the file cannot be read.
    """
    if file is None and not is_text:
        return lambda length: random_prompt(vocab_size, length, SEED)
    source = _sources() if file is None else _read(file)

    def of_length(length: int) -> Tokens:
        ids = text.encode(source[: _BYTES_PER_TOKEN * length])
        if len(ids) < length:
            raise SettingsError(
                f"the text has {len(ids)} tokens; the prompt is to have {length}.\n"
                "  Try: a longer --text, or fewer --prompt-tokens."
            )
        return np.array(ids[:length], dtype=np.int32)

    return of_length


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise SettingsError(
            f"cannot read {file}: {error.strerror}.\n  Try: a file that exists."
        ) from None
    except UnicodeDecodeError:
        raise SettingsError(f"{file} is not text in UTF-8.\n  Try: a text file.") from None


def _sources() -> str:
    folder = Path(strata.__file__).parent
    # Larger ones first: the smallest files are little but imports.
    files = sorted(folder.rglob("*.py"), key=lambda path: (-path.stat().st_size, path.as_posix()))
    return "\n".join(path.read_text("utf-8") for path in files)
