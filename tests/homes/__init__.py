"""Small homes as earlier versions left them, each a packed folder: what this version must still open and continue."""
