"""A terminal to run a program on, and what stands on its screen in the end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def shown_by(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, *, columns: int = 0
) -> tuple[int, str]:
    """A command's exit code and all that it sends to a terminal so wide, stdout and stderr together."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(
        command,
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = bytearray()
        deadline = time.monotonic() + 600  # of a machine that does ten things
        try:
            while part := os.read(ours, 65536):
                shown += part
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{command} goes on and on")
        except OSError:
            pass  # so a terminal tells that nobody writes to it any more
        finally:
            os.close(ours)
            if process.poll() is None and time.monotonic() > deadline:
                process.kill()
        return process.wait(timeout=200), shown.decode(errors="replace")


def screen_after(sent: str) -> list[str]:
    """The rows that stand on a terminal that was sent this, none longer than it is wide."""
    rows, column = [""], 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.", sent, re.DOTALL):
        if part == "\r":
            column = 0
        elif part == "\n":
            rows.append("")
            column = 0
        elif part == "\x1b[K":
            rows[-1] = rows[-1][:column]
        else:
            assert not part.startswith("\x1b"), f"{part!r} is no part of a line"
            rows[-1] = rows[-1][:column].ljust(column) + part + rows[-1][column + 1 :]
            column += 1
    return [row for row in rows if row]
