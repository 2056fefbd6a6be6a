"""Stores: the code that moves bytes (tables with manifests, tars, images, catalogues) and never judges them."""
