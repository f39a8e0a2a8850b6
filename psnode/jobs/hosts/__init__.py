"""Checks of the hosts of a hostfile, before a job is started on them."""
