"""Sessions, for programs that keep their own training loop: settings, data, figures, messages, and a mode without MPI."""
