"""Where weights come from, where they are kept and how they are read."""
