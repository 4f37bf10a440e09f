"""What a `TuningWorker` starts, with one device visible: a process that makes a suite's calls, so that they are tuned.

What to call comes on stdin, a JSON line each, and what became of it goes to stdout; what kernels and compilers print goes to
stderr. With `run` and a command it becomes that program; without anything it says what its device is. It ends with whoever
started it, also by SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from typing import Any

from ..core.text import error_text
from ..errors import InvalidInputError, TuningWarning
from ..processes.serving import signal_at_death_of_parent
from .suites import calls_of


def describe() -> dict[str, Any]:
    """The device that this process tunes on."""
    from ..measure.probe import detect_hardware

    device = current_device()
    hardware = detect_hardware(device)
    return {"device": device.partition(":")[0], "hardware": hardware.digest, "name": hardware.name}


def current_device() -> str:
    """The first GPU that this process sees; else the CPU."""
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def serve(program: str, *, module: bool) -> None:
    """Say what there is to call, then call what is asked for, one after the other."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        calls = calls_of(program, module=module)
    except InvalidInputError as err:
        print(json.dumps({"problem": str(err)}), file=answers)
        return
    print(json.dumps({"calls": list(calls), **describe()}), file=answers)
    for line in sys.stdin:
        name = json.loads(line)["call"]
        problem, warned = "", []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TuningWarning)
            try:
                calls[name]()
            except Exception as err:
                problem = f"{type(err).__name__}: {error_text(err)}".partition("\n")[0]
            warned = [str(each.message) for each in caught if issubclass(each.category, TuningWarning)]
        print(json.dumps({"ended": name, "problem": problem, "warnings": warned}), file=answers)
        if not _is_usable():
            os._exit(1)  # whoever started it starts another


def _is_usable() -> bool:
    """Whether anything can still be launched; frees the memory that torch keeps."""
    import torch

    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    signal_at_death_of_parent(signal.SIGKILL)
    if len(sys.argv) == 1:
        print(json.dumps(describe()))
    elif sys.argv[1] == "run":
        os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606  # there is no shell; the command is the user's own
    else:
        serve(sys.argv[2], module=sys.argv[1] == "module")
