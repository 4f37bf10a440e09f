"""Commands that measure and judge the package; they import it, never the reverse."""
