"""The measurement protocol: settle, a window of whole counter steps, repeats; and the recording of the results."""
