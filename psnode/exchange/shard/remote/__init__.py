"""Shards on workers: the loop that serves one there, the messages, and their handle on the master."""
