"""A model file opened and understood: index, geometry, and what is odd about it.

Owns no bytes and no device; used by ``engine.build`` before loading, and by ``strata inspect``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.formats.naming import check_layout
from strata.formats.tensor_index import TensorIndex, open_model
from strata.spec_reader import read_spec
from strata.text.chat_template import TEMPLATE_KEY

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from strata.model_spec import ModelSpec

_TOKENS = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """An open file whose tensors fit its geometry. A context manager."""

    index: TensorIndex
    spec: ModelSpec
    notices: tuple[str, ...]

    @property
    def has_tokenizer(self) -> bool:
        """Whether the file can turn text into ids."""
        return _TOKENS in self.index.metadata

    def tokenizer_facts(self) -> dict[str, object]:
        """Kind, size and special ids of the file's tokenizer; empty without one."""
        metadata = self.index.metadata
        if not self.has_tokenizer:
            return {}
        tokens = metadata[_TOKENS]
        facts: dict[str, object] = {
            "kind": metadata.get("tokenizer.ggml.model"),
            "pre": metadata.get("tokenizer.ggml.pre"),
            "tokens": len(tokens) if hasattr(tokens, "__len__") else 0,
            "bos": metadata.get("tokenizer.ggml.bos_token_id"),
            "eos": metadata.get("tokenizer.ggml.eos_token_id"),
            "chat_template": TEMPLATE_KEY in metadata,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def close(self) -> None:
        """Lets go of the file."""
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_file(path: Path) -> ModelFile:
    """The model at ``path``: a file, any of its shards, or a folder with one model.

    Raises:
        CheckpointError: the file is damaged, or tensors and metadata disagree.
        UnsupportedError: a sound file of something Strata does not have.
    """
    index = open_model(path)
    try:
        notices: list[str] = []
        shapes = {name: entry.shape for name, entry in index.items()}
        spec = read_spec(index.metadata, tensor_shapes=shapes, notices=notices, source=str(path))
        notices += check_layout(index, spec, source=str(path))
    except BaseException:
        index.close()
        raise
    return ModelFile(index, spec, tuple(notices))
