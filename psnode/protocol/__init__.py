"""Frames and messages between ranks, and the channel that carries them over a transport."""
