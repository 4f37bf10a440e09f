"""What machines learn, shared through storage that all of them can reach."""
