"""Options: fields of dataclasses with their metadata, and how flags and YAML files become instances of them."""
