"""Parts of a session: its figures, the words of its messages, and a session in one process without MPI."""
