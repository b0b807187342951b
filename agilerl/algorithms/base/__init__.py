"""What all algorithms are made of."""
