"""`psnode bench convergence`: train the same model on the same data with several schemes for the same number of steps.

Each run of psnode is a separate job: `psnode launch -n P -- train ...`. On hosts with few cores, `psnode train --local P ...`
computes the same sums in one process, without ranks that wait in MPI. Then the last checkpoint of the run is evaluated, or one
checkpoint every `--evaluate-every` steps. All figures are read from the files of the run: accuracy and loss on the test set,
bytes in each direction, and times of a step.

A table of many runs takes hours. If the same command is given again after an interruption, it reads finished runs, resumes runs
that have a checkpoint, and begins all other runs anew.
"""
