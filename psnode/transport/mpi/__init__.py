"""A transport between the processes of an MPI job."""
