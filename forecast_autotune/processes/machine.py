"""What of this machine is ours to use: cores, memory, and how many ranks of a job share them; and giving way to others."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
BACKGROUND_NICE = 19  # of processes whose work nobody waits for
RANKS_ON_NODE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")


def workers_that_fit(memory_bytes: int) -> int:
    """How many workers suit this machine: one a core and so much memory, shared with the node's other ranks."""
    return max(1, min(usable_cores(), usable_memory_bytes() // memory_bytes) // ranks_on_node())


def ranks_on_node() -> int:
    """Processes of this job on this machine, by what their launcher says; 1 where none does."""
    for name in RANKS_ON_NODE:
        text = os.environ.get(name, "").split("(")[0]  # SLURM writes 8(x2)
        if text.isdigit() and int(text) > 0:
            return int(text)
    return 1


def usable_cores() -> int:
    """How many cores this process may use, by its affinity and its cgroup's quota."""
    return len(usable_core_ids())


def usable_core_ids() -> list[int]:
    """The cores this process may use; under a quota the first of them, so that all processes under it name the same."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = sorted(allowed)
    with contextlib.suppress(OSError, ValueError):
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        if quota != "max":
            cores = cores[: max(1, int(quota) // int(period))]
    return cores


def usable_memory_bytes() -> int:
    """Memory that can still be taken, by the kernel's estimate and the cgroup's limit; 4 GiB where nobody says.

    Pages of files are free: a container that has read much is at its limit with them.
    """
    free = 4 << 30
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    with contextlib.suppress(OSError, ValueError):
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        with contextlib.suppress(OSError):
            lines = (_CGROUP / "memory.stat").read_text().splitlines()
            used -= sum(int(line.split()[1]) for line in lines if line.startswith(("active_file", "inactive_file")))
        free = min(free, max(0, limit - used))
    return free


def own_bytes(pid: int) -> int:
    """Memory that a process has taken for itself alone, swapped out or not; 0 where nobody says."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "VmSwap:")))


def process_ids() -> list[int]:
    """The processes that /proc shows; none where there is no /proc. Each may have ended since."""
    return _numbers("/proc")


def thread_ids(pid: int) -> list[int]:
    """The threads of a process; none of one that has ended, or where there is no /proc."""
    return _numbers(f"/proc/{pid}/task")


def _numbers(folder: str) -> list[int]:
    # By os.listdir: pathlib's glob looks at each entry once more, and raises for a process that ends in between.
    try:
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]
    except OSError:
        return []


def give_way(nice: int) -> None:
    """Have this process give way to others for the CPU by so much niceness.

    Linux may share the CPU among sessions first (autogroup, sched(7)); niceness then counts within a session alone. So a
    process that leads one has it give way as a whole.
    """
    os.nice(nice)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # there are no such groups
            Path("/proc/self/autogroup").write_text(str(nice))
