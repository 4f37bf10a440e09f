"""How a process may end, in one set of words.

It *exited with code* N or was *killed by* a signal that it brought upon itself; it was *stopped from outside*, which says
nothing of its job; it *ran out of time*; it was *out of memory*.
"""

from __future__ import annotations

import errno
import os
import re
import signal

from ..errors import AutotuneError

_OWN_SIGNALS = ["ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP", "ALRM", "VTALRM", "PROF", "PIPE", "USR1", "USR2"]
OWN_SIGNALS = frozenset(getattr(signal, f"SIG{name}") for name in _OWN_SIGNALS if hasattr(signal, f"SIG{name}"))
"""What a process brings upon itself, as by its timers. All others come from outside: no memory, an operator, a limit."""

_TROUBLES = (
    *(errno.EACCES, errno.EAGAIN, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOLCK),
    *(errno.ENOMEM, errno.ENOSPC, errno.EROFS, errno.ESTALE),
)
_FROM_OUTSIDE = re.compile(
    "|".join(
        (
            *(re.escape(os.strerror(number)) for number in _TROUBLES),
            r"\b(?:Killed|Terminated|Hangup|Interrupt|File size limit exceeded|CPU time limit exceeded) signal",  # GCC
            r"terminated with signal (?:1|2|9|15|24|25)\b",  # its collect2, of ld
            r"unable to execute command: (?:Killed|Terminated)",  # Clang
            r"(?:died with <Signals\.|killed by )SIG(?:HUP|INT|KILL|TERM|XCPU|XFSZ)",  # Python, ourselves
            r"failed with error code -(?:1|2|9|15|24|25)\b|Cannot find ptxas",  # Triton, of ptxas and of asking its version
            r"interrupted by user|virtual memory exhausted|out of memory allocating|std::bad_alloc|MemoryError",
        )
    )
)


class WorkerDiedError(Exception):
    """A worker exited, or was killed by a signal of its own, without the answer that was waited for."""


class WorkerKilledError(WorkerDiedError):
    """A worker was stopped from outside, or its fork server was: that says nothing of what it was doing."""


class WorkerTimeoutError(Exception):
    """A worker ran out of time; it is still there, for the caller to kill."""


class WorkerMemoryError(Exception):
    """A worker was out of memory: it took more than it may; it is still there, for the caller to kill."""


class WorkerRaisedError(Exception):
    """A worker's job raised; the message is that exception's. The worker may go on."""


class WorkersUnavailableError(AutotuneError):
    """No worker can be had at all: it says nothing of the job that was to be done."""


def died(code: int) -> WorkerDiedError:
    """What became of a process with this exit code, as `subprocess` counts: below zero for signals."""
    if code >= 0:
        return WorkerDiedError(f"exited with code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return (WorkerDiedError if -code in OWN_SIGNALS else WorkerKilledError)(f"killed by {name}")


def blames_the_machine(text: str) -> bool:
    """Whether a tool's last words speak of a signal from outside, of memory or of a disk, not of what it was given."""
    return _FROM_OUTSIDE.search(text) is not None
