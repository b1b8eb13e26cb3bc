"""Binary sizes, pages, and how people write and read them. Nothing else formats numbers."""

import re

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30
TiB = 1 << 40

# What a system maps and a disk reads without a copy.
PAGE_BYTES = 4 * KiB

_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[MGT])(i?B)?", re.IGNORECASE)
_UNITS = {"M": MiB, "G": GiB, "T": TiB}


def parse_bytes(text: str) -> int | None:
    """Bytes of ``8G``, ``512M`` or ``1.5 GiB``; binary units, as memory is sold. None: no size."""
    found = _SIZE.fullmatch(text.strip())
    return None if found is None else round(float(found["number"]) * _UNITS[found["unit"].upper()])


def format_bytes(num_bytes: float) -> str:
    """Memory as people read it: ``"1.50 GiB"``, ``"640 B"``."""
    for unit, size in (("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes:.0f} B"


def format_rate(bytes_per_s: float) -> str:
    """Bandwidth in decimal gigabytes a second: ``"21.3 GB/s"``."""
    return f"{bytes_per_s / 1e9:.1f} GB/s"


def whole_pages(num_bytes: int) -> int:
    """Rounded up to whole pages."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
