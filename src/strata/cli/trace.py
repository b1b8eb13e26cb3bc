"""``strata trace``: a routing trace made up from a seed, for ``strata replay`` and benchmarks."""

from pathlib import Path
from typing import Annotated

import typer

from strata.cli.console import say
from strata.result_files import refuse_unwritable
from strata.tiers.routing_trace import write_trace
from strata.tiers.synthetic import SyntheticText, synthetic_trace
from strata.units import format_bytes


def command(
    out: Annotated[Path, typer.Argument(help="File to write.")],
    layers: Annotated[int, typer.Option(help="Layers with experts.")] = 48,
    experts: Annotated[int, typer.Option(help="Experts of a layer.")] = 512,
    top_k: Annotated[int, typer.Option(help="Experts chosen for each token.")] = 10,
    tokens: Annotated[int, typer.Option(help="Decoded tokens of each text.")] = 600,
    prompt_tokens: Annotated[int, typer.Option(help="Prompt tokens before them.")] = 0,
    texts: Annotated[int, typer.Option(help="Texts, one after the other.")] = 1,
    rows: Annotated[int, typer.Option(help="Rows of a decode window, 1 to 8.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same trace.")] = 0,
) -> None:
    """Write routing that a cache of experts finds as hard as that of real text."""
    text = SyntheticText(
        num_layers=layers,
        num_experts=experts,
        top_k=top_k,
        num_decoded=tokens,
        num_prompt=prompt_tokens,
        num_texts=texts,
        window_rows=rows,
    )
    refuse_unwritable("strata trace", out)
    trace = synthetic_trace(text, seed)
    write_trace(out, trace)
    size = format_bytes(out.stat().st_size)
    say(f"wrote {len(trace.windows)} windows of {layers} layers, {size}: {out}")
