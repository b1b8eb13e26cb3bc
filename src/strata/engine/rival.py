"""llama.cpp measured and asked for logits, through the ``xllamacpp`` wheel. Optional.

Owns what is common to all builds, and this one. Another engine is known here and in
``rival_source`` only. It is measured in its own process (``engine.bench_worker``), so that neither
engine's threads or memory disturb the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.engine.bench import Measurement
from strata.errors import CheckpointError, DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from strata.engine.session import Logits, Tokens

XLLAMACPP = "xllamacpp"
STEP_TOKENS = 512  # n_batch and n_ubatch; the engine's own default is the same


@dataclass(frozen=True, slots=True)
class RivalOptions:
    """How llama.cpp is set up; the last three are for ``rival_source``, whose build may have CUDA.

    Attributes:
        gpu_layers: of the model's layers, how many lie on a card.
        cpu_expert_layers: from the first one on, how many of these keep their experts in RAM.
        step_tokens: n_batch and n_ubatch.
    """

    model: Path
    vocab_size: int
    threads: int
    context_len: int
    has_flash_attention: bool
    kv_format: str = "f16"
    gpu_layers: int = 0
    cpu_expert_layers: int = 0
    step_tokens: int = STEP_TOKENS


class LlamaCpp:
    """One model loaded in llama.cpp's server, called in this process."""

    def __init__(self, options: RivalOptions) -> None:
        library = _library()
        self._vocab_size = options.vocab_size
        self.description = (
            f"{XLLAMACPP} {library.__version__} "
            f"({library.BUILD_INFO.get('compiler', 'unknown compiler')}; "
            f"{features_of(library.get_system_info())})"
        )
        params = library.CommonParams()
        params.model.path = str(options.model)
        params.n_ctx = options.context_len
        params.n_batch = params.n_ubatch = STEP_TOKENS
        params.cpuparams.n_threads = options.threads
        params.cpuparams_batch.n_threads = options.threads
        params.n_parallel = 1
        params.flash_attn_type = library.llama_flash_attn_type(int(options.has_flash_attention))
        kv_type = "GGML_TYPE_F32" if options.kv_format == "f32" else "GGML_TYPE_F16"
        params.cache_type_k = params.cache_type_v = library.ggml_type[kv_type]
        # Keeping states for later prompts costs time here and is never used.
        params.cache_ram_mib = 0
        params.n_ctx_checkpoints = 0
        params.fit_params = False
        params.verbosity = 0
        try:
            self._server = library.Server(params)
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"llama.cpp cannot load the file: {error}.\n  file: {options.model}"
            ) from None

    def measure(self, prompt: list[int], num_decode: int) -> Measurement:
        """One round by llama.cpp's own clock."""
        # The server counts the first token, which costs no decode step, among the predicted ones.
        timings = self._complete(prompt, num_decode + 1, {})["timings"]
        prompt_s = timings["prompt_ms"] / 1e3
        return Measurement(
            prompt_tokens=int(timings["prompt_n"]),
            prompt_s=prompt_s,
            decode_tokens=int(timings["predicted_n"]) - 1,
            decode_s=timings["predicted_ms"] / 1e3,
            ttft_s=prompt_s,
        )

    def greedy(
        self, prompt: list[int], num_tokens: int, *, banned: Sequence[int] = ()
    ) -> tuple[Logits, Tokens]:
        """Log probabilities [num_tokens, V] of a greedy answer, and its ids [num_tokens] int32.

        Row i is the distribution that token i was picked from, before anything was banned.

        Args:
            prompt: token ids.
            num_tokens: of the answer; end tokens are never picked.
            banned: ids never picked. Tokens that are not whole characters must be among them:
                the server reports no distribution for those.

        Raises:
            DeviceError: a distribution is missing.
        """
        bias = [[token, False] for token in banned]
        answer = self._complete(
            prompt, num_tokens, {"logprobs": self._vocab_size, "logit_bias": bias}
        )
        steps = answer["choices"][0]["logprobs"]["content"]
        if len(steps) != num_tokens:
            raise DeviceError(
                f"llama.cpp gave {len(steps)} of {num_tokens} distributions.\n"
                "  Try: ban tokens that are not whole characters."
            )
        rows = np.full((len(steps), self._vocab_size), -np.inf, dtype=np.float32)
        for row, step in zip(rows, steps, strict=True):
            for item in step["top_logprobs"]:
                row[item["id"]] = item["logprob"]
        return rows, np.array([step["id"] for step in steps], dtype=np.int32)

    def next_logits(self, prompt: list[int]) -> Logits:
        """Log probabilities [V] after a prompt.

        Raises:
            DeviceError: the likeliest token is not a whole character; see ``greedy``.
        """
        rows, _ids = self.greedy(prompt, 1)
        return rows.reshape(-1)

    def _complete(self, prompt: list[int], num_tokens: int, extra: dict[str, object]) -> Any:
        request = {
            "prompt": prompt,
            "n_predict": num_tokens,
            "cache_prompt": False,
            "ignore_eos": True,
            "temperature": 0.0,
            **extra,
        }
        answer = self._server.handle_completions(request)
        if isinstance(answer, (str, bytes)):
            answer = json.loads(answer)
        if "error" in answer:
            raise DeviceError(f"llama.cpp refused: {answer['error']}.")
        return answer


def features_of(system_info: str) -> str:
    """Processor features that a build of llama.cpp uses, from its own line about itself."""
    parts = system_info.replace("CPU :", "").split("|")
    return " ".join(part.split("=")[0].strip() for part in parts if "= 1" in part)


def _library() -> Any:
    try:
        import xllamacpp
    except ImportError as error:
        raise DeviceError(
            "llama.cpp is not installed, so there is nothing to compare with.\n"
            "  Try: pip install xllamacpp"
        ) from error
    return xllamacpp
