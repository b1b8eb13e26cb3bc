"""The expert store: made once, gone on with, refused or made anew; the disk full, the maker killed.

Blobs are compared with what packing gives.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata import _native, telemetry
from strata.cpu import expert_build, expert_store
from strata.cpu.expert_build import experts_on_disk, store_name
from strata.cpu.expert_files import fingerprint
from strata.cpu.expert_layers import layer_shapes, pack_experts
from strata.cpu.expert_store import (
    StoreDamaged,
    StoreLayout,
    make_store,
    open_store,
    store_layout,
)
from strata.engine.model_file import ModelFile, open_file
from strata.errors import CheckpointError, DeviceError, PlanError
from strata.formats.convert_types import TypePlan
from strata.formats.model_tensors import ModelTensors
from strata.formats.synth import GEOMETRIES, synthesize
from strata.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def model_path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("store-model") / "tiny.gguf"
    synthesize(path, GEOMETRIES["tiny"], TypePlan.preset("q4_k"))
    return path


@dataclass
class World:
    """An open model, and where its store would lie."""

    file: ModelFile
    ctx: _native.Context
    layout: StoreLayout
    path: Path

    def make(self, on_progress=None):
        return make_store(
            self.path, self.layout, self.ctx, self.file.index, self.file.spec, on_progress
        )

    @property
    def part(self) -> Path:
        return self.path.with_name(self.path.name + ".part")

    def holds_every_blob(self) -> None:
        """Compares the whole file with what packing gives."""
        content = np.fromfile(self.path, np.uint8)
        assert len(content) == self.layout.num_bytes
        spec = self.file.spec
        tensors = ModelTensors(self.file.index, spec, has_draft=False, on_progress=None)
        extents = self.layout.on_disk(self.path).extents.reshape(spec.num_layers, -1, 3)
        for layer, shape in enumerate(self.layout.shapes):
            room = np.zeros((spec.num_experts, shape.blob_bytes), np.uint8)
            pack_experts(self.ctx, shape, tensors, range(spec.num_experts), iter(room))
            for expert, (_, offset, size) in enumerate(extents[layer]):
                assert offset % 4096 == size % 4096 == 0
                assert np.array_equal(content[offset : offset + size], room[expert])

    def sources(self, **settings):
        """What ``open_tier`` would read from."""
        index, spec = self.file.index, self.file.spec
        chosen = Settings(**{"expert_store": self.path.parent} | settings)
        return experts_on_disk(self.ctx, index, spec, layer_shapes(index, spec), chosen)


def opened(model_path: Path, folder: Path) -> World:
    file = open_file(model_path)
    ctx = _native.Context(1, "scalar")
    shapes = layer_shapes(file.index, file.spec)
    layout = store_layout(ctx, shapes, fingerprint(file.index, shapes))
    return World(file, ctx, layout, folder / store_name(file.index, layout.model))


@pytest.fixture
def world(model_path: Path, tmp_path: Path) -> Iterator[World]:
    one = opened(model_path, tmp_path)
    yield one
    one.file.close()


def test_every_blob_is_what_packing_gives(world: World) -> None:
    told: list[tuple[int, int]] = []
    disk = world.make(lambda done, total: told.append((done, total)))
    assert disk.is_packed
    assert not world.part.exists()
    assert np.array_equal(disk.extents, world.layout.on_disk(world.path).extents)
    world.holds_every_blob()
    assert told == sorted(told)
    assert told[-1] == (world.layout.num_bytes, world.layout.num_bytes)


def test_a_store_is_opened_and_not_made_again(world: World) -> None:
    first = world.sources()
    before = world.path.stat().st_mtime_ns
    second = world.sources()
    assert world.path.stat().st_mtime_ns == before
    assert np.array_equal(first.extents, second.extents)
    assert second.paths == (world.path,)


@pytest.mark.parametrize("left", [0, 7, 100, 5000, -4096, -1])
def test_a_store_that_was_cut_off_is_made_anew(world: World, left: int) -> None:
    world.make()
    whole = world.path.read_bytes()
    world.path.write_bytes(whole[:left])
    with pytest.raises(StoreDamaged, match="not usable"):
        open_store(world.path, world.layout)
    told: list[str] = []
    stop = telemetry.listen(lambda event: told.append(event.message))
    try:
        world.sources()
    finally:
        stop()
    assert any("It is made anew" in text for text in told)
    assert world.path.read_bytes() == whole


@pytest.mark.parametrize("at", [9, 20, 60])
def test_a_damaged_header_is_made_anew(world: World, at: int) -> None:
    world.make()
    content = bytearray(world.path.read_bytes())
    content[at] ^= 0x10
    world.path.write_bytes(content)
    with pytest.raises(StoreDamaged):
        open_store(world.path, world.layout)


def test_another_model_s_store_is_refused(world: World, tmp_path: Path) -> None:
    other_path = tmp_path / "other.gguf"
    synthesize(other_path, GEOMETRIES["tiny"], TypePlan.preset("q4_k"), 7)
    other = opened(other_path, tmp_path)
    # The same geometry and sizes: only the weights differ.
    assert other.layout.num_bytes == world.layout.num_bytes
    assert other.path.name != world.path.name.replace("tiny", "other")
    other.make().paths[0].rename(world.path)
    with pytest.raises(CheckpointError, match="this expert store is another model's") as told:
        world.sources()
    assert str(world.path) in str(told.value)
    assert "Try: delete it" in str(told.value)
    other.file.close()


def test_another_kind_of_file_is_refused(world: World) -> None:
    world.path.write_bytes(b"GGUF" + bytes(5000))
    with pytest.raises(CheckpointError, match="this is no expert store"):
        world.sources()


def test_panels_of_another_program_are_made_anew(world: World, monkeypatch) -> None:
    world.make()
    monkeypatch.setattr(expert_store, "_panel_check", lambda _ctx, _number: 1)
    shapes = world.layout.shapes
    other = store_layout(world.ctx, shapes, world.layout.model)
    with pytest.raises(StoreDamaged, match="another version of Strata"):
        open_store(world.path, other)


class Broken(Exception):
    pass


@pytest.mark.parametrize("after", [1, 2])
def test_making_goes_on_where_it_was_broken_off(world: World, monkeypatch, after: int) -> None:
    packed: list[int] = []
    real = expert_store.pack_experts

    def pack(ctx, shape, *rest) -> None:
        if len(packed) == after:
            raise Broken
        packed.append(world.layout.shapes.index(shape))
        real(ctx, shape, *rest)

    monkeypatch.setattr(expert_store, "pack_experts", pack)
    with pytest.raises(Broken):
        world.make()
    assert world.part.exists()
    assert not world.path.exists()
    after = 100
    world.make()
    # No layer twice.
    assert packed == list(range(len(world.layout.shapes)))
    world.holds_every_blob()


def test_a_layer_that_did_not_reach_the_disk_is_packed_again(world: World, monkeypatch) -> None:
    real = expert_store.pack_experts
    packed: list[int] = []

    def pack(ctx, shape, *rest) -> None:
        if len(packed) == 2:
            raise Broken
        packed.append(world.layout.shapes.index(shape))
        real(ctx, shape, *rest)

    monkeypatch.setattr(expert_store, "pack_experts", pack)
    with pytest.raises(Broken):
        world.make()
    with world.part.open("r+b") as file:
        file.seek(world.layout.offsets[1])
        file.write(bytes(100))
    monkeypatch.setattr(expert_store, "pack_experts", real)
    world.make()
    world.holds_every_blob()


def test_a_part_of_another_model_is_begun_again(world: World) -> None:
    world.part.write_bytes(b"something else" * 1000)
    world.make()
    world.holds_every_blob()


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from strata import _native
    from strata.cpu import expert_store
    from strata.cpu.expert_files import fingerprint
    from strata.cpu.expert_layers import layer_shapes
    from strata.engine.model_file import open_file

    file = open_file(Path(sys.argv[1]))
    ctx = _native.Context(1, "scalar")
    shapes = layer_shapes(file.index, file.spec)
    layout = expert_store.store_layout(ctx, shapes, fingerprint(file.index, shapes))

    def on_progress(done, total):
        if done > layout.offsets[2]:
            os.kill(os.getpid(), signal.SIGKILL)

    expert_store.make_store(Path(sys.argv[2]), layout, ctx, file.index, file.spec, on_progress)
"""


