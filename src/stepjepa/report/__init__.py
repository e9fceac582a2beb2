"""One HTML page of runs or of a study."""
