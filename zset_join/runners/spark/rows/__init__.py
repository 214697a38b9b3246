"""DataFrames to rows of the engine: names, types, formats, the layout in which rows travel."""
