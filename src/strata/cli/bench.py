"""``strata bench``: speed, memory and bandwidth of one model here, alone or against llama.cpp.

On the processor; what is measured on a card is ``engine.bench_card``, printed by ``bench_card``.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

from strata import __version__
from strata.cli.bench_card import print_card
from strata.cli.bench_files import write_report
from strata.cli.bench_wanted import Plan, Wanted, sizes_of
from strata.cli.console import Bar, notices_on_stderr, say
from strata.cli.options import ENGINE_SETTINGS, with_settings
from strata.cli.stats import stats_parts
from strata.engine.accounting import TokenBytes, token_bytes
from strata.engine.bench import (
    Measurement,
    Medians,
    busy_share,
    draft_counts,
    measure,
    peak_memory_bytes,
)
from strata.engine.bench_card import CardPlan, measure_card
from strata.engine.bench_prompt import prompts
from strata.engine.build import machine_bandwidth, model_path, num_threads, open_parts, text_of
from strata.engine.card import is_card_likely, probe_of
from strata.engine.comparison import Comparison, RivalBuild, compare, rival_builds
from strata.engine.model_file import open_file
from strata.engine.parts import Parts
from strata.engine.provenance import provenance
from strata.engine.session import Tokens
from strata.errors import SettingsError
from strata.result_files import refuse_unwritable, unwritable
from strata.settings import Settings
from strata.tiers.forced_routing import ForcibleModel, RoutingFeed
from strata.tiers.rates import TierRates, write_rates
from strata.tiers.routing_trace import read_trace
from strata.units import format_bytes, format_rate

PROBE_S = 0.5
# A machine at rest does something now and then.
MOST_BUSY_SHARE = 0.1
RIVALS = ("llama.cpp",)
# Above this one of the two engines is wrong, and its speed means nothing.
MOST_KL = 0.05


@with_settings(*ENGINE_SETTINGS)
def command(
    settings: Settings,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the prompt. Default: 512.")
    ] = None,
    decode_tokens: Annotated[int, typer.Option(min=1, help="Tokens decoded after it.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are shown.")] = 3,
    text: Annotated[
        Path | None,
        typer.Option(
            help="Take the prompt from this text. Default: random tokens; with --draft, the "
            "sources of this package."
        ),
    ] = None,
    prompts_wanted: Annotated[
        str | None,
        typer.Option("--prompts", help="On a card: lengths of prompts, as in 512,4096."),
    ] = None,
    contexts_wanted: Annotated[
        str | None,
        typer.Option(
            "--contexts", help="On a card: where windows are measured, as in 4096,131072."
        ),
    ] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Measure this engine too, in turns: llama.cpp.")
    ] = None,
    rival_python: Annotated[
        Path | None,
        typer.Option(help="With --against: a Python that has llama-cpp-python, to try its build."),
    ] = None,
    routing: Annotated[
        Path | None,
        typer.Option(help="Take windows' experts from this trace: made-up weights route evenly."),
    ] = None,
    rates: Annotated[
        Path | None,
        typer.Option(help="With an expert cache: write what experts cost, for strata plan."),
    ] = None,
) -> None:
    """Measure prompt and decode speed, memory, and the share of the memory's bandwidth."""
    if against is not None and against not in RIVALS:
        raise SettingsError(f"cannot measure against {against!r}.\n  Try: --against {RIVALS[0]}")
    if rival_python is not None and against is None:
        raise SettingsError("--rival-python needs a rival.\n  Try: --against llama.cpp")
    wanted = Wanted(
        prompt_tokens,
        decode_tokens,
        rounds,
        text,
        sizes_of("--prompts", prompts_wanted),
        sizes_of("--contexts", contexts_wanted),
        routing,
        rates,
    )
    if (wanted.prompts or wanted.contexts) and (settings.device == "cpu" or against is not None):
        raise SettingsError(
            "--prompts and --contexts are measured on a card alone.\n"
            "  Try: --device cuda without --against, or --prompt-tokens."
        )
    for flag, path in (("--json", json_out), ("--rates", rates)):
        if path is not None:
            refuse_unwritable(flag, path)
    if against is not None and (routing is not None or rates is not None):
        raise SettingsError("--routing and --rates are for one engine.\n  Try: without --against")
    console = Console(highlight=False, soft_wrap=True)
    busy = busy_share(PROBE_S)
    if busy is not None and busy > MOST_BUSY_SHARE:
        share = f"{100 * busy:.0f} %"
        say(f"note: {share} of the processors were busy before the start; the figures suffer.")
    with notices_on_stderr():
        if against is None:
            report = _bench_alone(settings, wanted, console)
        else:
            builds = rival_builds(None if rival_python is None else str(rival_python))
            report = _bench_against(settings, wanted, console, builds)
    report["busy_share_before"] = busy
    report |= provenance()
    if json_out is not None:
        write_report(json_out, report)