def test_the_maker_may_be_killed(world: World, model_path: Path) -> None:
    arguments = [sys.executable, "-c", textwrap.dedent(KILLED), str(model_path), str(world.path)]
    done = subprocess.run(arguments, check=False, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert world.part.exists()
    assert not world.path.exists()
    told: list[int] = []
    world.make(lambda num, _total: told.append(num))
    # Two layers were there; the third had been cut off.
    assert told[0] > world.layout.offsets[2]
    world.holds_every_blob()


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "fsync"])
def test_a_full_disk_is_one_error_and_leaves_no_file(world: World, monkeypatch, call: str) -> None:
    real = getattr(os, call)
    num_calls = 0

    def full(descriptor: int, *rest):
        nonlocal num_calls
        num_calls += 1
        if call == "posix_fallocate" or num_calls > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, *rest)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(PlanError, match="cannot be made: No space left on device") as told:
        world.make()
    assert "--mmap-experts" in str(told.value)
    assert not world.part.exists()
    assert not world.path.exists()
    monkeypatch.undo()
    world.make()


def test_too_little_room_is_seen_before_anything_is_written(world: World, monkeypatch) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(expert_build.shutil, "disk_usage", lambda _path: Usage)
    with pytest.raises(PlanError, match="the disk has 1000 B left"):
        world.sources()
    assert not world.part.exists()


def test_without_room_in_the_model_s_folder_its_own_file_is_read(
    world: World, monkeypatch, model_path: Path
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(expert_build.shutil, "disk_usage", lambda _path: Usage)
    told: list[str] = []
    stop = telemetry.listen(lambda event: told.append(event.message))
    try:
        disk = world.sources(expert_store=None)
    finally:
        stop()
    assert not disk.is_packed
    assert disk.paths == (model_path,)
    assert any("read from the model's own file" in text for text in told)


def test_a_folder_that_is_not_there_is_told(world: World, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="No such file or directory"):
        world.sources(expert_store=tmp_path / "gone")


def test_two_makers_do_not_write_one_file(world: World) -> None:
    with pytest.raises(DeviceError, match="another program is making the expert store"):
        world.make(lambda _done, _total: world.make())


def test_the_fingerprint_sees_one_sampled_byte(world: World, model_path: Path, tmp_path) -> None:
    entry = world.file.index[world.layout.shapes[0].names[0]]
    content = bytearray(model_path.read_bytes())
    content[entry.offset + 17] ^= 1
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(content)
    other = opened(changed, tmp_path)
    assert other.layout.model != world.layout.model
    other.file.close()
