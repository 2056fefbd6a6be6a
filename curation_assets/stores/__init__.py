"""Stores: the code that moves bytes (tables, tars, images, catalogues) and never judges them."""
