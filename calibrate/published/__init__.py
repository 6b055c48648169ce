"""Published training steps: read, planned, and the factors of long training runs that are fitted to them.

To read: ``rows`` reads the files, ``plans`` makes a plan of a row, ``fit`` fits factors to step times, ``left_out``
forecasts steps by fits that have not seen them, and ``shipped`` writes the catalogue's factors.
"""
