"""Jobs: the ranks of a training, how they are started, and how they are supervised."""
