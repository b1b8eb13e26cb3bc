"""The program of llama.cpp's process in a comparison; see ``bench_worker``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata.engine.bench_worker import serve
from strata.engine.rival import LlamaCpp, RivalOptions
from strata.engine.rival_source import LLAMA_CPP_PYTHON, SourceLlamaCpp

if TYPE_CHECKING:
    from strata.engine.bench_worker import Measured


def open_rival(setup: dict[str, Any]) -> Measured:
    """The build that ``setup["library"]`` names, loaded."""
    options = RivalOptions(
        model=Path(setup["model"]),
        vocab_size=setup["vocab_size"],
        threads=setup["threads"],
        context_len=setup["context_len"],
        has_flash_attention=setup["has_flash_attention"],
        kv_format=setup["kv_format"],
        gpu_layers=setup["gpu_layers"],
        cpu_expert_layers=setup.get("cpu_expert_layers", 0),
        step_tokens=setup["step_tokens"],
    )
    return (SourceLlamaCpp if setup["library"] == LLAMA_CPP_PYTHON else LlamaCpp)(options)


if __name__ == "__main__":
    serve(open_rival)
