"""Prediction of the duration of a training step before its job exists, from measurements of the model on one host."""
