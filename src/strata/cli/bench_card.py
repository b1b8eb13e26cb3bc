"""Prints what was measured on a card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from strata.engine.bench import Medians, draft_counts
from strata.units import format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from strata.engine.bench_card import CardReport, KernelCost, WindowCost

MOST_KERNELS = 16
# A peak further from the plan than this is a fault of the plan.
MOST_OFF_PLAN = 0.02


def print_card(console: Console, report: CardReport) -> None:
    """All tables."""
    card, ceilings = report.card, report.ceilings
    console.print(
        f"{card['name']}, driver {card['driver']}, torch {card['torch']}, triton {card['triton']}",
        markup=False,
    )
    console.print(
        f"measured on it: copies {format_rate(ceilings['copy_bytes_per_s'])}, 8-bit products "
        f"{ceilings['dot_products_per_s'] / 1e12:.0f} T/s, by tensor cores "
        f"{ceilings['tensor_products_per_s'] / 1e12:.0f} T/s"
    )
    console.print(_memory_line(report))
    if report.prompts:
        console.print(_prompt_table(report))
        for line in _draft_lines(report):
            console.print(line)
    for context in report.plan.contexts:
        costs = [cost for cost in report.windows if cost.context == context]
        console.print(f"windows behind {context} tokens, every row kept")
        console.print(_window_table(costs))
        for cost in costs[:1] + costs[1:][-1:]:
            console.print(
                f"kernels of a window of {cost.rows} behind {context} tokens: "
                f"{1e6 * sum(kernel.seconds for kernel in cost.kernels):.0f} us in kernels of "
                f"{1e6 * cost.card_s:.0f} us"
            )
            console.print(_kernel_table(cost.kernels))
    if report.prompt_kernels:
        console.print(f"kernels of a prompt's first {report.prompt_kernel_tokens} tokens")
        console.print(_kernel_table(report.prompt_kernels))


def _memory_line(report: CardReport) -> str:
    memory = report.memory
    off = memory["peak"] / memory["planned"] - 1
    verdict = "" if off <= MOST_OFF_PLAN else ": more than was planned"
    return (
        f"memory: planned {format_bytes(memory['planned'])}, peak {format_bytes(memory['peak'])} "
        f"({100 * off:+.1f} %){verdict}; {format_bytes(memory['taken_with_driver'])} taken with "
        "what the driver holds"
    )


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _prompt_table(report: CardReport) -> Table:
    table = _table("prompt", "tokens/s", "first token, s", "then decoded, tokens/s")
    for length, rounds in report.prompts.items():
        medians = Medians.of(rounds)
        table.add_row(
            str(length),
            f"{medians.prompt_tokens_per_s:.0f}",
            f"{medians.ttft_s:.3f}",
            f"{medians.decode_tokens_per_s:.1f}",
        )
    return table


def _draft_lines(report: CardReport) -> list[str]:
    rounds = [item for rounds in report.prompts.values() for item in rounds]
    return [
        f"draft {place} kept: {100 * counts['accepted'] / counts['proposed']:.0f} % of "
        f"{counts['proposed']}"
        for place, counts in enumerate(draft_counts(rounds), 1)
    ]


def _window_table(costs: Sequence[WindowCost]) -> Table:
    table = _table(
        "rows",
        "window, ms",
        "of one row",
        "card, ms",
        "host, us",
        "floor, ms",
        "of floor",
        "rows/s",
    )
    if not costs:
        return table
    first = costs[0]
    for cost in costs:
        per_floor = f"{cost.card_s / cost.floor_s:.1f}x" if cost.floor_s else "-"
        table.add_row(
            str(cost.rows),
            f"{1e3 * cost.wall_s:.3f}",
            f"{cost.wall_s / first.wall_s:.2f}x" if first.rows == 1 else "-",
            f"{1e3 * cost.card_s:.3f}",
            f"{1e6 * cost.host_s:.0f}",
            f"{1e3 * cost.floor_s:.3f}",
            per_floor,
            f"{cost.rows / cost.wall_s:.1f}",
        )
    return table


def _kernel_table(kernels: Sequence[KernelCost]) -> Table:
    table = _table("kernel", "calls", "us each", "us", "share", "reads", "floor, us", "of floor")
    total = sum(kernel.seconds for kernel in kernels)
    for kernel in kernels[:MOST_KERNELS]:
        has_floor = kernel.floor_s is not None and kernel.num_bytes is not None
        table.add_row(
            kernel.name[:48],
            f"{kernel.calls:.0f}",
            f"{1e6 * kernel.seconds / kernel.calls:.2f}",
            f"{1e6 * kernel.seconds:.1f}",
            f"{100 * kernel.seconds / total:.1f} %",
            format_bytes(kernel.num_bytes or 0) if has_floor else "-",
            f"{1e6 * (kernel.floor_s or 0):.1f} {kernel.bound}" if has_floor else "-",
            f"{kernel.seconds / kernel.floor_s:.1f}x" if kernel.floor_s else "-",
        )
    rest = kernels[MOST_KERNELS:]
    if rest:
        seconds = sum(kernel.seconds for kernel in rest)
        calls = sum(kernel.calls for kernel in rest)
        table.add_row(
            f"{len(rest)} others", f"{calls:.0f}", "", f"{1e6 * seconds:.1f}",
            f"{100 * seconds / total:.1f} %", "", "", "",
        )  # fmt: skip
    return table
