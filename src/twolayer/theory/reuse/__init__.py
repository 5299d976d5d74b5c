"""Training on reused samples: the frame of the weights, typical samples, Sobol nets."""
