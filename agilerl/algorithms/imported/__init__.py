"""Import of policies of other libraries: their file formats, and the same functions as evolvable networks."""
