"""JEPA objectives in other trainers, built on `stepjepa.parts`. Each module imports the library that it integrates with."""
