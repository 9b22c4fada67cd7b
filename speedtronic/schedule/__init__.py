"""Schedules of learning rate, momentum and decay: pure functions, and the LambdaLR over them."""
