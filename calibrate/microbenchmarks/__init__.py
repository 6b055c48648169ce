"""What can be measured on a GPU, and the code that runs it.

To read: ``catalogue`` has what there is, ``row_forms`` the row of each, ``loads`` turns a row into launches, and
``engine`` keeps a card busy with them.
"""
