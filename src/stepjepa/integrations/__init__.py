"""Other trainers with a JEPA objective, on the functions of `stepjepa.parts`. Each module imports the library it is for."""
