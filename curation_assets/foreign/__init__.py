"""What we use of other libraries that they do not promise, a file a library; each use has a guard and a public way."""
