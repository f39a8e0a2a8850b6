"""Sessions: the training loop of a user's own program, with its settings, data, figures and words, and alone without MPI."""
