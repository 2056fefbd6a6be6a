"""Downloads of images from strangers' servers, guarded and polite."""
