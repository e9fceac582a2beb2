"""Options as dataclass fields with metadata, and the parsing of flags and YAML files into these dataclasses."""
