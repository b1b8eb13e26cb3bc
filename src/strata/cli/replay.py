"""``strata replay``: what a cache of experts would have done with recorded routing."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from strata.charts import Line, line_chart
from strata.cli.bench_wanted import sizes_of
from strata.cli.console import Bar, say
from strata.errors import SettingsError
from strata.result_files import refuse_unwritable, unwritable
from strata.tiers.expert_profile import (
    ExpertProfile,
    learned_profile,
    rank_by_uses,
    read_profile,
    write_profile,
)
from strata.tiers.policy_table import POLICIES, PolicyOptions, check_policy
from strata.tiers.replay import OPTIMUM, Outcome, replay
from strata.tiers.routing_trace import RoutingTrace, read_trace
from strata.tiers.slots import SlotLayout, layer_slots, shared_slots

# Shares of a layer's experts that are tried when nobody says how many slots.
_SHARES = (8, 4, 2)
_BUCKET_TOKENS = 50


@dataclass(frozen=True, slots=True)
class _Run:
    """One policy with one number of slots, and its two parts."""

    slots_per_layer: int
    outcome: Outcome
    cold: float | None
    warm: float | None


def command(
    file: Annotated[Path, typer.Argument(help="Trace of strata run --routing-trace.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(POLICIES)}; may be repeated. Default: all."),
    ] = None,
    slots: Annotated[
        str | None,
        typer.Option(
            help="Slots for each layer, as in 93,186. Default: an eighth, a quarter and half of "
            "the experts."
        ),
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Let all layers share the slots.")
    ] = False,
    max_admissions: Annotated[
        int | None, typer.Option(
            min=0, help="Most experts a window fetches for a layer; ema: on average of its layers."
        )
    ] = None,
    adapt_every: Annotated[int, typer.Option(min=1, help="swaps: windows between them.")] = 4,
    adapt_swaps: Annotated[int, typer.Option(min=0, help="swaps: most at a time.")] = 96,
    cold_tokens: Annotated[
        int, typer.Option(min=1, help="Decoded tokens that count as cold; later ones as warm.")
    ] = 300,
    profile: Annotated[
        Path | None, typer.Option(help="Fill the slots from this profile before the trace.")
    ] = None,
    save_profile: Annotated[
        Path | None,
        typer.Option(help="Write the experts' heat as a profile: of the trace, or what the one "
                     "policy and number of slots asked for ended with."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw hit rates into this SVG file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:  # fmt: skip
    """Hit rates of cache policies on a routing trace, against the best there could be."""
    names = list(dict.fromkeys(policy or POLICIES))
    for name in names:
        check_policy(name)
    for flag, path in (("--plot", plot), ("--save-profile", save_profile)):
        if path is not None:
            refuse_unwritable(flag, path)
    trace = read_trace(file)
    counts = _slot_counts(slots, trace)
    options = PolicyOptions(max_admissions, adapt_every, adapt_swaps)
    prior = None
    if profile is not None:
        prior = read_profile(profile, trace.num_layers, trace.num_experts, trace.model_name)
    runs: list[_Run] = []
    pairs = [(count, name) for count in counts for name in (*names, OPTIMUM)]
    with Bar("replaying") as bar:
        for number, (count, name) in enumerate(pairs):
            ranking = () if prior is None else prior.keys.tolist()
            layout = _layout(trace, count, is_shared=shared)
            outcome = replay(trace, layout, name, options=options, ranking=ranking)
            cold = outcome.hit_rate(outcome.part(0, cold_tokens))
            warm = outcome.hit_rate(outcome.part(cold_tokens))
            runs.append(_Run(count, outcome, cold, warm))
            bar(number + 1, len(pairs))
    if as_json:
        typer.echo(json.dumps(_as_dict(file, trace, runs, cold_tokens, is_shared=shared)))
    else:
        _print(Console(highlight=False, soft_wrap=True), trace, runs, cold_tokens)
    if plot is not None:
        _write(plot, "--plot", _chart(trace, runs, names))
    if save_profile is not None:
        asked = runs[0].outcome if policy and len(names) == len(counts) == 1 else None
        _save_profile(save_profile, trace, prior, asked)


def _slot_counts(text: str | None, trace: RoutingTrace) -> list[int]:
    sizes = sizes_of("--slots", text)
    if sizes is None:
        return sorted({max(trace.top_k, trace.num_experts // share) for share in _SHARES})
    for size in sizes:
        if not 1 <= size <= trace.num_experts:
            raise SettingsError(
                f"--slots {size} is out of range: a layer of this trace has {trace.num_experts} "
                f"experts.\n  Try: --slots {trace.num_experts}"
            )
    return sorted(set(sizes))


def _layout(trace: RoutingTrace, slots_per_layer: int, *, is_shared: bool) -> SlotLayout:
    make = shared_slots if is_shared else layer_slots
    return make(trace.num_layers, trace.num_experts, slots_per_layer * trace.num_layers)


def _as_dict(
    file: Path, trace: RoutingTrace, runs: list[_Run], cold_tokens: int, *, is_shared: bool
) -> dict[str, Any]:
    return {
        "trace": str(file),
        "model": trace.model_name,
        "layers": trace.num_layers,
        "experts": trace.num_experts,
        "experts_per_token": trace.top_k,
        "prompt_tokens": trace.num_prompt,
        "decoded_tokens": trace.num_decoded,
        "cold_tokens": cold_tokens,
        "shared": is_shared,
        "runs": [_run_dict(run, cold_tokens) for run in runs],
    }


def _run_dict(run: _Run, cold_tokens: int) -> dict[str, Any]:
    outcome = run.outcome
    return {
        "policy": outcome.policy,
        "slots_per_layer": run.slots_per_layer,
        "slots": outcome.num_slots,
        "cold_hit_rate": run.cold,
        "warm_hit_rate": run.warm,
        "hit_rate": outcome.hit_rate(outcome.part(0)),
        "prompt_hit_rate": outcome.hit_rate(outcome.is_prompt),
        "lookups": int(outcome.lookups[outcome.part(0)].sum()),
        "admissions": int(outcome.admissions[outcome.part(0)].sum()),
        "prompt_admissions": int(outcome.admissions[outcome.is_prompt].sum()),
        "layers_cold": outcome.layer_hit_rates(outcome.part(0, cold_tokens)),
        "layers_warm": outcome.layer_hit_rates(outcome.part(cold_tokens)),
    }


def _print(console: Console, trace: RoutingTrace, runs: list[_Run], cold_tokens: int) -> None:
    console.print(
        f"{trace.model_name or 'unnamed model'}: {trace.num_layers} layers, {trace.top_k} of "
        f"{trace.num_experts} experts; {trace.num_prompt} prompt and {trace.num_decoded} decoded "
        "tokens",
        markup=False,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("policy")
    headings = (
        "slots/layer", f"cold ({cold_tokens} tokens)", "warm", "below best", "copies/token",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    best = {run.slots_per_layer: run for run in runs if run.outcome.policy == OPTIMUM}
    for run in runs:
        outcome, limit = run.outcome, best[run.slots_per_layer].outcome
        every = outcome.part(0)
        copies = int(outcome.admissions[every].sum()) / max(trace.num_decoded, 1)
        behind = _difference(limit.hit_rate(every), outcome.hit_rate(every))
        row = (outcome.policy, str(run.slots_per_layer), _percent(run.cold), _percent(run.warm))
        table.add_row(*row, behind, f"{copies:.1f}")
    console.print(table)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _difference(best: float | None, share: float | None) -> str:
    return "-" if best is None or share is None else f"{100 * (best - share):.1f}"


def _chart(trace: RoutingTrace, runs: list[_Run], names: list[str]) -> str:
    """Hit rate by slots where several were tried, else along the text."""
    if trace.num_decoded < 2:
        raise SettingsError(
            "--plot needs a trace with at least two decoded tokens.\n  Try: without --plot."
        )
    counts = sorted({run.slots_per_layer for run in runs})
    lines = []
    for name in (*names, OPTIMUM):
        own = [run for run in runs if run.outcome.policy == name]
        if len(counts) > 1:
            rates = [100 * (run.outcome.hit_rate(run.outcome.part(0)) or 0.0) for run in own]
            lines.append(Line(name, [run.slots_per_layer for run in own], rates))
        else:
            lines.append(_along(name, own[0].outcome, trace.num_decoded))
    if len(counts) > 1:
        return line_chart(lines, "Look-ups that hit, %", "slots for each layer")
    return line_chart(lines, f"Look-ups that hit, %, {counts[0]} slots a layer", "decoded tokens")


def _along(name: str, outcome: Outcome, num_decoded: int) -> Line:
    size = min(_BUCKET_TOKENS, num_decoded // 2)
    buckets = [(first, outcome.hit_rate(outcome.part(first, first + size)))
               for first in range(0, num_decoded, size)]  # fmt: skip
    told = [(first, 100 * rate) for first, rate in buckets if rate is not None]
    return Line(name, [first for first, _ in told], [rate for _, rate in told])


def _save_profile(
    path: Path, trace: RoutingTrace, prior: ExpertProfile | None, outcome: Outcome | None
) -> None:
    by_uses = rank_by_uses(trace.uses(), model_name=trace.model_name)
    saved = by_uses
    if outcome is not None:
        saved = learned_profile(prior or by_uses, outcome.heat, outcome.resident)
    try:
        write_profile(path, saved)
    except OSError as error:
        raise unwritable("--save-profile", path, error) from None
    say(f"wrote {len(saved.keys)} ranked experts: {path}")


def _write(path: Path, flag: str, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(flag, path, error) from None
