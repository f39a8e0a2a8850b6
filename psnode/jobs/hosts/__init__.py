"""The hosts of a hostfile, asked before a job is started on them."""
