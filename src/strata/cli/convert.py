"""``strata convert``: a Hugging Face ``qwen4_exp`` folder becomes a GGUF."""

from pathlib import Path
from typing import Annotated

import typer

from strata.cli.console import Bar, notices_on_stderr, say
from strata.errors import SettingsError
from strata.formats.convert import ConvertOptions, convert
from strata.formats.convert_types import PRESETS, TensorClass, TypePlan
from strata.units import MiB, format_bytes
from strata.wishes import nearest


def command(
    hf_dir: Annotated[
        Path, typer.Argument(help="Folder with config.json, safetensors and tokenizer.json.")
    ],
    out: Annotated[Path, typer.Argument(help="GGUF file to write.")],
    preset: Annotated[
        str, typer.Option("--type", help=f"Formats of all tensors: {', '.join(PRESETS)}.")
    ] = "q8_0",
    class_type: Annotated[
        list[str] | None,
        typer.Option(
            help="CLASS=FORMAT for one class of tensors: "
            + ", ".join(kind.value for kind in TensorClass)
            + ". May be given again.",
        ),
    ] = None,
    tensor_type: Annotated[
        list[str] | None,
        typer.Option(help="PATTERN=FORMAT for tensor names, as in blk.2.ffn_*_exps.weight=Q6_K."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the model in the file.")] = "",
    shard_mib: Annotated[
        int | None, typer.Option("--shard-mib", min=1, help="Begin a new file after this many MiB.")
    ] = None,
    ngram_shard: Annotated[
        bool, typer.Option("--ngram-shard", help="Put the n-gram table alone in the last file.")
    ] = False,
    no_draft: Annotated[
        bool, typer.Option("--no-draft", help="Leave the draft layer out.")
    ] = False,
) -> None:
    """Write a GGUF of a checkpoint. Nothing appears under OUT until it is complete."""
    options = ConvertOptions(
        types=TypePlan.preset(preset, _by_class(class_type or ()), by_name=_pairs(tensor_type)),
        name=name,
        shard_bytes=None if shard_mib is None else shard_mib * MiB,
        has_ngram_shard=ngram_shard,
        has_draft=not no_draft,
    )
    with notices_on_stderr(), Bar("converting") as bar:
        report = convert(hf_dir, out, options, lambda done, total, _tensor: bar(done, total))
    for notice in report.notices:
        say(f"note: {notice}")
    files = ", ".join(str(path) for path in report.paths)
    say(f"wrote {report.num_tensors} tensors, {format_bytes(report.num_bytes)}: {files}")


def _by_class(texts: list[str] | tuple[str, ...]) -> dict[TensorClass, str]:
    known = {kind.value: kind for kind in TensorClass}
    chosen: dict[TensorClass, str] = {}
    for name, value in _pairs(texts, option="--class-type"):
        if name not in known:
            guess = nearest(name, tuple(known))
            hint = guess if guess else ", ".join(known)
            raise SettingsError(f"there is no class of tensors {name!r}.\n  Try: {hint}")
        chosen[known[name]] = value
    return chosen


def _pairs(
    texts: list[str] | tuple[str, ...] | None, option: str = "--tensor-type"
) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in texts or ():
        left, equals, right = text.partition("=")
        if not (left and equals and right):
            raise SettingsError(
                f"{option} must be NAME=FORMAT, not {text!r}.\n  Try: {option} dense=Q8_0"
            )
        pairs.append((left, right))
    return tuple(pairs)
