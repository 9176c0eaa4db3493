"""One module or package per inference library; each imports its library inside functions only."""
