"""What the command's exit codes mean."""

from __future__ import annotations

OK, NOTHING, BAD_INPUT = 0, 1, 2


def exit_codes(nothing: str) -> str:
    """The end of a help text.

    Args:
        nothing: when exit code 1 is returned; empty where it never is.
    """
    lines = ["  0    done"]
    if nothing:
        lines.append(f"  1    {nothing}")
    lines.append(
        "  2    bad input, or it cannot be done here: a wrong argument, a broken file, a store that cannot be used"
    )
    lines.append("  130  ended by Ctrl-C")
    return "\n".join(["exit codes:", *lines])
