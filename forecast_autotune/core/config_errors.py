"""Which errors are a config's own, and which are of memory: by the names of their classes, so that nothing is imported."""

from __future__ import annotations

_REFUSALS = ("OutOfResources", "PTXASError", "CompileTimeAssertionFailure")
_OF_THE_CONFIG = (*_REFUSALS, "CompilationError")


def raised(err: BaseException) -> str:
    """An exception in words, beginning with its class, or with the one above it by which it is the config's own."""
    kinds = [k.__name__ for k in type(err).__mro__ if k.__name__ in _OF_THE_CONFIG]
    return f"{kinds[0] if kinds else type(err).__name__}: {err}"


def is_refusal(message: str) -> bool:
    """Whether it is one of the errors for which Triton's own tuner passes over a config; any other it raises.

    Args:
        message: an exception as `raised` puts it.
    """
    return message.partition(":")[0] in _REFUSALS


def is_of_the_config(message: str) -> bool:
    """Whether an error is the config's own doing, and would come again wherever it is compiled or launched alike.

    A refusal, or any error of compiling: a tile may be too small for an instruction. Where a second config does not compile
    either, it is the kernel.

    Args:
        message: an exception as `raised` puts it.
    """
    return message.partition(":")[0] in _OF_THE_CONFIG


def of_memory(err: BaseException) -> bool:
    """Whether memory ran out, of the host or of a device."""
    return says_of_memory(raised(err))


def says_of_memory(message: str) -> bool:
    """Whether an exception is of memory that ran out.

    Args:
        message: an exception as `raised` puts it.
    """
    return message.startswith(("MemoryError", "OutOfMemoryError")) or any(
        words in message.lower()
        for words in ("out of memory", "can't allocate memory")  # the latter are torch's for a CPU
    )
