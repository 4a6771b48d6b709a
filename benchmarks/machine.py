"""Where something was measured."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("mcp", "anthropic", "pydantic", "watchdog")


def machine() -> str:
    """Return a paragraph on machine, system and versions."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    cores = len(os.sched_getaffinity(0))
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {cores} cores of {_processor()}, {_memory()} of memory, "
        f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}, {versions}. "
        f"Load when it began: {os.getloadavg()[0]:.1f}."
    )


def _processor() -> str:
    return _field("/proc/cpuinfo", "model name") or platform.machine()


def _memory() -> str:
    kilobytes = _field("/proc/meminfo", "MemTotal").split()
    return f"{int(kilobytes[0]) / (1 << 20):.0f} GiB" if kilobytes else "an unknown amount"


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
