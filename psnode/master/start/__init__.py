"""The start of a job on rank 0: agreement of the ranks, the plan, trial runs, and the state of a resumed run."""
