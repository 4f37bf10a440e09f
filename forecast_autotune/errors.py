"""The few exceptions a caller may meet. Each carries one finished message, so each survives pickling.

A config that fails is never an exception: it is a `Failure`, kept with its reason.
"""

from __future__ import annotations


class AutotuneError(Exception):
    """Anything this package raises on purpose."""


class InvalidInputError(AutotuneError, ValueError):
    """An argument, a setting or a file does not say what it must; the message names the value and what is accepted."""


class SettingError(InvalidInputError):
    """A variable `FORECAST_AUTOTUNE_*` of the environment does not parse."""


class MissingExtraError(AutotuneError, ImportError):
    """An optional package is not installed; the message says how to install it."""


class NoWorkingConfigError(AutotuneError, RuntimeError):
    """No config can be launched for this call, the default included; the message says what each ran into."""


class BuildError(NoWorkingConfigError):
    """A C++ or CUDA extension does not compile; the message holds the compiler's first errors and where its log is.

    A `RuntimeError`, as torch's own `load_inline` raises.
    """


class NoGpuError(AutotuneError, RuntimeError):
    """A Triton kernel was launched where Triton finds no GPU; Triton itself raises `RuntimeError` there."""


class CacheMissError(AutotuneError, LookupError):
    """Mode `strict` met a key that has no decision."""


class StoreError(AutotuneError, RuntimeError):
    """A store cannot be read by this version, or cannot be opened where the user asked for it by name."""


class RemoteStoreError(AutotuneError, RuntimeError):
    """A remote store cannot be reached, or refuses what was asked of it; names the address and what to do."""


class NoBoxError(AutotuneError, RuntimeError):
    """This system has no box to run unknown code in, so nothing is run that needs one; the message says what is lacking."""


class WorkerError(AutotuneError, RuntimeError):
    """Worker processes died again and again, so that what they were to do is not done."""


class StoreWarning(UserWarning):
    """The store was broken, cannot be written to or cannot be read in part; tuning goes on, and this is said once."""


class TuningWarning(UserWarning):
    """Tuning could not do its work; the call goes on with the best answer still available."""
