"""The measurement protocol: settle, window of whole counter steps, repeats; and the recording that keeps the results."""
