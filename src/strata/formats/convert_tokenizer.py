"""Tokenizer metadata of a GGUF from a checkpoint's tokenizer.json.

Owns the reading of tokenizer.json, tokenizer_config.json and chat_template.jinja. Does not
tokenize.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

# GGUF's token types that occur here.
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def tokenizer_metadata(
    folder: Path, config: Mapping[str, object], vocab_size: int
) -> tuple[dict[str, object], list[str]]:
    """The ``tokenizer.*`` keys and notices; no keys when the folder has no tokenizer.json.

    Args:
        folder: of the checkpoint.
        config: its config.json.
        vocab_size: rows of the embedding; ids without a token become unused ones.

    Raises:
        CheckpointError: tokenizer.json is broken or has more tokens than the model.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return {}, ["the checkpoint has no tokenizer.json; the GGUF takes token ids only."]
    stored = _json(path)
    model = stored.get("model")
    if not isinstance(model, Mapping) or model.get("type", "BPE") != "BPE":
        raise _broken(path, "it is not a byte-level BPE tokenizer")
    tokens, types = _tokens(path, stored, model, vocab_size)
    keys: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.add_bos_token": np.bool_(False),
    }
    merges = _merges(path, model)
    if merges:
        keys["tokenizer.ggml.merges"] = merges
    settings = _optional_json(folder / "tokenizer_config.json")
    for word, value in _special_ids(config, settings, tokens).items():
        key = "padding" if word == "pad" else word
        keys[f"tokenizer.ggml.{key}_token_id"] = np.uint32(value)
    template = _template(folder, settings)
    if template:
        keys["tokenizer.chat_template"] = template
    return keys, []


def _broken(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path.name} cannot be read: {what}.\n  file: {path}\n  Try: download it again."
    )


def _json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _broken(path, "it is not a JSON object")
    return value


def _optional_json(path: Path) -> dict[str, object]:
    return _json(path) if path.is_file() else {}


def _tokens(
    path: Path, stored: Mapping[str, object], model: Mapping[str, object], vocab_size: int
) -> tuple[list[str], list[int]]:
    vocab, added = model.get("vocab"), stored.get("added_tokens") or []
    if not isinstance(vocab, Mapping) or not isinstance(added, list):
        raise _broken(path, "it has no vocabulary")
    entries: list[tuple[object, object, int]] = [(t, i, NORMAL) for t, i in vocab.items()]
    for token in added:
        if not isinstance(token, Mapping):
            raise _broken(path, "an added token is not an object")
        kind = CONTROL if token.get("special") else USER_DEFINED
        entries.append((token.get("content"), token.get("id"), kind))
    tokens = [f"[PAD{number}]" for number in range(vocab_size)]
    types = [UNUSED] * vocab_size
    for content, number, kind in entries:
        if not isinstance(content, str) or not isinstance(number, int) or number < 0:
            raise _broken(path, f"token {content!r} has the id {number!r}")
        if number >= vocab_size:
            raise _broken(path, f"token {content!r} has id {number}; the model has {vocab_size}")
        tokens[number], types[number] = content, kind
    return tokens, types


def _merges(path: Path, model: Mapping[str, object]) -> list[str]:
    stored = model.get("merges") or []
    if not isinstance(stored, list):
        raise _broken(path, "its merges are not a list")
    merges = []
    for merge in stored:
        text = " ".join(merge) if isinstance(merge, list) else merge
        if not isinstance(text, str) or text.count(" ") != 1:
            raise _broken(path, f"the merge {merge!r} is not a pair")
        merges.append(text)
    return merges


def _special_ids(
    config: Mapping[str, object], settings: Mapping[str, object], tokens: list[str]
) -> dict[str, int]:
    """bos, eos and pad: by the tokenizer's settings, else by config.json."""
    text = config.get("text_config")
    inner = text if isinstance(text, Mapping) else config
    ids: dict[str, int] = {}
    for word in ("bos", "eos", "pad"):
        stated = settings.get(f"{word}_token")
        content = stated.get("content") if isinstance(stated, Mapping) else stated
        number = inner.get(f"{word}_token_id", config.get(f"{word}_token_id"))
        # Of several end tokens the last ends a turn; the first ends a document.
        number = number[-1] if isinstance(number, list) and number else number
        if isinstance(content, str) and content in tokens:
            ids[word] = tokens.index(content)
        elif isinstance(number, int) and 0 <= number < len(tokens):
            ids[word] = number
    return ids


def _template(folder: Path, settings: Mapping[str, object]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    stored = settings.get("chat_template")
    if isinstance(stored, list):
        named = [t for t in stored if isinstance(t, Mapping) and t.get("name") == "default"]
        stored = named[0].get("template") if named else None
    return stored if isinstance(stored, str) else ""
