"""How the embedded restorer `lite` is made: degradations, teacher, network, training, export, evaluation."""
