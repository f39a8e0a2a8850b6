"""Checks of the hosts in a hostfile before a job starts on them."""
