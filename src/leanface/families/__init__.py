"""One file per model family; each defines FAMILY."""
