"""Learning-rate schedules: pure functions of the step, and the LambdaLR over them."""
