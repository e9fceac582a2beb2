"""Other trainers with a JEPA objective, built on `stepjepa.parts`. Each module imports the library that it is for."""
