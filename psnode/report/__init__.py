"""Display of the records of jobs, finished or not: `psnode report` and `psnode runs`."""
