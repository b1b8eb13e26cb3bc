"""Texts of conversations in the terminal, so that ``strata chat --resume`` goes on with one.

Owns the file: JSON with the messages, beside the engine's states of the same conversation
(docs/conversation-files.md), from which it is read on. Knows no model.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from strata.errors import SettingsError
from strata.result_files import unwritable, write_whole

if TYPE_CHECKING:
    from strata.engine.request import Message

SUFFIX: Final = ".chat.json"
_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_ROLES: Final = ("system", "user", "assistant")
# A larger file is no conversation that anybody typed.
_MOST_BYTES: Final = 64 << 20


@dataclass(slots=True)
class ChatFile:
    """One conversation; ``path`` is None where nothing is kept."""

    path: Path | None = None
    messages: list[Message] = field(default_factory=list)
    model: str = ""

    @property
    def name(self) -> str:
        """What ``--chat`` calls it."""
        return "" if self.path is None else self.path.name.removesuffix(SUFFIX)

    def save(self, messages: list[Message], model: str) -> None:
        """Writes the conversation as it is now, whole or not at all.

        Raises:
            SettingsError: it cannot be written; the file that was there stays.
        """
        self.messages, self.model = list(messages), model
        if self.path is None:
            return
        content = {"strata_chat": _VERSION, "model": model, "messages": self.messages}
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            text = json.dumps(content, ensure_ascii=False, indent=1)
            content_bytes = text.encode("utf-8", errors="replace")
            write_whole(self.path, content_bytes, new_mode=0o600)  # its owner's alone
        except OSError as error:
            raise unwritable("--chat", self.path, error) from None

    def renewed(self) -> ChatFile:
        """Another, empty one beside it."""
        return ChatFile() if self.path is None else ChatFile(_new_path(self.path.parent))


def open_chat(folder: Path | None, name: str | None, *, is_resumed: bool) -> ChatFile:
    """The conversation that is meant.

    Args:
        folder: of ``--conversation-dir``.
        name: of ``--chat``: a name in the folder, or a file; begun if it is not there.
        is_resumed: it has to be there; without a name the one that was used last.

    Raises:
        SettingsError: there is none, or it is not a conversation.
    """
    if name is not None:
        path = _path_of(folder, name)
        if path.exists():
            return _read(path)
        if is_resumed:
            raise SettingsError(
                f"there is no conversation {name!r}: no file {path}.\n"
                f"  Try: {_advice(folder)}without --resume it is begun."
            )
        return ChatFile(path)
    if not is_resumed:
        return ChatFile(None if folder is None else _new_path(folder))
    if folder is None:
        raise SettingsError(
            "--resume needs to know where conversations are kept.\n"
            "  Try: --conversation-dir DIR, with which they are kept from now on, or --chat FILE"
        )
    paths = _kept(folder)
    if not paths:
        raise SettingsError(
            f"no conversation is kept in {folder} yet.\n"
            "  Try: without --resume; with --conversation-dir it is kept there."
        )
    return _read(paths[0])


def _kept(folder: Path) -> list[Path]:
    """Conversations of a folder, the one used last first."""
    return sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: -path.stat().st_mtime_ns)


def _advice(folder: Path | None) -> str:
    names = [] if folder is None else [path.name.removesuffix(SUFFIX) for path in _kept(folder)]
    return f"--chat {', '.join(names[:5])}; " if names else ""


def _path_of(folder: Path | None, name: str) -> Path:
    if "/" in name or name.endswith(".json"):
        return Path(name)
    if folder is None or not _NAME.fullmatch(name):
        raise SettingsError(
            f"--chat {name!r} is no file, and no name in a --conversation-dir.\n"
            f"  Try: --chat ./{name}{SUFFIX}, or --conversation-dir DIR with letters and digits."
        )
    return folder / f"{name}{SUFFIX}"


def _new_path(folder: Path) -> Path:
    """A name nobody has, by the time."""
    begun = time.strftime("%Y-%m-%d-%H%M%S")
    for count in range(1000):
        path = folder / f"{begun}{f'-{count}' if count else ''}{SUFFIX}"
        if not path.exists():
            break
    return path


def _read(path: Path) -> ChatFile:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise _not_a_chat(path, f"it is larger than {_MOST_BYTES >> 20} MiB")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise SettingsError(
            f"the conversation {path} cannot be read: {error.strerror}.\n  Try: another --chat"
        ) from None
    except (ValueError, RecursionError):
        raise _not_a_chat(path, "it is no JSON") from None
    if not isinstance(content, dict) or content.get("strata_chat") != _VERSION:
        raise _not_a_chat(path, f'it does not say "strata_chat": {_VERSION}')
    messages = content.get("messages")
    if not isinstance(messages, list) or not all(map(_is_message, messages)):
        raise _not_a_chat(path, "its messages are not lists of role and content")
    return ChatFile(path, messages, str(content.get("model", "")))


def _is_message(item: object) -> bool:
    return (
        isinstance(item, dict)
        and set(item) == {"role", "content"}
        and item["role"] in _ROLES
        and isinstance(item["content"], str)
    )


def _not_a_chat(path: Path, why: str) -> SettingsError:
    return SettingsError(
        f"{path} is not a conversation of strata chat: {why}. It is left as it is.\n"
        "  Try: another --chat"
    )
