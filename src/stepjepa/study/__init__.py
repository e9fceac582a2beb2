"""Runs that are compared with each other."""
