"""``strata synth``: a model file with random weights of any geometry and mix of formats."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import typer

from strata.cli.console import Bar, notices_on_stderr, say
from strata.errors import SettingsError
from strata.formats.convert_types import PRESETS, TypePlan
from strata.formats.synth import GEOMETRIES, MIXES, SynthGeometry, synthesize, uniform_mix
from strata.units import MiB, format_bytes
from strata.wishes import nearest

_SIZES = tuple(field.name for field in fields(SynthGeometry))


def command(
    out: Annotated[Path, typer.Argument(help="GGUF file to write.")],
    geometry: Annotated[
        str, typer.Option(help=f"Sizes to begin with: {', '.join(GEOMETRIES)}.")
    ] = "tiny",
    size: Annotated[
        list[str] | None,
        typer.Option("--set", help=f"SIZE=VALUE replaces one of them: {', '.join(_SIZES)}."),
    ] = None,
    mix: Annotated[
        str,
        typer.Option(
            help=f"Formats: a mix as published ({', '.join(MIXES)}), a preset of convert "
            f"(preset:{', preset:'.join(PRESETS)}), or one format for all, as in Q5_1."
        ),
    ] = "preset:q8_0",
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same file.")] = 0,
    shard_mib: Annotated[
        int | None, typer.Option("--shard-mib", min=1, help="Begin a new file after this many MiB.")
    ] = None,
    ngram_shard: Annotated[
        bool, typer.Option("--ngram-shard", help="Put the n-gram table alone in the last file.")
    ] = False,
) -> None:
    """Write a model with random, well-scaled weights. It computes; it does not speak."""
    sizes = _changed(_geometry(geometry), size or ())
    with notices_on_stderr(), Bar("writing") as bar:
        report = synthesize(
            out,
            sizes,
            _types(mix),
            seed,
            lambda done, total, _tensor: bar(done, total),
            shard_bytes=None if shard_mib is None else shard_mib * MiB,
            has_ngram_shard=ngram_shard,
        )
    files = ", ".join(str(path) for path in report.paths)
    say(f"wrote {report.num_tensors} tensors, {format_bytes(report.num_bytes)}: {files}")


def _geometry(name: str) -> SynthGeometry:
    if name not in GEOMETRIES:
        known = tuple(GEOMETRIES)
        hint = nearest(name, known) or ", ".join(known)
        raise SettingsError(f"there is no geometry {name!r}.\n  Try: --geometry {hint}")
    return GEOMETRIES[name]


def _types(mix: str) -> TypePlan:
    if mix in MIXES:
        return MIXES[mix]
    kind, colon, preset = mix.partition(":")
    if kind == "preset" and colon:
        return TypePlan.preset(preset)
    return uniform_mix(mix)


def _changed(geometry: SynthGeometry, changes: list[str] | tuple[str, ...]) -> SynthGeometry:
    values: dict[str, object] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if name not in _SIZES or not equals:
            hint = nearest(name, _SIZES) or _SIZES[0]
            raise SettingsError(f"--set cannot use {change!r}.\n  Try: --set {hint}=1")
        values[name] = _parsed(name, text, getattr(geometry, name))
    return replace(geometry, **values)  # type: ignore[arg-type]


def _parsed(name: str, text: str, present: object) -> object:
    if isinstance(present, str):
        return text
    if isinstance(present, bool):
        words = {"true": True, "1": True, "false": False, "0": False}
        if text.lower() in words:
            return words[text.lower()]
        raise SettingsError(f"--set {name} must be true or false, not {text!r}.")
    if name == "ngram_layer" and text.lower() == "none":
        return None
    try:
        return float(text) if isinstance(present, float) else int(text)
    except ValueError:
        raise SettingsError(
            f"--set {name} must be a number, not {text!r}.\n  Try: --set {name}={present}"
        ) from None
