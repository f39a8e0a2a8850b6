"""Records of finished and running jobs, read for people: `psnode report` and `psnode runs`."""
