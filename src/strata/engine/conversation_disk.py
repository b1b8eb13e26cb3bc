"""A folder of conversations that outlive the process, under a budget.

Owns the names in it, the thread that writes, and which file goes. A file that is not of this kind
is never touched; one that cannot be used is skipped and told. Bytes are ``conversation_file``'s.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from strata import telemetry
from strata.engine.conversation_file import read_contents, read_history, write_conversation
from strata.engine.conversation_history import bytes_of, common_prefix
from strata.errors import CheckpointError, SettingsError
from strata.result_files import sync_folder

if TYPE_CHECKING:
    from pathlib import Path

    from strata.engine.conversation_file import Contents
    from strata.engine.conversation_history import History
    from strata.engine.session import Tokens

SUFFIX: Final = ".conversation"
_NAME: Final = re.compile(r"[0-9a-f]{16}\.conversation")
_TEMPORARY: Final = re.compile(r"\.[0-9a-f]{16}\.conversation\.[0-9]+\.part")
# Another process may still be writing a younger one.
_STALE_S: Final = 3600.0
# What people said is nobody else's to read.
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_ALL_TOKENS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file that can be used."""

    path: Path
    contents: Contents

    def position_for(self, prompt: Tokens) -> int:
        """Tokens of ``prompt`` that a state in it stands for; 0 for none."""
        num_common = common_prefix(self.contents.tokens, prompt)
        fitting = (
            position
            for position, _, _ in self.contents.checkpoints
            if position <= num_common and position < len(prompt)
        )
        return max(fitting, default=0)


