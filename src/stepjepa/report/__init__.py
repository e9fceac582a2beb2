"""One HTML page of what runs and studies have left on disk."""
