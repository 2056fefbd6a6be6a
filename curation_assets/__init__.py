"""curation_assets: from a noisy image–text pool to an audited, high-quality subset."""

__version__ = "0.2.0"
