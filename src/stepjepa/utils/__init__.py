"""Small tools that every package may use: whole-file writes."""