@dataclass(frozen=True, slots=True)
class _File:
    """Tells a file from one that took its place, or was written to."""

    inode: int
    num_bytes: int
    written_ns: int


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A conversation read before anybody asked for it, and which file that was."""

    file: _File
    history: History


class ConversationFiles:
    """The folder, and a thread that writes to it.

    Args:
        folder: made if it is not there.
        identity: model and arithmetic; files of another are skipped.
        budget_bytes: of all files of this kind in the folder; the oldest go first.
        ahead_bytes: of files that are read at once, those used last first: whoever comes back
            after a restart mostly goes on with one of them, and need not wait for the reading.

    Raises:
        SettingsError: the folder cannot be used.
    """

    def __init__(
        self, folder: Path, identity: str, budget_bytes: int, ahead_bytes: int = 0
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._budget_bytes = budget_bytes
        self._ahead_bytes = ahead_bytes
        self._lock = threading.Condition()  # of what follows
        self._entries: dict[str, _Entry] = {}
        self._waiting: dict[str, History] = {}
        self._is_busy = False
        self._is_closed = False
        self._ahead: dict[Path, _Ahead] = {}
        self._num = {"saved": 0, "skipped": 0, "failed": 0, "deleted": 0}
        self._last_write = (0, 0.0)
        try:
            folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            self._look()
        except OSError as error:
            raise SettingsError(
                f"conversations cannot be kept in {folder}: {error.strerror}.\n"
                "  Try: --conversation-dir with a folder that is yours."
            ) from None
        self._thread = threading.Thread(target=self._write_all, name="conversations", daemon=True)
        self._thread.start()

    def find(self, prompt: Tokens, num_least: int) -> History | None:
        """The conversation with the longest usable prefix of ``prompt`` beyond ``num_least``."""
        while True:
            with self._lock:
                entries = list(self._entries.values())
            found = max(entries, key=lambda entry: entry.position_for(prompt), default=None)
            if found is None or (position := found.position_for(prompt)) <= num_least:
                return None
            key = found.contents.key
            try:
                history = self._take_ahead(found.path)
                if history is None:
                    history = read_history(found.path, max(position, len(found.contents.tokens)))
                os.utime(found.path)
            except FileNotFoundError:
                self._drop(key)  # another process has cleaned up
            except (CheckpointError, OSError) as error:
                self.refuse(key, _reason(error))
            else:
                return history

    def save(self, history: History) -> None:
        """Hands a history over to be written; returns at once. The newest of a key counts."""
        with self._lock:
            self._waiting[history.key] = history
            self._lock.notify_all()

    def refuse(self, key: str, reason: str) -> None:
        """Never uses that file again, and says why. It stays where it is."""
        entry = self._drop(key)
        if entry is not None:
            self._skip(entry.path, reason)

    def flush(self, limit_s: float) -> bool:
        """Waits until everything handed over is written; false when it takes longer."""
        with self._lock:
            return self._lock.wait_for(lambda: not (self._waiting or self._is_busy), limit_s)

    def close(self, limit_s: float = 30.0) -> None:
        """Writes what is left, then ends the thread."""
        self.flush(limit_s)
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
        self._thread.join(limit_s)

    @property
    def held_bytes(self) -> int:
        """Host memory of what was read ahead."""
        with self._lock:
            return bytes_of([ahead.history for ahead in self._ahead.values()])

    def forget_ahead(self) -> None:
        """Gives that memory back; the files are still there."""
        with self._lock:
            self._ahead_bytes = 0
            self._ahead.clear()

    def report(self) -> dict[str, int]:
        """Counts since the start, and what is held."""
        with self._lock:
            sizes = [entry.contents.num_bytes for entry in self._entries.values()]
            report = {f"files_{name}": num for name, num in self._num.items()}
            num_bytes, seconds = self._last_write
        report |= {"files": len(sizes), "files_bytes": sum(sizes)}
        return report | {"last_save_bytes": num_bytes, "last_save_ms": round(1000 * seconds)}

    def _look(self) -> None:
        """Reads what every file says of itself; states are read when they are needed."""
        for path in sorted(self._folder.iterdir()):
            if _TEMPORARY.fullmatch(path.name):
                self._remove_if_stale(path)
            elif path.name.endswith(SUFFIX):
                try:
                    self._add(path)
                except (CheckpointError, OSError) as error:
                    self._skip(path, _reason(error))

    def _remove_if_stale(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):  # another process was first
            if time.time() - path.stat().st_mtime > _STALE_S:
                path.unlink()

    def _add(self, path: Path) -> None:
        contents = _contents_of(path)
        if contents.identity != self._identity:
            self._skip(path, "it belongs to another model, another device or another version")
        elif path.name != contents.key + SUFFIX:
            self._skip(path, f"it is the file of {contents.key}")
        else:
            with self._lock:
                self._entries[contents.key] = _Entry(path, contents)

    def _read_ahead(self) -> None:
        """Reads the files used last, as many as are allowed. What is wrong with one is said when
        it is asked for."""
        with self._lock:
            paths = [entry.path for entry in self._entries.values()]
        files = []
        for path in paths:
            with contextlib.suppress(OSError):
                files.append((_which_file(path), path))
        num_bytes = 0
        for file, path in sorted(files, key=lambda item: item[0].written_ns, reverse=True):
            num_bytes += file.num_bytes
            if self._is_closed or num_bytes > self._ahead_bytes:
                return
            with contextlib.suppress(CheckpointError, OSError, MemoryError):
                ahead = _Ahead(file, read_history(path, _ALL_TOKENS))
                with self._lock:
                    # Whoever was faster has read it without this.
                    if num_bytes <= self._ahead_bytes and _which_file(path) == file:
                        self._ahead[path] = ahead

    def _take_ahead(self, path: Path) -> History | None:
        """What was read ahead of that file, once, if the file is still the same.

        Raises:
            OSError: it is gone.
        """
        file = _which_file(path)
        with self._lock:
            ahead = self._ahead.pop(path, None)
        return None if ahead is None or ahead.file != file else ahead.history

    def _write_all(self) -> None:
        """The thread."""
        self._read_ahead()
        while True:
            with self._lock:
                self._is_busy = False
                self._lock.notify_all()
                self._lock.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                history = self._waiting.pop(next(iter(self._waiting)))
                self._is_busy = True
            try:
                self._write(history)
                self._clean_up()
            except (CheckpointError, OSError, MemoryError) as error:
                with self._lock:
                    self._num["failed"] += 1
                telemetry.notice(
                    "conversation-save",
                    f"a conversation could not be saved in {self._folder}: {_reason(error)}. "
                    "It stays in RAM.",
                )

    def _write(self, history: History) -> None:
        """A whole new file, then its name; what had the name stays until then."""
        begin_s = time.perf_counter()
        path = self._folder / (history.key + SUFFIX)
        temporary = self._folder / f".{path.name}.{os.getpid()}.part"
        try:
            with open(temporary, "wb", opener=_open_private) as file:
                num_bytes = write_conversation(file, history, self._identity)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(self._folder)
        try:
            contents = _contents_of(path)
        except FileNotFoundError:
            return  # another process has cleaned up
        with self._lock:
            self._entries[history.key] = _Entry(path, contents)
            self._ahead.pop(path, None)
            self._num["saved"] += 1
            self._last_write = (num_bytes, time.perf_counter() - begin_s)

    def _clean_up(self) -> None:
        """Deletes the oldest files until the rest is within the budget."""
        files = []
        for path in self._folder.iterdir():
            if _NAME.fullmatch(path.name) and _is_ours(path):
                with contextlib.suppress(FileNotFoundError):  # another process was first
                    status = path.stat()
                    files.append((status.st_mtime_ns, path, status.st_size))
        total = sum(size for _, _, size in files)
        for _, path, size in sorted(files):
            if total <= self._budget_bytes:
                return
            path.unlink(missing_ok=True)
            self._drop(path.name.removesuffix(SUFFIX))
            total -= size
            with self._lock:
                self._num["deleted"] += 1

    def _drop(self, key: str) -> _Entry | None:
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._ahead.pop(entry.path, None)
            return entry

    def _skip(self, path: Path, reason: str) -> None:
        with self._lock:
            self._num["skipped"] += 1
        telemetry.notice(f"conversation-file {path}", f"{path} is skipped: {reason}")


def _which_file(path: Path) -> _File:
    status = path.stat()
    return _File(status.st_ino, status.st_size, status.st_mtime_ns)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE_MODE)


def _contents_of(path: Path) -> Contents:
    """What a file says of itself.

    Raises:
        CheckpointError: it is not the whole file of a conversation.
        OSError: it cannot be read.
    """
    # Opening a pipe would wait for somebody to write to it.
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError("it is not a file.")
    with path.open("rb") as file:
        return read_contents(file)


def _is_ours(path: Path) -> bool:
    """Whether it is the whole file of a conversation, of whatever model."""
    try:
        _contents_of(path)
    except (CheckpointError, OSError):
        return False
    return True


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    if isinstance(error, MemoryError):
        return "there is no memory for it"
    return str(error).splitlines()[0].rstrip(".")
