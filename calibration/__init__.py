"""Record spaces, fit what forecasts, evaluate it, report. It imports the package, never the reverse."""
