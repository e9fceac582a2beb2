"""Helpers that every package may use: files, printing and progress, text, and parallel processes."""
