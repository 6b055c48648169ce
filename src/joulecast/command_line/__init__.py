"""What the commands have in common: options, what they print, and what they write.

- ``options``: commands with many options; ``shown``: groups that list a catalogue; ``destinations``: files to write.
- ``output``: answers as JSON, CSV or a table (``drawn_table``); ``progress``: a bar on standard error; ``key_words``:
  short words for keys of plans.
- ``machine``: what is installed here and which cards there are, for ``joulecast doctor``.
- ``compare_lines`` and ``site_report``: comparisons and sites for people.
- ``front_asked``: what ``joulecast front`` is asked; ``front_answers`` has its answers, with ``front_reports`` and
  ``front_lines``.
"""
