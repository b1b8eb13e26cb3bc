"""Types of the compiled extension (native/bind_*.cpp). Arrays must be C-contiguous."""

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]

ROW_GROUP: int
INDEX_GROUP: int

class Context:
    def __init__(self, num_threads: int, isa: str) -> None: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def isa(self) -> str: ...

def best_isa() -> str: ...
def is_isa_supported(name: str) -> bool: ...

# Products of packed weights: bind_products.cpp.

def set_grid(name: str, values: NDArray[np.int8]) -> None: ...

class Matrix:
    @staticmethod
    def pack(ctx: Context, format: int, raw: Bytes, inner: int, scale: float = 1.0) -> Matrix: ...
    @property
    def format(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def inner(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...

class Experts:
    @overload
    def __init__(
        self,
        gate_format: int,
        up_format: int,
        down_format: int,
        num_experts: int,
        hidden_size: int,
        expert_size: int,
    ) -> None: ...
    @overload
    def __init__(self, source: ExpertSource, layer: int) -> None: ...
    def load(
        self,
        ctx: Context,
        expert: int,
        gate: Bytes,
        up: Bytes,
        down: Bytes,
        gate_scale: float = 1.0,
        up_scale: float = 1.0,
        down_scale: float = 1.0,
    ) -> None: ...
    @property
    def num_bytes(self) -> int: ...

def product(ctx: Context, matrices: list[Matrix], x: Floats, outs: list[Floats]) -> None: ...
def experts(
    ctx: Context,
    routed: Experts,
    x: Floats,
    ids: Ints,
    weights: Floats,
    shared: Experts | None,
    shared_weight: Floats | None,
    out: Floats,
) -> None: ...
def measure_bandwidth(ctx: Context, num_bytes: int, passes: int = 3) -> float: ...

# Model operations: bind_ops.cpp.

def exp(ctx: Context, x: Floats, out: Floats) -> None: ...
def silu(ctx: Context, x: Floats, out: Floats) -> None: ...
def sigmoid(ctx: Context, x: Floats, out: Floats) -> None: ...
def softplus(ctx: Context, x: Floats, out: Floats) -> None: ...
def silu_of_quotient(ctx: Context, x: Floats, divisor: float) -> None: ...
def hc_norm(ctx: Context, residual: Floats, gamma: Floats, eps: float, xn: Floats) -> None: ...
def hc_write(
    ctx: Context,
    residual: Floats,
    out: Floats,
    inject: Floats,
    gamma: Floats | None,
    eps: float,
    xn: Floats | None,
) -> None: ...
def hc_mix(ctx: Context, xn: Floats, gate: Floats, streams: int, out: Floats) -> None: ...
def ple(
    ctx: Context,
    residual: Floats,
    key: Floats,
    value: Floats,
    key_gamma: Floats,
    query_gamma: Floats,
    conv_gamma: Floats,
    conv_weight: Floats,
    dilation: int,
    eps: float,
    gated: Floats,
    normed: Floats,
) -> None: ...
def route(
    ctx: Context,
    logits: Floats,
    scale: float,
    ids: Ints,
    weights: Floats,
    shared: Floats | None,
) -> int: ...

# Token mixers: bind_mixers.cpp.

class GdnRows:
    def __init__(self, q: Floats, k: Floats, v: Floats, decay: Floats, rate: Floats) -> None: ...

class GdnLayer:
    def __init__(
        self,
        key_heads: int,
        value_heads: int,
        eps: float,
        is_silu_gate: bool,
        conv_weight: Floats,
        ssm_a: Floats,
        dt: Floats,
        gamma: Floats,
    ) -> None: ...
    @property
    def state_size(self) -> int: ...
    def run(
        self,
        ctx: Context,
        rows: int,
        conv_in: Floats,
        alpha: Floats,
        beta: Floats,
        z: Floats,
        computed: GdnRows,
        pending: GdnRows,
        num_pending: int,
        state: Floats,
        is_window: bool,
        out: Floats,
    ) -> None: ...

class QsaScratch:
    def __init__(
        self, q: Floats, index_q: Floats, block_scores: Floats, chosen: Ints, weights: Floats
    ) -> None: ...

class QsaCells:
    def __init__(
        self, k_cells: NDArray[Any], v_cells: NDArray[Any], raw_keys: Floats, pooled: Floats
    ) -> None: ...

class RopeRows:
    def __init__(self, cos: Floats, sin: Floats, start: int) -> None: ...

class QsaLayer:
    def __init__(
        self,
        heads: int,
        kv_heads: int,
        index_heads: int,
        block: int,
        budget_blocks: int,
        rope_dim: int,
        eps: float,
        q_gamma: Floats,
        k_gamma: Floats,
        index_q_gamma: Floats,
        index_k_gamma: Floats,
    ) -> None: ...
    def run(
        self,
        ctx: Context,
        rows: int,
        position: int,
        q_gate: Floats,
        k: Floats,
        v: Floats,
        index_q: Floats,
        index_k: Floats,
        rope: RopeRows,
        cells: QsaCells,
        scratch: QsaScratch,
        out: Floats,
    ) -> None: ...

class DenseLayer:
    def __init__(
        self,
        heads: int,
        kv_heads: int,
        rope_dim: int,
        eps: float,
        q_gamma: Floats,
        k_gamma: Floats,
    ) -> None: ...
    def run(
        self,
        ctx: Context,
        rows: int,
        queries: int,
        position: int,
        q_gate: Floats,
        k: Floats,
        v: Floats,
        rope: RopeRows,
        cells: QsaCells,
        scratch: QsaScratch,
        out: Floats,
    ) -> None: ...

# Reads of files, rows kept in memory, rows decoded: bind_files.cpp.

DIRECT_ALIGNMENT: int

class FileReads:
    @property
    def is_done(self) -> bool: ...
    @property
    def num_reads(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    def wait(self) -> tuple[int, int, int, int] | None: ...
    def abandon(self) -> None: ...

class FileReader:
    def __init__(self, num_threads: int) -> None: ...
    @property
    def num_threads(self) -> int: ...
    def start(
        self, fd: int, offsets: Int64s, sizes: Int64s, places: Int64s, out: Bytes, is_direct: bool
    ) -> FileReads: ...
    def close(self) -> None: ...

class RowCache:
    def __init__(self, row_bytes: int, limit_bytes: int) -> None: ...
    @property
    def capacity(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def num_asked(self) -> int: ...
    @property
    def num_found(self) -> int: ...
    def __len__(self) -> int: ...
    def take(
        self, rows: Int64s, num_rows: int, offset: int, out: Bytes
    ) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s | None] | None: ...
    def put(self, rows: Int64s, raw: Bytes, which: Int64s) -> None: ...

def is_row_format(format: int) -> bool: ...
def decode_rows(
    format: int, raw: Bytes, rows: Int64s | None, scale: float, out: Floats
) -> None: ...

# Experts that a card has not got: bind_server.cpp.

class ExpertLayer:
    def __init__(
        self,
        gate_format: int,
        up_format: int,
        down_format: int,
        num_experts: int,
        hidden_size: int,
        expert_size: int,
    ) -> None: ...
    @property
    def expert_bytes(self) -> int: ...
    def pack(self, ctx: Context, gate: Bytes, up: Bytes, down: Bytes, out: Bytes) -> None: ...
    def set_memory(self, blobs: int, blob_bytes: int, scales: int) -> None: ...

class ExpertsNotRead(Exception): ...

class ExpertCopies:
    def wait(self) -> None: ...

class ExpertSource:
    def __init__(
        self,
        ctx: Context,
        layers: list[ExpertLayer],
        files: list[tuple[str, int, int]],
        extents: Int64s,
        places: int,
        num_places: int,
        place_bytes: int,
        owners: object,
        num_ahead: int = 0,
    ) -> None: ...
    def set_router(self, layer: int, router: Matrix) -> None: ...
    def look_ahead(self, top_k: int) -> None: ...
    def guess(self, ctx: Context, layer: int, x: Floats) -> list[int]: ...
    @property
    def timed_reads(self) -> tuple[int, int]: ...
    def read_ahead_counts(self, out: Int64s) -> None: ...
    def set_home(self, layer: int, expert: int, blob: int) -> None: ...
    @property
    def cached_keys(self) -> list[int]: ...
    def take_failure(self) -> str: ...
    def drop_cached(self) -> None: ...
    def read_counts(self, out: Int64s) -> None: ...
    def fetch(
        self, layer: int, experts: list[int], is_scan: bool, ahead: list[int] = ...
    ) -> list[list[int]]: ...
    def copy(
        self, layer: int, experts: list[int], targets: list[int], is_passing: bool = False
    ) -> ExpertCopies: ...
    def close(self) -> None: ...

class ExpertServer:
    def __init__(
        self,
        ctx: Context,
        layers: list[ExpertLayer],
        addresses: list[int],
        max_rows: int,
        top_k: int,
        owners: object,
        source: ExpertSource | None = None,
    ) -> None: ...
    def start(self, number: int) -> None: ...
    def stop(self, seconds: float) -> bool: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...
    @property
    def is_running(self) -> bool: ...
    def read_counts(self, out: Int64s) -> None: ...

def pack_panels(ctx: Context, format: int, raw: Bytes, inner: int, out: Bytes) -> None: ...
