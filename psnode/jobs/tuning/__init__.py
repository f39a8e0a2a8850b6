"""`psnode tune`: many short trainings with different settings, and which of them did best."""
