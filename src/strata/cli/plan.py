"""``strata plan``: what of a model would lie where, and how fast it would be. From its header."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from strata.engine.model_file import open_file
from strata.engine.plan import COLD_TOKENS, Machine, PlanReport, PlanWishes, plan_model
from strata.errors import SettingsError
from strata.session_rules import DEFAULT_CONTEXT_LEN
from strata.tiers.expert_profile import read_profile
from strata.tiers.policy_table import DEFAULT_POLICY, check_policy
from strata.tiers.rates import TierRates, read_rates
from strata.tiers.routing_trace import read_trace
from strata.units import MiB, format_bytes, format_rate, parse_bytes

_LIMIT_WORDS = {
    "card": "the card itself",
    "processor": "the processor, which computes experts that have no slot",
    "link": "the link, over which experts are copied",
    "disk": "the disk, from which experts are read",
}


def command(
    file: Annotated[Path, typer.Argument(help="GGUF file, any shard, or a folder with one model.")],
    vram: Annotated[str, typer.Option(help="VRAM that may be taken, as 12G or 800M.")] = "12G",
    ram: Annotated[str, typer.Option(help="RAM that may be taken.")] = "32G",
    link: Annotated[float, typer.Option(min=0.01, help="GB/s between RAM and card.")] = 25.0,
    pool: Annotated[
        float, typer.Option(min=0.01, help="GB/s at which the processor computes experts.")
    ] = 40.0,
    disk: Annotated[float, typer.Option(min=0.001, help="GB/s read from the disk.")] = 3.0,
    card: Annotated[float, typer.Option(min=1, help="GB/s of the VRAM.")] = 500.0,
    rates: Annotated[
        Path | None,
        typer.Option(help="Measured rates, from strata bench --rates, instead of those four."),
    ] = None,
    routing: Annotated[
        Path | None, typer.Option(help="Trace to foretell hits by. Default: made-up routing.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="With --routing: profile the slots begin with.")
    ] = None,
    context: Annotated[
        int, typer.Option("--context", "-c", min=1, help="Tokens.")
    ] = DEFAULT_CONTEXT_LEN,
    kv: Annotated[str, typer.Option(help="f16 or int8.")] = "f16",
    expert_cache: Annotated[
        int | None, typer.Option(min=0, help="Slots. Default: as many as fit.")
    ] = None,
    per_layer: Annotated[
        bool, typer.Option("--expert-cache-per-layer", help="Divide the slots by layer.")
    ] = False,
    reserve: Annotated[
        int, typer.Option("--vram-reserve-mib", min=0, help="MiB of VRAM left free.")
    ] = 256,
    pcie_frac: Annotated[
        float | None, typer.Option(min=0, max=1, help="Part of the misses that is copied.")
    ] = None,
    policy: Annotated[
        str, typer.Option("--expert-policy", help="Who stays in the slots; see strata replay.")
    ] = DEFAULT_POLICY,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what would lie where under these caps, how many tokens a second that gives, and why."""
    check_policy(policy)
    if kv not in ("f16", "int8"):
        raise SettingsError(f"a card keeps keys and values as f16 or int8, not {kv!r}.\n  Try: f16")
    if profile is not None and routing is None:
        raise SettingsError("--profile says nothing of made-up routing.\n  Try: with --routing")
    machine = Machine(
        size_of("--vram", vram), size_of("--ram", ram), link * 1e9, pool * 1e9, disk * 1e9,
        card * 1e9, None if rates is None else rates_of_a_card(rates),
    )  # fmt: skip
    wishes = PlanWishes(
        context, kv, expert_cache, per_layer, reserve * MiB, pcie_frac, policy
    )  # fmt: skip
    trace = None if routing is None else read_trace(routing)
    with open_file(file) as model_file:
        spec = model_file.spec
        prior = None
        if profile is not None:
            prior = read_profile(profile, spec.num_layers, spec.num_experts, spec.name)
        report = plan_model(
            model_file.index, spec, machine, wishes, trace=trace, profile=prior
        )  # fmt: skip
        name = spec.name or str(file)
    if as_json:
        typer.echo(json.dumps({"model": name, **report.as_dict()}))
        return
    console = Console(highlight=False, soft_wrap=True)
    print_plan(console, name, report, is_made_up=trace is None)


