"""Records of finished and running jobs, displayed for people: `psnode report` and `psnode runs`."""
