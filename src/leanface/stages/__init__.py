"""The steps of a restoration: each takes values and returns values, and knows none of the others."""
