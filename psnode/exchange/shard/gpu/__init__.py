"""Work of a shard on a CUDA device: sums, updates and changes of weights."""
