"""The routes of groups in a predicted job: costs of the groups, bytes on the link of every rank, and both as text."""
