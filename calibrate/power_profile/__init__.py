"""Fine-grain power profiles of one kernel or of kernels in turn."""
