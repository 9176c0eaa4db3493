"""One file per inference library; each imports its library inside functions only."""
