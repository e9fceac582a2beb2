"""The version of the library: a file that imports nothing, so that every part may ask."""

__version__ = "0.3.0"
