"""Whether guessing the next layer's experts pays where experts lie on a disk.

    python benchmarks/look_ahead.py guesses [--model MODEL] [--tokens 200]
    python benchmarks/look_ahead.py measured --model MODEL --store FOLDER [--share 0.5] [--rounds 8]
        [--threads 2]
    python benchmarks/look_ahead.py gain [--right 0.72] [--layers 8] [--tokens 200]

``guesses``: how often the router of the next layer names its experts when it is given this layer's
input, or the streams as the next layer would read them, before this layer's experts were added or
after; of all experts, and of those that a cache of least recent use has not got. ``gain``: tokens a
second of made-up routing of the published geometry with guesses that are right so often, by a clock
that is reckoned: layers compute, a disk reads, what is read ahead begins when what is needed has
been read, and what turned out wrong is in the way as far as the disk had begun it. ``free``: as
if the disk gave up wrong reads at once, which none does: more than that cannot be gained.
``measured``: tokens a second of a model from a real disk, with and without, in turns.
"""

from __future__ import annotations

import argparse
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from strata import Engine, SamplingParams, _native
from strata.cpu import layers
from strata.cpu.build import open_context
from strata.cpu.expert_build import experts_on_disk
from strata.cpu.expert_layers import layer_shapes
from strata.cpu.expert_tier import ExpertTier
from strata.cpu.look_ahead import NO_LOOK_AHEAD, look_ahead_of
from strata.cpu.model import CpuModel
from strata.engine.model_file import open_file
from strata.settings import Settings
from strata.tiers.synthetic import SyntheticText, TextHabits, _Router

STORIES = Path(__file__).parent / "routing" / "stories.txt"
ROUND_TOKENS = 12
WAYS = ("this layer's input", "streams before", "streams after")


class Recorder:
    """Puts itself in the place of ``layers.moe`` and asks the next layer's router beforehand."""

    def __init__(self, model) -> None:
        self.own = model.weights.layers
        self.spec, self.ctx = model.spec, model.ctx
        self.true, self.guesses = [], {way: [] for way in WAYS}
        self._row = None
        self._real = layers.moe
        layers.moe = self.moe

    def moe(self, ctx, weights, spec, rows, layer, forced=None) -> None:
        following = self.own[layer + 1] if layer + 1 < len(self.own) else None
        is_one = rows.num_rows == 1
        if is_one and layer == 0:
            self._row = SimpleNamespace(ids=[], **{way: [] for way in WAYS})
        if is_one and following is not None:
            self._guess(WAYS[0], following, rows.x)
            self._guess(WAYS[1], following, self._read(following.hc_ffn, rows.residual))
        self._real(ctx, weights, spec, rows, layer, forced)
        if not is_one:
            return
        self._row.ids.append(rows.expert_ids[0].copy())
        if following is not None:
            streams = rows.residual.copy()
            _native.hc_write(ctx, streams, rows.out, rows.inject, None, spec.rms_eps, None)
            self._guess(WAYS[2], following, self._read(following.hc_ffn, streams))
            return
        self.true.append(np.array(self._row.ids))
        for way in WAYS:
            self.guesses[way].append(np.array(getattr(self._row, way)))

    def _guess(self, way: str, following, x) -> None:
        logits = np.zeros((1, self.spec.num_experts), np.float32)
        x = np.ascontiguousarray(x)
        outs = [logits, np.zeros((1, 1), np.float32)]
        _native.product(self.ctx, following.moe.routers, x, outs)
        getattr(self._row, way).append(np.argsort(-logits[0], kind="stable"))

    def _read(self, hc, residual):
        """What a layer whose read is ``hc`` would take from these streams."""
        spec = self.spec
        widths = {"xn": spec.hyper_size, "low": spec.hc_rank, "inject": spec.num_streams,
                  "gate": spec.hyper_size, "x": spec.hidden_size}  # fmt: skip
        rows = SimpleNamespace(residual=residual.copy())
        for name, width in widths.items():
            setattr(rows, name, np.zeros((1, width), np.float32))
        layers.normed(self.ctx, hc, spec, rows)
        layers.read_streams(self.ctx, hc, spec, rows)
        return rows.x


class Cache:
    """Experts used last; keys of all layers together."""

    def __init__(self, num_places: int) -> None:
        self._num, self._held = num_places, OrderedDict()

    def __contains__(self, key) -> bool:
        return key in self._held

    def use(self, key) -> None:
        self._held[key] = None
        self._held.move_to_end(key)
        if len(self._held) > self._num:
            self._held.popitem(last=False)


