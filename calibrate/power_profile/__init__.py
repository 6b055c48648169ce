"""Fine-grain power profiles of one kernel or of kernels in turn.

To read: ``protocol`` says what a profile is made of, ``campaign`` takes the runs, ``response`` and ``inverse`` find
the power behind a sensor's readings, and ``analysis`` puts the profile together.
"""