def rates_of_a_card(path: Path) -> TierRates:
    """The rates of a file.

    Raises:
        CheckpointError: it is no such file.
        SettingsError: they were measured without a card, and say nothing of one.
    """
    rates = read_rates(path)
    if not rates.is_divided:
        raise SettingsError(
            f"the rates of {path} are those of a processor alone.\n"
            "  Try: strata bench --device cuda --rates FILE"
        )
    return rates


def size_of(flag: str, text: str) -> int:
    """Bytes of ``12G`` or ``800M``.

    Raises:
        SettingsError: something else.
    """
    num_bytes = parse_bytes(text)
    if num_bytes is None:
        raise SettingsError(
            f"{flag} must be a size with its unit, not {text!r}.\n  Try: {flag} 12G"
        )
    return num_bytes


def print_plan(console: Console, name: str, report: PlanReport, *, is_made_up: bool) -> None:
    """The table, and what it means in sentences."""
    console.print(f"{name}: what would lie where", markup=False)
    console.print(_region_table(report))
    for line in sentences(report, is_made_up=is_made_up):
        console.print(line, markup=False)


def sentences(report: PlanReport, *, is_made_up: bool) -> list[str]:
    """What the plan means, one thing a sentence."""
    places, warm, cold = report.places, report.warm, report.cold
    whole = places.num_layers * places.num_experts
    lines = []
    if places.in_vram >= whole:
        lines.append(f"Every one of the {whole} experts has a place in VRAM.")
    else:
        far = whole - places.in_vram - places.in_ram
        lines.append(
            f"Of {whole} experts {places.in_vram} have slots in VRAM and {places.in_ram} lie in "
            "RAM, where the processor computes them when they are wanted"
            + (f"; {far} are read from the disk when they are wanted." if far else ".")
        )
        lines.append(
            f"Of the experts that tokens ask for, {100 * cold.hit_rate:.0f} % should be in slots "
            f"in the first {COLD_TOKENS} tokens and {100 * warm.hit_rate:.0f} % later"
            + (f"; {100 * warm.file_rate:.1f} % are read from the disk." if far else ".")
        )
    lines.append(
        f"Decoding: about {cold.tokens_per_s:.0f} tokens/s at first, {warm.tokens_per_s:.0f} later."
    )
    held = warm.limits[warm.binding]
    lines.append(
        f"What holds a token up most is {_LIMIT_WORDS[warm.binding]}: {1e3 * held:.1f} of "
        f"{1e3 * warm.window_s:.1f} ms."
    )
    if warm.disk_bound is not None:
        lines.append(
            f"A token reads {format_bytes(int(warm.file_bytes))} from the disk; at "
            f"{format_rate(warm.file_bytes_per_s)} that allows at most {warm.disk_bound:.0f} "
            "tokens/s."
        )
    if report.prompt_limit is not None:
        lines.append(
            f"Prompts are read {report.chunk} tokens at a time; the link allows at most "
            f"{report.prompt_limit:.0f} tokens/s."
        )
    if report.advice:
        told = "; ".join(f"{what} ({speed:.0f} tokens/s)" for what, speed in report.advice)
        lines.append(f"What would help most: {told}.")
    else:
        lines.append("Nothing that was tried would help much.")
    source = "measured rates" if report.is_measured else "the rates given or assumed"
    routing = "made-up routing, as hard as that of real text" if is_made_up else "the trace"
    lines.append(
        f"Reckoned with {source} and {routing}."
        + ("" if report.is_measured else " To measure: strata bench --rates FILE.")
    )
    return lines


def _region_table(report: PlanReport) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("where")
    table.add_column("what")
    table.add_column("bytes", justify="right")
    for place, label in (("vram", "VRAM"), ("ram", "RAM"), ("disk", "disk")):
        own = [item for item in report.regions if item.place == place]
        for item in own:
            table.add_row(label, item.what, format_bytes(item.num_bytes))
        if len(own) > 1:
            total = sum(item.num_bytes for item in own)
            table.add_row(label, "in all", format_bytes(total))
    return table
