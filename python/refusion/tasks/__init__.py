"""Tasks whose answers can be checked: generators of training data and of held-out problems."""
