"""Speed, memory and quality, measured; documents quote only what these print."""
