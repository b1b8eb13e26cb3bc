"""Many reads at once against slices of the bytes that were written, and what stops them."""

from __future__ import annotations

import errno
import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata import _native
from strata.file_reads import DIRECT_ALIGNMENT, ReadError, ReadFile

SIZE = 3 * (1 << 20) + 777  # the end is no whole page


@pytest.fixture(scope="module")
def content() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, content: np.ndarray) -> Path:
    path = tmp_path_factory.mktemp("reads") / "content"
    path.write_bytes(content.tobytes())
    return path


def int64s(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def aligned(size: int) -> np.ndarray:
    """Memory that begins where direct reads can go straight to."""
    room = np.zeros(size + DIRECT_ALIGNMENT, np.uint8)
    return room[-room.ctypes.data % DIRECT_ALIGNMENT :][:size]


@st.composite
def read_lists(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(offset, size) pairs: rows, blobs longer than a piece, whole pages, nothing."""
    sizes = st.one_of(
        st.integers(0, 300),
        st.integers(60_000, 1_300_000),
        st.integers(1, 40).map(lambda pages: pages * DIRECT_ALIGNMENT),
    )
    reads = []
    for size in draw(st.lists(sizes, max_size=12)):
        offset = draw(st.integers(0, SIZE - size))
        if draw(st.booleans()):
            offset -= offset % DIRECT_ALIGNMENT
        reads.append((offset, size))
    return reads


@pytest.mark.parametrize("is_direct", [True, False])
@settings(deadline=None, max_examples=60)
@given(reads=read_lists(), is_congruent=st.booleans())
def test_any_reads(
    path: Path, content: np.ndarray, reads: list[tuple[int, int]], *, is_congruent: bool,
    is_direct: bool,
) -> None:  # fmt: skip
    places, end = [], 0
    for offset, size in reads:
        # Every other byte of memory keeps its value; congruent places are read to straight.
        end += (offset - end) % DIRECT_ALIGNMENT if is_congruent else 5
        places.append(end)
        end += size
    out = aligned(end + 9)
    out[:] = 0xA5
    expected = out.copy()
    for (offset, size), place in zip(reads, places, strict=True):
        expected[place : place + size] = content[offset : offset + size]
    file = ReadFile(path, is_direct=is_direct, num_threads=3)
    offsets, sizes = (np.array(x, np.int64) for x in (list(zip(*reads, strict=True)) or [[], []]))
    pending = file.start(offsets, sizes, np.array(places, np.int64), out)
    pending.wait()
    np.testing.assert_array_equal(out, expected)
    assert pending.is_done
    assert pending.num_bytes == sizes.sum()
    assert pending.num_reads == np.count_nonzero(sizes)
    file.close()


@pytest.mark.parametrize("is_direct", [True, False])
def test_thousands_of_rows(path: Path, content: np.ndarray, *, is_direct: bool) -> None:
    file = ReadFile(path, is_direct=is_direct)
    offsets = np.random.default_rng(2).integers(0, SIZE - 90, 5000)
    out = np.zeros((5000, 90), np.uint8)
    file.start(offsets, np.full(5000, 90), np.arange(5000) * 90, out).wait()
    np.testing.assert_array_equal(out, content[offsets[:, None] + np.arange(90)])
    file.close()


def test_without_threads_the_one_who_waits_reads(path: Path, content: np.ndarray) -> None:
    file = ReadFile(path, is_direct=True, num_threads=0)
    out = np.zeros(2_000_000, np.uint8)
    reads = file.start(int64s(11), int64s(2_000_000), int64s(0), out)
    assert not reads.is_done
    reads.wait()
    np.testing.assert_array_equal(out, content[11 : 11 + 2_000_000])
    file.close()


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("size", [90, 700_000])
def test_the_first_read_past_the_end_is_named(path: Path, size: int, *, is_direct: bool) -> None:
    file = ReadFile(path, is_direct=is_direct)
    out = np.zeros((3, size), np.uint8)
    offsets = int64s(0, SIZE - size + 7, SIZE + 100)
    with pytest.raises(ReadError, match=f"expected {size} bytes, found {size - 7}") as caught:
        file.start(offsets, np.full(3, size), np.arange(3) * size, out).wait()
    assert caught.value.errno is None
    assert (caught.value.offset, caught.value.got) == (SIZE - size + 7, size - 7)
    assert caught.value.filename == str(path)
    file.close()


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("size", [16, 600_000])
def test_what_the_system_reports_is_passed_on(size: int) -> None:
    """The first page of a process is never mapped: reading it there is an input/output error."""
    file = ReadFile(Path("/proc/self/mem"), is_direct=False)
    good = np.arange(size, dtype=np.uint8)
    out = np.zeros((2, size), np.uint8)
    with pytest.raises(ReadError, match="Input/output error") as caught:
        file.start(int64s(good.ctypes.data, 64), np.full(2, size), int64s(0, size), out).wait()
    assert (caught.value.errno, caught.value.offset) == (errno.EIO, 64)
    np.testing.assert_array_equal(out[0], good)  # the other one arrived
    file.close()


def test_a_closed_file(path: Path, content: np.ndarray) -> None:
    file = ReadFile(path, is_direct=False)
    out = np.zeros((2, 400_000), np.uint8)
    reads = file.start(int64s(0, 5), np.full(2, 400_000), int64s(0, 400_000), out)
    few = np.zeros(90, np.uint8)
    row = file.start(int64s(9), int64s(90), int64s(0), few)
    file.close()
    assert reads.is_done  # they were waited for
    assert row.is_done
    reads.wait()
    np.testing.assert_array_equal(out[1], content[5:400_005])
    np.testing.assert_array_equal(few, content[9:99])
    with pytest.raises(ReadError) as caught:
        file.start(int64s(0), int64s(90), int64s(0), out).wait()
    assert caught.value.errno == errno.EBADF
    file.close()


def thread_names() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_threads_come_with_work_and_end_at_close(path: Path) -> None:
    before = thread_names()
    file = ReadFile(path, is_direct=True, num_threads=5)
    assert thread_names() == before
    out = np.zeros((40, 90), np.uint8)
    file.start(np.arange(40) * 90, np.full(40, 90), np.arange(40) * 90, out).wait()
    assert thread_names() == before + 5
    file.close()
    assert thread_names() == before
    # A reader that nobody closed ends its threads when it goes.
    reader = _native.FileReader(4)
    with path.open("rb") as opened:
        reader.start(opened.fileno(), *(np.arange(400) * 5,) * 3, np.zeros(9000, np.uint8), True)
        del reader
        gc.collect()
    assert thread_names() == before


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_rows_in_the_page_cache_start_no_thread(path: Path, content: np.ndarray) -> None:
    path.read_bytes()  # now it is in the cache
    with path.open("rb") as opened:
        try:
            os.preadv(opened.fileno(), [bytearray(8)], 0, os.RWF_NOWAIT)
        except OSError:
            pytest.skip("this file system cannot say what is in the cache")
    before = thread_names()
    file = ReadFile(path, is_direct=False, num_threads=5)
    out = np.zeros((512, 90), np.uint8)
    offsets = np.arange(512) * 7
    reads = file.start(offsets, np.full(512, 90), np.arange(512) * 90, out)
    assert thread_names() == before
    reads.wait()
    np.testing.assert_array_equal(out, content[offsets[:, None] + np.arange(90)])
    assert (reads.num_reads, reads.num_bytes) == (512, 512 * 90)
    file.close()


def test_an_abandoned_read_writes_no_more(path: Path) -> None:
    file = ReadFile(path, is_direct=True, num_threads=2)
    out = np.zeros((3000, 90), np.uint8)
    arguments = (np.arange(3000) * 90, np.full(3000, 90), np.arange(3000) * 90, out)
    reads = file.start(*arguments)
    reads.abandon()
    assert reads.is_done
    out[:] = 1
    time.sleep(0.01)
    assert (out == 1).all()
    with pytest.raises(ReadError, match="ancel"):
        reads.wait()
    # The same where nobody holds the reads any more.
    file.start(*arguments)
    out[:] = 1
    time.sleep(0.01)
    assert (out == 1).all()
    file.close()


def test_several_threads_at_once(path: Path, content: np.ndarray) -> None:
    file = ReadFile(path, is_direct=True, num_threads=4)
    wrong = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            offsets = rng.integers(0, SIZE - 300, 30)
            out = np.zeros((30, 300), np.uint8)
            file.start(offsets, np.full(30, 300), np.arange(30) * 300, out).wait()
            if not np.array_equal(out, content[offsets[:, None] + np.arange(300)]):
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    file.close()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("is_direct", [True, False])
def test_a_forked_child_reads_too(path: Path, content: np.ndarray, *, is_direct: bool) -> None:
    """Its parent's threads are not in it; reads on their way when it began are read again."""
    file = ReadFile(path, is_direct=is_direct, num_threads=3)
    out = np.zeros((2000, 90), np.uint8)
    offsets = np.random.default_rng(5).integers(0, SIZE - 90, 2000)
    arguments = (offsets, np.full(2000, 90), np.arange(2000) * 90)
    reads = file.start(*arguments, out)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            reads.wait()
            again = np.zeros_like(out)
            file.start(*arguments, again).wait()
            file.close()
            expected = content[offsets[:, None] + np.arange(90)]
            status = 0 if np.array_equal(out, expected) and np.array_equal(again, expected) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    reads.wait()
    np.testing.assert_array_equal(out, content[offsets[:, None] + np.arange(90)])
    file.close()


def test_an_open_that_refuses_direct_reads(
    path: Path, content: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refusals = os.open, []

    def no_direct(name: Path, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(name, flags)

    monkeypatch.setattr(os, "open", no_direct)
    file = ReadFile(path, is_direct=True, on_refused=lambda: refusals.append(1))
    assert (file.is_direct, refusals) == (False, [1])
    out = np.zeros(50, np.uint8)
    file.start(int64s(3), int64s(50), int64s(0), out).wait()
    np.testing.assert_array_equal(out, content[3:53])
    file.close()


class Refusing:
    """Direct reads end as on a file system that takes the flag and refuses the read."""

    def __init__(self, real: _native.FileReader) -> None:
        self._real = real

    def start(self, fd: int, offsets: np.ndarray, *rest: object) -> object:
        if rest[-1]:
            return self
        return self._real.start(fd, offsets, *rest)

    def wait(self) -> tuple[int, int, int, int]:
        return errno.EINVAL, 3, 50, 0

    def close(self) -> None:
        self._real.close()


def test_reads_that_refuse_to_be_direct(path: Path, content: np.ndarray) -> None:
    refusals: list[int] = []
    file = ReadFile(path, is_direct=True, on_refused=lambda: refusals.append(1))
    file._reader = Refusing(file._reader)
    out = np.zeros((2, 50), np.uint8)
    both = [file.start(int64s(3), int64s(50), int64s(50 * i), out) for i in range(2)]
    for reads in both:
        reads.wait()
    np.testing.assert_array_equal(out, np.stack([content[3:53]] * 2))
    assert (file.is_direct, refusals) == (False, [1])
    file.close()


def test_files_in_memory(content: np.ndarray) -> None:
    folder = Path("/dev/shm")  # older kernels refuse direct reads there, newer ones do them
    if not os.access(folder, os.W_OK):
        pytest.skip("no file system in memory here")
    path = folder / f"strata-test-{os.getpid()}"
    try:
        path.write_bytes(content.tobytes())
        file = ReadFile(path, is_direct=True)
        out = np.zeros(SIZE - 5, np.uint8)
        file.start(int64s(5), int64s(SIZE - 5), int64s(0), out).wait()
        np.testing.assert_array_equal(out, content[5:])
        file.close()
    finally:
        path.unlink()


def test_calls_that_would_write_elsewhere(path: Path) -> None:
    reader = _native.FileReader(1)
    out = np.zeros(100, np.uint8)
    for offset, size, place in [(0, 101, 0), (0, 1, 100), (0, 1, -1), (-1, 1, 0), (0, -1, 0),
                                (0, 2**63 - 1, 5)]:  # fmt: skip
        with pytest.raises(ValueError, match=r"outside its array|negative"):
            reader.start(0, int64s(offset), int64s(size), int64s(place), out, False)
    with pytest.raises(ValueError, match="every read"):
        reader.start(0, int64s(1, 2), int64s(1), int64s(0), out, False)
    for bad in (out.astype(np.int8), out[::2], np.frombuffer(b"unwritable", np.uint8)):
        with pytest.raises(TypeError):
            reader.start(0, int64s(0), int64s(1), int64s(0), bad, False)
    with pytest.raises(TypeError):
        reader.start(0, np.zeros(1, np.int32), int64s(1), int64s(0), out, False)
    with pytest.raises(ValueError, match="num_threads"):
        _native.FileReader(5000)
    reader.close()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for is_direct in (True, False):
        with pytest.raises(FileNotFoundError):
            ReadFile(tmp_path / "nothing", is_direct=is_direct)
