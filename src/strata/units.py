"""Binary sizes, and how sizes and rates are written for people. Nothing else formats numbers."""

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30


def format_bytes(num_bytes: float) -> str:
    """Memory as people read it: ``"1.50 GiB"``, ``"640 B"``."""
    for unit, size in (("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes:.0f} B"


def format_rate(bytes_per_s: float) -> str:
    """Bandwidth in decimal gigabytes a second: ``"21.3 GB/s"``."""
    return f"{bytes_per_s / 1e9:.1f} GB/s"
