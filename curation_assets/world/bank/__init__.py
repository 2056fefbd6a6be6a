"""The scene bank: captions of drawable scenes, written by a grammar, against which real captions are measured."""
