"""Prediction of a training step's duration before the job exists, from measurements of the model on one host."""
