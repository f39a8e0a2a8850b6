"""Records of a run on disk: its directory, checkpoints, metrics, journals and history."""
