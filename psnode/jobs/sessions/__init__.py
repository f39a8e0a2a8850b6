"""Sessions, in which a user's own program keeps its training loop: settings, data, figures, messages, and a mode without MPI."""
