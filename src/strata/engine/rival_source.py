"""llama.cpp measured through ``llama-cpp-python``, which is built from source. Optional.

Its build knows the processor it runs on, which the wheel of ``engine.rival`` does not: the faster
rival. Uses the C functions alone.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.engine.bench import Measurement
from strata.engine.rival import RivalOptions, features_of
from strata.errors import CheckpointError, DeviceError

if TYPE_CHECKING:
    from strata.engine.session import Logits

LLAMA_CPP_PYTHON = "llama_cpp"
ALL_LAYERS = 9999  # more than any model has
CARD_STEP_TOKENS = 2048  # prompts on a card are faster with it than with the default


class SourceLlamaCpp:
    """One model loaded in this process, one conversation."""

    def __init__(self, options: RivalOptions) -> None:
        library = self._library = _library()
        library.llama_backend_init()
        system_info = library.llama_print_system_info().decode()
        self.description = f"llama-cpp-python {library.__version__} ({features_of(system_info)})"
        self._step_tokens = options.step_tokens
        model_params = library.llama_model_default_params()
        model_params.n_gpu_layers = options.gpu_layers
        if options.cpu_expert_layers:
            overrides = _experts_in_ram(options.cpu_expert_layers)  # alive until it is loaded
            model_params.tensor_buft_overrides = ctypes.addressof(overrides)
            # Page-locked memory, which a card copies from faster than from a mapped file.
            model_params.load_mode = library.LLAMA_LOAD_MODE_NONE
        self._model = library.llama_model_load_from_file(str(options.model).encode(), model_params)
        params = library.llama_context_default_params()
        params.n_ctx = options.context_len
        params.n_batch = params.n_ubatch = options.step_tokens
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = options.threads
        params.flash_attn_type = int(options.has_flash_attention)
        # Numbers of ggml's table of types.
        params.type_k = params.type_v = {"f32": 0, "f16": 1}[options.kv_format]
        self._context = library.llama_init_from_model(self._model, params) if self._model else None
        if not self._context:
            raise CheckpointError(
                f"llama.cpp cannot load the file.\n  file: {options.model}\n"
                "  Try: a build that knows the architecture and the formats of the file."
            )
        vocabulary = library.llama_model_get_vocab(self._model)
        self._vocab_size = int(library.llama_vocab_n_tokens(vocabulary))

    def measure(self, prompt: list[int], num_decode: int) -> Measurement:
        """One round by the wall clock; tokens are picked greedily."""
        started_s = time.perf_counter()
        logits = self._read(prompt)
        prompt_s = time.perf_counter() - started_s
        token = int(logits.argmax())
        first_s = time.perf_counter()
        for _ in range(num_decode):
            token = int(self._step([token]).argmax())
        return Measurement(
            prompt_tokens=len(prompt),
            prompt_s=prompt_s,
            decode_tokens=num_decode,
            decode_s=time.perf_counter() - first_s,
            ttft_s=first_s - started_s,
        )

    def next_logits(self, prompt: list[int]) -> Logits:
        """Logits [V] after a prompt."""
        return self._read(prompt).copy()

    def _read(self, prompt: list[int]) -> Logits:
        """Forgets the conversation and reads another; logits [V] of its last token."""
        library = self._library
        library.llama_memory_clear(library.llama_get_memory(self._context), True)
        for first in range(0, len(prompt), self._step_tokens):
            logits = self._step(prompt[first : first + self._step_tokens])
        return logits

    def _step(self, tokens: list[int]) -> Logits:
        """Logits [V] of the last token; a view that the next step overwrites."""
        library = self._library
        ids = (library.llama_token * len(tokens))(*tokens)
        status = library.llama_decode(self._context, library.llama_batch_get_one(ids, len(tokens)))
        if status:
            raise DeviceError(f"llama.cpp could not decode (status {status}).")
        # Waits for the result, so it belongs to the time of the step.
        pointer = library.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(pointer, (self._vocab_size,))


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override: where tensors of such names (a pattern) lie."""

    _fields_ = (("pattern", ctypes.c_char_p), ("place", ctypes.c_void_p))


def _experts_in_ram(num_layers: int) -> ctypes.Array[_Override]:
    """What its program's --n-cpu-moe asks for, ended by an override without a pattern."""
    from llama_cpp import _ggml

    ram_of = _ggml.libggml.ggml_backend_cpu_buffer_type
    ram_of.restype = ctypes.c_void_p
    overrides = (_Override * (num_layers + 1))()
    for layer in range(num_layers):
        pattern = rf"blk\.{layer}\.ffn_(up|down|gate|gate_up)_exps"
        overrides[layer] = _Override(pattern.encode(), ram_of())
    return overrides


def _library() -> Any:
    try:
        import llama_cpp
    except ImportError as error:
        raise DeviceError(
            "llama-cpp-python is not installed in this interpreter.\n"
            "  Try: CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python"
        ) from error
    return llama_cpp
