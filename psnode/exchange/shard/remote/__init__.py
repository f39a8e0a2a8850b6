"""Shards on ranks other than the master: the loop that serves a shard, the messages, and the master's handle."""
