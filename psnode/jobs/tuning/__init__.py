"""The command `psnode tune`: many short trainings with different settings, and a comparison of their results."""
