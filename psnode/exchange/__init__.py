"""Data plane: gradients on their way from workers to the roots that sum them, and weights on their way back."""
