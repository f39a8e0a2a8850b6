"""Sessions, in which the user's program keeps its training loop: settings, data, figures, messages, and a mode without MPI."""
