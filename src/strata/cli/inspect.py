"""``strata inspect``: what is in a model file, without loading its weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from strata.engine.accounting import ClassTotal, TokenBytes, WeightClass, token_bytes, totals
from strata.engine.model_file import ModelFile, open_file
from strata.model_spec import LayerKind
from strata.units import format_bytes


def command(
    file: Annotated[Path, typer.Argument(help="GGUF file, any shard, or a folder with one model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
) -> None:
    """Show geometry, formats, bytes by class, tokenizer, and what is odd about the file."""
    with open_file(file) as model_file:
        by_class = totals(model_file.index, model_file.spec)
        per_token = token_bytes(model_file.index, model_file.spec, position=0, kv_format="f16")
        if as_json:
            report = _as_dict(model_file, by_class, per_token, has_tensors=tensors)
            typer.echo(json.dumps(report, ensure_ascii=False))
            return
        console = Console(highlight=False, soft_wrap=True)
        _print_head(console, model_file)
        console.print(_class_table(by_class, per_token))
        _print_tokenizer(console, model_file)
        for notice in model_file.notices:
            console.print(f"note: {notice}", markup=False)
        if tensors:
            console.print(_tensor_table(model_file))


def _geometry(model_file: ModelFile) -> dict[str, object]:
    spec = model_file.spec
    num_sparse = sum(kind is LayerKind.QSA for kind in spec.layer_kinds)
    return {
        "name": spec.name,
        "layers": spec.num_layers,
        "gdn_layers": spec.num_layers - num_sparse,
        "sparse_attention_layers": num_sparse,
        "draft_layers": spec.num_draft_layers,
        "width": spec.hidden_size,
        "streams": spec.num_streams,
        "experts": spec.num_experts,
        "experts_per_token": spec.top_k,
        "expert_width": spec.expert_size,
        "shared_expert_width": spec.shared_expert_size,
        "query_heads": spec.num_heads,
        "kv_heads": spec.num_kv_heads,
        "head_width": spec.head_dim,
        "index_budget": spec.index_budget,
        "vocabulary": spec.vocab_size,
        "context": spec.context_len,
        "ngram_layer": None if spec.ngram is None else spec.ngram.layer,
        "head_tied": spec.is_head_tied,
    }


def _as_dict(
    model_file: ModelFile,
    by_class: Mapping[WeightClass, ClassTotal],
    per_token: TokenBytes,
    *,
    has_tensors: bool,
) -> dict[str, object]:
    report: dict[str, object] = {
        "files": [str(path) for path in model_file.index.paths],
        "geometry": _geometry(model_file),
        "classes": {
            str(kind): {
                "bytes": total.num_bytes,
                "weights": total.num_weights,
                "bytes_per_token": per_token.weights.get(kind, 0),
                "formats": dict(total.formats),
            }
            for kind, total in by_class.items()
        },
        "bytes": sum(total.num_bytes for total in by_class.values()),
        "bytes_per_token": per_token.total,
        "tokenizer": model_file.tokenizer_facts(),
        "notices": list(model_file.notices),
    }
    if has_tensors:
        report["tensors"] = [
            {
                "name": name,
                "shape": list(entry.shape),
                "format": entry.format.name,
                "file": entry.path.name,
                "offset": entry.offset,
                "bytes": entry.num_bytes,
            }
            for name, entry in model_file.index.items()
        ]
    return report


def _print_head(console: Console, model_file: ModelFile) -> None:
    spec = model_file.spec
    geometry = _geometry(model_file)
    for path in model_file.index.paths:
        console.print(str(path), markup=False)
    lines = (
        f"{spec.name or 'unnamed'}: {geometry['layers']} layers ({geometry['gdn_layers']} gated "
        f"delta net, {geometry['sparse_attention_layers']} sparse attention), "
        f"{spec.num_draft_layers} draft, width {spec.hidden_size} x {spec.num_streams} streams",
        f"experts: {spec.top_k} of {spec.num_experts}, width {spec.expert_size}; "
        f"shared width {spec.shared_expert_size}",
        f"attention: {spec.num_heads} query and {spec.num_kv_heads} key heads of {spec.head_dim}, "
        f"{spec.index_budget} tokens chosen in blocks of {spec.index_block}",
        f"context {spec.context_len}, vocabulary {spec.vocab_size}, head "
        + ("tied to the embedding" if spec.is_head_tied else "of its own"),
    )
    for line in lines:
        console.print(line, markup=False)


def _class_table(by_class: Mapping[WeightClass, ClassTotal], per_token: TokenBytes) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("class")
    for heading in ("bytes", "bits/weight", "read per token"):
        table.add_column(heading, justify="right")
    table.add_column("formats", overflow="fold")
    for kind, total in by_class.items():
        share = ", ".join(
            f"{name} {100 * count / max(total.num_weights, 1):.0f} %"
            for name, count in total.formats.items()
        )
        table.add_row(
            str(kind),
            format_bytes(total.num_bytes),
            f"{8 * total.num_bytes / max(total.num_weights, 1):.2f}",
            format_bytes(per_token.weights.get(kind, 0)),
            share,
        )
    table.add_row(
        "all",
        format_bytes(sum(total.num_bytes for total in by_class.values())),
        "",
        format_bytes(sum(per_token.weights.values())),
        "",
    )
    return table


def _print_tokenizer(console: Console, model_file: ModelFile) -> None:
    facts = model_file.tokenizer_facts()
    line = ", ".join(f"{name} {value}" for name, value in facts.items())
    console.print(f"tokenizer: {line or 'none'}", markup=False)


def _tensor_table(model_file: ModelFile) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("tensor", "shape", "format", "bytes", "file"):
        table.add_column(heading, overflow="fold")
    for name, entry in model_file.index.items():
        shape = " x ".join(map(str, entry.shape))
        size = format_bytes(entry.num_bytes)
        table.add_row(name, shape, entry.format.name, size, entry.path.name)
    return table
