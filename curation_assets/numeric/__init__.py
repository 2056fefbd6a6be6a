"""Pure numbers: numpy, scipy and scikit-learn only; no files, no clock, no models, no global randomness."""
