"""Display of the records of finished and running jobs: `psnode report` and `psnode runs`."""
