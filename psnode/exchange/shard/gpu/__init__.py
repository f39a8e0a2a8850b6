"""Work of a shard on a CUDA device: sums of gradients, updates of weights, and coded changes of weights."""