def shares(true, order, num_places: int, take: int) -> tuple[float, float, float, float]:
    """Of a layer's experts and of its misses, those guessed; wrong reads for each right one; misses
    of a layer. Layers after the first.

    Args:
        true: [N, L, K]. order: [N, L - 1, E] experts of the next layer, likeliest first.
        num_places: of the cache. take: the first so many are guessed.
    """
    cache = Cache(num_places)
    asked = right = misses = found = read = 0
    for ids, guess in zip(true.tolist(), order.tolist(), strict=True):
        for layer, own in enumerate(ids):
            missing = {e for e in own if (layer, e) not in cache}
            if layer:
                named = guess[layer - 1][:take]
                asked, right = asked + len(own), right + len(set(own) & set(named))
                ahead = {e for e in named if (layer, e) not in cache}
                misses, found = misses + len(missing), found + len(missing & ahead)
                read += len(ahead)
            for e in own:
                cache.use((layer, e))
    per_layer = misses / (len(true) * (true.shape[1] - 1))
    return right / asked, found / max(1, misses), (read - found) / max(1, found), per_layer


def guesses(args: argparse.Namespace) -> None:
    """The demo's own, or a model's."""
    with Engine.open(args.model, device="cpu") as engine:
        recorder = Recorder(engine._parts.model)
        for text in STORIES.read_text().splitlines():
            if not text.startswith("/"):
                engine.chat([{"role": "user", "content": text}],
                            SamplingParams(max_tokens=args.tokens)).complete()  # fmt: skip
        spec = engine.spec
    true = np.array(recorder.true)
    num = spec.num_layers * spec.num_experts
    print(f"{len(true)} rows, {spec.num_layers} layers, {spec.top_k} of {spec.num_experts}")
    print("of experts: guessed; of misses: guessed, wrong reads for a right one, misses a layer")
    for share in (0.25, 0.5, 0.75):
        for way in WAYS:
            order = np.array(recorder.guesses[way])
            told = [f"{share:4.0%} cached, {way:20}"]
            for take in sorted({1, spec.top_k // 2, spec.top_k}):
                right, found, wrong, misses = shares(true, order, int(share * num), take)
                told.append(f"| {take} named: {right:3.0%}; {found:3.0%} {wrong:5.2f} {misses:.2f}")
            print(" ".join(told))


@dataclass(frozen=True)
class Machine:
    """Seconds: a layer without reads; of which products of experts; a read's beginning; each."""

    name: str
    layer_s: float
    products_s: float
    once_s: float
    each_s: float


MACHINES = (
    Machine("card, 3 GB/s", 0.2e-3, 0.1e-3, 0.1e-3, 2.33e6 / 3e9),
    Machine("card, 7 GB/s", 0.2e-3, 0.1e-3, 0.1e-3, 2.33e6 / 7e9),
    Machine("processor, 3 GB/s", 1.2e-3, 0.6e-3, 0.1e-3, 2.33e6 / 3e9),
    Machine("processor, 7 GB/s", 1.2e-3, 0.6e-3, 0.1e-3, 2.33e6 / 7e9),
)


class Disk:
    """Reads one after the other; what was read ahead for the next layer, and when it is there.

    Args:
        flying: experts' worth of wrong reads that cannot be kept from ending.
    """

    def __init__(self, machine: Machine, flying: float) -> None:
        self._machine, self._flying = machine, flying
        self._free = 0.0
        self._ahead: list[tuple[int, float, float]] = []  # expert, begin and end of its read

    def read(self, now: float, missing: list[int]) -> float:
        """When all of these are there. Wrong reads that have not begun are left out."""
        ends = {expert: end for expert, begin, end in self._ahead if begin < now}
        self._free = max([now, *(end for end in ends.values() if end <= now)])
        for expert, end in ends.items():
            left = end if expert in missing else min(end, now + self._flying * self._machine.each_s)
            self._free = max(self._free, left)
        to_read = [expert for expert in missing if expert not in ends]
        self._ahead = []
        if to_read:
            self._queue(now, len(to_read))
            return self._free
        return max([now, *(ends[expert] for expert in missing)])

    def read_ahead(self, now: float, experts: list[int]) -> None:
        """Begins to read these when everything else has been read."""
        free = self._free
        for expert in experts:
            begin = max(now, self._free)
            self._queue(now, 1)
            self._ahead.append((expert, begin, self._free))
        self._free = free

    def _queue(self, now: float, num: int) -> None:
        machine = self._machine
        is_idle = self._free <= now
        self._free = max(now, self._free) + machine.once_s * is_idle + num * machine.each_s


def token_seconds(true, order, machine: Machine, num_places: int, take: int, flying: float):
    """Seconds of a token by the reckoned clock; arguments as in ``shares`` and ``Disk``."""
    cache, disk = Cache(num_places), Disk(machine, flying)
    now = 0.0
    for ids, guess in zip(true.tolist(), order.tolist(), strict=True):
        for layer, own in enumerate(ids):
            missing = [e for e in own if (layer, e) not in cache]
            there = disk.read(now, missing)
            if layer + 1 < len(ids):
                named = guess[layer][:take]
                disk.read_ahead(now, [e for e in named if (layer + 1, e) not in cache])
            for e in own:
                cache.use((layer, e))
            late = machine.products_s * len(missing) / len(own)
            now = max(now + machine.products_s, there + late)
            now += machine.layer_s - machine.products_s
    return now / len(true)


def made_up(num_layers: int, num_tokens: int, right: float):
    """Experts [N, L, 10] of 256, and guesses of which so many are right: the scores, disturbed."""
    habits = TextHabits()
    router = _Router(SyntheticText(num_layers, 256, 10, num_tokens), 0, habits)
    router.begin()
    real, rows = router._chance, []
    router._chance = lambda: rows.append(real()) or rows[-1]
    rng = np.random.default_rng(0)
    scores = []
    for _ in range(num_tokens):
        age = float(router._position)
        router.next_row()
        strength = habits.subject * (1.0 + min(age, 600.0) / habits.settling_tokens)
        scores.append(router._favour + strength * router._subject + rows[-1])
        rows.clear()
    scores = np.array(scores)
    true = np.argsort(-scores, axis=-1, kind="stable")[..., :10]
    noise = rng.standard_normal(scores.shape)
    low, high = 0.0, 4.0
    for _ in range(20):
        spread = (low + high) / 2
        order = np.argsort(-(scores + spread * noise), axis=-1, kind="stable")
        same = (order[..., :10, None] == true[..., None, :]).any(axis=-1).mean()
        low, high = (spread, high) if same > right else (low, spread)
    return true, order[:, 1:]


def gain(args: argparse.Namespace) -> None:
    """Speed with guesses against without."""
    for right in map(float, args.right.split(",")):
        true, order = made_up(args.layers, args.tokens, right)
        for share in (0.5, 0.7, 0.85, 0.95):
            num_places = int(share * args.layers * 256)
            _, found, wrong, misses = shares(true, order, num_places, 10)
            print(f"{right:.0%} right, {share:.0%} near: {misses:.2f} misses a layer, of which "
                  f"{found:.0%} guessed, {wrong:.2f} wrong reads for each", flush=True)  # fmt: skip
            for machine in MACHINES:
                plain = token_seconds(true, order, machine, num_places, 0, 0.0)
                told = [f"  {machine.name:18} {args.layers / 48 / plain:6.1f} tokens/s"]
                for take in (3, 10):
                    for name, flying in (("free", 0.0), ("all", 99.0)):
                        one = token_seconds(true, order, machine, num_places, take, flying)
                        told.append(f"{take} named, {name} {plain / one - 1:+.0%}")
                print("; ".join(told), flush=True)


def measured(args: argparse.Namespace) -> None:
    """Two models of one store, their tokens in turns."""
    with open_file(args.model) as file:
        index, spec = file.index, file.spec
        ctx = open_context(args.threads, None)
        shapes = layer_shapes(index, spec)
        settings = Settings(expert_store=args.store)
        disk = experts_on_disk(ctx, index, spec, shapes, settings)
        num_places = int(args.share * spec.num_layers * spec.num_experts)
        none = [np.zeros(0, np.int64)] * spec.num_layers
        models = []
        for ahead in (NO_LOOK_AHEAD, look_ahead_of(num_places, spec)):
            tier = ExpertTier(ctx, shapes, disk, none, num_places, ahead)
            models.append(CpuModel(ctx, index, spec, tier=tier))
    sessions = [model.new_session(ROUND_TOKENS * args.rounds + 8) for model in models]
    tokens = np.random.default_rng(0).integers(0, spec.vocab_size, (args.rounds, ROUND_TOKENS))
    told: list[list[tuple[float, float, float]]] = [[], []]
    for chosen in tokens.astype(np.int32):
        for model, session, rows in zip(models, sessions, told, strict=True):
            before, begin = model.expert_tier.counts(), time.perf_counter()
            for token in chosen:
                session.decode(token[None])
                session.commit(1)
            seconds = time.perf_counter() - begin
            after = model.expert_tier.counts()
            reads = (after.file_reads - before.file_reads) / ROUND_TOKENS
            rows.append((ROUND_TOKENS / seconds, reads, (after.wait_s - before.wait_s) / seconds))
    for name, model, rows in zip(("without", "with"), models, told, strict=True):
        speed, reads, waited = np.median(np.array(rows[1:]), axis=0)  # the first fills the cache
        print(f"{name}: {speed:.2f} tokens/s, {reads:.1f} reads a token, waits {waited:.0%}; "
              f"{model.expert_tier.ahead_counts()}")  # fmt: skip
        model.close()
    ratios = [b[0] / a[0] for a, b in zip(told[0][1:], told[1][1:], strict=True)]
    print(f"ratio {np.median(ratios):.3f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("guesses", "gain", "measured"))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--right", default="0.72,0.9")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    {"guesses": guesses, "gain": gain, "measured": measured}[args.what](args)


if __name__ == "__main__":
    main()
