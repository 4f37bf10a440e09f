"""Who times."""
