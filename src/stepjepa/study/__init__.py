"""Studies: arms that are trained over paired seeds, scored and compared."""
