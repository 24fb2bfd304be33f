"""What a compile asks of the device that a plan is for. Each front end answers for its framework (torch/device.py)."""

from __future__ import annotations

from typing import Any, Protocol


class Device(Protocol):
    """Where a plan's tensors lie."""

    framework: str
    """Its name and version: "torch 2.13.0"."""
    calls_operators: bool
    """Whether a plan may call the framework's own operators."""

    def target(self) -> dict[str, Any]:
        """What `trainc._core` compiles for: its "device", and the switches that such a device has."""

    def facts(self) -> list[Any]:
        """What else a plan depends on: part of its key in the cache."""

    def facts_of_measurements(self) -> list[Any]:
        """What else a plan depends on that measures the framework's own operators."""

    def threads(self) -> int:
        """Those that the framework computes with on the host."""


__all__ = ["Device"]
