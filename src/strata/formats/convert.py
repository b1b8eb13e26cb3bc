"""A Hugging Face ``qwen4_exp`` folder becomes a GGUF, a few rows at a time.

Owns the order of work. Names and arithmetic are in convert_transforms, formats in convert_types,
shards in convert_output.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import CheckpointError, SettingsError
from strata.formats.convert_output import ConvertReport, Progress, open_writer, written_paths
from strata.formats.convert_tokenizer import tokenizer_metadata
from strata.formats.convert_transforms import Recipe, RecipeBook, spec_from_config
from strata.formats.gguf_writer import TensorPlan
from strata.formats.quantize import QUANTIZABLE, quantize
from strata.formats.safetensors import SafetensorsSource, fp8_block_of
from strata.model_spec import Gate, ModelSpec
from strata.units import MiB

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from strata.formats.convert_source import Floats
    from strata.formats.convert_types import TypePlan

# float32 values read and encoded at once; encoders need several times this.
CHUNK_BYTES = 16 * MiB


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """How a checkpoint is written.

    Attributes:
        types: format of each tensor.
        name: ``general.name``; the folder's name when empty.
        shard_bytes: tensor bytes after which a new shard begins; None for one file.
        has_ngram_shard: the n-gram table lies alone in the last shard.
        has_draft: the draft layer is written when the checkpoint has one.
    """

    types: TypePlan
    name: str = ""
    shard_bytes: int | None = None
    has_ngram_shard: bool = False
    has_draft: bool = True


def convert(
    folder: Path, out: Path, options: ConvertOptions, progress: Progress | None = None
) -> ConvertReport:
    """Write the GGUF of a checkpoint; nothing appears under ``out`` until it is complete.

    Args:
        folder: config.json, safetensors and, as a rule, tokenizer.json.
        out: the file; with shards its stem, as in ``model.gguf`` -> ``model-00001-of-0000N.gguf``.
        options: formats and layout.
        progress: called after each chunk.

    Raises:
        CheckpointError: the checkpoint is incomplete or broken, holds NaN, or the disk is full.
        UnsupportedError: the checkpoint asks for something Strata does not have.
        SettingsError: a chosen format cannot be written.
    """
    config = read_json(folder / "config.json")
    with SafetensorsSource(folder, fp8_block=fp8_block_of(config)) as source:
        spec, metadata = spec_from_config(
            config, source, name=options.name or folder.resolve().name, has_draft=options.has_draft
        )
        book = RecipeBook(source, spec)
        recipes = book.build()
        notices = _source_notices(source, book, spec)
        tokenizer, missing_tokenizer = tokenizer_metadata(folder, config, spec.vocab_size)
        plans, replaced = _plan(recipes, options.types)
        notices += [*missing_tokenizer, *replaced]
        _check_formats(plans)
        total = sum(plan.num_bytes for plan in plans)
        with open_writer(
            out,
            {**metadata, **tokenizer},
            plans,
            shard_bytes=options.shard_bytes,
            has_ngram_shard=options.has_ngram_shard,
        ) as writer:
            done = 0
            for recipe, plan in zip(recipes, plans, strict=True):
                for start in range(0, recipe.num_rows, _chunk_rows(recipe)):
                    stop = min(start + _chunk_rows(recipe), recipe.num_rows)
                    values = recipe.read(source, start, stop)
                    _refuse_nan(recipe, values)
                    data = _encode(plan, values)
                    writer.append(plan.name, data)
                    done += data.nbytes
                    if progress is not None:
                        progress(done, total, plan.name)
    return ConvertReport(written_paths(writer), len(plans), total, tuple(notices))


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file of the checkpoint.

    Raises:
        CheckpointError: it is absent, unreadable or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror}.\n"
            "  Try: the folder that save_pretrained wrote, or the downloaded checkpoint."
        ) from error
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path.name} is not a JSON object.\n  file: {path}\n  Try: download it again."
        )
    return value


def _source_notices(source: SafetensorsSource, book: RecipeBook, spec: ModelSpec) -> list[str]:
    notices = []
    if source.has_vision:
        notices.append("the vision tower is left out; Strata runs the language model.")
    hash_buffers = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
    unused = [name for name in book.unused() if not name.endswith(hash_buffers)]
    if unused:
        shown = ", ".join(unused[:6]) + (" ..." if len(unused) > 6 else "")
        notices.append(f"{len(unused)} tensors of the checkpoint are not used: {shown}")
    if spec.gdn_gate is not Gate.SIGMOID:
        notices.append(
            f"the checkpoint's output gate is {spec.gdn_gate.value}; GGUF has no key for it, so "
            "engines other than Strata will compute sigmoid."
        )
    return notices


def _plan(recipes: Sequence[Recipe], types: TypePlan) -> tuple[list[TensorPlan], list[str]]:
    """The tensors to write, and one notice for each kind of replaced format."""
    plans = []
    replaced: dict[tuple[str, str, str, int], int] = {}
    for recipe in recipes:
        chosen, wanted = types.format_for(recipe.role, recipe.layer, recipe.shape)
        plans.append(TensorPlan(recipe.name, recipe.shape, chosen))
        if wanted is not None:
            key = (recipe.role.value, wanted, chosen.name, recipe.shape[-1])
            replaced[key] = replaced.get(key, 0) + 1
    notices = [
        f"{role} is stored as {used}, not {wanted}, in {count} tensors: "
        f"rows of {width} do not fill its blocks."
        for (role, wanted, used, width), count in replaced.items()
    ]
    return plans, notices


def _check_formats(plans: Sequence[TensorPlan]) -> None:
    for plan in plans:
        if plan.format.name not in QUANTIZABLE:
            raise SettingsError(
                f"{plan.name} cannot be written as {plan.format.name}: Strata reads this format, "
                "but does not quantise to it.\n"
                f"  Try: one of {', '.join(QUANTIZABLE)}."
            )


def _chunk_rows(recipe: Recipe) -> int:
    return max(1, CHUNK_BYTES // (4 * recipe.shape[-1]))


def _encode(plan: TensorPlan, values: Floats) -> NDArray[np.uint8]:
    try:
        return quantize(plan.format, values)
    except CheckpointError as error:
        raise CheckpointError(f"{plan.name}: {error}") from error


def _refuse_nan(recipe: Recipe, values: Floats) -> None:
    if not np.isfinite(values).all():
        raise CheckpointError(
            f"{recipe.name} would hold NaN or infinity.\n"
            f"  from: {recipe.strips[0][0].name}\n"
            "  Try: download the checkpoint again; its weights are damaged."
        )
