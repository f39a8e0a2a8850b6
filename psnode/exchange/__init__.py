"""The data plane: gradients on their way up, weights on their way down."""