def _bench_alone(settings: Settings, wanted: Wanted, console: Console) -> dict[str, Any]:
    if wanted.rates is not None and settings.device == "cpu":
        _write_rates(wanted.rates, None)
    is_card = settings.device == "cuda" or (settings.device == "auto" and is_card_likely())
    if is_card:
        # The memory plan must know how long the conversations will be.
        with open_file(model_path(settings)) as model_file:
            card_plan = wanted.card_plan(model_file.spec.context_len)
        settings = replace(settings, context_len=card_plan.capacity)
    with Bar("loading") as loading:
        parts = open_parts(settings, on_progress=loading)
    try:
        if wanted.routing is not None:
            feed = RoutingFeed(read_trace(wanted.routing), parts.model.spec)
            cast("ForcibleModel", parts.model).force_routing(feed)
        if parts.device == "cuda":
            return _bench_card(settings, wanted, card_plan, parts, console)
        return _bench_processor(settings, wanted, parts, console)
    finally:
        parts.close()


def _bench_card(
    settings: Settings, wanted: Wanted, plan: CardPlan, parts: Parts, console: Console
) -> dict[str, Any]:
    path, per_token, _ = _file_facts(settings, plan.contexts[0])
    session = parts.model.new_session(plan.capacity)
    with Bar("measuring") as bar:
        report = measure_card(
            session,
            probe_of(parts.model),
            plan,
            _prompts(settings, wanted, parts),
            draft_tokens=settings.draft_tokens,
            on_progress=bar,
        )
    console.print(f"{path}, on a card", markup=False)
    print_card(console, report)
    counts = None if parts.tiers is None else parts.tiers.tier_counts()
    rates = None if parts.tiers is None else parts.tiers.tier_rates()
    if counts is not None:
        for part in stats_parts(counts, rates):
            console.print(part)
    if wanted.rates is not None:
        _write_rates(wanted.rates, rates)
    return {
        "strata": __version__,
        "model": str(path),
        "settings": _told(settings),
        "bytes_per_token": per_token.total,
        "experts": None if counts is None else counts.as_dict(),
        "rates": None if rates is None else rates.as_dict(),
        **report.as_dict(),
    }


def _write_rates(path: Path, rates: TierRates | None) -> None:
    if rates is None:
        raise SettingsError(
            "--rates measures experts in several places, and here are none.\n"
            "  Try: --device cuda --expert-cache N, with fewer slots than experts."
        )
    try:
        write_rates(path, rates)
    except OSError as error:
        raise unwritable("--rates", path, error) from None


def _told(settings: Settings) -> dict[str, object]:
    return {name: str(value) for name, value in asdict(settings).items() if value is not None}


def _prompts(settings: Settings, wanted: Wanted, parts: Parts) -> Callable[[int], Tokens]:
    is_text = settings.draft_tokens > 0
    return prompts(parts.text, parts.vocab_size, file=wanted.text, is_text=is_text)


