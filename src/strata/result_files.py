"""Files that a command leaves behind: refused before the work where they cannot be written, and
there whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from strata.errors import SettingsError


def refuse_unwritable(flag: str, path: Path) -> None:
    """Tries the file, and leaves everything as it was.

    Raises:
        SettingsError: it cannot be written; names the flag it was asked for with.
    """
    is_new = not path.exists()
    if not is_new and not path.is_file() and not path.is_dir():
        # Opening a pipe and closing it would end it for whoever reads.
        if not os.access(path, os.W_OK):
            raise unwritable(flag, path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
        return
    try:
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise unwritable(flag, path, error) from None


def unwritable(flag: str, path: Path, error: OSError) -> SettingsError:
    """The error that says so."""
    return SettingsError(
        f"{flag} cannot write {path}: {error.strerror}.\n"
        "  Try: a file in a folder that exists and is yours."
    )


def write_whole(path: Path, content: bytes, *, new_mode: int = 0o644) -> None:
    """Writes ``content`` to a new file of the same folder and renames it to ``path``.

    A link stays a link: the file it names is replaced. A device or a pipe is written to as it is,
    since a rename would put a file in its place.

    Raises:
        OSError: the folder refuses, or the disk is full; the file that was at ``path`` stays.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files for their owner alone; a result is as readable as any other.
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else new_mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Returns when names that were given in a folder are on the disk.

    Raises:
        OSError: the disk is gone.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
