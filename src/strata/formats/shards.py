"""Which files make up one model: shard names, and finding every shard from any one.

Owns the names ``NAME-00001-of-0000N.gguf`` and the search for them; opens no file.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from strata.errors import CheckpointError

_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class ShardName:
    """A shard's file name in parts; ``number`` counts from 1."""

    stem: str
    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.stem}-{self.number:05d}-of-{self.count:05d}.gguf"

    def siblings(self) -> list["ShardName"]:
        """The names of all shards, this one included, in order."""
        return [ShardName(self.stem, number, self.count) for number in range(1, self.count + 1)]


def parse_shard_name(name: str) -> ShardName | None:
    """The parts of a shard's file name; None if it is not one (or says 3 of 2)."""
    match = _SHARD_NAME.fullmatch(name)
    if match is None:
        return None
    shard = ShardName(match["stem"], int(match["number"]), int(match["count"]))
    return shard if 1 <= shard.number <= shard.count else None


def find_model_files(path: Path) -> tuple[Path, ...]:
    """Every file of the model at ``path``, in shard order.

    Args:
        path: a GGUF file, any shard of one, a link to either, or a folder with one model.

    Raises:
        CheckpointError: nothing there, several models there, or shards missing (all are named).
    """
    if path.is_dir():
        path = _only_model(path)
    if not path.exists():
        raise CheckpointError(f"there is no file {path}.\n  Try: check the path.")
    resolved = path.resolve()
    # A download folder links plain names to hashed ones; a link may also hide the shard's name.
    places = [(path.parent, parse_shard_name(path.name))]
    if resolved != path:
        places.append((resolved.parent, parse_shard_name(resolved.name) or places[0][1]))
    named = next((shard for _, shard in places if shard is not None), None)
    if named is None:
        return (path,)
    return _all_shards(path, places, named)


def _all_shards(
    path: Path, places: list[tuple[Path, ShardName | None]], named: ShardName
) -> tuple[Path, ...]:
    found: list[Path] = []
    missing: list[str] = []
    for number in range(1, named.count + 1):
        candidates = [path] if number == named.number else []
        candidates += [
            folder / str(ShardName(shard.stem, number, shard.count))
            for folder, shard in places
            if shard is not None and shard.count == named.count
        ]
        present = next((candidate for candidate in candidates if candidate.exists()), None)
        if present is None:
            missing.append(candidates[0].name)
        else:
            found.append(present)
    if missing:
        listed = ", ".join(missing[:_MAX_LISTED])
        more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
        raise CheckpointError(
            f"{len(missing)} of {named.count} shards of {named.stem} are missing: {listed}{more}.\n"
            f"  folder: {path.parent}\n"
            "  Try: download them into that folder, with the names they were published under."
        )
    return tuple(found)


def _only_model(folder: Path) -> Path:
    """The first file of the one model in ``folder``; vision encoders (mmproj) do not count."""
    try:
        files = sorted(
            file
            for file in folder.iterdir()
            if file.suffix == ".gguf" and not file.name.startswith("mmproj")
        )
    except OSError as error:
        raise CheckpointError(
            f"cannot read folder {folder}: {error.strerror}.\n  Try: check its permissions."
        ) from error
    models: dict[str, Path] = {}
    for file in files:
        shard = parse_shard_name(file.name)
        models.setdefault(f"{shard.stem} ({shard.count} shards)" if shard else file.name, file)
    if len(models) == 1:
        return next(iter(models.values()))
    if not models:
        hint = (
            "Try: strata convert makes a GGUF from it."
            if any(folder.glob("*.safetensors"))
            else "Try: the path of a .gguf file."
        )
        raise CheckpointError(f"there is no .gguf file in folder {folder}.\n  {hint}")
    listed = ", ".join(list(models)[:_MAX_LISTED])
    raise CheckpointError(
        f"folder {folder} holds {len(models)} models; expected one.\n  {listed}\n"
        "  Try: the path of one file."
    )
