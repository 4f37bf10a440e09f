"""install(): Triton's own tuners, and Inductor's candidates where that is asked for, are decided by this package."""

from __future__ import annotations

from collections.abc import Iterable

from ..settings import wants_inductor
from .inductor import hook
from .triton.install import give_tuners_back, reach_tuners


def install(
    only: str | Iterable[str] | None = None, skip: str | Iterable[str] = (), *, inductor: bool | None = None
) -> None:
    """Have all of this process's kernels under `triton.autotune` decided as if by `forecast_autotune`.

    That is those decorated before and those still to come, and those under a class that a package derives from Triton's.
    Whatever their class, name and attributes, they stay what they are. `installed()` lists them, and `tuner_of(kernel)` has
    `decisions` and `explain()`. A second call only changes which packages are meant.

    Our front end, and torch with it, is imported at the first launch: when Triton is being imported torch may be half
    imported, and a program without kernels need not wait.

    With `inductor`, `torch.compile` with max-autotune, too, compiles and times only those of its own candidates for matrix
    products that forecasts favour, and their times are remembered. Where this torch is not as it is known here, one warning
    says so, and torch.compile is left as it is.

    Args:
        only: names of packages or modules, as they are imported (`"fla"`): no other kernels are reached.
        skip: names of packages or modules whose kernels are left to Triton, also where `only` names them.
        inductor: whether Inductor's own candidates are narrowed; without it, where FORECAST_AUTOTUNE_INDUCTOR=1 says so,
            or an earlier call did.
    Raises:
        MissingExtraError: Triton is not installed.
        InvalidInputError: what is given for `only` or `skip` is no module's name.
    """
    reach_tuners(only, skip)
    if inductor or (inductor is None and wants_inductor()):
        hook.install()
    elif inductor is False:
        hook.uninstall()


def uninstall() -> None:
    """Undo `install()`: Triton's class and its tuners are what they were, and what was decided stays in their caches.

    Inductor lists its own candidates again.

    A method of the class that somebody else has replaced since keeps theirs. A call that a thread is in ends as it began.
    """
    hook.uninstall()
    give_tuners_back()
