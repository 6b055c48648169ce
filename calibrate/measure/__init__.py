"""The measurement protocol: settle, a window of whole counter steps, repeats; and the recording of the results.

To read: ``protocol`` measures one microbenchmark, ``window`` makes energy and power of a stretch of samples,
``recording`` keeps them.
"""
