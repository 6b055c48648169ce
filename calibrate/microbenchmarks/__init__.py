"""What can be measured on a GPU, and the code that runs it."""