def _bench_processor(
    settings: Settings, wanted: Wanted, parts: Parts, console: Console
) -> dict[str, Any]:
    plan = wanted.plan
    path, per_token, _ = _file_facts(settings, plan.prompt_tokens + plan.decode_tokens // 2)
    threads = num_threads(settings)
    prompt = _prompts(settings, wanted, parts)(plan.prompt_tokens)
    session = parts.model.new_session(plan.prompt_tokens + plan.decode_tokens)
    measured: list[Measurement] = []
    # The first round pays for page faults and clock speed; it is not counted.
    for number in range(plan.rounds + 1):
        label = "warming up" if number == 0 else f"round {number} of {plan.rounds}"
        with Bar(label) as bar:
            measured.append(
                measure(
                    session,
                    prompt,
                    plan.decode_tokens,
                    draft_tokens=settings.draft_tokens,
                    on_progress=bar,
                )
            )
    # Before the probe of the bandwidth, whose buffer would be the peak of a small model.
    peak_bytes = peak_memory_bytes()
    bandwidth = machine_bandwidth(threads)
    report = _report(path, threads, plan, measured[1:], per_token, bandwidth)
    report["peak_bytes"] = peak_bytes
    _print_alone(console, report)
    return report


def _bench_against(
    settings: Settings, wanted: Wanted, console: Console, builds: Sequence[RivalBuild]
) -> dict[str, Any]:
    plan = wanted.plan
    position = plan.prompt_tokens + plan.decode_tokens // 2
    path, per_token, vocab_size = _file_facts(settings, position)
    threads = num_threads(settings)
    bandwidth = machine_bandwidth(threads)
    with open_file(path) as model_file:
        prompt = prompts(
            text_of(model_file), vocab_size, file=wanted.text, is_text=settings.draft_tokens > 0
        )(plan.prompt_tokens)
    with Bar("measuring both engines") as bar:
        comparison = compare(
            path,
            settings,
            threads=threads,
            vocab_size=vocab_size,
            builds=builds,
            prompt=prompt.tolist(),
            num_decode=plan.decode_tokens,
            num_rounds=plan.rounds,
            on_progress=bar,
        )
    report = _report(path, threads, plan, comparison.ours, per_token, bandwidth)
    report["peak_bytes"] = comparison.our_peak_bytes
    report["rival"] = {
        "build": comparison.rival_build,
        "flash_attention": comparison.has_flash_attention,
        "kl": comparison.kl,
        "peak_bytes": comparison.rival_peak_bytes,
        "rounds": [item.as_dict() for item in comparison.theirs],
        **asdict(Medians.of(comparison.theirs)),
        "prompt_ratios": comparison.prompt_ratios,
        "decode_ratios": comparison.decode_ratios,
    }
    _print_alone(console, report)
    _print_against(console, comparison, per_token, bandwidth)
    return report


def _file_facts(settings: Settings, position: int) -> tuple[Path, TokenBytes, int]:
    """First file of the model, bytes the token at ``position`` reads, size of the vocabulary."""
    with open_file(model_path(settings)) as model_file:
        per_token = token_bytes(
            model_file.index, model_file.spec, position=position, kv_format=settings.kv_format
        )
        return model_file.index.paths[0], per_token, model_file.spec.vocab_size


def _report(
    path: Path,
    threads: int,
    plan: Plan,
    rounds: Sequence[Measurement],
    per_token: TokenBytes,
    bandwidth: float,
) -> dict[str, Any]:
    medians = Medians.of(rounds)
    return {
        "strata": __version__,
        "model": str(path),
        "threads": threads,
        **asdict(plan),
        **asdict(medians),
        "peak_bytes": peak_memory_bytes(),
        "bytes_per_token": per_token.total,
        "bytes_per_token_by_class": {str(kind): size for kind, size in per_token.weights.items()}
        | {"KV cache": per_token.kv, "recurrent state": per_token.state},
        "bandwidth_bytes_per_s": bandwidth,
        "bandwidth_share": medians.decode_tokens_per_s * per_token.total / bandwidth,
        "measured": [item.as_dict() for item in rounds],
        "drafts": draft_counts(rounds),
    }


def _print_alone(console: Console, report: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    prompt_tokens, decode_tokens = report["prompt_tokens"], report["decode_tokens"]
    table.add_row(
        f"prompt, {prompt_tokens} tokens", f"{report['prompt_tokens_per_s']:.1f} tokens/s"
    )
    table.add_row(
        f"decode, {decode_tokens} tokens", f"{report['decode_tokens_per_s']:.2f} tokens/s"
    )
    for place, counts in enumerate(report["drafts"], 1):
        share = 100 * counts["accepted"] / counts["proposed"]
        table.add_row(f"draft {place} kept", f"{share:.0f} % of {counts['proposed']}")
    table.add_row("time to first token", f"{report['ttft_s']:.2f} s")
    table.add_row("peak memory", format_bytes(report["peak_bytes"]))
    table.add_row("read per decoded token", format_bytes(report["bytes_per_token"]))
    table.add_row("memory bandwidth", format_rate(report["bandwidth_bytes_per_s"]))
    table.add_row("share of it in decode", f"{100 * report['bandwidth_share']:.0f} %")
    console.print(f"{report['model']}, {report['threads']} threads", markup=False)
    console.print(table)


def _print_against(
    console: Console, comparison: Comparison, per_token: TokenBytes, bandwidth: float
) -> None:
    flash = "on" if comparison.has_flash_attention else "off"
    build = f"against {comparison.rival_build}, flash attention {flash} (the fastest tried)"
    console.print(build, markup=False)
    if comparison.kl is None:
        console.print("llama.cpp gave no distribution to check its results by")
    else:
        verdict = "" if comparison.kl <= MOST_KL else f", above {MOST_KL:g}: do not trust both"
        console.print(f"KL of the two engines after a short prompt: {comparison.kl:.1e}{verdict}")
    ours, theirs = Medians.of(comparison.ours), Medians.of(comparison.theirs)
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading in ("strata", "llama.cpp", "ratio", "by round"):
        table.add_column(heading, justify="right")
    rows = (
        ("prompt tokens/s", ours.prompt_tokens_per_s, theirs.prompt_tokens_per_s,
         comparison.prompt_ratios),
        ("decode tokens/s", ours.decode_tokens_per_s, theirs.decode_tokens_per_s,
         comparison.decode_ratios),
    )  # fmt: skip
    for label, own, rival, ratios in rows:
        each = " ".join(f"{ratio:.2f}" for ratio in ratios)
        table.add_row(
            label, f"{own:.2f}", f"{rival:.2f}", f"{statistics.median(ratios):.2f}x", each
        )
    share = 100 * theirs.decode_tokens_per_s * per_token.total / bandwidth
    own_share = 100 * ours.decode_tokens_per_s * per_token.total / bandwidth
    table.add_row("share of bandwidth", f"{own_share:.0f} %", f"{share:.0f} %", "", "")
    peaks = (comparison.our_peak_bytes, comparison.rival_peak_bytes)
    table.add_row("peak memory", *(format_bytes(peak) for peak in peaks), "", "")
    console.print(table)
