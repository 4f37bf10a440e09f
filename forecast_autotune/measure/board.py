"""What NVML tells of a GPU's board: its power limit, and its clock and temperature now."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


def power_limit_w(properties: Any) -> int:
    """A board's power limit in watts, of a MIG partition its board's; 0 where NVML does not tell it.

    Args:
        properties: torch's of the device.
    """
    try:
        nvml, board = _board(properties)
        limit_mw: int = nvml.nvmlDeviceGetPowerManagementLimit(board)
        return round(limit_mw / 1000)
    except Exception as err:  # and a board without limits
        log.debug("no power limit: %r", err)
        return 0


def sensors(properties: Any) -> Callable[[], tuple[float | None, float | None]] | None:
    """What reads a board's clock (MHz) and temperature (degrees Celsius), each None where it fails; None without NVML.

    Args:
        properties: torch's of the device.
    """
    try:
        nvml, board = _board(properties)
    except Exception as err:
        log.debug("no NVML: %r", err)
        return None

    def read() -> tuple[float | None, float | None]:
        clock_mhz = temperature_c = None
        with contextlib.suppress(nvml.NVMLError):
            clock_mhz = float(nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_SM))
        with contextlib.suppress(nvml.NVMLError):
            temperature_c = float(nvml.nvmlDeviceGetTemperature(board, nvml.NVML_TEMPERATURE_GPU))
        return clock_mhz, temperature_c

    return read


def _board(properties: Any) -> tuple[Any, Any]:
    """The library and its handle of a board, by its place, for torch may number devices otherwise.

    Raises:
        Exception: no NVIDIA library, no such package, an AMD device.
    """
    import pynvml

    pynvml.nvmlInit()
    bus = f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    return pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
