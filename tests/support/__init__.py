"""Shared pieces for the tests."""
